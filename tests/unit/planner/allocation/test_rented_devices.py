"""What a budget is spent on where GPUs are cut: they are paid for whole, whatever is used of them."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Placement
from sluicegate.planner.allocation.units import Part, equal_part, group_units, rented
from sluicegate.planner.problems.explain import explain
from sluicegate.planner.problems.problem import Allocation, AppDemand, Problem
from sluicegate.planner.registry import planner
from sluicegate.profiles.catalogue.catalogue import Catalogue


def cut(name: str, *profiles: str, price: float, kind: str = "gpu") -> Device:
    parts = tuple(Slice(name=f"{profile}.{at}", profile=profile) for at, profile in enumerate(profiles))
    return Device(name=name, type=kind, slices=parts, price=price)


OLD, NEW = cut("old", "1g", "1g", "1g", price=3.0), cut("new", "1g", "1g", "1g", price=3.0)
WIDE = cut("wide", "2g", "1g", price=2.5)
CPU = Device(name="cpu", type="cpu", price=1.0)


def at(device: Device, *parts: int) -> list[Placement]:
    return [Placement(device.name, "cat", ("cat-s",), 0.1, 1, device.slices[part].name) for part in parts]


def names(choices: Iterable[Iterable[Device]]) -> list[list[str]]:
    return [[d.name for d in choice] for choice in choices]


def test_as_many_as_hold_what_is_used_are_rented_those_first_that_are_used_most() -> None:
    scattered = [*at(OLD, 0), *at(NEW, 0, 2)]
    assert names(rented((OLD, NEW), scattered, 9.0)) == [["new"]]
    assert names(rented((OLD, NEW), [*scattered, *at(OLD, 1)], 9.0)) == [["new", "old"]]
    assert names(rented((OLD, NEW), (), 9.0)) == []


def test_of_each_profile_there_must_be_enough() -> None:
    other = replace(WIDE, name="other")
    assert names(rented((WIDE, other), [*at(WIDE, 0), *at(other, 1)], 9.0)) == [["other"]]
    assert names(rented((WIDE, other), [*at(WIDE, 0), *at(other, 0)], 9.0)) == [["other", "wide"]]


def test_within_the_money_each_that_is_used_in_part_is_tried_before_all_others() -> None:
    used = [*at(OLD, 0), *at(WIDE, 0), *at(CPU, 0)]
    assert names(rented((OLD, WIDE, CPU), used, 6.5)) == [["cpu", "old", "wide"]]
    assert names(rented((OLD, WIDE, CPU), used, 6.4)) == [["cpu", "wide"], ["cpu", "old"]]
    assert names(rented((OLD, WIDE, CPU), used, 3.4)) == [["cpu"], ["old"], ["wide"]]
    assert names(rented((OLD, WIDE, CPU), used, 0.9)) == []


def test_a_part_costs_its_part_where_that_is_asked_for() -> None:
    def prices(by_part: Part | None) -> list[float]:
        return sorted(key.price for key in group_units((OLD, WIDE, CPU), (), by_price=True, by_part=by_part))

    assert prices(None) == [1.0, 2.5, 2.5, 3.0]
    assert prices(equal_part) == [1.0, 1.0, 1.25, 1.25]


def problem(budget: float | None, devices: tuple[Device, ...], qps: float = 100.0) -> Problem:
    """``cat``: 20/s on a 1g, 40/s on a 2g, 10/s on a CPU, at 0.9; half as fast and ten times as many at 0.6."""
    rates = {"gpu:1g": 20.0, "gpu:2g": 40.0, "cpu": 10.0}
    variants = [Variant(name="cat-l", app="cat", accuracy=0.9), Variant(name="cat-s", app="cat", accuracy=0.6)]
    profiles = [
        Profile(variant=v.name, device_type=kind, points=(BatchLatency(1, 1 / (rate * more), 1 / (rate * more)),))
        for kind, rate in rates.items()
        for v, more in zip(variants, (1, 10), strict=True)
    ]
    catalogue = Catalogue.of([App(name="cat", slo=1.0)], variants, profiles)
    demands = (AppDemand(app="cat", qps=qps, slo=1.0, headroom=1.0),)
    return Problem(demands=demands, devices=devices, catalogue=catalogue, budget=budget)


def spent(asked: Problem, found: Allocation) -> float:
    used = {p.device for p in found.placements}
    return sum(d.price for d in asked.devices if d.name in used)


@pytest.mark.parametrize("name", ["allocation", "allocation-rounded"])
@pytest.mark.parametrize(
    ("budget", "cost", "accurate"), [(2.9, 1.0, 0.0), (3.0, 3.0, 40.0), (4.0, 4.0, 60.0), (7.0, 6.0, 100.0)]
)
def test_what_is_rented_is_used_whole(name: str, budget: float, cost: float, accurate: float) -> None:
    asked = problem(budget, (OLD, NEW, CPU))
    found = planner(name).allocate(asked)
    assert spent(asked, found) == cost
    best = sum(100.0 * p.share for p in found.placements if p.variants == ("cat-l",))
    assert accurate - (0.1 if name == "allocation" else 10.1) <= best <= accurate + 0.1
    assert found.bound >= found.objective
    assert found.served["cat"] == 1.0 or budget < 3.0


def test_what_costs_nothing_is_there_besides_and_what_no_budget_pays_for_is_not_thought_of() -> None:
    free = replace(CPU, name="free", price=0.0)
    asked = problem(2.9, (OLD, free), qps=20.0)
    found = planner("allocation").allocate(asked)
    assert {p.device for p in found.placements} == {"free"}
    assert planner("allocation").allocate(problem(0.5, (OLD, CPU))).served == {"cat": 0.0}


def test_one_more_unit_of_money_is_told_by_parts() -> None:
    asked = problem(3.0, (OLD, NEW, CPU), qps=1000.0)
    found = planner("allocation").allocate(asked)
    told = "\n".join(explain(asked, found, {d.name: d.type for d in asked.devices}).binding)
    assert "the budget of 3 an hour binds; one more serves 200.0 rows/s more" in told


def test_of_two_that_do_as_well_the_one_that_is_loaded_stays() -> None:
    for kept, other in ((OLD, NEW), (NEW, OLD)):
        held = [replace(p, variants=("cat-l",)) for p in at(kept, 0, 1)]
        asked = replace(problem(3.0, (kept, other), qps=50.0), previous=tuple(held))
        found = planner("allocation").allocate(asked)
        assert {p.device for p in found.placements} == {kept.name}
        assert found.loads == 1

"""The planner of the settings under model-less scaling: few units, wishes followed, geometries with it."""

from dataclasses import replace

import pytest

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Placement
from sluicegate.planner.capacity.events import Wishes
from sluicegate.planner.geometry.gpu_pools import sliced
from sluicegate.planner.model_less.planner_choice import PlannerChoice
from sluicegate.planner.model_less.scaled_plan import ScaledPlan
from sluicegate.planner.problems.problem import Allocation, AppDemand, Problem
from sluicegate.planner.registry import planner, planner_of
from sluicegate.profiles.catalogue.catalogue import Catalogue
from tests.unit.planner.geometry.test_change_price import standing


def catalogue() -> Catalogue:
    """``a``: slow 0.9 at 10/s, quick 0.8 at 100/s on a CPU, more on a GPU. ``b``: one variant."""
    variants = [
        Variant(name="slow", app="a", accuracy=0.9, family="net"),
        Variant(name="quick", app="a", accuracy=0.8, family="net"),
        Variant(name="words", app="b", accuracy=0.6, family="text"),
    ]
    seconds = {
        ("slow", "cpu"): 0.1,
        ("quick", "cpu"): 0.01,
        ("words", "cpu"): 0.02,
        ("slow", "a100"): 0.01,
        ("quick", "a100"): 0.00125,
    }
    profiles = [
        Profile(variant=v, device_type=t, points=(BatchLatency(1, s, s),), load=2.0) for (v, t), s in seconds.items()
    ]
    return Catalogue.of([App(name="a", slo=0.5), App(name="b", slo=0.3)], variants, profiles)


def asked(a: float, b: float = 0.0, *, cpus: int = 4, gpus: int = 1, **more: object) -> Problem:
    devices = [Device(name=f"cpu{i}", type="cpu", price=1.0) for i in range(cpus)]
    devices += [Device(name=f"gpu{i}", type="a100", price=5.0) for i in range(gpus)]
    demands = [AppDemand(app="a", qps=a, slo=0.5, headroom=1.05)]
    if b:
        demands.append(AppDemand(app="b", qps=b, slo=0.3, headroom=1.05))
    problem = Problem(demands=tuple(demands), devices=tuple(devices), catalogue=catalogue())
    return replace(problem, **more)  # type: ignore[arg-type]


def held(allocation: Allocation) -> list[tuple[str, str]]:
    return sorted((p.device[:3], p.variants[0]) for p in allocation.placements)


def scaled(name: str = "allocation") -> ScaledPlan:
    return ScaledPlan(planner(name))


def test_it_is_as_accurate_as_the_planner_alone_and_leaves_what_that_does_not_take() -> None:
    for a in (5.0, 40.0, 90.0, 300.0):
        alone = planner("allocation").allocate(asked(a, 20.0))
        few = scaled().allocate(asked(a, 20.0))
        assert few.served == pytest.approx(alone.served)
        assert few.objective == pytest.approx(alone.objective, abs=1e-3)
        assert len(few.placements) <= len(alone.placements)
    assert held(scaled().allocate(asked(5.0, 20.0))) == [("cpu", "slow"), ("cpu", "words")], "the GPU costs five"


def test_dear_money_is_minded_and_units_without_a_price_count_alike() -> None:
    assert ("gpu", "slow") in held(scaled().allocate(asked(90.0)))
    dear = scaled().allocate(asked(90.0, money_weight=0.1))
    assert held(dear) == [("cpu", "quick")]
    free = asked(5.0, gpus=0)
    free = replace(free, devices=tuple(replace(d, price=0.0) for d in free.devices))
    assert held(scaled().allocate(free)) == [("cpu", "slow")]


def test_a_device_that_interferes_is_left_while_others_serve_as_much() -> None:
    planning = scaled()
    placed = planning.allocate(asked(5.0)).placements
    assert [p.device for p in placed] == ["cpu0"]
    planning.wishes = Wishes(("cpu0",), (), {})
    moved = planning.allocate(asked(5.0, previous=placed))
    assert [p.device for p in moved.placements] == ["cpu1"]
    alone = asked(5.0, cpus=1, gpus=0, previous=placed)
    assert [p.device for p in planning.allocate(alone).placements] == ["cpu0"], "nothing else could answer"


def test_a_variant_that_is_asked_for_gets_an_idle_unit_or_one_that_others_can_spare() -> None:
    planning = scaled()
    planning.wishes = Wishes((), ("quick", "unheard-of"), {})
    found = planning.allocate(asked(5.0))
    assert held(found) == [("cpu", "quick"), ("cpu", "slow")], "on the cheapest that is idle"
    (extra,) = (p for p in found.placements if p.variants == ("quick",))
    assert (extra.share, extra.max_batch, found.loads) == (0.0, 1, 2)
    spared = planning.allocate(asked(9.0, cpus=2, gpus=0, previous=_both("slow")))
    assert held(spared) == [("cpu", "quick"), ("cpu", "slow")]
    assert spared.served == {"a": 1.0}
    full = planning.allocate(asked(9.5, cpus=1, gpus=0))
    assert held(full) == [("cpu", "slow")], "it would leave its app with less"


def test_of_units_in_use_one_of_the_same_app_is_spared_for_a_variant_that_is_asked_for() -> None:
    planning = scaled()
    problem = asked(15.0, 20.0, cpus=3, gpus=0)
    alone = planning.allocate(problem)
    assert held(alone) == [("cpu", "slow"), ("cpu", "slow"), ("cpu", "words")]
    planning.wishes = Wishes((), ("quick",), {})
    found = planning.allocate(replace(problem, previous=alone.placements))
    (extra,) = (p for p in found.placements if p.share == 0.0)
    assert extra.variants == ("quick",)
    assert extra.device in {p.device for p in alone.placements if p.app == "a"}
    assert found.served == pytest.approx({"a": 1.0, "b": 1.0})
    assert found.steps[-1] == f"quick is asked for: on {extra.device}"


@pytest.mark.parametrize(("budget", "both"), [(1.0, False), (1.9, False), (2.0, True)])
def test_a_variant_that_is_asked_for_gets_no_unit_beyond_the_budget(budget: float, both: bool) -> None:
    """One CPU is enough for what is served."""
    planning = scaled()
    planning.wishes = Wishes((), ("quick",), {})
    few = planning.allocate(asked(5.0, budget=budget))
    assert held(few) == ([("cpu", "quick"), ("cpu", "slow")] if both else [("cpu", "slow")])
    assert few.served == {"a": 1.0}


def test_a_unit_that_others_spare_is_given_only_where_the_budget_bears_what_they_take_instead() -> None:
    """Of two CPUs in use none can be had unless a third takes what it does."""
    full = planner("allocation").allocate(asked(5.0, 20.0, cpus=2, gpus=0)).placements
    planning = scaled()
    planning.wishes = Wishes((), ("quick",), {})
    for budget in (2.0, 3.0):
        few = planning.allocate(asked(5.0, 20.0, cpus=3, gpus=0, previous=full, budget=budget))
        assert len({p.device for p in few.placements}) == budget
        assert min(few.served.values()) == 1.0


def test_a_budget_limits_nothing_where_nothing_has_a_price() -> None:
    free = asked(5.0, 20.0, gpus=0, budget=0.5)
    free = replace(free, devices=tuple(replace(d, price=0.0) for d in free.devices))
    assert held(scaled().allocate(free)) == [("cpu", "slow"), ("cpu", "words")]


def test_where_no_device_is_there_nothing_is_placed_and_nothing_served() -> None:
    found = scaled().allocate(asked(5.0, 2.0, cpus=0, gpus=0))
    assert (found.placements, dict(found.served)) == ((), {"a": 0.0, "b": 0.0})


def _both(variant: str) -> tuple[Placement, ...]:
    return tuple(Placement(f"cpu{i}", "a", (variant,), 0.5, 1) for i in range(2))


def test_what_a_dead_worker_held_is_what_the_one_in_its_place_gets() -> None:
    planning = scaled()
    planning.wishes = Wishes((), (), {"cpu3": ("slow",)})
    found = planning.allocate(asked(5.0))
    assert ([p.device for p in found.placements], found.loads) == (["cpu3"], 0)


@pytest.mark.parametrize("price", [0.0, 2.0])
def test_gpus_are_cut_with_it_but_for_one_that_interferes(price: float) -> None:
    planning = planner_of(PlannerChoice(scaling="plan", geometry="joint"))
    assert isinstance(planning, ScaledPlan)
    busy = _gpus(300.0, 200.0, price)
    found = planning.allocate(busy)
    assert found.geometries
    assert {p.device for p in found.placements} == {d.name for d in busy.devices} - set(found.geometries)
    beside = sorted(found.geometries)[0]
    planning.wishes = Wishes((beside,), (), {})
    moved = planning.allocate(busy)
    assert beside not in {*(moved.geometries or ()), *(p.device for p in moved.placements)}
    assert moved.served_by_class == found.served_by_class
    calm = planning.allocate(_gpus(40.0, 20.0, price))
    assert calm.objective == pytest.approx(1.0, abs=1e-3)
    assert len({p.device for p in calm.placements}) <= 5, "of eight"


@pytest.mark.parametrize("demand", [(110.0, 75.0), (200.0, 130.0), (300.0, 200.0)])
def test_gpus_without_a_price_are_cut_like_those_of_one(demand: tuple[float, float]) -> None:
    free, dear = (
        planner_of(PlannerChoice(scaling="plan", geometry="joint")).allocate(_gpus(*demand, price))
        for price in (0.0, 3.0)
    )
    assert free.geometries == dear.geometries
    assert free.placements == dear.placements


def _gpus(vision: float, bulk: float, price: float) -> Problem:
    """Eight whole GPUs that have stood for 50 s; one of them is being cut."""
    problem = replace(standing(vision, bulk), stood={"vision": 50.0, "bulk": 90.0})
    assert problem.recuts is not None
    devices = tuple(replace(d, price=price) for d in problem.devices)
    changing = replace(sliced("g8", "a100", ("4g", "3g")), price=price)
    return replace(problem, devices=devices, recuts=replace(problem.recuts, changing=(changing,)))

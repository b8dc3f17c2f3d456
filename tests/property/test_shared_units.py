"""More apps than units, without a solver: each that fits somewhere is hosted, within memory and each unit's second."""

from dataclasses import replace
from itertools import product
from math import comb

import pytest
from hypothesis import given

from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.allocation.columns import MAX_SETS
from sluicegate.planner.allocation.units import group_units
from sluicegate.planner.greedy_fill import GreedyFill
from sluicegate.planner.problems.problem import Allocation, AppDemand, Problem
from sluicegate.planner.problems.throughput import throughput
from sluicegate.planner.shared_units import SharedUnits
from sluicegate.profiles.catalogue.catalogue import Catalogue
from tests.property.examples import drawn
from tests.property.problems import assert_feasible, problems

_MB = 1 << 20


def shares_units(problem: Problem) -> bool:
    return SharedUnits(problem, group_units(problem.devices, ())).needed


def placed(answer: Allocation) -> dict[str, set[str]]:
    """Apps by device."""
    found: dict[str, set[str]] = {}
    for p in answer.placements:
        found.setdefault(p.device, set()).add(p.app)
    return found


def rate(problem: Problem, variant: str, device: Device, budget: float) -> float:
    profile = problem.catalogue.profiles.get((variant, device.type))
    return throughput(profile, budget).qps if profile is not None else 0.0


def could_hold(problem: Problem, device: Device, apps: set[str]) -> bool:
    """Counted anew: a variant of each app, together within the limit, the memory and SLO / (k + 1)."""
    if len(apps) > problem.variants_per_device:
        return False
    budget = min(d.slo for d in problem.demands if d.app in apps) / (len(apps) + 1)
    least = 0
    for app in apps:
        floor = min(d.min_accuracy for d in problem.demands if d.app == app)
        sizes = [
            problem.catalogue.profiles[v.name, device.type].memory_bytes
            for v in problem.catalogue.variants.values()
            if v.app == app and v.accuracy >= floor and rate(problem, v.name, device, budget) > 0.0
        ]
        if not sizes:
            return False
        least += min(sizes)
    return not device.memory_bytes or least <= device.memory_bytes


def assert_no_unit_over_its_second(problem: Problem, answer: Allocation) -> None:
    devices = {d.name: d for d in problem.devices}
    for name, apps in placed(answer).items():
        budget = min(d.slo for d in problem.demands if d.app in apps) / (len(apps) + 1)
        busy = 0.0
        for p in answer.placements:
            if p.device == name:
                (variant,) = p.variants
                mine = [d for d in problem.demands if d.app == p.app]
                asked = sum(d.qps for d in mine) * min(d.headroom for d in mine)
                busy += p.share * asked / rate(problem, variant, devices[name], budget)
        assert busy <= 1.0 + 1e-6


@drawn(150)
@given(problem=problems(variants_per_device=3, max_devices=3))
def test_whoever_fits_is_hosted(problem: Problem) -> None:
    answer = GreedyFill().allocate(problem)
    if not shares_units(problem):
        assert answer == GreedyFill().allocate(replace(problem, variants_per_device=1))
        return
    assert_feasible(problem, answer)
    assert_no_unit_over_its_second(problem, answer)
    held = placed(answer)
    left_out = {d.app for d in problem.demands} - set().union(*held.values())
    for app, device in product(sorted(left_out), problem.devices):
        assert not could_hold(problem, device, {*held.get(device.name, ()), app})
    turned = replace(problem, demands=problem.demands[::-1], devices=problem.devices[::-1])
    assert GreedyFill().allocate(turned) == answer


def unequal(count: int, *, memory: int = 10, qps: float = 5.0) -> tuple[Catalogue, tuple[AppDemand, ...]]:
    """Apps of three variants, unlike each other in size, speed and demand; those of even number best effort too."""
    apps, variants, profiles = [], [], []
    for a in range(count):
        apps.append(App(name=f"a{a:02}", slo=1.0 + 0.1 * a))
        for v in range(3):
            variants.append(Variant(name=f"a{a:02}-v{v}", app=f"a{a:02}", accuracy=0.6 + 0.1 * v + 0.001 * a))
            points = tuple(BatchLatency(b, (1 + v) * s, 1.1 * (1 + v) * s) for b in (1, 8) for s in [0.004 * (a + b)])
            size = (memory + a) * (1 + v) * _MB
            profiles.append(Profile(variant=f"a{a:02}-v{v}", device_type="cpu", points=points, memory_bytes=size))
    demands = [AppDemand(app=f"a{a:02}", qps=qps * (1 + a % 3), slo=1.0 + 0.1 * a) for a in range(count)]
    demands += [replace(d, qps=1.0, query_class=QueryClass.BEST_EFFORT) for d in demands[::2]]
    return Catalogue.of(apps, variants, profiles), tuple(demands)


def asked(count: int, units: int, several: int, *, memory_mb: int = 0, qps: float = 5.0) -> Problem:
    catalogue, demands = unequal(count, qps=qps)
    devices = tuple(Device(name=f"d{i}", type="cpu", memory_bytes=memory_mb * _MB) for i in range(units))
    return Problem(demands=demands, devices=devices, catalogue=catalogue, variants_per_device=several)


def hosted(answer: Allocation) -> set[str]:
    return {p.app for p in answer.placements}


@pytest.mark.parametrize(("apps", "units", "several"), [(5, 2, 3), (7, 2, 4), (16, 2, 8), (24, 3, 8), (9, 4, 3)])
def test_every_app_is_hosted_however_many_sets_there_are(apps: int, units: int, several: int) -> None:
    problem = asked(apps, units, several)
    answer = GreedyFill().allocate(problem)
    assert hosted(answer) == set(problem.catalogue.apps)
    assert_feasible(problem, answer)
    assert_no_unit_over_its_second(problem, answer)
    assert comb(apps, several) > MAX_SETS or apps < 16


def test_apps_that_nobody_asks_for_yet_are_hosted_with_the_rest() -> None:
    problem = asked(5, 2, 3)
    none = replace(problem, demands=tuple(replace(d, qps=0.0 if d.app != "a01" else 9.0) for d in problem.demands))
    answer = GreedyFill().allocate(none)
    assert hosted(answer) == set(problem.catalogue.apps)
    assert set(answer.served.values()) == {1.0}
    assert all(p.share > 0.0 for p in answer.placements)


def test_with_too_little_memory_small_variants_stand_in_for_accurate_ones() -> None:
    wide, tight = (GreedyFill().allocate(asked(5, 2, 3, memory_mb=m, qps=0.5)) for m in (0, 45))
    assert hosted(wide) == hosted(tight) == {f"a{a:02}" for a in range(5)}
    assert {p.variants[0][-2:] for p in wide.placements} == {"v2"}
    assert "v0" in {p.variants[0][-2:] for p in tight.placements}
    assert_feasible(asked(5, 2, 3, memory_mb=45, qps=0.5), tight)


def test_an_app_that_fits_nowhere_keeps_no_other_out() -> None:
    problem = asked(6, 2, 3)
    profiles = dict(problem.catalogue.profiles)
    for (variant, kind), profile in profiles.items():
        if variant.startswith("a03"):
            profiles[variant, kind] = replace(
                profile, points=tuple(BatchLatency(p.batch, 9 * p.batch, 9 * p.batch) for p in profile.points)
            )
    never = replace(problem, catalogue=replace(problem.catalogue, profiles=profiles))
    answer = GreedyFill().allocate(never)
    assert hosted(answer) == {f"a{a:02}" for a in range(6)} - {"a03"}
    assert answer.served["a03"] == 0.0


def test_a_small_app_makes_room_where_a_large_one_fits_elsewhere() -> None:
    """Strict apps are placed first, each where it has a unit to itself; the last one fits beside one of them only."""
    sizes = {"s1": 30, "s2": 20, "e": 40}
    points = (BatchLatency(1, 0.01, 0.01),)
    catalogue = Catalogue.of(
        [App(name=a, slo=1.0) for a in sizes],
        [Variant(name=f"{a}-v", app=a, accuracy=0.9) for a in sizes],
        [Profile(variant=f"{a}-v", device_type="cpu", points=points, memory_bytes=m * _MB) for a, m in sizes.items()],
    )
    demands = tuple(
        AppDemand(app=a, qps=1.0, slo=1.0, query_class=QueryClass.BEST_EFFORT if a == "e" else QueryClass.STRICT)
        for a in sizes
    )
    devices = (
        Device(name="d0", type="cpu", memory_bytes=50 * _MB),
        Device(name="d1", type="cpu", memory_bytes=40 * _MB),
    )
    problem = Problem(demands=demands, devices=devices, catalogue=catalogue, variants_per_device=2)
    answer = GreedyFill().allocate(problem)
    assert placed(answer) == {"d0": {"s1", "s2"}, "d1": {"e"}}


def test_what_an_app_lacks_is_answered_by_units_of_others_that_lose_nothing() -> None:
    catalogue, demands = unequal(5, qps=1.0)
    heavy = tuple(
        replace(d, qps=400.0) if d.app == "a00" and d.query_class is QueryClass.STRICT else d for d in demands
    )
    devices = tuple(Device(name=f"d{i}", type="cpu") for i in range(2))
    problem = Problem(demands=heavy, devices=devices, catalogue=catalogue, variants_per_device=4)
    answer = GreedyFill().allocate(problem)
    assert sum(p.app == "a00" for p in answer.placements) == 2
    assert {app for app, part in answer.served.items() if part < 1.0} <= {"a00"}
    assert_no_unit_over_its_second(problem, answer)


@pytest.mark.parametrize("budget", [1.0, 2.0, 3.0])
def test_no_more_is_rented_than_the_budget_bears(budget: float) -> None:
    problem = asked(5, 3, 5)
    devices = tuple(replace(d, price=1.0, spot=i == 2) for i, d in enumerate(problem.devices))
    answer = GreedyFill().allocate(replace(problem, devices=devices, budget=budget, strict_on_demand=0.5))
    assert len(placed(answer)) <= budget
    assert hosted(answer) == set(problem.catalogue.apps)


def test_of_strict_queries_a_shared_spot_unit_answers_its_part_and_of_others_any() -> None:
    """Three apps on two units that each could serve all; of strict ones three quarters are not for the spot unit."""
    problem = asked(3, 2, 3)
    light = tuple(replace(d, qps=0.1 * d.qps) for d in problem.demands)
    devices = tuple(replace(d, price=1.0, spot=i == 1) for i, d in enumerate(problem.devices))
    firm = replace(problem, demands=light, devices=devices, strict_on_demand=0.75)
    assert set(GreedyFill().allocate(firm).served_by_class.values()) == {1.0}
    alone = GreedyFill().allocate(replace(firm, devices=devices[1:])).served_by_class
    assert alone == {(d.app, d.query_class): float(d.query_class is QueryClass.BEST_EFFORT) for d in light}


def test_slices_are_units() -> None:
    problem = asked(5, 1, 3)
    halves = (Slice(name="0", profile="half", memory_bytes=0), Slice(name="1", profile="half", memory_bytes=0))
    profiles = {(v, "cpu:half"): replace(p, device_type="cpu:half") for (v, _), p in problem.catalogue.profiles.items()}
    cut = replace(
        problem,
        devices=(replace(problem.devices[0], slices=halves),),
        catalogue=replace(problem.catalogue, profiles=profiles),
    )
    answer = GreedyFill().allocate(cut)
    assert hosted(answer) == set(problem.catalogue.apps)
    assert {p.slice for p in answer.placements} == {"0", "1"}

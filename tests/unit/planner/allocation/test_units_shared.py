"""Which apps share a unit without a solver, counted by hand: seconds of each unit, and who gains from another's."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Placement
from sluicegate.planner.allocation.columns import MAX_SETS, build
from sluicegate.planner.allocation.program import Program
from sluicegate.planner.allocation.rounding import Whole
from sluicegate.planner.allocation.units import group_units
from sluicegate.planner.greedy_fill import serve
from sluicegate.planner.problems.problem import AppDemand, Problem
from sluicegate.planner.registry import planner
from sluicegate.planner.shared_units import SharedUnits
from sluicegate.profiles.catalogue.catalogue import Catalogue

SECONDS = {"a-high": 0.1, "a-low": 0.02, "b-only": 0.05}
ACCURACY = {"a-high": 0.9, "a-low": 0.7, "b-only": 0.8}
CATALOGUE = Catalogue.of(
    [App(name=app, slo=1.0) for app in "ab"],
    [Variant(name=name, app=name[0], accuracy=accuracy) for name, accuracy in ACCURACY.items()],
    [
        Profile(variant=name, device_type="cpu", points=(BatchLatency(1, s, s),), memory_bytes=10 * (1 + i))
        for i, (name, s) in enumerate(SECONDS.items())
    ],
)
A = AppDemand(app="a", qps=10.0, slo=1.0, headroom=1.0)
"""One second a second of the accurate variant, a fifth of the other."""
PICKY = replace(A, qps=5.0, min_accuracy=0.85, query_class=QueryClass.BEST_EFFORT)
B = AppDemand(app="b", qps=25.0, slo=1.0, headroom=1.0)
"""A second and a quarter."""


def problem(*demands: AppDemand, units: int = 2, **more: object) -> Problem:
    devices = tuple(Device(name=f"d{i}", type="cpu", price=2.0) for i in range(units))
    asked = Problem(demands=demands, devices=devices, catalogue=CATALOGUE, variants_per_device=2)
    return replace(asked, **more)  # type: ignore[arg-type]


def shared(asked: Problem) -> SharedUnits:
    return SharedUnits(asked, group_units(asked.devices, (), by_price=asked.by_price))


def held(program: Program, whole: Whole) -> dict[tuple[str, ...], int]:
    return {host.variants: int(n) for host, n in zip(program.hosts, whole.units, strict=True)}


@pytest.mark.parametrize(
    ("demands", "units", "several", "needed"),
    [
        ((A, B), 1, 2, True),
        ((A, B), 2, 2, False),
        ((A, B), 1, 1, False),
        ((A, PICKY), 1, 2, False),
        ((A, B), 0, 2, False),
        ((A, replace(B, slo=0.09)), 1, 2, False),
    ],
)
def test_units_are_shared_only_where_apps_that_fit_are_more_than_units(
    demands: tuple[AppDemand, ...], units: int, several: int, needed: bool
) -> None:
    assert shared(problem(*demands, units=units, variants_per_device=several)).needed is needed


def test_an_app_that_lacks_service_gets_time_of_a_unit_whose_app_is_answered_as_before() -> None:
    """On a unit each, b lacks a fifth. What a accurate second of a took is enough for all that was answered by it.

    The queries that only the accurate variant may answer had no time before either.
    """
    program, whole = shared(problem(A, PICKY, B)).hosted()
    assert [(d.app, d.query_class.value) for d in program.demands] == [
        ("a", "best_effort"), ("a", "strict"), ("b", "strict"),
    ]  # fmt: skip
    assert whole.served == pytest.approx(np.array([0.0, 1.0, 1.0]))
    assert held(program, whole) == {("b-only",): 1, ("a-low", "b-only"): 1}


def test_an_app_that_would_lose_by_it_shares_no_unit() -> None:
    program, whole = shared(problem(replace(A, qps=60.0), B)).hosted()
    assert held(program, whole) == {("a-low",): 1, ("b-only",): 1}
    assert whole.served == pytest.approx(np.array([50.0 / 60.0, 0.8]))
    assert whole.accuracy == pytest.approx((60.0 * 50.0 / 60.0 * 0.7 / 0.9 + 25.0 * 0.8) / 85.0)


EQUAL = replace(CATALOGUE, profiles={key: replace(p, memory_bytes=7) for key, p in CATALOGUE.profiles.items()})


@pytest.mark.parametrize(
    ("a", "b", "catalogue", "hosted"),
    [
        (replace(A, qps=20.0), replace(B, qps=12.0), EQUAL, "b-only"),  # 0.4 of a second of the fastest, and 0.6
        (replace(A, qps=35.0), replace(B, qps=12.0), EQUAL, "a-low"),  # 0.7 of a second
        (replace(A, qps=25.0), replace(B, qps=12.0, headroom=2.0), EQUAL, "b-only"),
        (replace(A, qps=35.0), replace(B, qps=12.0), CATALOGUE, "b-only"),  # is larger
        (replace(A, qps=1.0), replace(B, query_class=QueryClass.BEST_EFFORT), CATALOGUE, "a-high"),
        (replace(A, qps=1.0), replace(B, qps=0.0), CATALOGUE, "a-high"),
        (replace(A, qps=0.0), replace(B, query_class=QueryClass.BEST_EFFORT), EQUAL, "b-only"),
    ],
)
def test_apps_that_are_asked_for_come_first_then_strict_ones_then_the_largest_then_the_busiest(
    a: AppDemand, b: AppDemand, catalogue: Catalogue, hosted: str
) -> None:
    program, whole = shared(problem(a, b, units=1, variants_per_device=1, catalogue=catalogue)).hosted()
    assert held(program, whole) == {(hosted,): 1}


def test_of_one_unit_each_app_has_an_even_part_and_what_another_does_not_need() -> None:
    """Three tenths of a second by the fast variant leave seven for b, which needs more."""
    program, whole = shared(problem(replace(A, qps=15.0), B, units=1)).hosted()
    assert held(program, whole) == {("a-low", "b-only"): 1}
    assert whole.served == pytest.approx(np.array([1.0, 0.7 / 1.25]))
    program, whole = shared(problem(replace(A, qps=100.0), B, units=1)).hosted()
    assert whole.served == pytest.approx(np.array([0.25, 0.4]))


def test_the_accurate_variant_is_held_where_half_a_second_is_enough_and_memory_goes_round() -> None:
    light = (replace(A, qps=4.0), replace(B, qps=5.0))
    for memory, names in ((0, "a-high"), (40, "a-high"), (50, "a-high")):
        devices = (Device(name="d0", type="cpu", memory_bytes=memory),)
        program, whole = shared(problem(*light, devices=devices)).hosted()
        assert held(program, whole) == {(names, "b-only"): 1}
        assert whole.served == pytest.approx(np.array([1.0, 1.0]))
    devices = (Device(name="d0", type="cpu", memory_bytes=39),)
    program, whole = shared(problem(*light, devices=devices)).hosted()
    assert len(program.hosts) == 1 and len(program.hosts[0].variants) == 1


def test_no_unit_is_taken_beyond_the_budget() -> None:
    for budget, served in ((4.0, [1.0, 0.8]), (3.9, [1.0, 0.6])):
        program, whole = shared(problem(replace(A, qps=20.0), B, budget=budget)).hosted()
        assert int(whole.units.sum()) == (2 if budget == 4.0 else 1)
        assert whole.served[0] == pytest.approx(served[0])
    program, whole = shared(problem(A, B, budget=1.9)).hosted()
    assert not program.hosts and whole.served.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("qps", "units"), [(59.0, [1, 1, 2]), (61.0, [0, 2, 2])])
def test_the_heuristic_gives_units_to_what_serves_most_and_then_to_the_more_accurate(
    qps: float, units: list[int]
) -> None:
    """A fast unit answers 50 a second; nine more are as well answered by an accurate one, eleven are not."""
    asked = problem(replace(A, qps=qps), B, units=4, variants_per_device=1)
    pools = group_units(asked.devices, ())
    program = build(asked, {key: len(units) for key, units in pools.items()}, {})
    assert [h.variants[0] for h in program.hosts] == ["a-high", "a-low", "b-only"]
    assert serve(program).tolist() == units


def equal_apps(count: int, variants: int) -> Catalogue:
    """Apps that are alike but for their names, each with faster and more accurate variants."""
    names = {f"{chr(ord('a') + i)}{v}": v for i in range(count) for v in range(variants)}
    return Catalogue.of(
        [App(name=app, slo=2.0) for app in sorted({name[0] for name in names})],
        [Variant(name=name, app=name[0], accuracy=0.7 + 0.05 * v) for name, v in names.items()],
        [
            Profile(variant=name, device_type="cpu", points=(BatchLatency(1, 0.004 * 2**v, 0.004 * 2**v),))
            for name, v in names.items()
        ],
    )


@pytest.mark.parametrize(("apps", "units", "together"), [(10, 2, 5), (15, 3, 5)])
def test_every_app_is_served_where_units_hold_just_as_many(apps: int, units: int, together: int) -> None:
    """Only a few of the sets of apps make up a plan for all, and a search is shown a part of the sets."""
    catalogue = equal_apps(apps, 1)
    demands = tuple(AppDemand(app=app, qps=1.0, slo=2.0) for app in catalogue.apps)
    asked = problem(*demands, units=units, variants_per_device=together, catalogue=catalogue)
    answer = planner("allocation-rounded").allocate(asked)
    assert min(answer.served.values()) == 1.0
    assert answer.bound == 1.0


def test_a_plan_may_load_no_more_for_apps_that_share_units_than_it_is_allowed() -> None:
    catalogue = equal_apps(4, 1)
    demands = tuple(AppDemand(app=app, qps=1.0, slo=2.0) for app in catalogue.apps)
    asked = problem(*demands, catalogue=catalogue, max_loads=0)
    held_now = tuple(Placement(device=f"d{i}", app="a", variants=("a0",), share=0.5, max_batch=1) for i in range(2))
    assert planner("allocation").allocate(asked).loads == 4, "nothing is held yet"
    answer = planner("allocation").allocate(replace(asked, previous=held_now))
    assert {p.variants for p in answer.placements} == {("a0",)}


@pytest.mark.parametrize(("apps", "variants", "most"), [(12, 2, 5), (14, 1, 7)])
def test_of_too_many_sets_of_variants_some_of_each_size_are_hosts_for_every_app(
    apps: int, variants: int, most: int
) -> None:
    catalogue = equal_apps(apps, variants)
    demands = tuple(AppDemand(app=app, qps=1.0, slo=2.0) for app in catalogue.apps)
    asked = problem(*demands, variants_per_device=most, catalogue=catalogue)
    pools = group_units(asked.devices, ())
    hosts = [h.variants for h in build(asked, {key: len(units) for key, units in pools.items()}, {}).hosts]
    assert len(hosts) == len(set(hosts)) <= MAX_SETS + apps * variants
    for size in range(2, most + 1):
        assert {name[0] for held in hosts if len(held) == size for name in held} == set(catalogue.apps)


def test_sets_of_variants_are_all_that_fit() -> None:
    catalogue = replace(
        found := equal_apps(4, 2),
        profiles={key: replace(p, memory_bytes=10 * (1 + int(key[0][1]))) for key, p in found.profiles.items()},
    )
    demands = tuple(AppDemand(app=app, qps=1.0, slo=2.0) for app in catalogue.apps)
    asked = problem(*demands, variants_per_device=3, catalogue=catalogue)
    pools = group_units(tuple(replace(d, memory_bytes=40) for d in asked.devices), ())
    hosts = build(asked, {key: len(units) for key, units in pools.items()}, {}).hosts
    memory = {name: p.memory_bytes for (name, _), p in catalogue.profiles.items()}
    fit = [s for n in (1, 2, 3) for s in combinations(sorted(memory), n) if sum(memory[name] for name in s) <= 40]
    assert sorted(h.variants for h in hosts) == sorted(fit)

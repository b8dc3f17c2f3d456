"""Which apps share a unit without a solver, counted by hand: seconds of each unit, and who gains from another's."""

from dataclasses import replace

import numpy as np
import pytest

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.allocation.columns import build
from sluicegate.planner.allocation.program import Program
from sluicegate.planner.allocation.rounding import Whole
from sluicegate.planner.allocation.units import group_units
from sluicegate.planner.greedy_fill import serve
from sluicegate.planner.problems.problem import AppDemand, Problem
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

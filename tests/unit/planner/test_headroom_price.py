"""Headroom is bought while it saves more queries than it costs in accuracy."""

from dataclasses import replace
from math import exp, sqrt

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.priced_headroom import PricedHeadroom, late, overflow
from sluicegate.planner.problems.problem import Allocation, AppDemand, Problem
from sluicegate.profiles.catalogue.catalogue import Catalogue

SECONDS = {"fast": 0.01, "good": 0.04}
CATALOGUE = Catalogue.of(
    [App(name="a", slo=0.1)],
    [Variant(name="fast", app="a", accuracy=0.8), Variant(name="good", app="a", accuracy=0.9)],
    [Profile(variant=v, device_type="cpu", points=(BatchLatency(1, s, s),)) for v, s in SECONDS.items()],
)
"""100 queries/s at 0.8 or 25 at 0.9 a device."""


def asked(qps: float, spread: float, devices: int = 4) -> Problem:
    return Problem(
        demands=(AppDemand(app="a", qps=qps, slo=0.1, spread=spread),),
        devices=tuple(Device(name=f"d{i}", type="cpu") for i in range(devices)),
        catalogue=CATALOGUE,
    )


def capacity(answer: Allocation) -> float:
    return sum(1.0 / SECONDS[p.variants[0]] for p in answer.placements)


def test_headroom_grows_with_the_spread_of_demand() -> None:
    steady, bursty = (PricedHeadroom().allocate(asked(90.0, spread)) for spread in (0.01, 0.5))
    assert capacity(steady) == pytest.approx(100.0)
    assert capacity(bursty) > 150.0
    assert steady.headroom["a"] < bursty.headroom["a"]


def test_a_higher_price_of_unanswered_queries_never_buys_less_capacity() -> None:
    found = [
        capacity(PricedHeadroom().allocate(replace(asked(90.0, 0.3), price=price))) for price in (0.0, 0.1, 1.0, 10.0)
    ]
    assert found == sorted(found)
    assert found[0] < found[-1]


def test_headroom_is_given_up_before_queries_are() -> None:
    answer = PricedHeadroom().allocate(asked(370.0, 0.5))
    assert answer.served["a"] == pytest.approx(1.0)
    assert answer.headroom["a"] == pytest.approx(1.05)


def test_demand_without_spread_keeps_its_headroom() -> None:
    problem = asked(90.0, 0.0)
    assert PricedHeadroom().allocate(problem) == AllocationPlanner().allocate(problem)


def test_overflow_is_the_normal_loss_beyond_capacity() -> None:
    problem = replace(asked(100.0, 0.2, devices=1))
    answer = PricedHeadroom().allocate(problem)
    assert capacity(answer) == pytest.approx(100.0)
    assert overflow(problem, answer) == pytest.approx(0.2 * 0.3989423, rel=1e-6)


def test_a_spread_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="spread"):
        PricedHeadroom().allocate(asked(10.0, float("nan")))


def test_where_an_app_has_few_units_the_most_accurate_variant_stays_as_long_as_its_queues_allow() -> None:
    """A "good" variant carries 25 queries/s: at 18 few wait too long for it, at 23.5 many do."""
    calm, busy = (PricedHeadroom().allocate(roomy(qps, devices=1)) for qps in (18.0, 23.5))
    assert [p.variants for p in calm.placements] == [("good",)]
    assert [p.variants for p in busy.placements] == [("fast",)]
    patient = PricedHeadroom().allocate(replace(roomy(22.0, devices=1), price=0.0))
    assert [p.variants for p in patient.placements] == [("good",)]
    assert PricedHeadroom().allocate(asked(250.0, 0.3, devices=3)).served["a"] == pytest.approx(1.0)


def test_what_waits_too_long_falls_with_room_and_patience_and_rises_with_bursts() -> None:
    base = roomy(20.0, devices=1)
    answer = PricedHeadroom().allocate(base)
    lost = late(base, answer, 0.3)
    assert lost == pytest.approx(0.8 * exp(-2 * 0.2 * 25 * (0.5 - 0.04) / 0.8), rel=1e-6)
    demand = base.demands[0]
    assert late(replace(base, demands=(replace(demand, slo=0.25),)), answer, 0.3) > lost
    assert late(replace(base, demands=(replace(demand, qps=18.0),)), answer, 0.3) < lost
    assert late(replace(base, demands=(replace(demand, spread=0.8),)), answer, 0.3) > lost
    assert late(replace(base, demands=(replace(demand, qps=26.0),)), answer, 0.3) == pytest.approx(1.0)


def roomy(qps: float, devices: int) -> Problem:
    """With an SLO of half a second, and arrivals that are Poisson."""
    problem = asked(qps, sqrt(1.0 / (0.3 * qps)), devices)
    return replace(problem, demands=tuple(replace(d, slo=0.5) for d in problem.demands))

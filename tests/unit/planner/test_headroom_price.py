"""Headroom is bought while it saves more queries than it costs in accuracy."""

from dataclasses import dataclass, field, replace
from math import exp, sqrt
from statistics import NormalDist

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Placement
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


@pytest.mark.parametrize("devices", [2, 4])
def test_an_app_that_nothing_here_can_serve_takes_no_headroom_from_others(devices: int) -> None:
    alone = asked(30.0 * devices, 0.4, devices)
    more = Catalogue.of(
        [*CATALOGUE.apps.values(), App(name="z", slo=0.2)],
        [*CATALOGUE.variants.values(), Variant(name="elsewhere", app="z", accuracy=0.7)],
        [
            *CATALOGUE.profiles.values(),
            Profile(variant="elsewhere", device_type="gpu", points=(BatchLatency(1, 0.1, 0.1),)),
        ],
    )
    unserved = AppDemand(app="z", qps=0.5, slo=0.2, spread=2.0)
    beside = replace(alone, demands=(*alone.demands, unserved), catalogue=more)
    found, other = PricedHeadroom().allocate(alone), PricedHeadroom().allocate(beside)
    assert other.served == {"a": pytest.approx(1.0), "z": 0.0}
    assert (found.headroom["a"], capacity(found)) == (other.headroom["a"], capacity(other))
    assert found.headroom["a"] == (1.1 if devices == 2 else 1.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting(AllocationPlanner):
    """``asked``: headroom of the app, and whether to search, of each problem."""

    asked: list[tuple[float, bool]] = field(default_factory=list, compare=False)

    def allocate(self, problem: Problem) -> Allocation:
        self.asked.append((problem.demands[0].headroom, self.polish))
        return AllocationPlanner.allocate(self, problem)


@pytest.mark.parametrize(
    ("qps", "devices", "headrooms", "searched"),
    [
        (20.0, 16, [1.05], []),  # all by the best, and nobody late: no other could be worth more
        (2.0, 1, [1.1], []),  # a queue of its own: as cautious as is asked for, and once
        (90.0, 4, [1.05, 1.15, 1.3, 1.45, 1.6, 1.9], [1.15]),
        (370.0, 4, [1.05, 1.15], [1.05]),  # the second cannot serve everybody
    ],
)
def test_no_more_is_planned_than_can_be_worth_more(
    qps: float, devices: int, headrooms: list[float], searched: list[float]
) -> None:
    base = Counting()
    answer = PricedHeadroom(base=base).allocate(asked(qps, 0.3, devices))
    assert [headroom for headroom, searching in base.asked if not searching] == pytest.approx(headrooms)
    assert [headroom for headroom, searching in base.asked if searching] == pytest.approx(searched)
    assert answer.headroom["a"] == pytest.approx(searched[0] if searched else headrooms[0])


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


def test_what_waits_too_long_counts_by_weight_and_all_of_what_exceeds_its_room() -> None:
    """Twenty-five queries/s are all that a "good" variant carries: no room is left at all."""
    base = roomy(20.0, devices=1)
    answer = PricedHeadroom().allocate(base)
    alone = 0.8 * exp(-2 * 0.2 * 25 * (0.5 - 0.04) / 0.8)
    (demand,) = base.demands
    other = replace(demand, qps=25.0, weight=3.0, query_class=QueryClass.BEST_EFFORT)
    assert late(replace(base, demands=(other,)), answer, 0.3) == pytest.approx(1.0)
    both = replace(base, demands=(replace(demand, weight=2.0), other))
    assert late(both, answer, 0.3) == pytest.approx((40.0 * alone + 75.0) / 115.0)
    idle = replace(base, demands=(demand, replace(other, qps=0.0)))
    assert late(idle, answer, 0.3) == pytest.approx(alone)
    assert late(replace(base, demands=(replace(other, qps=0.0),)), answer, 0.3) == 0.0
    bursts = replace(base, demands=(replace(demand, spread=0.8),))
    assert late(bursts, answer, 0.3) == pytest.approx(0.8 * exp(-2 * 0.2 * 25 * 0.46 / (0.8 * 0.64 * 0.3 * 20.0)))
    assert late(bursts, answer, 0.15) == pytest.approx(0.8 * exp(-2 * 0.2 * 25 * 0.46 / (0.8 * 0.64 * 0.15 * 20.0)))
    slow = replace(base, latency_factor={("good", "cpu"): 1.1})
    room = 25.0 / 1.1
    assert late(slow, answer, 0.3) == pytest.approx(20.0 / room * exp(-2 * (room - 20) * (0.5 - 0.044) * room / 20.0))


def test_a_shared_unit_counts_in_parts_and_each_app_by_its_weight() -> None:
    """App a has a device and half of another, 150 queries/s; b has 10, the other half."""
    seconds = {"a-v": 0.01, "b-v": 0.05}
    both = Catalogue.of(
        [App(name="a", slo=0.1), App(name="b", slo=0.5)],
        [Variant(name=v, app=v[0], accuracy=0.8) for v in seconds],
        [Profile(variant=v, device_type="cpu", points=(BatchLatency(1, s, s),)) for v, s in seconds.items()],
    )
    demands = (
        AppDemand(app="a", qps=140.0, slo=0.1, spread=0.1),
        AppDemand(app="b", qps=12.0, slo=0.5, weight=3.0),
    )
    problem = replace(asked(1.0, 0.0, devices=2), catalogue=both, demands=demands)
    placements = (
        Placement("d0", "a", ("a-v",), 0.3, 1),
        Placement("d0", "b", ("b-v",), 1.0, 1),
        Placement("d1", "a", ("a-v",), 0.7, 1),
    )
    answer = Allocation(placements=placements, served={"a": 1.0, "b": 1.0}, objective=1.0, bound=1.0)
    normal = NormalDist()

    def lost(room: float) -> float:
        k = (room - 140.0) / 14.0
        return 14.0 * (normal.pdf(k) - k * (1.0 - normal.cdf(k)))

    assert overflow(problem, answer) == pytest.approx((lost(150.0) + 3.0 * 2.0) / 176.0)
    slow = replace(problem, latency_factor={("a-v", "cpu"): 2.0})
    assert overflow(slow, answer) == pytest.approx((lost(75.0) + 6.0) / 176.0)
    # For a class of its own, at 18 ms, the variant is not in time; without b's demand d0 is shared all the same.
    tight = replace(answer, placements=(*placements[:2], replace(placements[2], slo=0.018)))
    assert overflow(problem, tight) == pytest.approx((lost(50.0) + 6.0) / 176.0)
    assert overflow(replace(problem, demands=demands[:1]), answer) == pytest.approx(lost(150.0) / 140.0)
    none = tuple(replace(d, qps=0.0) for d in demands)
    assert overflow(replace(problem, demands=none), answer) == 0.0


@pytest.mark.parametrize(("spread", "headroom"), [(0.2, 1.6), (0.01, 1.05), (5.0, 8.0), (2.3, 7.9)])
def test_headroom_is_so_many_spreads_between_a_floor_and_a_cap(spread: float, headroom: float) -> None:
    answer = PricedHeadroom(ladder=(3.0,)).allocate(asked(10.0, spread))
    assert answer.headroom == {"a": pytest.approx(headroom)}
    assert answer.steps[0] == f"headroom: 3 spreads, {headroom:.2f} to {headroom:.2f} by app"


@pytest.mark.parametrize(("devices", "qps", "headroom"), [(4, 90.0, 1.05), (3, 90.0, 1.1), (3, 285.0, 1.05)])
def test_an_app_with_fewer_than_four_units_has_more_headroom_where_that_can_be_served(
    devices: int, qps: float, headroom: float
) -> None:
    assert PricedHeadroom(ladder=(0.0,)).allocate(asked(qps, 0.2, devices)).headroom["a"] == pytest.approx(headroom)


def test_a_rung_beyond_what_can_be_served_is_not_taken_however_dear_lost_queries_are() -> None:
    """300 queries/s with half of that for headroom are more than 400."""
    dear = replace(asked(300.0, 0.5), price=10.0)
    assert PricedHeadroom(ladder=(0.0, 1.0)).allocate(dear).headroom["a"] == pytest.approx(1.05)
    assert PricedHeadroom(ladder=(0.0, 0.6)).allocate(dear).headroom["a"] == pytest.approx(1.3)
    assert PricedHeadroom(ladder=(0.0, 0.6, 1.0)).allocate(dear).headroom["a"] == pytest.approx(1.3)


def test_of_rungs_that_are_worth_the_same_the_lowest_is_taken() -> None:
    """Idle devices are filled: all rungs come to four devices of the accurate variant."""
    assert PricedHeadroom().allocate(asked(10.0, 0.5)).headroom["a"] == pytest.approx(1.05)


def roomy(qps: float, devices: int) -> Problem:
    """With an SLO of half a second, and arrivals that are Poisson."""
    problem = asked(qps, sqrt(1.0 / (0.3 * qps)), devices)
    return replace(problem, demands=tuple(replace(d, slo=0.5) for d in problem.demands))

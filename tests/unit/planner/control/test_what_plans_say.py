"""What is made of an answer before it is a plan: shares of promised apps, shortage, and what stands in for it."""

import math
from dataclasses import replace

import pytest

from sluicegate.domain.actions import Announce
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import App, Promise, QueryClass
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.planner.control.shortage_alerts import ShortageWatch
from sluicegate.planner.control.solve_or_fallback import answered
from sluicegate.planner.problems.problem import Allocation, AppDemand, Problem, RecutGroup
from sluicegate.planner.problems.promised_shares import with_promised_shares
from sluicegate.profiles.catalogue.catalogue import Catalogue


def plan(number: int, **served: float) -> Plan:
    return Plan(epoch=Epoch(1, number), created=1.7e9, placements=(), served=served, demand={"a": 40.0, "b": 7.25})


def test_shortage_is_told_with_the_first_plan_that_lacks_and_its_end_with_the_second_in_a_row_that_does_not() -> None:
    watch = ShortageWatch()
    assert watch.observe(plan(1, a=1.0, b=0.999)) == []
    lacks = Announce("app:b", "shortage", "the devices can serve 50.0% of 7.2 rows/s", {"served": 0.5})
    assert watch.observe(plan(2, a=1.0, b=0.5)) == [lacks]
    assert watch.observe(plan(3, a=0.9989, b=0.4)) == [
        Announce("app:a", "shortage", "the devices can serve 99.9% of 40.0 rows/s", {"served": 0.9989})
    ]
    assert watch.observe(plan(4, a=1.0, b=1.0)) == []
    again = Announce("app:a", "served", "all of its demand can be served again")
    assert watch.observe(plan(5, a=0.9991, b=0.3)) == [again]
    assert watch.observe(plan(6, a=1.0, b=1.0)) == []
    assert watch.observe(plan(7, b=1.0)) == [replace(again, subject="app:b")]
    assert watch.observe(plan(8, a=0.9, b=1.0)) != []


def test_an_app_that_was_retired_while_it_lacked_is_told_to_lack_again_or_to_be_served() -> None:
    for again, states in ((0.5, ["shortage", "", ""]), (1.0, ["", "served", ""])):
        watch = ShortageWatch()
        (lacks,) = watch.observe(plan(1, a=0.5, b=1.0))
        assert lacks.state == "shortage"
        assert [watch.observe(plan(number, b=1.0)) for number in range(2, 7)] == [[]] * 5, "not planned for"
        told = [watch.observe(plan(number, a=again, b=1.0)) for number in range(7, 10)]
        assert ["".join(one.state for one in said) for said in told] == states


def test_what_lacks_is_never_told_as_all_however_much_counts_as_enough() -> None:
    (said,) = ShortageWatch(enough=1.0).observe(plan(1, a=0.99999))
    assert said.detail == "the devices can serve 99.9% of 40.0 rows/s"


def test_an_app_that_is_served_in_part_though_its_demand_is_not_told_lacks_of_nothing() -> None:
    lacks = Announce("app:c", "shortage", "the devices can serve 25.0% of 0.0 rows/s", {"served": 0.25})
    assert ShortageWatch().observe(plan(1, c=0.25)) == [lacks]


CUT = Device(name="g", type="gpu", slices=(Slice("4g.0", "4g", 20), Slice("3g.4", "3g", 10)))
CPU = Device(name="c", type="cpu")


def profile(variant: str, kind: str, *p95: float) -> Profile:
    points = tuple(BatchLatency(batch, 0.8 * seconds, seconds) for batch, seconds in enumerate(p95, start=1))
    return Profile(variant=variant, device_type=kind, points=points)


CATALOGUE = Catalogue.of(
    [App(name="a", slo=0.3, promise=Promise(max_consecutive=1)), App(name="b", slo=0.2)],
    [
        Variant(name="a-l", app="a", accuracy=0.9),
        Variant(name="a-s", app="a", accuracy=0.7),
        Variant(name="b-o", app="b", accuracy=0.7),
    ],
    [
        profile("a-l", "gpu:4g", 0.05, 0.08, 0.12, 0.2),
        profile("a-l", "gpu", 0.09, 0.14),
        profile("a-s", "gpu", 0.01),
        profile("a-l", "cpu", 0.12, 0.15, 0.4),
        profile("b-o", "gpu", 0.01),
    ],
)
A_BIG = Placement("g", "a", ("a-s", "a-l"), 0.7, 2, "4g.0")
A_SMALL = Placement("g", "a", ("a-l",), 0.1, 2, "3g.4")
A_CPU = Placement("c", "a", ("a-l",), 0.1, 2)
B_SMALL = Placement("g", "b", ("b-o",), 0.6, 2, "3g.4")
B_BIG = Placement("g", "b", ("b-o",), 0.4, 2, "4g.0")


def shares(*placements: Placement) -> list[float]:
    return [p.share for p in with_promised_shares(placements, CATALOGUE, (CUT, CPU))]


def test_shares_of_a_promised_app_follow_what_its_most_accurate_variant_does_within_a_turn_of_each_slice() -> None:
    """Alone on a slice a turn is 150 ms: three rows in 120, two in 140 and two in 150 ms."""
    rates = (3 / 0.12, 2 / 0.14, 2 / 0.15)
    assert shares(A_BIG, A_SMALL, A_CPU) == pytest.approx([0.9 * rate / sum(rates) for rate in rates])
    # Beside another app a turn is 100 ms: one row in 90 ms there.
    rates = (3 / 0.12, 1 / 0.09)
    found = shares(A_BIG, B_SMALL, A_SMALL)
    assert found == pytest.approx([0.8 * rates[0] / sum(rates), 0.6, 0.8 * rates[1] / sum(rates)])
    idle = replace(B_SMALL, variants=())
    assert shares(A_BIG, idle, A_SMALL)[2] == pytest.approx(0.8 * (2 / 0.14) / (3 / 0.12 + 2 / 0.14))


def test_shares_stay_where_nothing_was_promised_or_there_is_nothing_to_share() -> None:
    assert shares(B_BIG, B_SMALL) == [0.4, 0.6]
    assert shares(A_BIG) == [0.7]
    assert shares(A_BIG, replace(A_SMALL, variants=())) == [0.7, 0.1]
    assert shares(A_BIG, replace(A_SMALL, slo=0.1)) == [0.7, 0.1], "a class of its own"
    assert shares(replace(A_BIG, share=0.0), replace(A_SMALL, share=0.0)) == [0.0, 0.0]
    nowhere = (replace(A_CPU, variants=("a-s",)), replace(A_BIG, device="stranger"))
    assert shares(*nowhere) == [0.1, 0.7]
    assert shares(A_BIG, replace(A_CPU, device="stranger")) == pytest.approx([0.8, 0.0])


class Breaks:
    name = "mine"

    def allocate(self, problem: Problem) -> Allocation:
        raise ZeroDivisionError("a total of nothing")


def problem(qps: float, *previous: Placement) -> Problem:
    demands = (AppDemand(app="a", qps=qps, slo=0.3), AppDemand(app="b", qps=3.0, slo=0.2))
    return Problem(catalogue=CATALOGUE, devices=(CUT, CPU), demands=demands, previous=previous)


def test_where_a_planner_breaks_the_heuristic_stands_in_and_says_so() -> None:
    found = answered(Breaks(), problem(5.0))
    assert found.steps[0] == "mine: ZeroDivisionError: a total of nothing; greedy-fill instead"
    assert found.served["a"] > 0.99 and found.placements and found.served_by_class == {}


def test_where_that_breaks_too_what_is_in_force_on_devices_that_live_stays() -> None:
    """Of the demand nothing can be said; shares of more than all, and none that are no numbers, count."""
    gone, odd = replace(A_SMALL, device="dead", share=0.5), replace(A_CPU, share=math.inf)
    found = answered(Breaks(), problem(math.nan, A_BIG, gone, odd, replace(B_SMALL, share=0.7), B_BIG))
    assert found.placements == (A_BIG, odd, replace(B_SMALL, share=0.7), B_BIG)
    assert found.served == {"a": 0.7, "b": 1.0}
    assert (found.objective, found.bound) == (0.0, 1.0)
    broke, then = found.steps
    assert broke == "mine: ZeroDivisionError: a total of nothing"
    assert then.startswith("greedy-fill: ") and then.endswith("; placements in force kept")
    assert answered(Breaks(), problem(math.nan)).served == {"a": 0.0, "b": 0.0}


def test_an_app_that_nobody_asks_for_is_served_what_its_placements_in_force_have() -> None:
    old = Placement("c", "old", ("old-v",), 0.25, 2)
    found = answered(Breaks(), problem(math.nan, old, B_SMALL, replace(old, device="g", slice="4g.0", share=0.125)))
    assert found.served == {"a": 0.0, "b": 0.6, "old": 0.375}


@pytest.mark.parametrize(
    ("limits", "told_apart"),
    [({}, False), ({"money_weight": 0.5}, True), ({"budget": 0.0}, True), ({"strict_on_demand": 0.25}, True)],
)
def test_prices_tell_devices_apart_where_money_spot_or_a_budget_counts(
    limits: dict[str, float], told_apart: bool
) -> None:
    assert replace(problem(1.0), **limits).by_price is told_apart


def test_gpus_that_may_be_cut_otherwise_are_in_use_unless_it_is_said_that_they_are_not() -> None:
    assert not RecutGroup(("g0",), 2).free


def test_an_answer_is_as_far_from_its_bound_as_it_falls_short_of_it() -> None:
    answer = Allocation(placements=(), served={}, objective=0.625, bound=0.75)
    assert answer.gap == 0.125
    assert replace(answer, bound=0.5).gap == 0.0


def test_classes_of_an_app_are_one_demand_at_the_tightest_slo_where_they_are_not_told_apart() -> None:
    demands = (
        AppDemand(app="a", qps=5.0, slo=0.3, weight=2.0),
        AppDemand(app="b", qps=3.0, slo=0.2),
        AppDemand(app="a", qps=2.0, slo=0.1),
        AppDemand(app="a", qps=1.0, slo=0.05, query_class=QueryClass.BEST_EFFORT),
        AppDemand(app="a", qps=4.0, slo=0.4),
    )
    merged = replace(problem(1.0), demands=demands).merged()
    assert merged.demands == (replace(demands[0], qps=11.0, slo=0.1), demands[1], demands[3])

"""Sums of what workers saw, beside what tables promise: what is held, what is drift, when it is said."""

import math
from dataclasses import replace
from typing import Any

import pytest

from sluicegate.domain.table import Expectations, SelectionTable, Spread, TableObserved
from sluicegate.planner.policy_tables.drift import Alarm, Observed, check, surprising
from sluicegate.planner.policy_tables.promise_monitor import DriftWatch, Held, describe, held, observed

NOW = 7000.0
NONE = Spread(0.0, 0.0, 0.0)


def table(qps: float, accuracy: float, violation: float, mean_batch: float, **assumed: str | float) -> SelectionTable:
    expected = Expectations(
        accuracy=accuracy, violation=violation, mean_batch=mean_batch, utilisation=0.5, accuracy_spread=NONE,
        batch_spread=NONE, response_spread=NONE,
    )  # fmt: skip
    return SelectionTable(
        app="a", worker_class="cpu", variants=("v",), slo=0.1, qps=qps, workers=4, slacks=(0.0, 0.1), actions=b"\0\0",
        expected=expected, assumptions=assumed, fingerprint="f",
    )  # fmt: skip


def sums(qps: float = 100.0, **seen: Any) -> TableObserved:
    return TableObserved(app="a", worker_class="cpu", slo=0.25, fingerprint="f", qps=qps, share=0.25, **seen)


def test_what_is_observed_comes_of_sums_over_workers() -> None:
    found = observed(
        sums(
            seconds=8.0, arrivals=37, queries=30, on_time=28, accuracy_sum=21.0, accuracy_squares=16.5, gaps=4,
            gap_sum=2.0, gap_squares=1.5, ratios=tuple(float(x) for x in range(21, 0, -1)),
        )
    )  # fmt: skip
    assert found == Observed(
        queries=30, on_time=28, accuracy_sum=21.0, accuracy_squares=16.5, qps=18.5, gap_variation=0.5,
        latency_ratio=20.0,
    )  # fmt: skip
    twenty = observed(sums(ratios=tuple(float(x) for x in range(1, 21))))
    assert twenty.latency_ratio == 19.0, "nineteen steps from the least to the largest; .95 of them end at the 18th"
    nothing = observed(sums())
    assert (nothing.qps, nothing.gap_variation, nothing.latency_ratio) == (0.0, 0.0, 0.0)
    assert observed(sums(ratios=(1.25,), gaps=1)).latency_ratio == 1.25


def test_what_was_held_is_summed_over_tables_by_what_each_of_them_served() -> None:
    one, two = table(100.0, 0.8, 0.1, 2.0), table(50.0, 0.6, 0.02, 0.5)
    known = {("f", 100.0): one, ("f", 50.0): two}
    found = held(
        [
            sums(100.0, queries=40, on_time=30, delayed=3, accuracy_sum=24.0, accuracy_squares=19.5),
            sums(50.0, queries=10, on_time=10, delayed=1, accuracy_sum=5.5, accuracy_squares=3.1),
            sums(75.0, queries=99, on_time=99, accuracy_sum=9.9),
            sums(100.0, seconds=5.0),
        ],
        known,
    )
    assert found is not None
    assert found == Held(
        queries=50,
        expected_accuracy=pytest.approx(0.75),
        observed_accuracy=pytest.approx(0.7375),
        standard_error=pytest.approx(math.sqrt((22.6 / 40 - 0.7375**2) / 30)),
        expected_violation=pytest.approx(0.084),
        observed_violation=pytest.approx(0.2),
        violation_error=pytest.approx(math.sqrt(8.2 + 4) / 50),
        delayed=pytest.approx(0.08),
    )
    assert held([sums(100.0, queries=3)], known) is None, "none in time"


@pytest.mark.parametrize("mean_batch", [2.0, 8.0])
def test_what_was_served_in_a_single_batch_is_one_observation(mean_batch: float) -> None:
    seen = sums(queries=2, on_time=2, accuracy_sum=1.5, accuracy_squares=0.6**2 + 0.9**2)
    found = held([seen], {("f", 100.0): table(100.0, 0.8, 0.1, mean_batch)})
    assert found is not None
    assert found.standard_error == pytest.approx(0.15)


PROMISED = table(100.0, 0.75, 0.01, 1.0)


def late(queries: int, qps: float = 100.0) -> TableObserved:
    """Half of them."""
    half = queries // 2
    return sums(qps, queries=queries, on_time=half, accuracy_sum=0.75 * half, accuracy_squares=0.5625 * half)


def good(queries: int, qps: float = 100.0) -> TableObserved:
    return sums(qps, queries=queries, on_time=queries, accuracy_sum=0.75 * queries, accuracy_squares=0.5625 * queries)


def watch(*tables: SelectionTable) -> DriftWatch:
    return DriftWatch({("f", t.qps): t for t in tables}, period=10.0)


def test_from_200_queries_on_a_stretch_of_a_period_is_judged() -> None:
    few, enough = watch(PROMISED), watch(PROMISED)
    assert few.handle([late(199)], NOW) == enough.handle([late(200)], NOW) == []
    assert few.handle([], NOW + 9.9) == enough.handle([], NOW + 9.9) == []
    assert few.handle([], NOW + 10.0) == []
    (said,) = enough.handle([], NOW + 10.0)
    assert (said.subject, said.state) == ("tables:a/cpu/250ms", "drift")
    assert said.data == {
        "qps": 100.0,
        "queries": 200.0,
        "promises": "violation",
        "expected_violation": 0.01,
        "observed_violation": 0.5,
    }
    assert enough.handle([], NOW + 20.0) == [], "another stretch begins with another count"


def test_a_stretch_that_is_hardly_used_is_forgotten_after_thirty_periods() -> None:
    kept, forgotten = watch(PROMISED), watch(PROMISED)
    for one, after in ((kept, 300.0), (forgotten, 300.5)):
        one.handle([late(120)], NOW)
        assert one.handle([], NOW + after) == []
    (said,) = kept.handle([late(80)], NOW + 300.0)
    assert said.data is not None and said.data["queries"] == 200.0
    assert forgotten.handle([late(80)], NOW + 301.0) == []


def test_a_drift_that_lasts_is_told_again_after_a_minute() -> None:
    there = watch(PROMISED)
    told = []
    for period in range(15):
        now = NOW + 10.0 * period
        if there.handle([], now):
            told.append(period)
        there.handle([late(300)], now)
    assert told == [1, 7, 13]


def test_a_shelf_is_as_promised_once_the_last_of_its_tables_holds_what_it_promises() -> None:
    there = watch(PROMISED, table(40.0, 0.75, 0.01, 1.0))
    there.handle([late(300), late(300, 40.0), late(300, 70.0)], NOW)
    (said,) = there.handle([], NOW + 10.0)
    assert said.state == "drift"
    there.handle([good(300)], NOW + 10.0)
    assert there.handle([], NOW + 20.0) == [], "the other has not been seen to hold"
    there.handle([good(300, 40.0)], NOW + 20.0)
    (said,) = there.handle([], NOW + 30.0)
    assert (said.subject, said.state) == ("tables:a/cpu/250ms", "as_promised")
    there.handle([good(300)], NOW + 30.0)
    assert there.handle([], NOW + 40.0) == []


def test_a_table_that_was_replaced_while_it_drifted_keeps_its_shelf_adrift_no_longer() -> None:
    there = DriftWatch({("f", 100.0): PROMISED, ("g", 90.0): PROMISED, ("g", 100.0): PROMISED}, period=10.0)
    there.handle([late(300)], NOW)
    (said,) = there.handle([], NOW + 10.0)
    assert said.state == "drift"
    there.handle([replace(good(300, 90.0), fingerprint="g")], NOW + 10.0)
    (said,) = there.handle([], NOW + 20.0)
    assert said.state == "as_promised"
    there.handle([replace(late(300), fingerprint="g"), replace(late(300, 90.0), fingerprint="g")], NOW + 70.0)
    (said,) = there.handle([], NOW + 80.0)
    assert said.state == "drift"
    there.handle([replace(good(300), fingerprint="g")], NOW + 80.0)
    assert there.handle([], NOW + 90.0) == [], "of its own fingerprint the other still breaks its promise"


def test_of_many_executions_half_are_kept_as_soon_as_there_are_more_than_20000() -> None:
    there = watch(PROMISED)
    slow = (3.0,) * 10_000 + (1.0,) * 10_000
    for ratios in (slow, (1.0, 1.0)):
        there.handle([replace(late(300), ratios=ratios)], NOW)
    (said,) = there.handle([], NOW + 10.0)
    assert "latency is 3 times" in said.detail


def test_what_is_told_of_broken_promises_names_each_and_then_the_reasons_once() -> None:
    broken = (Alarm("violation", 0.05, 0.25, ("one", "two")), Alarm("accuracy", 0.8, 0.71234, ("one", "two")))
    assert describe(broken) == (
        "violation, accuracy: violation 0.25 where 0.05 was expected and accuracy 0.7123 where 0.8 was expected; "
        "one; two"
    )


AS_ASSUMED = "load, arrivals and latency are as assumed; the profile's accuracy or shares may not be"


@pytest.mark.parametrize(
    ("assumed", "changed", "reason"),
    [
        ({}, {"qps": 105.0}, AS_ASSUMED),
        ({}, {"qps": 105.2}, "load 105.2 queries/s is above the table's 100"),
        ({}, {"latency_ratio": 1.05}, AS_ASSUMED),
        ({}, {"latency_ratio": 1.06}, "latency is 1.06 times the profile's p95; profile again"),
        ({}, {"gap_variation": 0.42}, AS_ASSUMED),
        ({}, {"gap_variation": 0.43}, "gaps vary by 0.43 (squared), assumed 0.25: bursts or misrouting"),
        ({"share": 0.5, "arrival_shape": 2.5}, {"gap_variation": 0.34}, AS_ASSUMED),
        ({"share": 0.5, "arrival_shape": 2.5}, {"gap_variation": 0.36}, "gaps vary by 0.36 (squared), assumed 0.2:"),
        ({"dispatch": "random", "arrival_shape": 2.5}, {"gap_variation": 1.32}, AS_ASSUMED),
        ({"dispatch": "random", "arrival_shape": 2.5}, {"gap_variation": 1.34}, "gaps vary by 1.34 (squared), assum"),
    ],
)
def test_a_reason_is_what_is_otherwise_than_assumed_by_more_than_is_allowed(
    assumed: dict[str, str | float], changed: dict[str, float], reason: str
) -> None:
    """Of one worker in four; at random, .1 + .75 is assumed. Allowed: 5 %, for gaps half as much again and .05."""
    usual = {"qps": 60.0, "gap_variation": 0.1, "latency_ratio": 1.0, **changed}
    seen = Observed(queries=1000, on_time=500, accuracy_sum=450.0, accuracy_squares=405.0, **usual)
    (alarm,) = check(table(100.0, 0.75, 0.01, 2.0, **assumed), seen)
    assert (alarm.promise, alarm.expected, alarm.observed) == ("violation", 0.01, 0.5)
    (said,) = alarm.reasons
    assert said.startswith(reason)


def test_fewer_than_three_hits_surprise_nobody_and_more_do_where_chance_does_not_explain_them() -> None:
    assert not surprising(2.99, 100.0, 1e-9, 3.0)
    assert surprising(3.0, 100.0, 1e-9, 3.0)
    assert not surprising(3.0, 3.0, 0.12, 3.0), "0.12 cubed is 0.0017"
    assert surprising(3.0, 3.0, 0.11, 3.0), "0.11 cubed is 0.00133; beyond 3 lies 0.00135"

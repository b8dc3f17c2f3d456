"""What is counted while a selection table is in force, by hand."""

from collections.abc import Mapping

import pytest

from sluicegate.domain.actions import Run
from sluicegate.domain.events import Hosted
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.query import Query
from sluicegate.domain.table import Expectations, SelectionTable, Spread
from sluicegate.policies.mdp_serving.table_statistics import Observing

TICK = 1 / 1024
SLO = 96 * TICK
GUARD = 4 * TICK
NONE = Spread(0.0, 0.0, 0.0)
ANY = Expectations(
    accuracy=0.9, violation=0.0, mean_batch=1.0, utilisation=0.5,
    accuracy_spread=NONE, batch_spread=NONE, response_spread=NONE,
)  # fmt: skip
HOSTED = Hosted("v", 0.75, LatencyCurve((8 * TICK, 12 * TICK, 16 * TICK)))
CLOCKS = pytest.mark.parametrize("start", [0.0, 1.7e9])


def table(qps: float, assumptions: Mapping[str, float] | None = None) -> SelectionTable:
    return SelectionTable(
        app="a", worker_class="gpu", variants=("v",), slo=SLO, qps=qps, workers=2, slacks=(0.0,), actions=bytes([0]),
        expected=ANY, assumptions=assumptions or {},
    )  # fmt: skip


def query(name: str, start: float, due: float, rows: int = 1) -> Query:
    return Query(name, "a", start, start + due * TICK, rows)


def run(*queries: Query) -> Run:
    return Run("v", queries, sum(q.rows for q in queries))


@CLOCKS
def test_only_what_comes_with_less_time_than_the_table_and_its_guard_assume_is_delayed(start: float) -> None:
    seen = Observing(GUARD)
    seen.under(table(10.0), start)
    for due, rows in ((101, 1), (100, 2), (99, 4), (50, 8)):
        seen.arrived(query("q", start, due, rows), start)
    (told,) = seen.take(start + TICK)
    assert (told.arrivals, told.delayed) == (15, 12)


@CLOCKS
def test_a_batch_counts_by_rows_and_those_in_time_by_the_accuracy_of_what_ran(start: float) -> None:
    seen = Observing(GUARD)
    seen.under(table(10.0), start)
    seen.began = start + TICK
    seen.finished(run(query("q0", start, 19, 2), query("q1", start, 18)), HOSTED, start + 19 * TICK)
    seen.missed(5)
    (told,) = seen.take(start + 32 * TICK)
    assert (told.queries, told.on_time) == (8, 2)
    assert (told.accuracy_sum, told.accuracy_squares) == (1.5, 1.125)
    assert told.ratios == (14 / 16,)  # 18 ticks, of which 4 are the guard's, where the profile says 16
    assert (told.app, told.worker_class, told.qps, told.seconds) == ("a", "gpu", 10.0, 32 * TICK)


def test_a_batch_that_took_less_than_the_guard_took_no_time() -> None:
    seen = Observing(GUARD)
    seen.under(table(10.0), 50.0)
    seen.began = 50.0
    seen.finished(run(query("q", 50.0, 9)), HOSTED, 50.0 + 3 * TICK)
    (told,) = seen.take(51.0)
    assert told.ratios == (0.0,)


@CLOCKS
def test_counts_go_to_the_table_in_force_and_to_none_while_there_is_none(start: float) -> None:
    seen = Observing(GUARD)
    low, high = table(10.0), table(30.0)
    seen.missed(64)
    seen.arrived(query("q", start, 99), start)
    seen.under(low, start)
    seen.missed(1)
    seen.under(high, start + 1.0)
    seen.missed(2)
    seen.under(None, start + 1.5)
    seen.missed(32)
    seen.finished(run(query("q", start, 9999)), HOSTED, start + 1.5)
    seen.under(low, start + 4.0)
    seen.missed(4)
    told = {one.qps: one for one in seen.take(start + 4.25)}
    assert {qps: (one.queries, one.seconds, one.arrivals) for qps, one in told.items()} == {
        10.0: (5, 1.25, 0),
        30.0: (2, 0.5, 0),
    }


@CLOCKS
def test_what_was_taken_is_not_told_again_and_the_table_stays_in_force(start: float) -> None:
    seen = Observing(GUARD)
    seen.under(table(10.0), start)
    for at in (0.0, 0.25, 0.75):
        seen.arrived(query("q", start, 99), start + at)
    (first,) = seen.take(start + 1.0)
    assert (first.arrivals, first.gaps, first.gap_sum, first.gap_squares) == (3, 2, 0.75, 0.3125)
    seen.missed(3)
    (second,) = seen.take(start + 3.0)
    assert (second.arrivals, second.queries, second.gaps, second.seconds) == (0, 3, 0, 2.0)
    seen.arrived(query("q", start, 99), start + 3.5)
    (third,) = seen.take(start + 3.5)
    assert (third.gaps, third.gap_sum) == (1, 2.75), "a gap may span what was told before"


def test_a_table_under_which_nothing_happened_in_no_time_is_not_told() -> None:
    seen = Observing(GUARD)
    seen.under(table(10.0), 50.0)
    assert seen.take(50.0) == ()
    seen.missed(1)
    assert [one.queries for one in seen.take(50.0)] == [1]


def test_a_clock_that_was_set_back_takes_no_seconds_away() -> None:
    seen = Observing(GUARD)
    seen.under(table(10.0), 50.0)
    seen.under(table(30.0), 49.0)
    assert {one.qps: one.seconds for one in seen.take(49.5)} == {30.0: 0.5}


def test_so_many_ratios_are_told_and_no_more() -> None:
    seen = Observing(0.0)
    seen.under(table(10.0), 50.0)
    seen.began = 50.0
    for _ in range(70):
        seen.finished(run(query("q", 50.0, 99)), HOSTED, 50.0 + 8 * TICK)
    (told,) = seen.take(51.0)
    assert (told.ratios, told.queries) == ((1.0,) * 64, 70)


def test_a_batch_larger_than_any_that_is_hosted_by_then_counts_and_tells_nothing_of_latencies() -> None:
    seen = Observing(GUARD)
    seen.under(table(10.0), 50.0)
    seen.began = 50.0
    seen.finished(run(*[query(f"q{i}", 50.0, 99) for i in range(4)]), HOSTED, 50.0 + 20 * TICK)
    seen.finished(run(query("q4", 50.0, 99, 3)), HOSTED, 50.0 + 20 * TICK)
    (told,) = seen.take(51.0)
    assert (told.queries, told.on_time, told.ratios) == (7, 7, (1.0,))

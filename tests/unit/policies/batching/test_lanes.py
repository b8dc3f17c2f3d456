"""An app's lane on a slice: when it is crowded, what it lends, what of its variants it may run; in ticks, by hand."""

from math import inf

import pytest

from sluicegate.domain.actions import Run
from sluicegate.domain.events import Arrived, Hosted, HostingChanged
from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.query import Query
from sluicegate.policies.batching.lane import Lane, shorter, shown
from sluicegate.policies.batching.registry import batching
from sluicegate.policies.promises.keeper import Share

TICK = 1 / 1024
CLOCKS = pytest.mark.parametrize("start", [70.0, 1.7e9])


def hosted(name: str, *ticks: float, sure: tuple[float, ...] = ()) -> Hosted:
    return Hosted(name, 0.9, LatencyCurve(tuple(t * TICK for t in ticks)), tuple(t * TICK for t in sure), pace=0.75)


GOOD, FAST = hosted("good", 8, 10, 12, 14), hosted("fast", 2, 3, 4, 5)


def lane(rule: str = "eager") -> Lane:
    return Lane("a", True, batching(rule)())


@CLOCKS
def test_a_lane_is_crowded_when_more_rows_came_within_a_window_than_a_batch_takes(start: float) -> None:
    share = Share((3,), 4 * TICK, 0.0, hop_s=2 * TICK, window_s=10 * TICK)
    made = lane()
    for after, rows, crowded in ((0, 2, -inf), (9, 1, -inf), (9.5, 1, 9.5), (19, 2, 9.5), (19.25, 1, 19.25)):
        now = start + after * TICK
        assert made.came(Query("q", "a", now, now + 1.0, rows), share, now) == ()
        assert made.crowded == (crowded if crowded == -inf else start + crowded * TICK), after


def test_queries_that_are_long_on_their_way_are_told_once_there_are_many() -> None:
    share = Share((3,), 4 * TICK, 0.0, hop_s=2 * TICK, window_s=10 * TICK)
    made = lane()
    said = [made.came(Query("q", "a", 70.0 + i, 80.0), share, 70.0 + i + way * TICK) for i, way in enumerate([3] * 5)]
    assert [len(each) for each in said] == [0, 0, 0, 0, 1]
    assert [made.came(Query("q", "a", 75.0 + i, 80.0), share, 75.0 + i + 2 * TICK) for i in range(5)] == [()] * 5


@CLOCKS
@pytest.mark.parametrize(
    ("room", "lent"),
    [(14, ("good", 4)), (13, ("good", 3)), (10, ("good", 2)), (9, ("fast", 4)), (3, ("fast", 2)), (2, None)],
)
def test_the_most_accurate_variant_lends_that_has_time_for_half_of_what_waits(
    start: float, room: float, lent: tuple[str, int] | None
) -> None:
    made = lane()
    made.told = HostingChanged("a", (GOOD, FAST), 1.0)
    for number in range(4):
        made.policy.handle(Arrived(Query(f"q{number}", "a", start, start + 1.0)), start)
    run = made.lent_within(room * TICK, start)
    assert (None if run is None else (run.variant, run.rows)) == lent
    assert made.policy.queued == 4 - (lent[1] if lent else 0)


@CLOCKS
def test_only_who_is_in_time_is_lent(start: float) -> None:
    """Of four the first two are due before a batch of four ends."""
    made = lane()
    made.told = HostingChanged("a", (GOOD,), 1.0)
    for number, due in enumerate((5, 13, 14, 90)):
        made.policy.handle(Arrived(Query(f"q{number}", "a", start, start + due * TICK)), start)
    run = made.lent_within(14 * TICK, start)
    assert isinstance(run, Run)
    assert ([q.id for q in run.queries], run.rows) == (["q2", "q3"], 2)


@CLOCKS
def test_who_is_lent_is_in_time_where_fewer_take_longer_than_as_many_as_there_is_room_for(start: float) -> None:
    """Three rows have room and take 8 ticks, but the third query has two: the first two alone would take 12."""
    made = lane()
    made.told = HostingChanged("a", (hosted("falling", 9, 12, 8), FAST), 1.0)
    for number, rows in enumerate((1, 1, 2)):
        made.policy.handle(Arrived(Query(f"q{number}", "a", start, start + 11 * TICK, rows)), start)
    run = made.lent_within(13 * TICK, start)
    assert run is not None
    assert ([q.id for q in run.queries], run.variant, run.rows) == (["q0", "q1", "q2"], "fast", 4)


@CLOCKS
def test_a_batch_that_is_lent_ends_as_early_as_those_who_wait_let_it(start: float) -> None:
    """Four rows have room and take 14 ticks; two wait, who are in time in the 10 that they take."""
    made = lane()
    made.told = HostingChanged("a", (GOOD, FAST), 1.0)
    for number, due in enumerate((10, 11)):
        made.policy.handle(Arrived(Query(f"q{number}", "a", start, start + due * TICK)), start)
    run = made.lent_within(14 * TICK, start)
    assert run is not None
    assert ([q.id for q in run.queries], run.variant) == (["q0", "q1"], "good")


@CLOCKS
@pytest.mark.parametrize(("room", "lent"), [(9, False), (10, True)])
def test_half_of_what_waits_is_counted_in_rows(start: float, room: float, lent: bool) -> None:
    """Two queries have four rows: one row is a quarter of them."""
    made = lane()
    made.told = HostingChanged("a", (GOOD,), 1.0)
    for name, rows in (("q0", 1), ("q1", 3)):
        made.policy.handle(Arrived(Query(name, "a", start, start + 1.0, rows)), start)
    assert (made.lent_within(room * TICK, start) is not None) is lent


def test_nothing_is_lent_where_nothing_is_told_and_nothing_waits() -> None:
    made = lane()
    assert made.lent_within(1.0, 70.0) is None
    made.told = HostingChanged("a", (GOOD, FAST), 1.0)
    assert made.lent_within(1.0, 70.0) is None


def test_strict_lanes_come_first_then_those_with_the_earliest_deadline_then_by_name() -> None:
    lanes = [Lane(app, strict, batching("eager")()) for app, strict in (("d", False), ("c", True), ("b", True))]
    for each, due in zip(lanes, (71.0, 72.0, 72.0), strict=True):
        each.policy.handle(Arrived(Query("q", each.app, 70.0, due)), 70.0)
    idle = Lane("a", True, batching("eager")())
    assert [one.app for one in sorted([*lanes, idle], key=Lane.urgency)] == ["b", "c", "a", "d"]


@pytest.mark.parametrize(
    ("strict", "loose", "aside", "in_turn"),
    [(True, False, False, True), (False, False, False, False), (True, True, False, False), (True, False, True, False)],
)
def test_only_strict_queries_of_an_app_that_neither_is_loose_nor_gives_way_take_turns(
    strict: bool, loose: bool, aside: bool, in_turn: bool
) -> None:
    made = Lane("a", strict, batching("eager")())
    made.asked = HostingChanged("a", (GOOD,), 1.0, loose=loose, aside=aside)
    assert made.in_turn is in_turn


def test_what_a_lane_asks_of_the_slice_is_its_part_of_the_promise_or_what_its_own_rule_says() -> None:
    peers = (("d0", "whole"), ("d1", "whole"))
    promise = Promise(weakly_hard=(WeaklyHard(2, 10),))
    asked = HostingChanged("a", (GOOD, FAST), 0.5, promise, peers)
    made, spread = lane(), Lane("a", True, batching("greedy", weakly_hard=[(4, 8)])())
    made.asked = spread.asked = asked
    party = made.party({"fast": 2.0})
    assert party.promise.constraints == ((1, 5),)
    assert spread.party({}).promise.constraints == ((2, 4),)
    assert (party.slo, party.seconds) == (0.5, (GOOD.longest, tuple(2 * s for s in FAST.longest)))
    assert party.paces == (0.75, 1.0), "batches have shown how long they take"


def test_a_variant_keeps_the_batches_that_take_no_longer_and_goes_without_any() -> None:
    both = (GOOD, FAST)
    assert shorter(both, inf) is both
    assert [(h.variant, h.curve.max_batch) for h in shorter(both, 10 * TICK)] == [("good", 2), ("fast", 4)]
    assert [(h.variant, h.curve.max_batch) for h in shorter(both, 7.5 * TICK)] == [("fast", 4)]
    assert shorter((hosted("sure", 1, 2, 3, sure=(9, 10, 11)),), 8 * TICK) == ()
    assert shown(both, {}) is both
    assert [h.pace for h in shown(both, {"good": 1.0})] == [1.0, 0.75]

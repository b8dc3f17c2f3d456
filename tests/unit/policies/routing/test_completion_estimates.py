"""What a router reckons by hand: when a slice is done, what margin a load asks for, and which turn a query is."""

from dataclasses import replace

import pytest

from sluicegate.domain.actions import RoutingAction, Send, TellTurns
from sluicegate.domain.events import Arrived, Hosted, HostedOn, PartRead, PlanActivated, TurnsTold
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.query import Query
from sluicegate.policies.routing.accuracy_first import AccuracyFirst, SlackBlend
from sluicegate.policies.routing.backlog_estimate import Backlog
from sluicegate.policies.routing.packing import Packing
from sluicegate.policies.routing.weighted import ProportionalSequence, WeightedRouting

TICK = 1 / 1024
CURVE = LatencyCurve((8 * TICK, 10 * TICK, 12 * TICK, 16 * TICK))
BEGIN = 70.0
CLOCKS = pytest.mark.parametrize("start", [70.0, 1.7e9])


def activated(*hosts: tuple[str, float, tuple[float, ...]], shares: tuple[float, ...] = ()) -> PlanActivated:
    """Devices, accuracies, ticks by rows."""
    each = shares or (1.0,) * len(hosts)
    placements = tuple(Placement(d, "a", ("v",), share, 8) for (d, _, _), share in zip(hosts, each, strict=True))
    curves = tuple(
        HostedOn(d, "whole", (Hosted("v", accuracy, LatencyCurve(tuple(t * TICK for t in ticks))),))
        for d, accuracy, ticks in hosts
    )
    return PlanActivated(Plan(epoch=Epoch(1, 1), created=0.0, placements=placements), curves)


def sent(router: AccuracyFirst, now: float, ticks: float, rows: int = 1) -> str:
    (action,) = router.handle(Arrived(Query("q", "a", now, now + ticks * TICK, rows)), now)
    assert isinstance(action, Send)
    return action.device


@CLOCKS
def test_batches_of_two_executors_begin_twice_as_often_and_take_as_long(start: float) -> None:
    """Of four rows two a tick: 16 ticks each, and one begins every 8."""
    backlog = Backlog((Hosted("v", 0.9, CURVE, executors=2),))
    assert backlog.capacity == 2 * 4 / (16 * TICK)
    assert [backlog.done_at(rows, start) - start for rows in (1, 4, 5)] == [8 * TICK, 16 * TICK, 16 * TICK]
    backlog.send(3, start)
    backlog.send(5, start)
    assert (backlog.busy_until, backlog.queued) == (start + 6 * TICK, 5)
    assert backlog.done_at(2, start) == start + (6 + 8 + 12) * TICK
    assert backlog.done_at(3, start) == start + (6 + 8 + 16) * TICK


@CLOCKS
def test_an_idle_slice_has_nothing_to_be_done_however_many_executors_it_has(start: float) -> None:
    for executors in (1, 2):
        backlog = Backlog((Hosted("v", 0.9, CURVE, executors=executors),))
        assert backlog.done_at(0, start) == start
        backlog.send(4, start)
        assert backlog.done_at(0, start) == start + 16 * TICK / executors


@CLOCKS
def test_what_waits_when_a_batch_ends_forms_the_next_at_that_moment(start: float) -> None:
    backlog = Backlog((Hosted("v", 0.9, CURVE),))
    backlog.report(6, 5 * TICK, start)
    backlog.advance(start + 4 * TICK)
    assert (backlog.queued, backlog.busy_until) == (6, start + 5 * TICK)
    backlog.advance(start + 5 * TICK)
    assert (backlog.queued, backlog.busy_until) == (2, start + 21 * TICK)
    assert backlog.done_at(2, start + 22 * TICK) == start + (21 + 10 + 10) * TICK, "two began at 21, and two follow"
    backlog.advance(start + 64 * TICK)
    assert (backlog.queued, backlog.busy_until) == (0, start + 64 * TICK)


@CLOCKS
def test_a_row_that_comes_as_a_batch_ends_begins_at_once(start: float) -> None:
    backlog = Backlog((Hosted("v", 0.9, CURVE),))
    backlog.send(1, start)
    backlog.send(2, start + 8 * TICK)
    assert (backlog.queued, backlog.busy_until) == (0, start + 18 * TICK)


@CLOCKS
def test_who_is_done_at_the_deadline_is_in_time_and_a_tick_later_is_not(start: float) -> None:
    for ticks, device in ((64, "good"), (63, "quick")):
        router = AccuracyFirst("a")
        router.handle(activated(("good", 0.9, (64,)), ("quick", 0.7, (8,))), start)
        assert sent(router, start, ticks) == device


@CLOCKS
def test_who_would_be_late_is_sent_where_it_ends_first_and_takes_no_place_there(start: float) -> None:
    router = AccuracyFirst("a")
    router.handle(activated(("good", 0.9, (64,)), ("quick", 0.7, (8,))), start)
    assert [sent(router, start, 7) for _ in range(3)] == ["quick"] * 3
    assert sent(router, start, 8) == "quick"  # it begins at once
    assert [sent(router, start, ticks) for ticks in (15, 16, 63, 64)] == ["quick", "quick", "quick", "good"]


@CLOCKS
def test_a_query_of_a_half_of_all_counts_for_those_that_others_send_too(start: float) -> None:
    """Two rows of one, since another router sends as many: they take 10 ticks."""
    router = AccuracyFirst("a")
    router.handle(activated(("good", 0.9, (8, 10, 12)), ("quick", 0.7, (1, 2, 3))), start)
    router.handle(PartRead(0.5), start)
    assert (sent(router, start, 9), sent(router, start, 10)) == ("quick", "good")


@CLOCKS
def test_the_margin_is_a_power_of_the_load_of_the_last_half_second(start: float) -> None:
    """16 rows a second are 8 in half a second: n queries ask for (n / 8)^2 of half of two seconds."""
    router = SlackBlend("a", steepness=2.0, share=0.5)
    router.handle(activated(("d", 0.9, (64,))), start)
    asked = Query("q", "a", start, start + 2.0)
    assert [router.margin(asked, start) for _ in range(3)] == [1 / 64, 4 / 64, 9 / 64]
    assert router.margin(asked, start + 0.5) == 16 / 64
    assert router.margin(asked, start + 0.5 + TICK) == 4 / 64, "the first three are past"
    assert [router.margin(asked, start + 0.75) for _ in range(9)][-3:] == [1.0, 1.0, 1.0]
    router.handle(PartRead(0.5), start + 8.0)
    assert router.margin(asked, start + 8.0) == 4 / 64, "others send as many"


@CLOCKS
def test_a_query_of_several_rows_is_as_much_load_as_its_rows(start: float) -> None:
    whole, single = SlackBlend("a"), SlackBlend("a")
    for router in (whole, single):
        router.handle(activated(("d", 0.9, (32,))), start)
    asked = Query("q", "a", start, start + 2.0, 8)
    margins = [single.margin(replace(asked, rows=1), start) for _ in range(8)]
    assert whole.margin(asked, start) == margins[-1] > 2 * margins[0]


@CLOCKS
def test_packing_takes_the_fullest_in_time_and_of_those_that_are_late_the_first_to_be_done(start: float) -> None:
    router = Packing("a", margin=0.25)
    router.handle(activated(("d0", 0.9, (16,)), ("d1", 0.9, (16,)), ("d2", 0.9, (8,))), start)
    assert sent(router, start, 64) == "d0"
    assert sent(router, start, 64) == "d0"  # done at 32, and 48 keep the margin
    assert sent(router, start, 64) == "d0"
    assert sent(router, start, 64) == "d1"  # 64 would be in time without a margin
    assert sent(router, start, 40) == "d2"  # 30 keep the margin: d0 is full, d1 would be done at 32
    assert sent(router, start, 12) == "d2"  # nobody keeps the margin of 9: 16, 32, 64
    half = Packing("a", margin=0.0)
    half.handle(activated(("d0", 0.9, (16, 20)), ("d1", 0.9, (16, 20))), start)
    half.handle(PartRead(0.5), start)
    assert [sent(half, start, 40) for _ in range(4)] == ["d0", "d0", "d1", "d1"], "others send as many"
    with_shares = Packing("a")
    told = activated(("d0", 0.9, (16,)), ("d1", 0.9, (8,)), shares=(0.75, 0.25))
    with_shares.handle(PlanActivated(told.plan), start)
    assert sorted(sent(with_shares, start, 64) for _ in range(4)) == ["d0", "d0", "d0", "d1"]


@CLOCKS
def test_of_idle_slices_packing_fills_the_most_accurate_also_beside_one_of_two_executors(start: float) -> None:
    router = Packing("a")
    told = activated(("good", 0.9, (16, 16)), ("quick", 0.7, (16, 16)))
    pair = replace(told.curves[1], hosted=(replace(told.curves[1].hosted[0], executors=2),))
    router.handle(PlanActivated(told.plan, (told.curves[0], pair)), start)
    assert sent(router, start, 64) == "good"


def turns(router: WeightedRouting, now: float, slo: float = 1.0) -> list[int | TurnsTold]:
    """The turn of a query that comes now, and what is told."""
    actions: list[RoutingAction] = router.handle(Arrived(Query("q", "a", now, now + slo)), now)
    return [a.turn if isinstance(a, Send) else a.told for a in actions if isinstance(a, Send | TellTurns)]


@CLOCKS
def test_turns_are_counted_and_told_no_more_often_than_asked_for(start: float) -> None:
    router = WeightedRouting("a", turns_s=0.5)
    router.handle(activated(("d0", 0.9, (8,)), ("d1", 0.9, (8,))), start)
    assert turns(router, start) == [1, TurnsTold("a", 0.0, 1, start)]
    assert turns(router, start + 0.25) == [2]
    assert turns(router, start + 0.5) == [3, TurnsTold("a", 0.0, 3, start + 0.5)]
    assert turns(router, start + 0.75) == [4]
    always = WeightedRouting("a", turns_s=0.0)
    always.handle(activated(("d0", 0.9, (8,))), start)
    assert [len(turns(always, start)) for _ in range(2)] == [2, 2]
    never = WeightedRouting("a")
    never.handle(activated(("d0", 0.9, (8,))), start)
    assert turns(never, start) == [-1]


def test_each_class_of_slos_has_turns_of_its_own_and_those_are_told_for_it() -> None:
    router = WeightedRouting("a", turns_s=0.5)
    placed = tuple(Placement(f"d{i}", "a", ("v",), 0.25, 8, slo=0.125 if i < 2 else 0.5) for i in range(4))
    router.handle(PlanActivated(Plan(epoch=Epoch(1, 1), created=0.0, placements=placed)), BEGIN)
    assert turns(router, BEGIN, 0.125) == [1, TurnsTold("a", 0.125, 1, BEGIN)]
    assert turns(router, BEGIN, 0.125) == [2]
    assert turns(router, BEGIN + 0.25, 0.5) == [1, TurnsTold("a", 0.5, 1, BEGIN + 0.25)]
    assert turns(router, BEGIN + 0.5, 0.125) == [3, TurnsTold("a", 0.125, 3, BEGIN + 0.5)]


def test_a_weight_that_is_none_counts_for_nothing_and_where_all_are_none_all_are_equal() -> None:
    sequence = ProportionalSequence([1.5, -0.5, 0.5, float("inf"), float("nan"), 0.0])
    assert sequence.shares == (0.75, 0.0, 0.25, 0.0, 0.0, 0.0)
    assert sorted(sequence.next() for _ in range(8)) == [0] * 6 + [2] * 2
    assert ProportionalSequence([-0.5, 0.0]).shares == (0.5, 0.5)

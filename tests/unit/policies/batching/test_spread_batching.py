"""Batches that spread their misses: who is given up, from when on, and in whose favour; at two clocks."""

import pytest

from sluicegate.domain.actions import Announce, Drop, Run, StationAction
from sluicegate.domain.events import Arrived, Finished, Hosted, HostingChanged, Offered
from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.outcome import Reason
from sluicegate.domain.query import Query
from sluicegate.policies.batching.registry import batching
from sluicegate.policies.promises.batch_places import surely_fit
from sluicegate.policies.protocols import BatchingPolicy

TICK = 1 / 1024
TOOK = 128 * TICK
"""A batch of one row or two."""
CLOCKS = pytest.mark.parametrize("start", [0.0, 1.7e9])
ONE_OF_FOUR = Promise(weakly_hard=(WeaklyHard(1, 4),))


def policy(start: float, seconds: tuple[float, float] = (TOOK, TOOK), promise: Promise = ONE_OF_FOUR) -> BatchingPolicy:
    made = batching("greedy", batch=2)()
    made.handle(HostingChanged("a", (Hosted("v", 0.9, LatencyCurve(seconds), seconds),), 1.0, promise), start)
    return made


def come(made: BatchingPolicy, start: float, *deadlines: float) -> list[StationAction]:
    said: list[StationAction] = []
    for number, after in enumerate(deadlines):
        said += made.handle(Arrived(Query(f"q{number}", "a", start, start + after, sequence=number)), start)
    return said


def ran(actions: list[StationAction]) -> list[str]:
    return [query.id for action in actions if isinstance(action, Run) for query in action.queries]


def dropped(actions: list[StationAction]) -> dict[str, Reason]:
    return {action.query.id: action.reason for action in actions if isinstance(action, Drop)}


@pytest.mark.parametrize(
    ("rows", "room", "fit"),
    [((4, 4), 6, 1), ((2, 4), 6, 2), ((4, 2, 1), 6, 2), ((4, 2, 1), 7, 3), ((9,), 8, 0), ((1, 1), 8, 8)],
)
def test_as_many_surely_fit_as_of_the_largest(rows: tuple[int, ...], room: int, fit: int) -> None:
    assert surely_fit([Query(str(i), "a", 0.0, 1.0, n) for i, n in enumerate(rows)], room) == fit


@CLOCKS
def test_what_no_batch_saves_any_more_is_given_up_at_its_last_moment_and_not_before(start: float) -> None:
    made = policy(start)
    come(made, start, TOOK - TICK, TOOK, 4 * TOOK, 4 * TOOK)
    said = made.handle(Offered(), start)
    assert dropped(said) == {"q0": Reason.HOPELESS}
    assert ran(said) == ["q1", "q2"]


@CLOCKS
def test_of_more_that_are_due_than_fit_as_many_are_missed_as_was_allowed(start: float) -> None:
    """Three are due with this batch of two, and the one behind can wait."""
    made = policy(start)
    come(made, start, *(1.5 * TOOK,) * 3, 9 * TOOK)
    said = made.handle(Offered(), start)
    assert dropped(said) == {"q0": Reason.SPREAD} and ran(said) == ["q1", "q2"]
    assert not [action for action in said if isinstance(action, Announce)]
    later = made.handle(Finished("a", "v", 2, TOOK), start + TOOK) + made.handle(Offered(), start + TOOK)
    assert ran(later) == ["q3"] and dropped(later) == {}


@CLOCKS
def test_more_misses_than_were_allowed_are_announced_before_the_first_of_them(start: float) -> None:
    made = policy(start)
    come(made, start, *(1.5 * TOOK,) * 4)
    said = made.handle(Offered(), start)
    assert len(dropped(said)) == 2 and len(ran(said)) == 2
    (warning,) = [action for action in said if isinstance(action, Announce)]
    assert (warning.subject, warning.state) == ("app:a", "safe_mode")
    breaks = [action for action in said if isinstance(action, Drop)][1]
    assert said.index(warning) < said.index(breaks)


@CLOCKS
def test_one_that_only_a_smaller_batch_saves_is_given_up_where_that_is_allowed_and_others_are_due(start: float) -> None:
    """A row takes half as long as two: the first is late in a batch of two, and the others are due with it."""
    made = policy(start, (TOOK / 2, TOOK))
    come(made, start, 0.75 * TOOK, 1.25 * TOOK, 1.25 * TOOK)
    said = made.handle(Offered(), start)
    assert dropped(said) == {"q0": Reason.HOPELESS} and ran(said) == ["q1", "q2"]


@CLOCKS
@pytest.mark.parametrize(("stream", "warned"), [("", True), ("a", True), ("camera", False)])
def test_this_slice_keeps_its_part_of_the_own_stream_and_all_of_any_other(
    start: float, stream: str, warned: bool
) -> None:
    """Two places take turns: of the own stream this one may miss none, of a stream with a key one in four."""
    made = batching("greedy", batch=2)()
    hosted = (Hosted("v", 0.9, LatencyCurve((TOOK, TOOK)), (TOOK, TOOK)),)
    peers = (("d0", "whole"), ("d1", "whole"))
    part = Promise(weakly_hard=(WeaklyHard(0, 2),))
    made.handle(HostingChanged("a", hosted, 1.0, ONE_OF_FOUR, peers, part), start)
    for number in range(3):
        arrived = Query(f"q{number}", "a", start, start + 1.5 * TOOK, stream=stream, sequence=number)
        made.handle(Arrived(arrived), start)
    said = made.handle(Offered(), start)
    assert len(ran(said)) == 2 and len(dropped(said)) == 1
    assert [action.state for action in said if isinstance(action, Announce)] == ["safe_mode"] * warned


def states(actions: list[StationAction]) -> list[str]:
    return [action.state for action in actions if isinstance(action, Announce)]


@CLOCKS
@pytest.mark.parametrize(
    ("places", "first", "warned"), [(0, 0, False), (0, 1, True), (2, 1, False), (2, 2, True), (0, -1, False)]
)
def test_a_stream_first_seen_in_its_middle_may_have_missed_all_that_came_before(
    start: float, places: int, first: int, warned: bool
) -> None:
    """Where two take turns the first that comes here may be the second of its stream; -1 is not known."""
    made = batching("greedy", batch=2)()
    hosted = (Hosted("v", 0.9, LatencyCurve((TOOK, TOOK)), (TOOK, TOOK)),)
    peers = tuple((f"d{number}", "whole") for number in range(places))
    made.handle(HostingChanged("a", hosted, 1.0, ONE_OF_FOUR, peers, ONE_OF_FOUR), start)
    for number in range(3):
        sequence = first + number if first >= 0 else -1
        made.handle(Arrived(Query(f"q{number}", "a", start, start + 1.5 * TOOK, sequence=sequence)), start)
    assert states(made.handle(Offered(), start)) == ["safe_mode"] * warned


@CLOCKS
def test_that_the_promise_is_kept_again_is_said_once_so_many_were_decided_within_it(start: float) -> None:
    made = batching("greedy", batch=2, calm=5)()
    made.handle(HostingChanged("a", (Hosted("v", 0.9, LatencyCurve((TOOK, TOOK))),), 1.0, ONE_OF_FOUR), start)
    come(made, start, *(1.5 * TOOK,) * 4)
    said = [states(made.handle(Offered(), start))]
    for step, queries in enumerate((2, 2, 1, 1)):
        now = start + (step + 1) * TOOK
        made.handle(Finished("a", "v", 2, TOOK), now)
        for number in range(queries):
            made.handle(Arrived(Query("later", "a", now, now + 4 * TOOK, sequence=10 + 2 * step + number)), now)
        said.append(states(made.handle(Offered(), now)))
    assert said == [["safe_mode"], [], [], ["promise_kept"], []]


@CLOCKS
@pytest.mark.parametrize(
    ("queries", "failed", "after", "warned"),
    [(1, True, 1, False), (2, True, 1, True), (2, False, 4, False), (2, False, 4 + TICK, True), (1, False, 5, False)],
)
def test_what_was_kept_and_is_missed_after_all_counts_against_the_promise(
    start: float, queries: int, failed: bool, after: float, warned: bool
) -> None:
    """One of four may be missed: a batch of two that failed, or ended after its deadline, is one too many."""
    made = policy(start)
    come(made, start, *(4 * TOOK,) * queries)
    assert len(ran(made.handle(Offered(), start))) == queries
    ended = made.handle(Finished("a", "v", queries, TOOK, failed=failed), start + after * TOOK)
    assert states(ended) == ["safe_mode"] * warned


@CLOCKS
def test_those_that_only_a_smaller_batch_saves_are_not_all_given_up_where_that_is_not_allowed(start: float) -> None:
    """Both are late in a batch of two, and one may be missed: a row alone saves the other, who is behind can wait."""
    made = policy(start, (TOOK / 2, TOOK))
    come(made, start, 0.75 * TOOK, 0.75 * TOOK, 9 * TOOK)
    said = made.handle(Offered(), start)
    assert (dropped(said), ran(said), states(said)) == ({"q0": Reason.SPREAD}, ["q1"], [])


@CLOCKS
def test_a_second_one_that_no_batch_saves_is_announced_before_it_is_given_up(start: float) -> None:
    made = policy(start)
    come(made, start, *(TOOK - TICK,) * 2, 4 * TOOK)
    said = made.handle(Offered(), start)
    assert [type(action) for action in said] == [Drop, Announce, Drop, Run]
    assert (list(dropped(said)), states(said)) == (["q0", "q1"], ["safe_mode"])


@CLOCKS
@pytest.mark.parametrize(("sequence", "warned"), [(2, True), (4, False)])
def test_a_miss_of_who_came_before_one_that_is_decided_is_announced_though_it_would_be_allowed(
    start: float, sequence: int, warned: bool
) -> None:
    made = policy(start)
    for number in (0, 3):
        made.handle(Arrived(Query(f"q{number}", "a", start, start + 4 * TOOK, sequence=number)), start)
    assert ran(made.handle(Offered(), start)) == ["q0", "q3"]
    now = start + TOOK
    made.handle(Finished("a", "v", 2, TOOK), now)
    made.handle(Arrived(Query("late", "a", start, now + TOOK - TICK, sequence=sequence)), now)
    said = made.handle(Offered(), now)
    assert dropped(said) == {"late": Reason.HOPELESS} and states(said) == ["safe_mode"] * warned


ONE, OTHER, BOTH = (("d0", "whole"),), (("d1", "whole"),), (("d0", "whole"), ("d1", "whole"))
TWO_OF_NINE = Promise(weakly_hard=(WeaklyHard(2, 9),))


@CLOCKS
@pytest.mark.parametrize(
    ("stream", "peers", "promise", "warned"),
    [
        ("camera", ONE, ONE_OF_FOUR, False),
        ("camera", OTHER, ONE_OF_FOUR, True),
        ("", OTHER, ONE_OF_FOUR, False),  # one place serves all of it, as before
        ("", BOTH, ONE_OF_FOUR, True),
        ("camera", ONE, TWO_OF_NINE, True),
        ("", ONE, TWO_OF_NINE, True),
    ],
)
def test_a_past_that_may_be_out_of_date_counts_as_missed(
    start: float, stream: str, peers: tuple[tuple[str, str], ...], promise: Promise, warned: bool
) -> None:
    """A stream was served here; then something else is hosted, and one of three must be missed."""
    made = batching("greedy", batch=2)()
    hosted = (Hosted("v", 0.9, LatencyCurve((TOOK, TOOK)), (TOOK, TOOK)),)
    made.handle(HostingChanged("a", hosted, 1.0, ONE_OF_FOUR, ONE, ONE_OF_FOUR), start)
    made.handle(Arrived(Query("first", "a", start, start + TOOK, stream=stream, sequence=0)), start)
    assert ran(made.handle(Offered(), start)) == ["first"]
    now = start + TOOK
    made.handle(Finished("a", "v", 1, TOOK), now)
    made.handle(HostingChanged("a", hosted, 1.0, promise, peers, promise), now)
    for number in (1, 2, 3):
        made.handle(Arrived(Query(f"q{number}", "a", now, now + 1.5 * TOOK, stream=stream, sequence=number)), now)
    said = made.handle(Offered(), now)
    assert len(ran(said)) == 2 and states(said) == ["safe_mode"] * warned


@pytest.mark.parametrize("name", ["spread-drop", "weakly-hard", "balanced", "greedy"])
@pytest.mark.parametrize("start", [0.0, 1.7e9])
def test_who_stands_behind_a_query_that_fits_in_no_batch_runs_at_once(name: str, start: float) -> None:
    policy = batching(name, batch=2)()
    policy.handle(HostingChanged("a", (Hosted("v", 0.9, LatencyCurve((0.009, 0.010, 0.024))),), 0.1), start)
    first, large, behind = (
        Query(str(rows), "a", start, start + left, rows) for left, rows in ((0.0099, 1), (0.012, 3), (0.1, 2))
    )
    for query in (first, large, behind):
        policy.handle(Arrived(query), start)
    actions = policy.handle(Offered(), start)
    assert [a.query for a in actions if isinstance(a, Drop)] == [first, large]
    assert [a for a in actions if isinstance(a, Run)] == [Run("v", (behind,), 2)]


@pytest.mark.parametrize("name", ["spread-drop", "weakly-hard", "balanced", "greedy"])
@CLOCKS
def test_a_variant_that_takes_more_rows_runs_who_does_not_fit_on_the_one_that_serves_most(
    name: str, start: float
) -> None:
    """Two rows fit on ``wide`` alone, where one of two queries must be missed; on ``fast`` none is due yet."""
    made = batching(name, batch=2)()
    fast = Hosted("fast", 0.9, LatencyCurve((3 * TICK,)))
    wide = Hosted("wide", 0.8, LatencyCurve((5 * TICK, 25 * TICK)))
    made.handle(HostingChanged("a", (fast, wide), 1.0), start)
    for number in range(2):
        query = Query(f"q{number}", "a", start, start + 27 * TICK, 2, sequence=number)
        made.handle(Arrived(query), start)
    actions = made.handle(Offered(), start)
    assert [run.variant for run in actions if isinstance(run, Run)] == ["wide"]
    assert (ran(actions), dropped(actions)) == (["q1"], {"q0": Reason.SPREAD})


def test_who_is_in_time_as_the_clock_tells_it_is_not_given_up() -> None:
    """What one row takes beyond the time left is less than the clock tells apart."""
    start = 1.7e9
    took = TOOK + 2.0**-26
    assert start + took == start + TOOK
    made = policy(start, (took, 2 * TOOK))
    come(made, start, TOOK, 8 * TOOK)
    actions = made.handle(Offered(), start)
    assert (ran(actions), dropped(actions)) == (["q0"], {})

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

"""What is counted of a stream: misses that are left, counts that go on, numbers that are lost."""

import pytest

from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.policies.promises.tracker import MissTracker, StreamState, StreamTracker

PROMISE = Promise(weakly_hard=(WeaklyHard(1, 3), WeaklyHard(2, 5)))


def tracked(fates: str, *ks: int) -> MissTracker:
    """``x``: a miss; ``?``: what was before is not known."""
    tracker = MissTracker(ks)
    for fate in fates:
        if fate == "?":
            tracker.spend()
        else:
            tracker.record(fate == "x")
    return tracker


@pytest.mark.parametrize(
    ("fates", "left"),
    [
        ("", (1, 2)),
        ("x", (0, 1)),
        ("x.", (0, 1)),
        ("x..", (1, 1)),
        ("x..x", (0, 0)),
        ("x..x.", (0, 1)),
        ("xxx", (0, 0)),
    ],
)
def test_what_may_still_be_missed_is_what_was_promised_less_the_misses_that_are_in_sight(
    fates: str, left: tuple[int, int]
) -> None:
    assert tracked(fates, 3, 5).left(PROMISE) == ((3, left[0]), (5, left[1]))
    assert tracked(fates, 5).left(PROMISE) == ((5, left[1]),), "what is not tracked is not told"


@pytest.mark.parametrize(
    ("fates", "left"),
    [("", (0, 0)), (".", (0, 0)), ("..", (1, 0)), ("...", (1, 1)), ("..x.", (0, 1)), ("....", (1, 2))],
)
def test_a_past_that_is_not_known_leaves_what_it_would_if_it_were_missed(fates: str, left: tuple[int, int]) -> None:
    for before in ("?", ".....?", "x.?"):
        assert tracked(before + fates, 3, 5).left(PROMISE) == ((3, left[0]), (5, left[1]))


def test_counts_go_on_from_those_of_another_and_the_worst_of_both_is_kept() -> None:
    tracker = tracked("x", 3, 5)
    tracker.continues(10, 4, 3, {3: 2, 9: 8})
    assert (tracker.count, tracker.misses, tracker.mcd, tracker.worst) == (10, 4, 3, {3: 2, 5: 1})
    tracker.record(True)
    assert (tracker.count, tracker.misses, tracker.run, tracker.mcd) == (11, 5, 2, 3)
    tracker.continues(20, 6, 1, {3: 1, 5: 4})
    assert (tracker.count, tracker.misses, tracker.mcd, tracker.worst) == (20, 6, 3, {3: 2, 5: 4})


def test_a_promise_holds_up_to_what_it_allows_and_no_further() -> None:
    in_a_row = Promise(max_consecutive=2)
    assert tracked("xx.xx", 3).keeps(in_a_row) and not tracked(".xxx", 3).keeps(in_a_row)
    assert tracked("x..x.", 3, 5).keeps(PROMISE) and not tracked("x.x", 3, 5).keeps(PROMISE)
    assert tracked("xx", 3, 5).worst == {3: 2, 5: 2}


def test_one_outcome_more_than_may_wait_makes_the_missing_one_a_miss() -> None:
    stream = StreamTracker([3], start=70, limit=2)
    for sequence in (70, 72, 73):
        stream.record(sequence, False)
    assert (stream.held, stream.tracker.count, stream.tracker.misses) == (2, 1, 0)
    stream.record(74, False)
    assert (stream.held, stream.tracker.count, stream.tracker.misses) == (0, 5, 1)
    assert stream.state == StreamState(75, (False, False, False))


def test_what_came_before_and_what_comes_twice_changes_nothing() -> None:
    stream = StreamTracker([2], start=70)
    stream.record(69, True)
    stream.record(71, True)
    stream.record(71, False)
    stream.record(70, False)
    assert stream.state == StreamState(72, (False, True))
    stream.record(70, True)
    assert (stream.tracker.count, stream.tracker.misses) == (2, 1)


def test_a_stream_that_is_resumed_goes_on_with_its_next_number() -> None:
    resumed = StreamTracker.resume(StreamState(72, (True, False)), [2])
    assert (resumed.state, resumed.tracker.count, resumed.tracker.misses) == (StreamState(72, (True, False)), 2, 1)
    resumed.record(72, True)
    assert resumed.state == StreamState(73, (False, True))

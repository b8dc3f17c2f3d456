"""Selections, histories, trackers, rates and the limiter: known cases, the papers' errors as counter-examples."""

import itertools

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.models.sustainable_rate import max_rate, window_bound
from sluicegate.domain.query import Query
from sluicegate.policies.promises.drop_choice import (
    balanced,
    blockwise,
    blockwise_range,
    borne,
    greedy,
    greedy_rows,
    grouped,
)
from sluicegate.policies.promises.history import MissHistory
from sluicegate.policies.promises.safe_mode import SafeModeSwitch
from sluicegate.policies.promises.tracker import MissTracker, StreamTracker
from sluicegate.policies.promises.window_limiter import PlaceLimit, WindowLimiter


def bits(keep: list[bool] | None) -> str:
    return "".join("01"[k] for k in keep or ())


def seen(keep: list[bool], k: int) -> tuple[int, int]:
    """(longest run of drops, most drops in k consecutive)."""
    tracker = MissTracker([k])
    for kept in keep:
        tracker.record(not kept)
    return tracker.mcd, tracker.worst[k]


def test_algorithm_3_does_not_give_weakly_hard_promises_and_balanced_does() -> None:
    assert bits(grouped(6, 4)) == "110101"
    assert bits(balanced(6, 4)) == "011011"
    assert seen(balanced(6, 4), 3)[1] == 1


def test_the_papers_first_figure() -> None:
    early_drop = [False] * 12 + [True] * 8
    assert seen(early_drop, 5)[0] == 12
    assert seen(grouped(20, 8), 5) == (2, 4)
    assert seen(blockwise(20, 8, 3, 5) or [], 5) == (3, 3)
    assert seen(balanced(20, 8), 5) == (2, 3)


def test_blockwise_says_where_it_does_not_apply() -> None:
    assert blockwise(3, 2, 0, 5) is None
    assert blockwise_range(8, 5, 10) == 13
    assert sum(blockwise(13, 8, 5, 10) or []) == 8
    assert blockwise(14, 8, 5, 10) is None


def test_greedy_drops_as_soon_as_the_history_allows() -> None:
    history = MissHistory(((1, 3),))
    assert bits(greedy(6, 4, history)) == "011011"
    history.record(True)
    assert bits(greedy(6, 4, history)) == "110110"
    assert greedy(6, 3, history) is None
    assert history.position == 1


def candidates(*rows: int, streams: str = "") -> list[Query]:
    names = streams or "s" * len(rows)
    return [Query(str(i), "a", 70.0, 71.0, n, stream=name) for i, (n, name) in enumerate(zip(rows, names, strict=True))]


@pytest.mark.parametrize(
    ("rows", "room", "pair", "kept"),
    [
        ((2, 1, 3, 1), 5, (2, 5), "0111"),
        ((2, 1, 3, 1), 6, (2, 5), "0111"),  # a row less than that is owed, but nothing smaller went
        ((1, 3), 1, (2, 5), "10"),  # the first was dropped in vain
        ((1, 3), 1, (1, 5), ""),
        ((1, 1, 1, 1), 2, (1, 2), "0101"),
        ((1, 1, 1, 1), 1, (1, 2), ""),
        ((2, 2), 4, (1, 2), "11"),
    ],
)
def test_queries_of_several_rows_are_dropped_as_soon_as_allowed_until_the_others_fit(
    rows: tuple[int, ...], room: int, pair: tuple[int, int], kept: str
) -> None:
    history = MissHistory((pair,))
    assert bits(greedy_rows(candidates(*rows), room, lambda _query: history)) == kept
    assert history.position == 0


def test_each_stream_spends_misses_of_its_own() -> None:
    mixed = candidates(1, 1, 1, 1, streams="stst")
    assert bits(greedy_rows(mixed, 2, lambda _query: MissHistory(((1, 4),)))) == "0011"
    assert greedy_rows(candidates(1, 1, 1, 1), 2, lambda _query: MissHistory(((1, 4),))) is None


def test_the_first_that_are_decided_are_those_up_to_a_full_batch() -> None:
    history = MissHistory(((1, 4),))
    assert bits(borne(candidates(1, 1, 1, 1), 2, lambda _query: history)) == "011"
    assert borne(candidates(1, 1, 1, 1), 3, lambda _query: history) is None, "all of them"
    assert bits(borne(candidates(1, 2, 2, 1), 3, lambda _query: history)) == "01", "two rows more do not fit"


def test_a_promise_of_no_miss_in_a_row_is_a_window_of_one_more() -> None:
    promise = Promise(max_consecutive=2, weakly_hard=(WeaklyHard(5, 10), WeaklyHard(7, 7)))
    assert promise.constraints == ((2, 3), (5, 10))


def test_a_revised_outcome_counts_against_the_promise() -> None:
    history = MissHistory(((1, 3),))
    for missed in (True, False, False, False):
        history.record(missed)
    assert not history.fork().revise(1)
    assert history.revise(3)
    assert not history.may_miss()


@pytest.mark.parametrize(
    ("promise", "bound"),
    [
        (Promise(), 8),
        (Promise(max_consecutive=2), 24),
        (Promise(weakly_hard=(WeaklyHard(5, 10),)), 16),
        (Promise(weakly_hard=(WeaklyHard(7, 10),)), 26),
        (Promise(weakly_hard=(WeaklyHard(4, 10),)), 13),
        (Promise(max_consecutive=1, weakly_hard=(WeaklyHard(7, 10), WeaklyHard(4, 10))), 13),
    ],
)
def test_window_bounds_of_a_batch_of_eight(promise: Promise, bound: int) -> None:
    assert window_bound(8, promise) == bound


@pytest.mark.parametrize("pair", [WeaklyHard(-1, 4), WeaklyHard(4, 4)])
def test_impossible_promises_are_refused(pair: WeaklyHard) -> None:
    with pytest.raises(InvalidInputError, match="weakly_hard"):
        window_bound(8, Promise(weakly_hard=(pair,)))


def test_the_largest_batch_is_not_always_the_best() -> None:
    curve = LatencyCurve((0.010, 0.011, 0.012, 0.030))
    best = max_rate(curve, 0.06)
    assert best is not None and (best.batch, best.bound) == (3, 3)
    assert best.rate == pytest.approx(3 / 0.012)
    assert max_rate(curve, 0.019) is None


def test_a_duty_cycle_lowers_the_rate_and_may_leave_no_batch() -> None:
    curve = LatencyCurve((0.010, 0.015))
    shared = max_rate(curve, 0.05, others_s=0.02)
    assert shared is not None
    assert shared.batch == 2
    assert shared.window_s == pytest.approx(0.035)
    assert max_rate(curve, 0.05, others_s=0.04) is None


def test_a_smaller_batch_that_takes_longer_bounds_the_processing_time() -> None:
    best = max_rate(LatencyCurve((0.020, 0.010)), 0.04, batches=[2])
    assert best is not None and best.window_s == 0.020


def test_the_limiter_never_lets_two_windows_worth_through() -> None:
    limiter = WindowLimiter([PlaceLimit(3)], 1.0)
    admitted = [t / 10 for t in range(40) if limiter.admit(t / 10)]
    assert len(admitted) == 12
    for start in admitted:
        assert sum(start <= t < start + 1.0 for t in admitted) <= 3


def test_a_resized_limiter_remembers() -> None:
    limiter = WindowLimiter([PlaceLimit(3)], 1.0)
    assert [limiter.admit(t) for t in (0.0, 0.1, 0.2, 0.3)] == [True, True, True, False]
    smaller = limiter.resized([PlaceLimit(2)], 1.0)
    assert [smaller.admit(t) for t in (0.5, 1.1, 1.15)] == [False, True, False]
    larger = limiter.resized([PlaceLimit(4)], 1.0)
    assert [larger.admit(t) for t in (0.5, 0.6)] == [True, False]
    assert not limiter.resized([PlaceLimit(0)], 1.0).admit(99.0)


def test_the_tracker_takes_outcomes_in_order_whatever_order_they_come_in() -> None:
    fates = [True, False, True, True, False, True, True, True, False]
    straight = MissTracker([3])
    for fate in fates:
        straight.record(fate)
    assert (straight.mcd, straight.worst[3], straight.misses, straight.count) == (3, 3, 6, 9)
    for order in itertools.islice(itertools.permutations(range(9)), 0, 362_880, 9_973):
        stream = StreamTracker([3])
        for sequence in order:
            stream.record(sequence, fates[sequence])
        assert stream.held == 0
        assert (stream.tracker.mcd, stream.tracker.worst) == (straight.mcd, straight.worst)


def test_duplicates_do_not_count_and_a_lost_number_cannot_stop_the_count() -> None:
    stream = StreamTracker([2], limit=3)
    stream.record(0, True)
    stream.record(0, True)
    for sequence in (2, 3, 4, 5):
        stream.record(sequence, False)
    assert (stream.tracker.count, stream.tracker.misses, stream.held) == (6, 2, 0)
    assert stream.tracker.mcd == 2


def test_a_stream_moves_with_its_state() -> None:
    promise = Promise(weakly_hard=(WeaklyHard(2, 4),))
    stream = StreamTracker.for_promise(promise, start=100)
    for i, missed in enumerate((True, True, False, False, True, True)):
        stream.record(100 + i, missed)
    moved = StreamTracker.resume(stream.state, [4])
    assert moved.tracker.keeps(promise)
    moved.record(106, True)
    assert not moved.tracker.keeps(promise)
    assert (moved.tracker.count, moved.tracker.misses, moved.tracker.mcd, dict(moved.tracker.worst)) == (
        5,
        3,
        3,
        {4: 3},
    )


def test_safe_mode_is_entered_once_and_left_after_a_calm() -> None:
    switch = SafeModeSwitch(calm=10)
    assert switch.trouble()
    assert not switch.trouble()
    assert not switch.calm_for(9)
    assert not switch.trouble()
    assert [switch.calm_for(5), switch.calm_for(5), switch.calm_for(5)] == [False, True, False]
    assert not switch.active

"""What may be committed is the contiguous prefix of what is done."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.domain.errors import IllegalEventError
from sluicegate.stages.runtime.offset_tracker import CommitTracker
from sluicegate.streams.ports import TopicPartition

P = TopicPartition("t", 0)
Q = TopicPartition("t", 1)


def test_nothing_is_due_before_the_first_record_is_done() -> None:
    tracker = CommitTracker()
    tracker.begin(P, 5)
    assert tracker.due() == {}
    assert tracker.in_flight == 1


def test_a_record_done_out_of_order_waits_for_those_before_it() -> None:
    tracker = CommitTracker()
    for offset in (5, 6, 9):
        tracker.begin(P, offset)
    tracker.done(P, 6)
    assert tracker.due() == {}
    tracker.done(P, 5)
    assert tracker.due() == {P: 7}
    tracker.done(P, 9)
    assert tracker.due() == {P: 10}


def test_what_was_committed_is_not_due_again() -> None:
    tracker = CommitTracker()
    tracker.begin(P, 0)
    tracker.done(P, 0)
    tracker.committed(tracker.due())
    assert tracker.due() == {}


def test_forgotten_partitions_are_neither_due_nor_in_flight() -> None:
    tracker = CommitTracker()
    tracker.begin(P, 0)
    tracker.begin(Q, 3)
    tracker.done(P, 0)
    tracker.forget([P, Q])
    tracker.done(Q, 3)
    assert tracker.due() == {}
    assert tracker.in_flight == 0


def test_an_offset_begun_twice_is_a_defect() -> None:
    tracker = CommitTracker()
    tracker.begin(P, 4)
    with pytest.raises(IllegalEventError):
        tracker.begin(P, 4)


@given(st.data())
def test_the_due_offset_is_one_past_the_longest_done_prefix(data: st.DataObject) -> None:
    offsets = sorted(data.draw(st.sets(st.integers(0, 60), min_size=1, max_size=30)))
    order = data.draw(st.permutations(offsets))
    tracker = CommitTracker()
    for offset in offsets:
        tracker.begin(P, offset)
    finished: set[int] = set()
    for offset in order:
        tracker.done(P, offset)
        finished.add(offset)
        prefix = [o for i, o in enumerate(offsets) if set(offsets[: i + 1]) <= finished]
        assert tracker.due() == ({P: prefix[-1] + 1} if prefix else {})
        assert tracker.in_flight == len(offsets) - len(finished)


def test_what_is_done_of_an_earlier_reading_counts_once() -> None:
    tracker = CommitTracker()
    tracker.begin(Q, 3)
    for offset in (5, 6, 7):
        tracker.begin(P, offset)
    tracker.forget([P])
    for offset in (5, 6):
        tracker.begin(P, offset)
    tracker.done(P, 7)  # not read again yet
    tracker.done(P, 6)
    assert (tracker.in_flight, tracker.due()) == (2, {})
    tracker.done(P, 6)
    assert tracker.in_flight == 2
    tracker.begin(P, 7)
    tracker.done(P, 5)
    assert (tracker.in_flight, tracker.due()) == (2, {P: 7})
    tracker.done(P, 7)
    tracker.done(Q, 3)
    assert (tracker.in_flight, tracker.due()) == (0, {P: 8, Q: 4})

"""Which offsets may be committed: the contiguous prefix of records for which all that was produced is acknowledged.

A record is ``begun`` when it is read and ``done`` once everything it led to is acknowledged, in any order. Offsets of a
log may have gaps (compaction, transaction markers): the prefix runs over records begun, not over numbers.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from sluicegate.domain.errors import IllegalEventError
from sluicegate.streams.ports import TopicPartition


class _Partition:
    __slots__ = ("committed", "done", "next_commit", "order")

    def __init__(self) -> None:
        self.order: deque[int] = deque()
        self.done: set[int] = set()
        self.next_commit: int | None = None
        self.committed: int | None = None


class CommitTracker:
    """O(1) amortised a record; memory is that of the offsets from the oldest in flight on."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        """Records begun and not done."""
        return self._in_flight

    def begin(self, partition: TopicPartition, offset: int) -> None:
        """A record was read. Offsets of a partition must ascend."""
        state = self._partitions.get(partition)
        if state is None:
            state = self._partitions[partition] = _Partition()
        if state.order and offset <= state.order[-1]:
            raise IllegalEventError(f"{partition}: offset {offset} begun after {state.order[-1]}")
        state.order.append(offset)
        self._in_flight += 1

    def done(self, partition: TopicPartition, offset: int) -> None:
        """All that this record led to is acknowledged. Unknown partitions (given up meanwhile) are ignored."""
        state = self._partitions.get(partition)
        if state is None:
            return
        order, finished = state.order, state.done
        if not order or not order[0] <= offset <= order[-1] or offset in finished:
            return  # read before the partition went and came back, and done since
        self._in_flight -= 1
        if offset != order[0]:
            finished.add(offset)
            return
        order.popleft()
        last = offset
        while order and order[0] in finished:
            last = order.popleft()
            finished.discard(last)
        state.next_commit = last + 1

    def due(self) -> dict[TopicPartition, int]:
        """Offsets to commit now: those that moved since ``committed`` was last told."""
        return {
            partition: state.next_commit
            for partition, state in self._partitions.items()
            if state.next_commit is not None and state.next_commit != state.committed
        }

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These offsets were committed."""
        for partition, offset in offsets.items():
            state = self._partitions.get(partition)
            if state is not None:
                state.committed = offset

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions go to others: what is in flight of them will be read again there."""
        for partition in partitions:
            state = self._partitions.pop(partition, None)
            if state is not None:
                self._in_flight -= len(state.order) - len(state.done)

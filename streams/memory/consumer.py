"""Consumer of the memory broker: explicit partitions, or a share of a group's."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.memory.groups import Group
from sluicegate.streams.memory.partition_log import PartitionLog
from sluicegate.streams.ports import LostPartitionError, Record, TopicPartition
from sluicegate.streams.subscription import Subscription, check_topics


class Store(Protocol):
    """What a consumer asks of the broker's store."""

    offsets: dict[tuple[str, TopicPartition], int]

    def log(self, partition: TopicPartition) -> PartitionLog:
        """The log of a partition."""
        ...

    def group(self, name: str) -> Group:
        """A group by name."""
        ...

    def partition_counts(self) -> dict[str, int]:
        """Topic -> number of partitions."""
        ...


class MemoryConsumer:
    """Implements ``sluicegate.streams.ports.Consumer``. One reader at a time."""

    def __init__(
        self,
        store: Store,
        reads: Subscription,
        *,
        on_stop: Callable[["MemoryConsumer"], None],
    ) -> None:
        self._store = store
        self._reads = reads
        self._topics = frozenset(reads.topics)
        self._on_stop = on_stop
        self._member_id: str | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._paused: set[TopicPartition] = set()
        self._revoking = False
        """Apart from what is paused: who reads resumes what it paused itself, at whatever time."""
        self._turn = 0
        self._waiter: asyncio.Future[None] | None = None
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._watched: list[PartitionLog] = []
        self._failure: Exception | None = None
        self._fenced: Exception | None = None
        self._running = False

    async def start(self) -> None:
        """Join the group, or take the explicit partitions."""
        if self._running:
            return
        self._fenced = None
        if self._reads.partitions:
            self._take(self._reads.partitions)
            self._running = True
            return
        counts = self._check_exist(self._topics)
        if self._reads.group is None:
            self._take([TopicPartition(t, p) for t in sorted(self._topics) for p in range(counts[t])])
            self._running = True
            return
        self._running = True
        self._member_id = await self._store.group(self._reads.group).join(
            self, self._topics, self._reads.member, exclusive=self._reads.exclusive
        )
        self._raise_failure()

    async def get_many(self, *, wait: float, max_records: int = 500) -> Sequence[Record]:
        """Records in offset order within each partition."""
        self._check_running()
        if wait <= 0 or self._is_more():
            await asyncio.sleep(0)
            self._check_running()
            records = self._collect(max_records)
            if records or wait <= 0:
                return records
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        while loop.time() < until:
            await self._wait(loop, until)
            self._check_running()
            if records := self._collect(max_records):
                return records
        return []

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics from now on: a rebalance, where they are others."""
        wanted = frozenset(topics)
        if self._reads.group is None or self._reads.partitions or self._member_id is None:
            raise ConfigurationError("only a started member of a group changes its topics; name a group and topics")
        self._raise_failure()
        self._check_exist(wanted)
        if wanted != self._topics:
            self._topics = wanted
            await self._store.group(self._reads.group).change(self._member_id, wanted)
            self._raise_failure()

    def assignment(self) -> frozenset[TopicPartition]:
        """Partitions read at present."""
        return frozenset(self._positions)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these."""
        for tp in partitions:
            self._check_ours(tp)
            self._paused.add(tp)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these again."""
        for tp in partitions:
            self._check_ours(tp)
            self._paused.discard(tp)
        self._wake()

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from ``offset``."""
        self._check_ours(partition)
        if offset < 0:
            raise ConfigurationError(f"cannot seek {partition} to {offset}: offsets start at 0")
        self._positions[partition] = offset
        self._wake()

    async def position(self, partition: TopicPartition) -> int:
        """Offset of the next record to be read."""
        self._check_ours(partition)
        return self._positions[partition]

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record that everything below these offsets is done."""
        if self._reads.group is None:
            raise ConfigurationError("this consumer has no group to commit for; name one")
        for tp in offsets:
            self._check_ours(tp)
        for tp, offset in offsets.items():
            self._store.offsets[self._reads.group, tp] = offset

    async def committed(self, partition: TopicPartition) -> int | None:
        """The group's committed offset."""
        return None if self._reads.group is None else self._store.offsets.get((self._reads.group, partition))

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """First offset still kept."""
        return {tp: self._store.log(tp).start for tp in partitions}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Offset that the next record will get."""
        return {tp: self._store.log(tp).end for tp in partitions}

    async def offsets_for_times(self, times: Mapping[TopicPartition, float]) -> Mapping[TopicPartition, int | None]:
        """First offset at or after each time."""
        return {tp: self._store.log(tp).offset_at(at) for tp, at in times.items()}

    async def stop(self) -> None:
        """Leave the group."""
        if not self._running:
            self._on_stop(self)
            return
        self._running = False
        self._drop_all()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reads.group is not None and self._member_id is not None:
            self._store.group(self._reads.group).leave(self._member_id, self)
        self._on_stop(self)
        self._wake()

    async def revoke(self) -> None:
        """A rebalance begins: nothing is read while the listener finishes."""
        held = self.assignment()
        self._revoking = True
        self._wake()
        try:
            if self._reads.listener is not None and held:
                await self._reads.listener.on_revoked(held)
        except Exception as error:
            self.fail(error)
        self._drop_all()

    async def grant(self, partitions: frozenset[TopicPartition]) -> None:
        """A rebalance ends: read on from what the group committed."""
        if not self._running or self._fenced is not None:
            return
        self._drop_all()
        try:
            self._take(sorted(partitions))
            if self._reads.listener is not None:
                await self._reads.listener.on_assigned(partitions)
        except Exception as error:
            self.fail(error)
        self._wake()

    def fail(self, error: Exception) -> None:
        """Raise ``error`` at the next read."""
        self._failure = error
        self._wake()

    def fence(self, error: Exception) -> None:
        """Another is this member now: nothing is read or committed, and each read raises ``error``."""
        self._fenced = error
        self._drop_all()
        self._wake()

    def _check_exist(self, topics: Iterable[str]) -> Mapping[str, int]:
        counts = self._store.partition_counts()
        check_topics(topics, counts)
        return counts

    def _take(self, partitions: Iterable[TopicPartition]) -> None:
        for given in partitions:
            tp = TopicPartition(*given)
            log = self._store.log(tp)
            self._logs[tp] = log
            self._positions[tp] = self._first_position(tp, log)
        self._watch()

    def _first_position(self, tp: TopicPartition, log: PartitionLog) -> int:
        if not self._reads.partitions or self._reads.start_at == "committed":
            known = None if self._reads.group is None else self._store.offsets.get((self._reads.group, tp))
            if known is not None:
                return known
        return log.end if self._reads.start_at == "end" else log.start

    def _drop_all(self) -> None:
        self._positions.clear()
        self._logs.clear()
        self._paused.clear()
        self._revoking = False
        self._watch()

    def _collect(self, limit: int) -> list[Record]:
        records: list[Record] = []
        if self._revoking:
            return records
        positions = self._positions
        order = list(positions)
        if len(order) > 1:
            # Each call starts one partition further, so that a busy one starves no other.
            self._turn = (self._turn + 1) % len(order)
            order = order[self._turn :] + order[: self._turn]
        for tp in order:
            if tp in self._paused:
                continue
            log = self._logs[tp]
            position = positions[tp]
            if not log.start <= position <= log.end:
                position = positions[tp] = log.end if self._reads.start_at == "end" else log.start
            if position == log.end:
                continue
            read = log.read(position, limit - len(records))
            # Past gaps that compaction left, the position is that of the end.
            positions[tp] = read[-1].offset + 1 if read else log.end
            records += read
            if len(records) >= limit:
                break
        return records

    def _is_more(self) -> bool:
        """Whether anything is there to be read, or a position to be mended."""
        positions = self._positions
        return not self._revoking and any(
            tp not in self._paused and positions[tp] != log.end for tp, log in self._logs.items()
        )

    async def _wait(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        """Until something is written, or that time. One timer serves many waits: it is set anew where it goes off."""
        waiter = self._waiter = loop.create_future()
        self._until = until
        if self._timer is not None and self._timer.when() > until:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = loop.call_at(until, self._time_is_up)
        try:
            await waiter
        finally:
            self._waiter = None

    def _time_is_up(self) -> None:
        timer, self._timer = self._timer, None
        if self._waiter is None or timer is None:
            return
        if timer.when() < self._until:
            self._timer = asyncio.get_running_loop().call_at(self._until, self._time_is_up)
        else:
            self._wake()

    def _watch(self) -> None:
        """Be told of what is written to what is read now, and of nothing else."""
        for log in self._watched:
            log.watchers.pop(self._wake, None)
        self._watched = list(self._logs.values())
        for log in self._watched:
            log.watchers[self._wake] = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _check_ours(self, tp: TopicPartition) -> None:
        if tp not in self._positions:
            raise LostPartitionError(f"partition {tp.partition} of {tp.topic} is not read by this consumer")

    def _check_running(self) -> None:
        self._raise_failure()
        if not self._running:
            raise ConfigurationError("this consumer is not started (or stopped): await start() before reading")

    def _raise_failure(self) -> None:
        if self._fenced is not None:
            raise self._fenced.with_traceback(None)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

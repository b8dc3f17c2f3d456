"""What a process has of the cluster: the ports of ``streams``, behind its link. See ``cluster`` for the rules."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.ports import (
    BrokerError,
    FencedError,
    Headers,
    Letter,
    LostPartitionError,
    RebalanceListener,
    Record,
    TopicPartition,
    TopicSpec,
    Written,
)
from sluicegate.streams.subscription import Subscription, check_topics
from tests.explore.cluster import REQUEST, Link
from tests.explore.groups import SESSION, Group, Partitions
from tests.explore.loop import BASE

HEARTBEAT = 0.3
TRANSACTION = 2.0


class Producer:
    """Implements ``sluicegate.streams.ports.Producer``."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._open: dict[asyncio.Future[Written], None] = {}

    async def start(self) -> None:
        """Connect."""
        await self._link.reach()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> "asyncio.Future[Written]":
        """Queue a record."""
        if topic not in self._link.cluster.store.partition_counts():
            await self._link.reach()
            raise ConfigurationError(f"topic {topic!r} does not exist")
        stamp = timestamp if timestamp is not None else BASE + self._link.loop.time()
        letter = Letter(topic, value, key, headers, partition, stamp)
        self._link.cluster.witness.says(letter, self._link)
        future = self._link.send(letter)
        self._open[future] = None
        future.add_done_callback(lambda done: self._open.pop(done, None))
        return future

    def try_send(self, topic: str, value: bytes | None, **options: object) -> None:
        """Never."""

    async def flush(self) -> None:
        """Wait for all."""
        while self._open:
            await asyncio.wait(list(self._open))

    async def stop(self) -> None:
        """Flush, within a bound."""
        if self._open:
            await asyncio.wait(list(self._open), timeout=REQUEST)


class Consumer:
    """Implements ``sluicegate.streams.ports.Consumer`` as the Kafka adapter does: with a heartbeat of its own, and
    fetches that a rebalance gives up."""

    def __init__(
        self,
        link: Link,
        *,
        topics: Sequence[str] = (),
        partitions: Sequence[TopicPartition] = (),
        group: str | None = None,
        member: str | None = None,
        start_at: str = "committed",
        listener: RebalanceListener | None = None,
        exclusive: bool = False,
    ) -> None:
        Subscription(tuple(topics), tuple(partitions), start_at=start_at)  # refuses what no broker serves
        self._link = link
        self._cluster = link.cluster
        self._topics = frozenset(topics)
        self._explicit = frozenset(TopicPartition(*p) for p in partitions)
        self._group_name = group
        self._static = member
        self._start_at = start_at
        self._listener = listener
        self._exclusive = exclusive
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._name = member
        self._generation = -1
        self._assigned = 0
        self._settled = asyncio.Event()
        self._waiter: asyncio.Future[None] | None = None
        self._beat: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._last_read: float | None = None
        self._running = False
        self.stands = False
        """Whether it gives no answer any more."""

    @property
    def running(self) -> bool:
        """Whether it was started, and not stopped."""
        return self._running

    @property
    def _shared(self) -> bool:
        return self._group_name is not None and not self._explicit

    @property
    def _group(self) -> Group:
        assert self._group_name is not None
        return self._cluster.group(self._group_name)

    async def start(self) -> None:
        """Connect; join, or take what was named."""
        if self._running:
            return
        await self._link.reach()
        self._check_exist(self._topics | {p.topic for p in self._explicit})
        self._running = True
        if self._shared:
            self._beat = asyncio.create_task(self._live())
            try:
                async with asyncio.timeout(10.0):
                    await self._settled.wait()
            except TimeoutError as error:
                await self.stop()
                raise BrokerError(f"{self._group_name}: the group gave no partitions in time") from error
            self._raise_failure()
        else:
            counts = self._cluster.store.partition_counts()
            all_of = {TopicPartition(t, p) for t in self._topics for p in range(counts[t])}
            await self._take(self._explicit or frozenset(all_of))
            self._settled.set()

    async def get_many(self, *, wait: float, max_records: int = 500) -> Sequence[Record]:
        """Records, after their way here."""
        if self.stands:
            await asyncio.Event().wait()
        self._check_running()
        loop = self._link.loop
        until = loop.time() + wait
        if not self._settled.is_set():
            try:
                async with asyncio.timeout(wait):
                    await self._settled.wait()
            except TimeoutError:
                pass
            self._check_running()
            return []
        asked_at, round_ = self._last_read, self._assigned
        while True:
            ready = self._available() if self._link.up else []
            if ready:
                break
            left = until - loop.time()
            if left <= 0 or round_ != self._assigned:
                self._last_read = loop.time()
                if wait <= 0:  # who asks again at once must not keep others from running
                    await asyncio.sleep(0)
                return []
            await self._wait(left)
            self._check_running()
        await self._link.reach()
        self._check_running()
        if round_ != self._assigned:
            return []
        now = loop.time()
        if self._shared and asked_at is not None and now - asked_at - wait > SESSION / 2:
            await self._link.reach()
            told = self._group.heartbeat(self._name or "", self._generation)
            if told != "ok" or round_ != self._assigned:
                await asyncio.sleep(wait)
                return []
        self._last_read = now
        return self._collect(max_records)

    def _available(self) -> list[TopicPartition]:
        logs, paused = self._cluster.store.log, self._paused
        return [p for p, position in self._positions.items() if p not in paused and position < logs(p).end]

    def _collect(self, limit: int) -> list[Record]:
        records: list[Record] = []
        for partition in self._available():
            log = self._cluster.store.log(partition)
            position = self._positions[partition]
            if position < log.start:
                position = log.start
            read = log.read(position, limit - len(records))
            self._positions[partition] = read[-1].offset + 1 if read else log.end
            records += read
            if len(records) >= limit:
                break
        return records

    async def _wait(self, seconds: float) -> None:
        loop = self._link.loop
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(seconds, self.wake)
        watched = tuple(self._positions)
        self._cluster.watch(self, watched)
        if not self._link.up:
            loop.call_later(max(1e-6, self._link._cut_until - loop.time()), self.wake)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None
            self._cluster.unwatch(self, watched)

    def wake(self) -> None:
        """Something was written."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _live(self) -> None:
        """Join, beat, and join again when told. Who is not answered goes on, and holds what it held."""
        while self._running:
            try:
                await self._link.reach()
                self._name, self._generation, given = await self._group.join(
                    self._name, self._static is not None, self._topics, frozenset(self._positions), self._exclusive
                )
                await self._link.back()
            except BrokerError:
                continue
            await self._granted(given)
            told = "ok"
            while told == "ok":
                await asyncio.sleep(HEARTBEAT)
                with suppress(BrokerError):
                    await self._link.reach()
                    told = self._group.heartbeat(self._name, self._generation)
            await self._revoked()

    async def _revoked(self) -> None:
        self._settled.clear()
        self._assigned += 1
        self.wake()
        held = self.assignment()
        try:
            if self._listener is not None and held:
                await self._listener.on_revoked(held)
        except Exception as error:
            self._failure = error
        self._positions.clear()
        self._paused.clear()

    async def _granted(self, given: Partitions) -> None:
        self._assigned += 1
        try:
            await self._take(given)
            if self._listener is not None:
                await self._listener.on_assigned(given)
        except Exception as error:
            self._failure = error
        self._last_read = self._link.loop.time()
        self._settled.set()
        self.wake()

    async def _take(self, partitions: Iterable[TopicPartition]) -> None:
        while not self._link.up:
            await asyncio.sleep(0.05)
        await asyncio.sleep(self._link.way())
        self._paused.clear()
        self._positions = {}
        for partition in sorted(partitions):
            log = self._cluster.store.log(partition)
            known = None
            if self._group_name is not None and (self._shared or self._start_at == "committed"):
                known = self._cluster.store.offsets.get((self._group_name, partition))
            self._positions[partition] = known if known is not None else (
                log.end if self._start_at == "end" else log.start
            )  # fmt: skip

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Others from now on."""
        wanted = frozenset(topics)
        self._check_exist(wanted)
        if wanted == self._topics:
            return
        self._topics = wanted
        assert self._beat is not None
        self._beat.cancel()
        await asyncio.gather(self._beat, return_exceptions=True)
        await self._revoked()
        self._beat = asyncio.create_task(self._live())
        await self._settled.wait()

    def assignment(self) -> Partitions:
        """What is read."""
        return frozenset(self._positions)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Not these."""
        for partition in partitions:
            self._check_ours(partition)
            self._paused.add(partition)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """These again."""
        for partition in partitions:
            self._check_ours(partition)
            self._paused.discard(partition)
        self.wake()

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on there."""
        self._check_ours(partition)
        self._positions[partition] = offset
        self.wake()

    async def position(self, partition: TopicPartition) -> int:
        """Where it is."""
        self._check_ours(partition)
        return self._positions[partition]

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """For the group."""
        for partition in offsets:
            self._check_ours(partition)
        assert self._group_name is not None
        name, generation = self._name, self._generation
        await self._link.reach()
        if self._shared and not self._group.may_commit(name, generation):
            raise LostPartitionError(f"{self._group_name}: not committed, another generation has begun")
        self._cluster.commit(self._group_name, offsets)
        await self._link.back()

    async def committed(self, partition: TopicPartition) -> int | None:
        """The group's."""
        if self._group_name is None:
            return None
        await self._link.reach()
        found = self._cluster.store.offsets.get((self._group_name, partition))
        await self._link.back()
        return found

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """First kept."""
        await self._link.reach()
        return {p: self._cluster.store.log(p).start for p in partitions}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Next."""
        await self._link.reach()
        found = {p: self._cluster.store.log(p).end for p in partitions}
        await self._link.back()
        return found

    async def offsets_for_times(self, times: Mapping[TopicPartition, float]) -> Mapping[TopicPartition, int | None]:
        """By time."""
        await self._link.reach()
        return {p: self._cluster.store.log(p).offset_at(at) for p, at in times.items()}

    async def stop(self) -> None:
        """Leave."""
        if not self._running:
            return
        self._running = False
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.gather(self._beat, return_exceptions=True)
            if self._link.up and self._name is not None:
                await asyncio.sleep(self._link.way())
                self._group.leave(self._name)
        self._positions.clear()
        self.wake()

    def _check_exist(self, topics: Iterable[str]) -> None:
        counts = self._cluster.store.partition_counts()
        check_topics(topics, counts)

    def _check_ours(self, partition: TopicPartition) -> None:
        if partition not in self._positions:
            raise LostPartitionError(f"partition {partition.partition} of {partition.topic} is not read here")

    def _check_running(self) -> None:
        self._raise_failure()
        if not self._running:
            raise ConfigurationError("this consumer is not started (or stopped): await start() before reading")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


class Transactions:
    """Implements ``sluicegate.streams.ports.Transactions``."""

    def __init__(self, link: Link, transactional_id: str) -> None:
        self._link = link
        self._cluster = link.cluster
        self._id = transactional_id
        self._epoch = -1

    async def start(self) -> None:
        """Fence whoever was before."""
        await self._link.reach()
        await self._coordinated()
        self._epoch = self._cluster.epochs[self._id] = self._cluster.epochs.get(self._id, 0) + 1
        await self._link.back()

    async def write(self, letters: Sequence[Letter], offsets: Mapping[TopicPartition, int], group: str) -> None:
        """All, or nothing, or nobody knows which."""
        await self._link.reach()
        self._check()
        begun = self._link.loop.time()
        await self._link.reach()
        await self._coordinated()
        if self._link.loop.time() - begun > TRANSACTION:  # the broker undid it, and took its epoch away
            self._cluster.epochs[self._id] = self._cluster.epochs.get(self._id, 0) + 1
        self._check()
        self._cluster.witness.transacts(offsets, self._link)
        for letter in letters:
            self._cluster.append(letter, self._link)
        self._cluster.commit(group, offsets)
        if self._cluster.disk:
            await asyncio.sleep(self._cluster.disk * self._link.rng.random())
        answered = self._link.loop.time()
        await self._link.back()
        cut = self._link.loop.time() - answered > 0.1
        if (cut and self._link.rng.random() < 0.5) or self._link.rng.random() < self._link.lossy:
            # The client ended with its connection; the one after it begins anew.
            self._epoch = self._cluster.epochs[self._id] = self._cluster.epochs.get(self._id, 0) + 1
            raise BrokerError(f"{self._id}: not known whether it was written")

    async def stop(self) -> None:
        """Nothing is open."""

    async def _coordinated(self) -> None:
        """Whoever keeps the transactions answers. Raises BrokerError where it is away for too long."""
        away = self._cluster.coordinator_back - self._link.loop.time()
        if away > 0.0:
            await asyncio.sleep(min(away, REQUEST))
        if away > REQUEST:
            raise BrokerError(f"{self._id}: no answer within {REQUEST:g} s")

    def _check(self) -> None:
        if self._cluster.epochs.get(self._id) != self._epoch:
            raise FencedError(f"{self._id}: another has taken over")


class Admin:
    """Implements ``sluicegate.streams.ports.Admin``."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._store = link.cluster.store

    async def create_topics(self, topics: Iterable[TopicSpec]) -> None:
        """Create what is not there."""
        await self._link.reach()
        for spec in topics:
            self._store.create(spec)
        await self._link.back()

    async def partitions(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Counts of those that exist."""
        await self._link.reach()
        counts = self._store.partition_counts()
        return {name: counts[name] for name in topics if name in counts}

    async def topics(self) -> frozenset[str]:
        """All names."""
        await self._link.reach()
        return frozenset(self._store.partition_counts())

    async def limits(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Bytes of a record."""
        await self._link.reach()
        limits = self._store.limits()
        return {name: limits[name] for name in topics if name in limits}

    async def committed(self, group: str, partition: TopicPartition) -> int | None:
        """Of any group."""
        await self._link.reach()
        return self._store.offsets.get((group, partition))


class Connection:
    """Implements ``sluicegate.streams.ports.Broker``: one process's."""

    url = "memory://simulated"

    def __init__(self, link: Link) -> None:
        self.link = link

    def producer(self) -> Producer:
        """A new one."""
        return Producer(self.link)

    def consumer(
        self,
        *,
        topics: Sequence[str] = (),
        partitions: Sequence[TopicPartition] = (),
        group: str | None = None,
        member: str | None = None,
        start_at: str = "committed",
        listener: RebalanceListener | None = None,
        exclusive: bool = False,
    ) -> Consumer:
        """A new one."""
        made = Consumer(
            self.link,
            topics=topics,
            partitions=partitions,
            group=group,
            member=member,
            start_at=start_at,
            listener=listener,
            exclusive=exclusive,
        )
        self.link.readers.append(made)
        return made

    def transactions(self, transactional_id: str) -> Transactions:
        """A new writer."""
        return Transactions(self.link, transactional_id)

    def admin(self) -> Admin:
        """Topics."""
        return Admin(self.link)

    async def close(self) -> None:
        """Nothing is kept open."""

"""The embedded broker, ``memory://``: the log semantics of the ports within one process and one event loop.

Rules. A record is readable, and its send acknowledged, as soon as ``send`` has run. Nothing is lost but by retention,
compaction or the cap on memory, all three visible in ``beginning_offsets``. Ports and rules:
``sluicegate.streams.ports``.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.streams.broker_settings import MemorySettings
from sluicegate.streams.memory.archive import StoredPartition, StoredTopic, read_folder, write_folder
from sluicegate.streams.memory.consumer import MemoryConsumer
from sluicegate.streams.memory.groups import Group
from sluicegate.streams.memory.partition_log import PartitionLog, record_bytes
from sluicegate.streams.memory.partitioner import partition_of
from sluicegate.streams.ports import (
    Headers,
    RebalanceListener,
    TopicPartition,
    TopicSpec,
    TopicState,
    Transactions,
    UnknownTopicError,
    Written,
)
from sluicegate.streams.subscription import Subscription
from sluicegate.streams.topics import check_topic_name

MAX_PARTITIONS = 4096


class _Topic:
    __slots__ = ("gave_way", "limit", "logs", "next_keyless", "spec")

    def __init__(self, spec: TopicSpec, logs: list[PartitionLog], limit: int) -> None:
        self.spec = spec
        self.logs = logs
        self.limit = limit
        self.next_keyless = 0
        self.gave_way = False


class MemoryStore:
    """Topics, logs, committed offsets and groups: what all producers and consumers of a broker share."""

    def __init__(self, settings: MemorySettings, clock: Callable[[], float], *, read_only: bool = False) -> None:
        self.settings = settings
        self.clock = clock
        self.read_only = read_only
        self.offsets: dict[tuple[str, TopicPartition], int] = {}
        self._topics: dict[str, _Topic] = {}
        self._groups: dict[str, Group] = {}
        self._bytes = 0
        self._room = min(settings.read_bytes, settings.max_bytes)

    def create(self, spec: TopicSpec) -> None:
        """Create the topic unless it exists."""
        check_topic_name(spec.name)
        if not 1 <= spec.partitions <= MAX_PARTITIONS:
            raise InvalidInputError("partitions", f"{spec.partitions} of topic {spec.name}; give 1 to {MAX_PARTITIONS}")
        if spec.name in self._topics:
            return
        logs = [
            PartitionLog(
                spec.name,
                p,
                compacted=spec.compacted,
                retention_s=spec.retention_s,
                compaction_lag_s=spec.compaction_lag_s or 0.0,
                max_bytes=self.settings.max_partition_bytes,
            )
            for p in range(spec.partitions)
        ]
        self._topics[spec.name] = _Topic(spec, logs, spec.max_message_bytes or self.settings.max_message_bytes)

    def partition_counts(self) -> dict[str, int]:
        """Topic -> its number of partitions."""
        return {name: len(topic.logs) for name, topic in self._topics.items()}

    def limits(self) -> dict[str, int]:
        """Topic -> bytes that a record of it may have."""
        return {name: topic.limit for name, topic in self._topics.items()}

    def states(self) -> dict[str, TopicState]:
        """Topic -> how it is kept, in Apache Kafka's words."""
        return {name: TopicState(len(topic.logs), 1, self._configs(topic)) for name, topic in self._topics.items()}

    def _configs(self, topic: _Topic) -> dict[str, str]:
        spec, cap = topic.spec, self.settings.max_partition_bytes
        if cap is None and topic.gave_way:
            cap = self.settings.max_bytes
        kept_s = None if spec.compacted else spec.retention_s
        return {
            "cleanup.policy": "compact" if spec.compacted else "delete",
            "message.timestamp.type": "LogAppendTime" if spec.broker_time else "CreateTime",
            "retention.ms": "-1" if kept_s is None else str(int(1e3 * kept_s)),
            "retention.bytes": "-1" if cap is None else str(cap),
        }

    def log(self, partition: TopicPartition) -> PartitionLog:
        """The log of a partition. Raises UnknownTopicError where there is none."""
        topic = self._topics.get(partition.topic)
        if topic is None:
            raise _unknown_topic(partition.topic)
        if not 0 <= partition.partition < len(topic.logs):
            raise _unknown_partition(partition.topic, partition.partition, len(topic.logs))
        return topic.logs[partition.partition]

    def group(self, name: str) -> Group:
        """The group of this name, made when first asked for."""
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group(name, self.partition_counts, self.settings.session_timeout)
        return group

    async def close(self) -> None:
        """End the groups."""
        for group in self._groups.values():
            await group.close()

    def append(
        self,
        name: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp: float | None,
    ) -> Written:
        """Write one record and wake who waits for it."""
        topic = self._topics.get(name)
        if topic is None:
            raise _unknown_topic(name)
        if value is None and key is None:
            raise InvalidInputError("record", "has neither key nor value; give one of them")
        logs = topic.logs
        if partition is None:
            if key is not None:
                partition = partition_of(key, len(logs))
            else:
                partition = topic.next_keyless % len(logs)
                topic.next_keyless += 1
        elif not 0 <= partition < len(logs):
            raise _unknown_partition(name, partition, len(logs))
        size = record_bytes(key, value, headers)
        if size > topic.limit:  # with all that Python needs around it, which no topic limits
            _check_size(name, key, value, headers, topic.limit)
        if self.read_only:
            raise ConfigurationError("this log is a kept copy and cannot be written; connect to a live broker")
        now = self.clock()
        log = logs[partition]
        before = log.bytes
        at = now if timestamp is None or topic.spec.broker_time else round(timestamp * 1e3) / 1e3
        offset = log.append(key, value, headers, at, now, size)
        self._bytes += log.bytes - before
        if self._bytes > self._room:
            self._make_room()
        if log.watchers:
            for wake in log.watchers:
                wake()
        return Written(name, partition, offset)

    def stored(self) -> list[StoredTopic]:
        """Everything, as it is dumped."""
        return [
            StoredTopic(
                topic.spec,
                tuple(StoredPartition(log.start, log.end, log.read(log.start, len(log))) for log in topic.logs),
                topic.gave_way,
            )
            for _, topic in sorted(self._topics.items())
        ]

    def restore(self, topics: Iterable[StoredTopic]) -> None:
        """Take over what was dumped."""
        for stored in topics:
            self.create(stored.spec)
            self._topics[stored.spec.name].gave_way = stored.gave_way
            for log, kept in zip(self._topics[stored.spec.name].logs, stored.partitions, strict=True):
                log.restore(kept.records, kept.start, kept.end)
                self._bytes += log.bytes

    def _make_room(self) -> None:
        # Compacted logs hold state, not history: they give way only when nothing else is left.
        everything = [t for t in self._topics.values() if not t.spec.compacted] or list(self._topics.values())
        logs = sorted((log for topic in everything for log in topic.logs), key=lambda log: log.bytes, reverse=True)
        read: dict[TopicPartition, int] = {}
        for (_, place), offset in self.offsets.items():
            read[place] = min(offset, read.get(place, offset))
        old = self.clock() - self.settings.unread_s
        for log in logs:
            known = read.get(log.place)
            count = min(len(log) // 8, log.older(old) if known is None else log.before(known))
            if count:
                self._drop(log, count)
                break
        if self._bytes > self.settings.max_bytes:
            self._drop(logs[0], max(1, len(logs[0]) // 8))
        # Where nobody reads, this is not looked at again for every record.
        least = min(self.settings.read_bytes, self.settings.max_bytes)
        self._room = min(self.settings.max_bytes, max(least, self._bytes + least // 64))

    def _drop(self, log: PartitionLog, count: int) -> None:
        before = log.bytes
        log.drop_oldest(count)
        self._topics[log.place.topic].gave_way = True
        self._bytes += log.bytes - before


class MemoryProducer:
    """Writes at once. Implements ``sluicegate.streams.ports.Producer``."""

    def __init__(self, store: MemoryStore) -> None:
        self._append = store.append
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Nothing to connect to."""
        self._loop = asyncio.get_running_loop()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> asyncio.Future[Written]:
        """Write a record; the future is done already."""
        return self.try_send(topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp)

    def try_send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> asyncio.Future[Written]:
        """Write a record; the future is done already, and never None."""
        loop = self._loop
        if loop is None:
            raise ConfigurationError("this producer is not started (or stopped): await start() before send()")
        acknowledged = loop.create_future()
        acknowledged.set_result(self._append(topic, value, key, headers, partition, timestamp))
        return acknowledged

    async def flush(self) -> None:
        """Nothing waits."""

    async def stop(self) -> None:
        """Refuse further sends."""
        self._loop = None


class MemoryAdmin:
    """Implements ``sluicegate.streams.ports.Admin``."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def create_topics(self, topics: Iterable[TopicSpec]) -> None:
        """Create those that do not exist."""
        for spec in topics:
            self._store.create(spec)

    async def partitions(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Partition count of each topic that exists."""
        counts = self._store.partition_counts()
        return {name: counts[name] for name in topics if name in counts}

    async def topics(self) -> frozenset[str]:
        """Names of all topics."""
        return frozenset(self._store.partition_counts())

    async def limits(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Bytes that a record of each topic may have."""
        limits = self._store.limits()
        return {name: limits[name] for name in topics if name in limits}

    async def states(self, topics: Iterable[str]) -> Mapping[str, TopicState]:
        """Those of ``topics`` that exist, as they are kept: by size too (``retention.bytes``) where the cap on memory
        has taken anything of one, or partitions have a cap."""
        states = self._store.states()
        return {name: states[name] for name in topics if name in states}

    async def committed(self, group: str, partition: TopicPartition) -> int | None:
        """Committed offset of any group."""
        return self._store.offsets.get((group, partition))


class MemoryBroker:
    """Implements ``sluicegate.streams.ports.Broker``. ``clock`` gives the timestamp of records that come without
    one."""

    def __init__(
        self,
        settings: MemorySettings | None = None,
        *,
        clock: Callable[[], float] = lambda: time.time(),  # asked for by module: its name may be replaced
        url: str = "memory://",
        read_only: bool = False,
    ) -> None:
        self._url = url
        self._store = MemoryStore(settings or MemorySettings(), clock, read_only=read_only)
        self._consumers: set[MemoryConsumer] = set()

    @property
    def url(self) -> str:
        """``memory://``, or the folder that was loaded."""
        return self._url

    def producer(self) -> MemoryProducer:
        """A new producer."""
        return MemoryProducer(self._store)

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
    ) -> MemoryConsumer:
        """A new consumer; see ``sluicegate.streams.ports.Broker.consumer``."""
        consumer = MemoryConsumer(
            self._store,
            Subscription(
                topics=tuple(topics),
                partitions=tuple(TopicPartition(*tp) for tp in partitions),
                group=group,
                member=member,
                start_at=start_at,
                listener=listener,
                exclusive=exclusive,
            ),
            on_stop=self._consumers.discard,
        )
        self._consumers.add(consumer)
        return consumer

    def transactions(self, transactional_id: str) -> Transactions:
        """There are none here."""
        del transactional_id
        raise ConfigurationError(f"{self.url} has no transactions: exactly-once delivery needs kafka://")

    def admin(self) -> MemoryAdmin:
        """Topic administration."""
        return MemoryAdmin(self._store)

    async def close(self) -> None:
        """Stop the consumers and end the groups."""
        for consumer in tuple(self._consumers):
            await consumer.stop()
        await self._store.close()

    def written(self) -> list[str]:
        """Topics that anything was ever written to."""
        return [topic.spec.name for topic in self._store.stored() if any(p.end for p in topic.partitions)]

    def dump(self, folder: Path) -> None:
        """Keep all topics, records and committed offsets under ``folder``. Blocks while it writes."""
        write_folder(folder, self._store.stored(), self._store.offsets)

    @staticmethod
    def load(folder: Path, settings: MemorySettings | None = None, *, read_only: bool = True) -> "MemoryBroker":
        """The broker that ``dump`` kept. Raises ConfigurationError where the folder holds none or is damaged."""
        broker = MemoryBroker(settings, url=folder.absolute().as_uri(), read_only=read_only)
        topics, offsets = read_folder(folder)
        broker._store.restore(topics)
        broker._store.offsets.update(offsets)
        return broker


def _check_size(name: str, key: bytes | None, value: bytes | None, headers: Headers, limit: int) -> None:
    size = record_bytes(key, value, ()) + sum(len(k) + len(v) for k, v in headers)
    if size > limit:
        raise InvalidInputError("record", f"{size} bytes, but topic {name} takes {limit} at most; send less at once")


def _unknown_topic(name: str) -> UnknownTopicError:
    return UnknownTopicError(f"topic {name!r} does not exist; topics are created before use, never by writing to them")


def _unknown_partition(topic: str, partition: int, count: int) -> UnknownTopicError:
    return UnknownTopicError(f"topic {topic!r} has no partition {partition}; it has {count}, counted from 0")

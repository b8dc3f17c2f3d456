"""Consumer of Apache Kafka: explicit partitions, or a share of a group's by the classic protocol.

Rules. Positions of explicit partitions are settled at start, so that "end" means the end at that moment. A member of a
group holds its partitions from ``on_assigned`` to the end of ``on_revoked``, where it may still commit. Between the two
nothing is read. A member that stood still for half its session asks the group whether it still is one before it hands
out what it read meanwhile: fetches are not fenced, and its partitions may be another's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import ceil, inf
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.errors import (
    CommitFailedError,
    IllegalGenerationError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    RebalanceInProgressError,
    RecordTooLargeError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.connection import ask_beside_fetches, close_what_it_begins_with, connection
from sluicegate.streams.kafka.fetched_batches import UnreadableRecord, headers_of, read_past_faults
from sluicegate.streams.kafka.membership import Listener, StickyAssignor
from sluicegate.streams.kafka.stale_leaders import doubt_stale_leaders
from sluicegate.streams.ports import (
    BrokerError,
    Consumer,
    LostPartitionError,
    Record,
    TopicPartition,
    Unreadable,
)
from sluicegate.streams.subscription import Subscription, check_partitions, check_topics
from sluicegate_client.outages import cut_off

log = logging.getLogger(__name__)

_LOST = (
    CommitFailedError, IllegalGenerationError, IllegalStateError, RebalanceInProgressError, UnknownMemberIdError,
)  # fmt: skip

FOLLOWING = 0.5
"""Seconds at least that the broker holds a fetch of who belongs to no group: that one pauses nothing, and what comes is
told at once all the same. A process follows a dozen topics on which hardly anything comes."""


class Counts(Protocol):
    """Who knows how many partitions topics have."""

    def partitions(self, topics: Iterable[str]) -> Awaitable[Mapping[str, int]]:
        """Topic -> partitions, of those that exist."""
        ...


class KafkaConsumer:
    """Implements ``sluicegate.streams.ports.Consumer``. One reader at a time."""

    def __init__(
        self,
        servers: str,
        settings: KafkaSettings,
        counts: Counts,
        reads: Subscription,
        *,
        on_stop: Callable[[Consumer], None],
        on_unreadable: Callable[[Unreadable], None] = lambda _record: None,
    ) -> None:
        self._options = connection(servers, settings)
        self._settings = settings
        self._counts = counts
        self._reads = reads
        self._topics = tuple(dict.fromkeys(reads.topics))
        self._on_stop = on_stop
        self._on_unreadable = on_unreadable
        self._told: dict[TopicPartition, int] = {}  # behind the last offset that was told to be unreadable
        self._inner: Any = None
        self._next_read = 0.0
        self._last_read = inf
        self._held: frozenset[TopicPartition] = frozenset()
        self._settled = asyncio.Event()
        self._readings: set[asyncio.Task[Any]] = set()
        self._failure: Exception | None = None

    async def start(self) -> None:
        """Connect, and join or take the partitions. Raises ConfigurationError for what does not exist."""
        if self._inner is not None:
            return
        explicit = self._reads.explicit(await self._counts.partitions(self._reads.named))
        settings = self._settings
        shared = self._reads.shared
        options = dict(self._options)
        if shared:  # whoever joins is answered once all others have ended what they hold
            options["request_timeout_ms"] += int(1e3 * settings.rebalance_timeout)
        inner = AIOKafkaConsumer(
            **options,
            group_id=self._reads.group,
            group_instance_id=self._reads.member if shared else None,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="latest" if self._reads.start_at == "end" else "earliest",
            partition_assignment_strategy=(StickyAssignor(exclusive=self._reads.exclusive),),
            session_timeout_ms=int(1e3 * settings.session_timeout),
            rebalance_timeout_ms=int(1e3 * settings.rebalance_timeout),
            heartbeat_interval_ms=int(1e3 * settings.heartbeat_interval),
            fetch_max_wait_ms=int(1e3 * max(settings.fetch_wait, 0.0 if self._reads.group else FOLLOWING)),
            max_partition_fetch_bytes=settings.fetch_bytes,
            client_rack=settings.rack,
        )
        if shared:
            inner.subscribe(list(self._topics), listener=Listener(self._revoked, self._assigned))
        else:
            inner.assign([KafkaPartition(*tp) for tp in explicit])
            ask_beside_fetches(inner._client)
        self._inner = inner
        close_what_it_begins_with(inner._client)
        try:
            await inner.start()
            read_past_faults(inner)
            doubt_stale_leaders(inner)
            if shared:
                async with asyncio.timeout(settings.request_timeout):
                    await self._settled.wait()
            else:
                self._held = frozenset(explicit)
                await self._seek_to_start()
        except (KafkaConnectionError, UnknownTopicOrPartitionError, TimeoutError) as error:  # no answer, or not in time
            await self.stop()
            raise BrokerError(f"{self._options['bootstrap_servers']}: cannot read ({error or 'timed out'})") from error
        except BaseException:
            await self.stop()
            raise
        self._raise_failure()

    async def get_many(self, *, wait: float, max_records: int = 500) -> Sequence[Record]:
        """Records in offset order within each partition."""
        await asyncio.sleep(max(0.0, self._next_read - asyncio.get_running_loop().time()))
        self._raise_failure()
        inner = self._inner
        if inner is None:
            raise ConfigurationError("this consumer is not started (or stopped): await start() before reading")
        if self._reads.shared and not self._settled.is_set():
            return await self._wait_for_rebalance(wait)
        reading = asyncio.create_task(inner.getmany(timeout_ms=ceil(1e3 * wait), max_records=max_records))
        self._readings.add(reading)
        try:
            batches = await self._read(reading, wait)
        except asyncio.CancelledError:
            if reading in self._readings and reading.done() and not reading.cancelled() and not reading.exception():
                self._put_back(reading.result())  # for who reads next
            raise
        finally:
            reading.cancel()
            self._readings.discard(reading)
        if batches is None:
            return []
        self._last_read = asyncio.get_running_loop().time()
        if batches:
            self._next_read = self._last_read + self._settings.gather
        return [
            Record(r.topic, r.partition, r.offset, r.key, r.value, headers_of(r.headers), r.timestamp / 1e3)
            if type(r) is not UnreadableRecord
            else self._unreadable(r)
            for batch in batches.values()
            for r in batch
        ]

    def _unreadable(self, r: UnreadableRecord) -> Unreadable:
        found = Unreadable.at(r.topic, r.partition, r.offset, r.timestamp / 1e3, r.why)
        place = TopicPartition(r.topic, r.partition)
        told = self._told.get(place, -1)
        if r.offset >= told:
            self._told[place] = r.offset + 1
            if r.offset != told:  # one line a batch
                log.error("%s and on cannot be read, and is passed over: %s", found.place, found.why)
            if self._reads.group is None:  # who commits sees to it itself, before the commit
                self._on_unreadable(found)
        return found

    async def _read(self, reading: "asyncio.Task[Any]", wait: float) -> Any:
        """What it fetched; None where that was given up meanwhile: its next reader has it from the commit on."""
        await asyncio.wait((reading,))
        self._raise_failure()
        if reading not in self._readings:
            if not reading.cancelled():
                reading.exception()  # looked at: nobody else will
            return None
        try:
            batches = reading.result()
        except RecordTooLargeError as error:  # a length that cannot be: the client has gone on to the next offset
            _, partition, offset, *_ = error.args
            return {partition: [UnreadableRecord.at(partition, offset, "its batch says that it is longer than it is")]}
        except KafkaError as error:
            raise BrokerError(f"cannot read: {error}") from error
        now = asyncio.get_running_loop().time()
        stood_still = now - self._last_read - wait > 0.5 * self._settings.session_timeout
        if not stood_still or not self._reads.shared:
            return batches
        member = await self._still_member()
        if reading not in self._readings:
            return None
        if not member:
            self._put_back(batches)
            await asyncio.sleep(wait)
            return None
        return batches

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics from now on: a rebalance, where they are others."""
        wanted = tuple(dict.fromkeys(topics))
        if self._inner is None or not self._reads.shared:
            raise ConfigurationError("only a started member of a group changes its topics; name a group and topics")
        check_topics(wanted, await self._counts.partitions(wanted))
        if set(wanted) == set(self._topics):
            return
        self._topics = wanted
        # With the new subscription the client forgets what it held: what is to be committed must be committed before.
        await self._revoked()
        self._inner.subscribe(list(wanted), listener=Listener(self._revoked, self._assigned))
        try:
            async with asyncio.timeout(self._settings.request_timeout):
                await self._settled.wait()
        except TimeoutError as error:
            raise BrokerError(f"{', '.join(wanted)}: the group gave no partitions in time") from error
        self._raise_failure()

    def assignment(self) -> frozenset[TopicPartition]:
        """Partitions read at present."""
        return self._held

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these."""
        chosen = self._ours(partitions)
        if chosen:
            self._inner.pause(*chosen)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these again."""
        chosen = self._ours(partitions)
        if chosen:
            self._inner.resume(*chosen)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from ``offset``."""
        if offset < 0:
            raise ConfigurationError(f"cannot seek {partition} to {offset}: offsets start at 0")
        (chosen,) = self._ours([partition])
        try:
            self._inner.seek(chosen, offset)
        except IllegalStateError as error:
            raise lost(partition) from error

    async def position(self, partition: TopicPartition) -> int:
        """Offset of the next record to be read."""
        (chosen,) = self._ours([partition])
        try:
            return int(await self._inner.position(chosen))
        except IllegalStateError as error:
            raise lost(partition) from error

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record that everything below these offsets is done."""
        if self._reads.group is None:
            raise ConfigurationError("this consumer has no group to commit for; name one")
        self._ours(offsets)
        if not offsets:
            return
        try:
            await self._inner.commit({KafkaPartition(*tp): offset for tp, offset in offsets.items()})
        except _LOST as error:
            raise LostPartitionError(f"{', '.join(f'{t}/{p}' for t, p in offsets)}: not committed ({error})") from error
        except KafkaError as error:
            raise BrokerError(f"cannot commit: {error}") from error

    async def committed(self, partition: TopicPartition) -> int | None:
        """The group's committed offset."""
        if self._reads.group is None:
            return None
        try:
            held = await self._started().committed(KafkaPartition(*partition))
        except KafkaError as error:
            raise BrokerError(f"cannot read the committed offset: {error}") from error
        return None if held is None else int(held)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """First offset still kept."""
        return await self._offsets(self._started().beginning_offsets, partitions)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Offset that the next record will get."""
        return await self._offsets(self._started().end_offsets, partitions)

    async def offsets_for_times(self, times: Mapping[TopicPartition, float]) -> Mapping[TopicPartition, int | None]:
        """First offset at or after each time."""
        inner = self._started()
        await self._check_known(times)
        # Up to the next millisecond, which is what timestamps are kept to; the margin is for how floats are held.
        asked = {KafkaPartition(*tp): max(0, ceil(1e3 * at - 1e-4)) for tp, at in times.items()}
        try:
            found = await inner.offsets_for_times(asked)
        except KafkaError as error:
            raise BrokerError(f"cannot find offsets by time: {error}") from error
        return {TopicPartition(*tp): None if held is None else int(held.offset) for tp, held in found.items()}

    async def stop(self) -> None:
        """Leave the group and disconnect, within a bound; at once where this is cancelled."""
        inner, self._inner = self._inner, None
        self._on_stop(self)
        if inner is None:
            return
        self._held = frozenset()
        stopping = asyncio.create_task(inner.stop())
        try:
            done, _ = await asyncio.wait([stopping], timeout=self._settings.stop_timeout)
            if not done:
                log.warning("a consumer of %s did not stop in time", ", ".join(self._topics) or self._reads.partitions)
        finally:
            stopping.cancel()
            results: list[object] = await asyncio.gather(stopping, return_exceptions=True)
            if results[0] is not None:
                await cut_off(inner)

    async def _revoked(self) -> None:
        """Give all up. No fetch outlasts this: one that did could bring records of what is assigned next, and move its
        position past them, before the listener has taken it up."""
        self._settled.clear()
        readings, self._readings = self._readings, set()
        for reading in readings:
            reading.cancel()
        held = self._held
        try:
            if self._reads.listener is not None and held:
                await self._reads.listener.on_revoked(held)
        except Exception as error:
            self._failure = error
        self._held = frozenset()

    async def _assigned(self, partitions: Iterable[Any]) -> None:
        self._held = frozenset(TopicPartition(*tp) for tp in partitions)
        try:
            if self._reads.start_at == "end":
                # Now, not at the first fetch: what comes from here on must be read.
                await asyncio.gather(*(self.position(tp) for tp in self._held))
            if self._reads.listener is not None:
                await self._reads.listener.on_assigned(self._held)
        except Exception as error:
            self._failure = error
        self._last_read = asyncio.get_running_loop().time()
        self._settled.set()

    async def _still_member(self) -> bool:
        """Whether the group's coordinator knows this member and its generation; otherwise it joins anew."""
        try:
            return bool(await self._inner._coordinator._do_heartbeat()) and self._settled.is_set()
        except KafkaError as error:
            log.warning("the group could not be asked (%s)", error)
            return False

    def _put_back(self, batches: Mapping[Any, Sequence[Any]]) -> None:
        """Read these again, should the partitions turn out to be ours."""
        for partition, records in batches.items():
            if records and TopicPartition(*partition) in self._held:
                with suppress(IllegalStateError):
                    self._inner.seek(partition, records[0].offset)

    async def _wait_for_rebalance(self, wait: float) -> list[Record]:
        try:
            async with asyncio.timeout(wait):
                await self._settled.wait()
        except TimeoutError:
            pass
        self._raise_failure()
        return []

    async def _seek_to_start(self) -> None:
        partitions = sorted(self._held)
        known: Mapping[TopicPartition, int] = {}
        if self._reads.start_at == "committed" and self._reads.group is not None:
            offsets = await asyncio.gather(*(self.committed(tp) for tp in partitions))
            known = {tp: at for tp, at in zip(partitions, offsets, strict=True) if at is not None}
        rest = [tp for tp in partitions if tp not in known]
        found = await (self.end_offsets(rest) if self._reads.start_at == "end" else self.beginning_offsets(rest))
        for tp in partitions:
            await self.seek(tp, known.get(tp, found.get(tp, 0)))

    async def _offsets(self, ask: Any, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = [TopicPartition(*tp) for tp in partitions]
        if not wanted:
            return {}
        await self._check_known(wanted)
        try:
            found = await ask([KafkaPartition(*tp) for tp in wanted])
        except KafkaError as error:
            raise BrokerError(f"cannot read offsets: {error}") from error
        return {TopicPartition(*tp): int(offset) for tp, offset in found.items()}

    async def _check_known(self, partitions: Iterable[TopicPartition]) -> None:
        """The client asks without an end for partitions that do not exist."""
        strangers = [TopicPartition(*tp) for tp in partitions if tp not in self._held]
        if strangers:
            counts = await self._counts.partitions({tp.topic for tp in strangers})
            check_partitions(strangers, counts)
            for topic in counts:
                self._inner._client.add_topic(topic)
            await self._inner._client.force_metadata_update()

    def _started(self) -> Any:
        if self._inner is None:
            raise ConfigurationError("this consumer is not started (or stopped): await start() before reading")
        return self._inner

    def _ours(self, partitions: Iterable[TopicPartition]) -> list[Any]:
        chosen = list(partitions)
        for tp in chosen:
            if tp not in self._held:
                raise lost(tp)
        return [KafkaPartition(*tp) for tp in chosen]

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


def lost(tp: TopicPartition) -> LostPartitionError:
    return LostPartitionError(f"partition {tp.partition} of {tp.topic} is not read by this consumer")

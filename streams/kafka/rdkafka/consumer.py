"""Consumer of Apache Kafka on librdkafka: explicit partitions, or a share of a group's, given and taken one by one.

Rules. Positions are settled when partitions are taken up. A member of a group holds a partition from ``on_assigned`` to
the end of ``on_revoked``, where it may still commit; those that stay with it are read on. While partitions change hands
nothing is read. A member that stood still for half its session asks whether it still is one before it hands out what it
read meanwhile: fetches are not fenced. In an exclusive group everything is read by who was given the first partition of
the first topic.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from math import ceil, inf
from typing import Any, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams import ports
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.consumer import FOLLOWING, Counts, lost
from sluicegate.streams.kafka.fetched_batches import MAX_UNPACKED
from sluicegate.streams.kafka.rdkafka.connection import asked, connection, failed, patiently, tell
from sluicegate.streams.kafka.rdkafka.fetcher import Fetcher, kafka
from sluicegate.streams.kafka.rdkafka.reading import Reading
from sluicegate.streams.ports import BrokerError, LostPartitionError, Record, TopicPartition, Unreadable
from sluicegate.streams.subscription import Subscription, check_partitions, check_topics

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_LOST = (
    KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID, KafkaError.STALE_MEMBER_EPOCH, KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError._ASSIGNMENT_LOST, KafkaError._FENCED,
)  # fmt: skip
_NO_GROUP = "sluicegate-without-a-group"
"""The library wants a name even of who belongs to no group."""
_JOINING = 0.05
"""Seconds between two looks whether a group has given partitions."""
_SILENT = 2.0
"""Seconds after which a member by the new group protocol holds nothing: of that it is not told."""
_DOUBT_S = 5.0
"""Seconds for which nobody's word is taken that a position lies behind the end: who says so may lead no more."""


class RdkafkaConsumer:
    """Implements ``sluicegate.streams.ports.Consumer``. One reader at a time."""

    def __init__(
        self,
        servers: str,
        settings: KafkaSettings,
        counts: Counts,
        reads: Subscription,
        *,
        on_stop: Callable[[ports.Consumer], None],
        on_unreadable: Callable[[Unreadable], None] = lambda _record: None,
    ) -> None:
        self._servers = servers
        self._settings = settings
        self._counts = counts
        self._reads = reads
        self._topics = tuple(dict.fromkeys(reads.topics))
        self._sizes: Mapping[str, int] = {}
        self._on_stop = on_stop
        self._inner: Any = None
        self._reading: Reading | None = None
        self._fetcher = Fetcher(reads.group, member=reads.member, on_unreadable=on_unreadable, on_refusal=self._fails)
        self._given: frozenset[TopicPartition] = frozenset()
        self._settled = asyncio.Event()
        self._identity: object = None
        self._failure: Exception | None = None
        self._untaken = False  # given by the group, and where to begin was not told
        self._next_read = 0.0
        self._last_read = inf

    async def start(self) -> None:
        """Connect, and join or take the partitions. Raises ConfigurationError for what does not exist."""
        if self._inner is not None:
            return
        self._sizes = await self._counts.partitions(self._reads.named)
        explicit = self._reads.explicit(self._sizes)
        self._loop = asyncio.get_running_loop()
        shared = self._reads.shared
        inner = self._inner = Consumer(_properties(self._servers, self._settings, self._reads))
        self._reading = Reading(inner, self._nobody_reads if shared else None)
        self._fetcher.start(inner, self._reading)
        try:
            if shared:
                self._subscribe()
                await self._until_settled()
            else:
                starts = await self._answer(self._do(lambda: self._starts(inner, explicit)))
                inner.assign([kafka(tp, at) for tp, at in starts.items()])
                self._fetcher.take_up(starts)
        except TimeoutError as error:
            await self.stop()
            raise BrokerError(f"{self._servers}: cannot read (timed out)") from error
        except BaseException:
            await self.stop()
            raise
        self._raise_failure()

    async def get_many(self, *, wait: float, max_records: int = 500) -> Sequence[Record]:
        """Records in offset order within each partition."""
        await asyncio.sleep(max(0.0, self._next_read - asyncio.get_running_loop().time()))
        self._raise_failure()
        if self._inner is None:
            raise ConfigurationError("this consumer is not started (or stopped): await start() before reading")
        await self._take_what_waits()
        for tp in tuple(self._fetcher.doubted):  # first: where that fails, nothing was taken yet
            await self._out_of_range(tp)
        await self._fetcher.fetched(wait, max_records)
        self._raise_failure()
        now = asyncio.get_running_loop().time()
        if self._reads.shared and now - self._last_read - wait > 0.5 * self._settings.session_timeout:
            try:
                await self._stood_still()
            except BrokerError as error:
                log.warning("the group could not be asked (%s)", error)
                await asyncio.sleep(wait)
                return []
        self._last_read = now
        records = self._fetcher.taken(max_records)
        if records:
            self._next_read = now + self._settings.gather
        return records

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics from now on: a rebalance, where they are others."""
        wanted = tuple(dict.fromkeys(topics))
        if self._inner is None or not self._reads.shared:
            raise ConfigurationError("only a started member of a group changes its topics; name a group and topics")
        sizes = await self._counts.partitions(wanted)
        check_topics(wanted, sizes)
        self._sizes = sizes
        if set(wanted) == set(self._topics):
            return
        self._topics = wanted
        self._settled.clear()
        self._subscribe()
        try:
            await self._until_settled()
        except TimeoutError as error:
            raise BrokerError(f"{', '.join(wanted)}: the group gave no partitions in time") from error
        self._raise_failure()

    def assignment(self) -> frozenset[TopicPartition]:
        """Partitions read at present."""
        return self._fetcher.held

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these."""
        if chosen := self._ours(partitions):
            self._fetcher.pause(chosen)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these again."""
        if chosen := self._ours(partitions):
            self._fetcher.resume(chosen)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from ``offset``."""
        if offset < 0:
            raise ConfigurationError(f"cannot seek {partition} to {offset}: offsets start at 0")
        (chosen,) = self._ours([partition])
        self._fetcher.seek(chosen, offset)

    async def position(self, partition: TopicPartition) -> int:
        """Offset of the next record to be read."""
        (chosen,) = self._ours([partition])
        return self._fetcher.position(chosen)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record that everything below these offsets is done."""
        if self._reads.group is None:
            raise ConfigurationError("this consumer has no group to commit for; name one")
        self._ours(offsets)
        if not offsets:
            return
        told = [kafka(TopicPartition(*tp), offset) for tp, offset in offsets.items()]
        names = ", ".join(f"{t}/{p}" for t, p in offsets)
        inner = self._inner
        try:
            results = await self._do(
                lambda: patiently(lambda: inner.commit(offsets=told, asynchronous=False), self._settings.answer_timeout)
            )
            error = next((one.error for one in results if one.error is not None), None)
        except (KafkaException, RuntimeError) as raised:
            error = _error(raised)
        if error is not None and error.code() in _LOST:
            raise LostPartitionError(f"{names}: not committed ({error.str()})")
        if error is not None:
            raise BrokerError(f"cannot commit: {error.str()}")

    async def committed(self, partition: TopicPartition) -> int | None:
        """The group's committed offset."""
        if self._reads.group is None:
            return None
        inner = self._started()
        (found,) = await self._answer(
            self._do(lambda: _committed(inner, [TopicPartition(*partition)], self._settings.request_timeout))
        )
        return found

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """First offset still kept."""
        return await self._offsets(dict.fromkeys(partitions, OffsetSpec.earliest()))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Offset that the next record will get."""
        return await self._offsets(dict.fromkeys(partitions, OffsetSpec.latest()))

    async def offsets_for_times(self, times: Mapping[TopicPartition, float]) -> Mapping[TopicPartition, int | None]:
        """First offset at or after each time."""
        # Up to the next millisecond, which is what timestamps are kept to; the margin is for how floats are held.
        wanted = {tp: OffsetSpec.for_timestamp(max(0, ceil(1e3 * at - 1e-4))) for tp, at in times.items()}
        return {tp: offset if offset >= 0 else None for tp, offset in (await self._offsets(wanted)).items()}

    async def stop(self) -> None:
        """Leave the group and disconnect, within a bound."""
        reading, self._reading = self._reading, None
        self._inner = None
        self._on_stop(self)
        if reading is None:
            return
        self._fetcher.stop()
        reading.end()
        done, _ = await asyncio.wait([reading.ended], timeout=self._settings.stop_timeout)
        if not done:
            log.warning("a consumer of %s did not stop in time", ", ".join(self._topics) or self._reads.partitions)

    async def _until_settled(self) -> None:
        silent_until = self._loop.time() + _SILENT
        async with asyncio.timeout(self._settings.request_timeout):
            while not self._settled.is_set() and self._failure is None and self._inner is not None:
                await self._take_what_waits()
                await self._fetcher.joined(4 * _JOINING, _JOINING)
                self._raise_failure()
                if self._settings.group_protocol == "consumer" and self._loop.time() > silent_until:
                    await self._take_up({})

    def _nobody_reads(self) -> None:
        """Keep up with the group all the same; nothing is fetched for nobody."""
        self._fetcher.rest(_JOINING)

    async def _out_of_range(self, place: TopicPartition) -> None:
        """Its position lies before the beginning, or behind the end: go on where something is."""
        doubted = self._fetcher.doubted
        since = doubted.get(place)
        if since is None:  # given up while another was looked up
            return
        inner = self._started()
        first, last = await self._answer(self._do(lambda: _bounds_of(inner, place, self._settings.request_timeout)))
        if doubted.get(place) != since:  # given up meanwhile
            return
        at = self._fetcher.position(place)
        if at > last and time.monotonic() < since + _DOUBT_S:
            return
        del doubted[place]
        if first <= at <= last:
            self._fetcher.fetch_again(place)
        else:
            log.warning("%s/%d has nothing at %d any more: %d to %d", *place, at, first, last)
            self._fetcher.seek(place, last if self._reads.start_at == "end" else first)

    async def _stood_still(self) -> None:
        """Whether the group still knows this member; otherwise what was fetched is dropped, and read again if it is
        ours. Raises BrokerError where nobody says so."""
        inner = self._started()
        identity = await self._answer(self._do(inner.consumer_group_metadata))
        if identity == self._identity and await self._answer(asked(self._servers, self._settings, self._is_member)):
            return
        log.warning("a member of %s stood still, and reads again what it had not handed out", self._reads.group)
        self._identity = identity
        self._fetcher.fetch_all_again()

    def _is_member(self, admin: Any) -> bool:
        (told,) = admin.describe_consumer_groups([self._reads.group]).values()
        known = told.result(timeout=self._settings.answer_timeout)
        return self._inner is not None and self._inner.memberid() in {member.member_id for member in known.members}

    # What the group gives and takes: called by the thread, which waits for the loop.

    def _subscribe(self) -> None:
        topics = list(self._topics)

        def subscribe(inner: Any) -> None:
            try:
                inner.subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
            except KafkaException as error:
                tell(self._loop, self._fails, BrokerError(f"cannot read {', '.join(topics)}: {error}"))

        self._fetcher.post(subscribe)

    def _fails(self, failure: Exception) -> None:
        self._failure = failure

    def _on_assign(self, inner: Any, partitions: Iterable[Any]) -> None:
        self._given |= _ports(partitions)
        try:
            self._take(inner)
        except KafkaException as error:
            log.warning("%s: what the group gave waits, as where to begin is not told (%s)", self._reads.group, error)
            self._untaken = True
            inner.incremental_assign([])  # or the library would fetch them from where it likes
        self._identity = inner.consumer_group_metadata()

    def _take(self, inner: Any) -> None:
        """Read what was given and is not read yet."""
        new = self._due() - self._fetcher.held
        starts = self._starts(inner, sorted(new))
        self._fetcher.taking(new)
        if new or not self._settled.is_set():
            self._in_loop(self._take_up(starts))
        self._fetcher.assign(inner, new)
        self._untaken = False

    async def _take_what_waits(self) -> None:
        if not self._untaken:
            return
        inner = self._started()
        try:
            await self._answer(self._do(lambda: self._take(inner)))
        except BrokerError as error:
            log.warning("%s: what the group gave waits on (%s)", self._reads.group, error)

    def _on_revoke(self, inner: Any, partitions: Iterable[Any]) -> None:
        self._given -= _ports(partitions)
        gone = self._fetcher.held - self._due()
        if gone and self._inner is not None:
            self._in_loop(self._give_up(gone))
        inner.incremental_unassign([kafka(tp) for tp in gone])

    _on_lost = _on_revoke

    def _due(self) -> frozenset[TopicPartition]:
        """What is to be read by who was given ``_given``."""
        if not self._reads.exclusive:
            return self._given
        if TopicPartition(min(self._topics), 0) not in self._given:
            return frozenset()
        return frozenset(TopicPartition(t, p) for t in self._topics for p in range(self._sizes[t]))

    def _in_loop(self, work: Coroutine[Any, Any, None]) -> None:
        reading = self._reading
        if reading is None:  # stopped meanwhile
            work.close()
        else:
            reading.wait_for(work)

    async def _give_up(self, gone: frozenset[TopicPartition]) -> None:
        try:
            if self._reads.listener is not None:
                await self._reads.listener.on_revoked(gone)
        except Exception as error:
            self._failure = error
        self._fetcher.give_up(gone)

    async def _take_up(self, starts: Mapping[TopicPartition, int]) -> None:
        self._fetcher.take_up(starts)
        try:
            if self._reads.listener is not None:
                await self._reads.listener.on_assigned(frozenset(starts))
        except Exception as error:
            self._failure = error
        self._last_read = self._loop.time()
        self._settled.set()
        self._fetcher.look_soon(_JOINING)

    def _starts(self, inner: Any, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where to begin with each."""
        known: dict[TopicPartition, int] = {}
        within = self._settings.request_timeout
        if partitions and self._reads.group is not None and (self._reads.start_at == "committed" or self._reads.shared):
            offsets = _committed(inner, partitions, within)
            known = {tp: at for tp, at in zip(partitions, offsets, strict=True) if at is not None}
        end = self._reads.start_at == "end"
        return {tp: known[tp] if tp in known else _bounds_of(inner, tp, within)[end] for tp in partitions}

    async def _offsets(self, wanted: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, int]:
        """By a connection of its own: a broker answers those of one in turn, and a fetch waits for what comes next."""
        self._started()
        await self._check_known(wanted)
        listed = partial(_listed, wanted=wanted, within=self._settings.request_timeout)
        return await self._answer(asked(self._servers, self._settings, listed)) if wanted else {}

    async def _do(self, work: Callable[[], Result]) -> Result:
        reading = self._reading
        if reading is None:
            raise RuntimeError("the consumer was stopped")
        return await reading.do(work)

    async def _answer(self, asking: Coroutine[Any, Any, Result]) -> Result:
        try:
            return await asking
        except (KafkaException, RuntimeError, TimeoutError) as error:
            raise BrokerError(f"{self._servers}: {str(error) or 'no answer in time'}") from error

    # What was asked for.

    async def _check_known(self, partitions: Iterable[TopicPartition]) -> None:
        strangers = [TopicPartition(*tp) for tp in partitions if tp not in self._fetcher.held]
        if strangers:
            check_partitions(strangers, await self._counts.partitions({tp.topic for tp in strangers}))

    def _started(self) -> Any:
        if self._inner is None:
            raise ConfigurationError("this consumer is not started (or stopped): await start() before reading")
        return self._inner

    def _ours(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        chosen = [TopicPartition(*tp) for tp in partitions]
        for tp in chosen:
            if tp not in self._fetcher.held:
                raise lost(tp)
        return chosen

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


def _committed(inner: Any, partitions: Iterable[TopicPartition], within: float) -> list[int | None]:
    found = patiently(lambda: inner.committed([kafka(tp) for tp in partitions], within), within)
    return [one.offset if one.offset >= 0 else None for one in found]


def _listed(admin: Any, wanted: Mapping[TopicPartition, OffsetSpec], within: float) -> dict[TopicPartition, int]:
    specs = {kafka(TopicPartition(*tp)): spec for tp, spec in wanted.items()}

    def ask() -> dict[TopicPartition, int]:
        told = admin.list_offsets(specs, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=within)
        return {TopicPartition(of.topic, of.partition): found.result().offset for of, found in told.items()}

    return patiently(ask, within)


def _bounds_of(inner: Any, partition: TopicPartition, within: float) -> tuple[int, int]:
    first, last = patiently(lambda: inner.get_watermark_offsets(kafka(partition), within), within)
    return first, last


def _properties(servers: str, settings: KafkaSettings, reads: Subscription) -> dict[str, Any]:
    properties = {
        **connection(servers, settings),
        "group.id": reads.group or _NO_GROUP,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "check.crcs": True,
        "fetch.error.backoff.ms": 10,
        "fetch.wait.max.ms": int(1e3 * max(settings.fetch_wait, 0.0 if reads.group else FOLLOWING)),
        "fetch.message.max.bytes": settings.fetch_bytes,
        "receive.message.max.bytes": MAX_UNPACKED,
        "client.rack": settings.rack or "",
    }
    if not reads.shared:
        return properties
    properties["max.poll.interval.ms"] = int(1e3 * max(settings.rebalance_timeout, settings.session_timeout))
    if reads.member is not None:
        properties["group.instance.id"] = reads.member
    if settings.group_protocol == "consumer":
        return {**properties, "group.protocol": "consumer"}
    return {
        **properties,
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": int(1e3 * settings.session_timeout),
        "heartbeat.interval.ms": int(1e3 * settings.heartbeat_interval),
    }


def _ports(partitions: Iterable[Any]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(one.topic, one.partition) for one in partitions)


def _error(raised: Exception) -> KafkaError:
    return failed(raised) if isinstance(raised, KafkaException) else KafkaError(KafkaError._DESTROY, str(raised))

"""Consumer of Apache Kafka on librdkafka: explicit partitions, or a share of a group's, given and taken one by one.

Rules. Positions are settled when partitions are taken up, and kept here: what is handed out lies at or behind them. A
member of a group holds a partition from ``on_assigned`` to the end of ``on_revoked``, where it may still commit; those
that stay with it are read on. While partitions change hands nothing is read. What was fetched and not handed out of a
partition that is paused, sought or given up is dropped, and fetched again where that is due. A member that stood still
for half its session asks whether it still is one before it hands out what it read meanwhile: fetches are not fenced.
In an exclusive group everything is read by who was given the first partition of the first topic.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from math import ceil, inf
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.consumer import FOLLOWING, Counts, check_partitions, lost
from sluicegate.streams.kafka.fetched_batches import MAX_UNPACKED
from sluicegate.streams.kafka.rdkafka.connection import connection, failed, in_thread, patiently, tell
from sluicegate.streams.kafka.rdkafka.reading import Ask, Reading
from sluicegate.streams.ports import BrokerError, LostPartitionError, Record, TopicPartition, Unreadable
from sluicegate.streams.subscription import Subscription

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_LOST = (
    KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID, KafkaError.STALE_MEMBER_EPOCH, KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError._ASSIGNMENT_LOST, KafkaError._FENCED,
)  # fmt: skip
_UNREADABLE = {
    KafkaError._BAD_MSG: "the checksum of its batch is wrong, or the batch is malformed",
    KafkaError._BAD_COMPRESSION: f"its batch cannot be unpacked, or to more than {MAX_UNPACKED} bytes",
    KafkaError._NOT_IMPLEMENTED: "its batch cannot be unpacked: its codec is not known",
    KafkaError._UNSUPPORTED_FEATURE: "its batch cannot be unpacked: its codec is not known",
}
_REFUSED = (
    KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.INVALID_SESSION_TIMEOUT,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL, KafkaError.FENCED_INSTANCE_ID, KafkaError.UNSUPPORTED_VERSION,
    KafkaError.UNSUPPORTED_ASSIGNOR, KafkaError._AUTHENTICATION, KafkaError._FATAL,
)  # fmt: skip
_NO_GROUP = "sluicegate-without-a-group"
"""The library wants a name even of who belongs to no group."""
_JOINING = 0.05
"""Seconds between two looks whether a group has given partitions."""
_QUEUED = 10_000
"""Messages of other partitions that are looked through for what is told of a batch that cannot be read."""
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
        on_stop: Callable[["RdkafkaConsumer"], None],
        on_unreadable: Callable[[Unreadable], None] = lambda _record: None,
    ) -> None:
        self._servers = servers
        self._settings = settings
        self._counts = counts
        self._reads = reads
        self._topics = tuple(dict.fromkeys(reads.topics))
        self._sizes: Mapping[str, int] = {}
        self._on_stop = on_stop
        self._on_unreadable = on_unreadable
        self._told: dict[TopicPartition, int] = {}  # behind the last offset that was told to be unreadable
        self._inner: Any = None
        self._reading: Reading | None = None
        self._asked: Ask | None = None
        self._left: deque[Any] = deque()
        self._held: frozenset[TopicPartition] = frozenset()
        self._given: frozenset[TopicPartition] = frozenset()
        self._taking: frozenset[TopicPartition] = frozenset()
        self._at: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._stale: set[TopicPartition] = set()
        self._doubted: dict[TopicPartition, float] = {}
        self._damaged: dict[TopicPartition, tuple[int, int]] = {}  # the batch, and the offset of it that is in doubt
        self._idle = False
        self._settled = asyncio.Event()
        self._identity: object = None
        self._failure: Exception | None = None
        self._next_read = 0.0
        self._last_read = inf

    async def start(self) -> None:
        """Connect, and join or take the partitions. Raises ConfigurationError for what does not exist."""
        if self._inner is not None:
            return
        explicit = await self._check_exist()
        self._loop = asyncio.get_running_loop()
        shared = self._reads.shared
        inner = self._inner = Consumer(self._properties())
        self._reading = Reading(inner, self._nobody_reads if shared else None)
        try:
            if shared:
                self._subscribe()
                await self._until_settled()
            else:
                self._at = await self._answer(self._do(lambda: self._starts(inner, explicit)))
                inner.assign([_kafka(tp, at) for tp, at in self._at.items()])
                self._held = frozenset(explicit)
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
        if self._idle:
            self._idle = False
            self._fetch(self._held - self._paused)
        if not self._left:
            if self._asked is None:
                self._ask(Ask(wait, max_records))
            else:
                self._asked.until = time.monotonic() + wait
            await self._collect()
        self._raise_failure()
        now = asyncio.get_running_loop().time()
        if self._reads.shared and now - self._last_read - wait > 0.5 * self._settings.session_timeout:
            await self._stood_still()
        self._last_read = now
        records = self._taken(max_records)
        for tp in tuple(self._doubted):
            await self._out_of_range(tp)
        if records:
            self._next_read = now + self._settings.gather
        return records

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics from now on: a rebalance, where they are others."""
        wanted = tuple(dict.fromkeys(topics))
        if self._inner is None or not self._reads.shared:
            raise ConfigurationError("only a started member of a group changes its topics; name a group and topics")
        await self._check_topics(wanted)
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
        return self._held

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these."""
        if chosen := self._ours(partitions):
            self._fetch_no_more(chosen)
            self._paused.update(chosen)
            self._drop(chosen)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these again."""
        if chosen := self._ours(partitions):
            self._paused.difference_update(chosen)
            if not self._idle:
                self._fetch(chosen)
            if self._asked is None:
                self._go_back()

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from ``offset``."""
        if offset < 0:
            raise ConfigurationError(f"cannot seek {partition} to {offset}: offsets start at 0")
        (chosen,) = self._ours([partition])
        self._at[chosen] = offset
        self._damaged.pop(chosen, None)
        self._drop([chosen])
        self._go_to(chosen)
        if self._asked is None:
            self._stale.discard(chosen)

    async def position(self, partition: TopicPartition) -> int:
        """Offset of the next record to be read."""
        (chosen,) = self._ours([partition])
        return self._at[chosen]

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record that everything below these offsets is done."""
        if self._reads.group is None:
            raise ConfigurationError("this consumer has no group to commit for; name one")
        self._ours(offsets)
        if not offsets:
            return
        told = [_kafka(TopicPartition(*tp), offset) for tp, offset in offsets.items()]
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
        (found,) = await self._answer(self._do(lambda: self._committed(inner, [TopicPartition(*partition)])))
        return found

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """First offset still kept."""
        return {tp: first for tp, (first, _) in (await self._bounds(partitions)).items()}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Offset that the next record will get."""
        return {tp: last for tp, (_, last) in (await self._bounds(partitions)).items()}

    async def offsets_for_times(self, times: Mapping[TopicPartition, float]) -> Mapping[TopicPartition, int | None]:
        """First offset at or after each time."""
        inner = self._started()
        await self._check_known(times)
        # Up to the next millisecond, which is what timestamps are kept to; the margin is for how floats are held.
        asked = [_kafka(TopicPartition(*tp), max(0, ceil(1e3 * at - 1e-4))) for tp, at in times.items()]
        within = self._settings.request_timeout
        found = await self._answer(self._do(lambda: patiently(lambda: inner.offsets_for_times(asked, within), within)))
        return {TopicPartition(one.topic, one.partition): one.offset if one.offset >= 0 else None for one in found}

    async def stop(self) -> None:
        """Leave the group and disconnect, within a bound."""
        reading, self._reading = self._reading, None
        self._inner = None
        self._on_stop(self)
        if reading is None:
            return
        self._held = frozenset()
        self._left.clear()
        reading.end()
        done, _ = await asyncio.wait([reading.ended], timeout=self._settings.stop_timeout)
        if not done:
            log.warning("a consumer of %s did not stop in time", ", ".join(self._topics) or self._reads.partitions)

    # What the loop asks of the thread. All of it: the library makes whoever calls it wait while it calls back, and what
    # it calls back waits for the loop.

    def _post(self, work: Callable[[Any], None]) -> None:
        """Have the thread do ``work`` with the client, in the order in which it is told."""
        inner, reading = self._inner, self._reading
        if inner is None or reading is None:
            return

        def done() -> None:
            try:
                work(inner)
            except (KafkaException, RuntimeError) as error:  # of partitions that were given up, or by who has stopped
                log.debug("%s: %s", self._reads.group, error)

        reading.post(done)

    def _fetch(self, partitions: Iterable[TopicPartition]) -> None:
        chosen = tuple(partitions)
        self._post(lambda inner: inner.resume([_kafka(tp) for tp in chosen if tp not in self._taking]))

    def _fetch_no_more(self, partitions: Iterable[TopicPartition]) -> None:
        chosen = tuple(partitions)
        self._post(lambda inner: inner.pause([_kafka(tp) for tp in chosen if tp not in self._taking]))

    def _ask(self, ask: Ask) -> None:
        assert self._reading is not None
        self._asked = ask
        self._reading.ask(ask)

    async def _collect(self) -> None:
        """Wait for what was asked for. Who is cancelled leaves it to who comes next."""
        asked = self._asked
        assert asked is not None
        try:
            found = await asyncio.shield(asked.answer)
        except (KafkaException, RuntimeError) as error:
            self._asked = None
            raise BrokerError(f"cannot read: {error}") from error
        if self._asked is asked:
            self._came(found)

    async def _until_settled(self) -> None:
        silent_until = self._loop.time() + _SILENT
        async with asyncio.timeout(self._settings.request_timeout):
            while not self._settled.is_set() and self._failure is None and self._inner is not None:
                if self._asked is None:
                    self._ask(Ask(4 * _JOINING, 1, _JOINING))
                await self._collect()
                self._look_for_refusals()
                if self._settings.group_protocol == "consumer" and self._loop.time() > silent_until:
                    await self._take_up({})

    def _nobody_reads(self) -> None:
        """Keep up with the group all the same; nothing is fetched for nobody."""
        if self._inner is None or self._asked is not None or not self._reads.shared:
            return
        if not self._idle:
            self._idle = True
            self._fetch_no_more(self._held)
        ask = Ask(_JOINING, 1)
        self._ask(ask)
        ask.answer.add_done_callback(lambda _: self._kept_up(ask))

    def _kept_up(self, ask: Ask) -> None:
        if self._asked is ask and ask.answer.exception() is None:  # else it is for who reads next
            self._came(ask.answer.result())

    def _came(self, found: list[Any]) -> None:
        self._asked = None
        self._left += [m for m in found if _place(m) not in self._stale] if self._stale else found
        self._go_back()

    # What was fetched.

    def _taken(self, most: int) -> list[Record]:
        records: list[Record] = []
        left, at = self._left, self._at
        while left and len(records) < most:
            message = left.popleft()
            if message.error() is not None:
                if (found := self._event(message)) is not None:
                    records.append(found)
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            place = TopicPartition(topic, partition)
            if offset < at.get(place, offset + 1):
                continue
            at[place] = offset + 1
            try:
                headers = tuple(message.headers() or ())
            except (UnicodeDecodeError, SystemError):
                records.append(self._unreadable(place, offset, "the name of a header is no text"))
                continue
            moment = message.timestamp()[1] / 1e3
            records.append(Record(topic, partition, offset, message.key(), message.value(), headers, moment))
        return records

    def _event(self, message: Any) -> Unreadable | None:
        """What the library tells between records."""
        error = message.error()
        code = error.code()
        place = _place(message)
        if code == KafkaError._PARTITION_EOF:
            # Behind marks of transactions too, which are offsets without a record.
            if place in self._at:
                self._at[place] = max(self._at[place], message.offset())
        elif code in _UNREADABLE and place in self._at:
            return self._cannot_be_read(place, message.offset(), _UNREADABLE[code])
        elif code == KafkaError._AUTO_OFFSET_RESET and place in self._at:
            self._doubted.setdefault(place, time.monotonic())
        elif code in _REFUSED and (code != KafkaError.GROUP_AUTHORIZATION_FAILED or self._reads.group is not None):
            self._failure = BrokerError(f"cannot read: {error.str()}")
        else:
            log.warning("%s: %s", ", ".join(self._topics) or place.topic, error.str())
        return None

    def _cannot_be_read(self, place: TopicPartition, batch: int, why: str) -> Unreadable | None:
        """The batch that begins at ``batch``, of which an offset is given up: the library says not how many it has. Of
        a further one it is believed where it says so again: the first time may be left from the offset before."""
        offset = self._at[place]
        self._left = deque(m for m in self._left if _place(m) != place)
        known, doubted = self._damaged.get(place, (-1, -1))
        believed = known != batch or doubted == offset
        self._damaged[place] = (batch, -1 if believed else offset)
        self._at[place] = offset + believed
        assert self._reading is not None
        self._reading.post(lambda: self._go_behind(place))
        return self._unreadable(place, offset, why) if believed else None

    def _unreadable(self, place: TopicPartition, offset: int, why: str) -> Unreadable:
        found = Unreadable.at(*place, offset, 0.0, why)
        told = self._told.get(place, -1)
        if offset >= told:
            self._told[place] = offset + 1
            if offset != told:  # one line a batch
                log.error("%s and on cannot be read, and is passed over: %s", found.place, why)
            if self._reads.group is None:  # who commits sees to it itself, before the commit
                self._on_unreadable(found)
        return found

    def _look_for_refusals(self) -> None:
        """Of who joins: there is nothing to read yet, but why there will be nothing."""
        for message in self._left:
            if message.error() is not None and message.error().code() in _REFUSED:
                self._event(message)
        self._raise_failure()

    async def _out_of_range(self, place: TopicPartition) -> None:
        """Its position lies before the beginning, or behind the end: go on where something is."""
        since = self._doubted.pop(place)
        bounds = (await self._bounds([place]))[place]
        first, last = bounds
        at = self._at.get(place)
        if at is None:
            return
        if at > last and time.monotonic() < since + _DOUBT_S:
            self._doubted[place] = since
            return
        if not first <= at <= last:
            log.warning("%s/%d has nothing at %d any more: %d to %d", *place, at, *bounds)
            self._at[place] = last if self._reads.start_at == "end" else first
        self._drop([place])
        self._stale.discard(place)
        self._go_to(place)

    async def _stood_still(self) -> None:
        """Whether the group still knows this member; otherwise what was fetched is dropped, and read again if it is
        ours."""
        inner = self._started()
        identity = await self._answer(self._do(inner.consumer_group_metadata))
        if identity == self._identity and await self._answer(in_thread(self._is_member)):
            return
        log.warning("a member of %s stood still, and reads again what it had not handed out", self._reads.group)
        self._identity = identity
        self._drop(self._held)
        self._stale |= self._held
        self._go_back()

    def _is_member(self) -> bool:
        admin = AdminClient(connection(self._servers, self._settings))
        (asked,) = admin.describe_consumer_groups([self._reads.group]).values()
        known = asked.result(timeout=self._settings.answer_timeout)
        return self._inner is not None and self._inner.memberid() in {member.member_id for member in known.members}

    # Where it reads.

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        """What was fetched of these is not handed out; nor is what is on its way."""
        chosen = frozenset(partitions)
        dropped = {place for m in self._left if (place := _place(m)) in chosen}
        self._left = deque(m for m in self._left if _place(m) not in chosen)
        self._stale |= chosen if self._asked is not None else dropped

    def _go_back(self) -> None:
        """Fetch again what was dropped."""
        for place in self._stale - self._paused:
            self._stale.discard(place)
            if place in self._held:
                self._go_to(place)

    def _go_to(self, place: TopicPartition) -> None:
        """Have the client fetch on from the position. What is being taken up is fetched from there by itself."""
        self._post(lambda inner: self._seek(inner, place))

    def _seek(self, inner: Any, place: TopicPartition) -> None:
        at = self._at.get(place)
        if at is None or place in self._taking:
            return
        try:
            inner.seek(_kafka(place, at))
        except KafkaException:  # it does not fetch there (yet, or any more)
            tell(self._loop, self._stale.add, place)
            self._assign_anew(place)

    def _go_behind(self, place: TopicPartition) -> None:
        """Have the client fetch on behind what cannot be read. In the thread, and before it reads again: the library
        tells of the same batch several times, and what it told before must not count for what comes next."""
        inner, at = self._inner, self._at.get(place)
        if inner is None or at is None:
            return
        others: list[Any] = []
        try:
            inner.pause([_kafka(place)])
            inner.seek(_kafka(place, at))
            while len(others) < _QUEUED and (message := inner.poll(0)) is not None:
                if _place(message) != place:
                    others.append(message)
            if place not in self._paused:
                inner.resume([_kafka(place)])
        except KafkaException:
            self._assign_anew(place)
        if others:
            tell(self._loop, self._left.extend, others)

    def _assign_anew(self, place: TopicPartition) -> None:
        inner, at = self._inner, self._at.get(place)
        if inner is None or at is None:
            return
        try:
            inner.incremental_unassign([_kafka(place)])
            inner.incremental_assign([_kafka(place, at)])
            if place in self._paused:
                inner.pause([_kafka(place)])
        except KafkaException as error:
            log.warning("%s/%d is not fetched from %d on: %s", *place, at, error)

    # What the group gives and takes: called by the thread, which waits for the loop.

    def _subscribe(self) -> None:
        topics = list(self._topics)

        def subscribe(inner: Any) -> None:
            try:
                inner.subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
            except KafkaException as error:
                tell(self._loop, self._fails, BrokerError(f"cannot read {', '.join(topics)}: {error}"))

        self._post(subscribe)

    def _fails(self, failure: Exception) -> None:
        self._failure = failure

    def _on_assign(self, inner: Any, partitions: Iterable[Any]) -> None:
        self._given |= _ports(partitions)
        new = self._taking = self._due() - self._held
        if new or not self._settled.is_set():
            self._in_loop(self._take_up(self._starts(inner, sorted(new))))
        self._taking = frozenset()
        inner.incremental_assign([_kafka(tp, self._at[tp]) for tp in new if tp in self._at])
        inner.pause([_kafka(tp) for tp in new & self._paused])
        self._identity = inner.consumer_group_metadata()

    def _on_revoke(self, inner: Any, partitions: Iterable[Any]) -> None:
        self._given -= _ports(partitions)
        gone = self._held - self._due()
        if gone and self._inner is not None:
            self._in_loop(self._give_up(gone))
        inner.incremental_unassign([_kafka(tp) for tp in gone])

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
        self._held -= gone
        self._paused -= gone
        self._stale -= gone
        self._left = deque(m for m in self._left if _place(m) not in gone)
        for tp in gone:
            self._at.pop(tp, None)
            self._doubted.pop(tp, None)

    async def _take_up(self, starts: Mapping[TopicPartition, int]) -> None:
        new = frozenset(starts)
        self._at.update(starts)
        self._held |= new
        try:
            if self._reads.listener is not None:
                await self._reads.listener.on_assigned(new)
        except Exception as error:
            self._failure = error
        self._last_read = self._loop.time()
        self._settled.set()
        if self._asked is not None:
            self._asked.look = min(self._asked.look, _JOINING)

    def _starts(self, inner: Any, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where to begin with each."""
        known: dict[TopicPartition, int] = {}
        if partitions and self._reads.group is not None and (self._reads.start_at == "committed" or self._reads.shared):
            offsets = self._committed(inner, partitions)
            known = {tp: at for tp, at in zip(partitions, offsets, strict=True) if at is not None}
        end = self._reads.start_at == "end"
        return {tp: known[tp] if tp in known else self._bounds_of(inner, tp)[end] for tp in partitions}

    def _committed(self, inner: Any, partitions: Iterable[TopicPartition]) -> list[int | None]:
        within = self._settings.request_timeout
        found = patiently(lambda: inner.committed([_kafka(tp) for tp in partitions], within), within)
        return [one.offset if one.offset >= 0 else None for one in found]

    def _bounds_of(self, inner: Any, partition: TopicPartition) -> tuple[int, int]:
        within = self._settings.request_timeout
        first, last = patiently(lambda: inner.get_watermark_offsets(_kafka(partition), within), within)
        return first, last

    async def _bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        inner = self._started()
        wanted = [TopicPartition(*tp) for tp in partitions]
        await self._check_known(wanted)
        return await self._answer(self._do(lambda: {tp: self._bounds_of(inner, tp) for tp in wanted}))

    async def _do(self, work: Callable[[], Result]) -> Result:
        reading = self._reading
        if reading is None:
            raise RuntimeError("the consumer was stopped")
        return await reading.do(work)

    async def _answer(self, asking: Coroutine[Any, Any, Result]) -> Result:
        try:
            return await asking
        except (KafkaException, RuntimeError) as error:
            raise BrokerError(f"{self._servers}: {error}") from error

    # What was asked for.

    async def _check_exist(self) -> tuple[TopicPartition, ...]:
        """Explicit partitions, once all that was asked for is known to exist; none for a member of a group."""
        counts = await self._check_topics((*self._topics, *(tp.topic for tp in self._reads.partitions)))
        check_partitions(self._reads.partitions, counts)
        if self._topics and self._reads.group is None:
            return tuple(TopicPartition(t, p) for t in sorted(self._topics) for p in range(counts[t]))
        return self._reads.partitions

    async def _check_topics(self, topics: Iterable[str]) -> Mapping[str, int]:
        wanted = set(topics)
        counts = await self._counts.partitions(wanted)
        for topic in sorted(wanted):
            if topic not in counts:
                raise ConfigurationError(f"topic {topic!r} does not exist; create it before it is read")
        self._sizes = counts
        return counts

    async def _check_known(self, partitions: Iterable[TopicPartition]) -> None:
        strangers = [TopicPartition(*tp) for tp in partitions if tp not in self._held]
        if strangers:
            check_partitions(strangers, await self._counts.partitions({tp.topic for tp in strangers}))

    def _started(self) -> Any:
        if self._inner is None:
            raise ConfigurationError("this consumer is not started (or stopped): await start() before reading")
        return self._inner

    def _ours(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        chosen = [TopicPartition(*tp) for tp in partitions]
        for tp in chosen:
            if tp not in self._held:
                raise lost(tp)
        return chosen

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _properties(self) -> dict[str, Any]:
        settings, reads = self._settings, self._reads
        properties = {
            **connection(self._servers, settings),
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


def _kafka(tp: TopicPartition, offset: int | None = None) -> Any:
    return KafkaPartition(tp.topic, tp.partition) if offset is None else KafkaPartition(tp.topic, tp.partition, offset)


def _ports(partitions: Iterable[Any]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(one.topic, one.partition) for one in partitions)


def _place(message: Any) -> TopicPartition:
    return TopicPartition(message.topic(), message.partition())


def _error(raised: Exception) -> KafkaError:
    return failed(raised) if isinstance(raised, KafkaException) else KafkaError(KafkaError._DESTROY, str(raised))

"""What one client of librdkafka fetches: where each partition is read on, and what was fetched and not handed out yet.

Rules. Positions are kept here: what is handed out lies at or behind them. What was fetched and not handed out of a
partition that is paused, sought or given up is dropped, and fetched again where that is due. All that is asked of the
library is done by the thread: the library makes whoever calls it wait while it calls back, and what it calls back waits
for the loop.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from sluicegate.streams.kafka.fetched_batches import MAX_UNPACKED, headers_of
from sluicegate.streams.kafka.rdkafka.connection import tell
from sluicegate.streams.kafka.rdkafka.reading import Ask, Reading
from sluicegate.streams.ports import BrokerError, MemberTakenError, Record, TopicPartition, Unreadable

log = logging.getLogger(__name__)

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
_TAKEN = "group.instance.id"
"""In what the library says of a fatal error: another is this static member now."""
_QUEUED = 10_000
"""Messages of other partitions that are looked through for what is told of a batch that cannot be read."""


class Fetcher:
    """What is fetched of the partitions that a consumer holds. Used by the loop, but for what says it is the thread's.

    ``group``: of which it is a member, if any, and by the name of ``member``, where it has one. ``on_unreadable`` is
    told of each record that cannot be read, ``on_refusal`` why nothing will be.
    """

    def __init__(
        self,
        group: str | None,
        *,
        member: str | None,
        on_unreadable: Callable[[Unreadable], None],
        on_refusal: Callable[[Exception], None],
    ) -> None:
        self._group = group
        self._member = member
        self._on_unreadable = on_unreadable
        self._on_refusal = on_refusal
        self._inner: Any = None
        self._reading: Reading | None = None
        self._at: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._taking: frozenset[TopicPartition] = frozenset()
        self._left: deque[Any] = deque()
        self._stale: set[TopicPartition] = set()  # to be fetched again
        self._asked: Ask | None = None
        self._idle = False
        self._told: dict[TopicPartition, int] = {}  # behind the last offset that was told to be unreadable
        self._damaged: dict[TopicPartition, tuple[int, int]] = {}  # the batch, and the offset of it that is in doubt
        self.doubted: dict[TopicPartition, float] = {}
        """Positions that the broker says are out of range -> since when (monotonic seconds)."""

    def start(self, inner: Any, reading: Reading) -> None:
        """Fetch by ``inner``, the library's consumer, which ``reading`` serves."""
        self._inner, self._reading = inner, reading
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """Hold nothing, and ask nothing more of the library."""
        self._inner = self._reading = None
        self._at.clear()
        self._left.clear()
        self.doubted.clear()

    # Which partitions.

    @property
    def held(self) -> frozenset[TopicPartition]:
        """What is fetched, or paused."""
        return frozenset(self._at)

    def position(self, place: TopicPartition) -> int:
        """Offset of the next record to be handed out; of a partition that is held."""
        return self._at[place]

    def taking(self, places: frozenset[TopicPartition]) -> None:
        """Leave these alone in the library for now: the thread is about to take them up (the thread's)."""
        self._taking = places

    def assign(self, inner: Any, places: frozenset[TopicPartition]) -> None:
        """Have the library fetch what was taken up (the thread's)."""
        self._taking = frozenset()
        inner.incremental_assign([kafka(tp, at) for tp in places if (at := self._at.get(tp)) is not None])
        inner.pause([kafka(tp) for tp in places & self._paused])

    def take_up(self, starts: Mapping[TopicPartition, int]) -> None:
        """Hold these too, from those offsets on."""
        self._at.update(starts)

    def give_up(self, gone: frozenset[TopicPartition]) -> None:
        """Hold these no more."""
        self._paused -= gone
        self._stale -= gone
        self._left = deque(m for m in self._left if _place(m) not in gone)
        for tp in gone:
            self._at.pop(tp, None)
            self.doubted.pop(tp, None)

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Fetch no more of these, and hand out nothing that was."""
        chosen = frozenset(places)
        self._fetch_no_more(chosen)
        self._paused |= chosen
        self._drop(chosen)

    def resume(self, places: Iterable[TopicPartition]) -> None:
        """Fetch these again."""
        chosen = frozenset(places)
        self._paused -= chosen
        if not self._idle:
            self._fetch(chosen)
        if self._asked is None:
            self._go_back()

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Read on from ``offset``."""
        self._at[place] = offset
        self._damaged.pop(place, None)
        self.fetch_again(place)

    def fetch_again(self, place: TopicPartition) -> None:
        """What was fetched of it is not handed out, and fetched once more."""
        self._drop([place])
        self._go_to(place)
        if self._asked is None:
            self._stale.discard(place)

    def fetch_all_again(self) -> None:
        """As `fetch_again`, of all that is held."""
        self._drop(self._at)
        self._stale |= self._at.keys()
        self._go_back()

    # What was fetched.

    async def fetched(self, wait: float, most: int) -> None:
        """Return once something was fetched, or after ``wait`` seconds. Who is cancelled leaves it to who comes next.
        Raises BrokerError."""
        if self._idle:
            self._idle = False
            self._fetch(self.held - self._paused)
        if self._left:
            return
        if self._asked is None:
            self._ask(Ask(wait, most))
        else:
            self._asked.until = time.monotonic() + wait
        await self._collect()

    async def joined(self, wait: float, look: float) -> None:
        """Let the library call back for ``wait`` seconds, looking every ``look``: ``on_refusal`` hears of one. Raises
        BrokerError."""
        if self._asked is None:
            self._ask(Ask(wait, 1, look))
        await self._collect()
        for message in self._left:
            if message.error() is not None and message.error().code() in _REFUSED:
                self._event(message)

    def look_soon(self, look: float) -> None:
        """Of what is asked for already: look every ``look`` seconds from now on."""
        if self._asked is not None:
            self._asked.look = min(self._asked.look, look)

    def rest(self, wait: float) -> None:
        """Nobody reads: let the library call back, and fetch nothing for nobody."""
        if self._inner is None or self._asked is not None:
            return
        if not self._idle:
            self._idle = True
            self._fetch_no_more(self.held)
        ask = Ask(wait, 1)
        self._ask(ask)
        ask.answer.add_done_callback(lambda _: self._kept_up(ask))

    def taken(self, most: int) -> list[Record]:
        """At most that many of what was fetched, in offset order within each partition: to be handed out."""
        records: list[Record] = []
        at = self._at
        while self._left and len(records) < most:  # what is told of one may drop others
            message = self._left.popleft()
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
                headers = headers_of(message.headers() or ())
            except (UnicodeDecodeError, SystemError):
                records.append(self._unreadable(place, offset, "the name of a header is no text"))
                continue
            moment = message.timestamp()[1] / 1e3
            records.append(Record(topic, partition, offset, message.key(), message.value(), headers, moment))
        return records

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

    def _kept_up(self, ask: Ask) -> None:
        if self._asked is ask and ask.answer.exception() is None:  # else it is for who reads next
            self._came(ask.answer.result())

    def _came(self, found: list[Any]) -> None:
        self._asked = None
        self._add(found)
        self._go_back()

    def _add(self, found: list[Any]) -> None:
        self._left += [m for m in found if _place(m) not in self._stale] if self._stale else found

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
            self.doubted.setdefault(place, time.monotonic())
        elif code in _REFUSED and (code != KafkaError.GROUP_AUTHORIZATION_FAILED or self._group is not None):
            taken = code == KafkaError.FENCED_INSTANCE_ID or (code == KafkaError._FATAL and _TAKEN in error.str())
            self._on_refusal(
                MemberTakenError(self._member, self._group) if taken else BrokerError(f"cannot read: {error.str()}")
            )
        else:
            log.warning("%s: %s", place.topic or self._group, error.str())
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
            if self._group is None:  # who commits sees to it itself, before the commit
                self._on_unreadable(found)
        return found

    # What the thread is told to do.

    def post(self, work: Callable[[Any], None]) -> None:
        """Have the thread do ``work`` with the client, in the order in which it is told."""
        inner, reading = self._inner, self._reading
        if inner is None or reading is None:
            return

        def done() -> None:
            try:
                work(inner)
            except (KafkaException, RuntimeError) as error:  # of partitions that were given up, or by who has stopped
                log.debug("%s: %s", self._group, error)

        reading.post(done)

    def _fetch(self, partitions: Iterable[TopicPartition]) -> None:
        chosen = tuple(partitions)
        self.post(lambda inner: inner.resume([kafka(tp) for tp in chosen if tp not in self._taking]))

    def _fetch_no_more(self, partitions: Iterable[TopicPartition]) -> None:
        chosen = tuple(partitions)
        self.post(lambda inner: inner.pause([kafka(tp) for tp in chosen if tp not in self._taking]))

    def _drop(self, places: Iterable[TopicPartition]) -> None:
        """What was fetched of these is not handed out; nor is what is on its way."""
        chosen = frozenset(places)
        dropped = {place for m in self._left if (place := _place(m)) in chosen}
        self._left = deque(m for m in self._left if _place(m) not in chosen)
        self._stale |= chosen if self._asked is not None else dropped

    def _go_back(self) -> None:
        """Fetch again what was dropped."""
        for place in self._stale - self._paused:
            self._stale.discard(place)
            if place in self._at:
                self._go_to(place)

    def _go_to(self, place: TopicPartition) -> None:
        """Have the client fetch on from the position. What is being taken up is fetched from there by itself."""
        self.post(lambda inner: self._seek(inner, place))

    def _seek(self, inner: Any, place: TopicPartition) -> None:
        at = self._at.get(place)
        if at is None or place in self._taking:
            return
        try:
            inner.seek(kafka(place, at))
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
            inner.pause([kafka(place)])
            inner.seek(kafka(place, at))
            while len(others) < _QUEUED and (message := inner.poll(0)) is not None:
                if _place(message) != place:
                    others.append(message)
            if place not in self._paused:
                inner.resume([kafka(place)])
        except KafkaException:
            self._assign_anew(place)
        if others:
            tell(self._loop, self._add, others)

    def _assign_anew(self, place: TopicPartition) -> None:
        inner, at = self._inner, self._at.get(place)
        if inner is None or at is None:
            return
        try:
            inner.incremental_unassign([kafka(place)])
            inner.incremental_assign([kafka(place, at)])
            if place in self._paused:
                inner.pause([kafka(place)])
        except KafkaException as error:
            log.warning("%s/%d is not fetched from %d on: %s", *place, at, error)


def kafka(tp: TopicPartition, offset: int | None = None) -> Any:
    """The library's name of a partition, and of an offset of it."""
    return KafkaPartition(tp.topic, tp.partition) if offset is None else KafkaPartition(tp.topic, tp.partition, offset)


def _place(message: Any) -> TopicPartition:
    return TopicPartition(message.topic(), message.partition())

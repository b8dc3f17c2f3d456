"""Reading a control topic once for all of a process that follow it by one broker: a fetch, and a client, of each costs
more than what most of them bring.

Rules.
- It reads while anybody follows. What it has read is given to all of them at once, in the order in which they came.
- Of a topic that is read from its beginning the newest record of each key is kept, as compaction does: whoever comes
  later is given those, and then what all are given. A topic that is read from its end has no past.
- A client that fails, or gives no answer, is replaced by one that reads on where it was.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

from sluicegate.domain.errors import ConfigurationError
from sluicegate.stages.runtime.background_tasks import ended, stands, stopped
from sluicegate.streams.ports import Broker, BrokerError, Consumer, Record, TopicPartition, Unreadable

log = logging.getLogger(__name__)

_RETRY = 0.5
_ANSWERS = 0.45
"""Seconds, twice, that a client may take to say that nothing came, which takes it a fifth of one."""


class Of(NamedTuple):
    """What is read: ``start_at`` "beginning" or "end"; one partition, or all."""

    topic: str
    start_at: str
    every_partition: bool


class Told(Protocol):
    """Who is given records."""

    def take(self, record: Record) -> None:
        """One of them. Raises nothing."""
        ...


class TopicReader:
    """One reader; see the module's rules. ``task`` reads from the first ``join`` to the last ``leave``, and raises
    ConfigurationError for a topic that cannot be read."""

    def __init__(self, broker: Broker, of: Of) -> None:
        self._broker = broker
        self._of = of
        self._followers: list[Told] = []
        self._newest: dict[tuple[int, bytes | None, bool], Record] = {}
        self._handled: dict[TopicPartition, int] = {}
        self._stepped = 0.0
        self.partitions = [TopicPartition(of.topic, 0)]
        self.consumer: Consumer | None = None
        self.ready = asyncio.Event()
        """Whether the end that was seen at the start has been reached."""
        self.begun = False
        self.task = asyncio.create_task(self._go_on())

    @property
    def over(self) -> bool:
        """Whether it reads no more, or will not in a moment."""
        return self.task.done() or self.task.cancelling() > 0

    def join(self, follower: Told) -> None:
        """``follower`` is told what is kept, and of all that comes."""
        for record in sorted(self._newest.values(), key=lambda record: (record.partition, record.offset)):
            follower.take(record)
        self._followers.append(follower)

    async def leave(self, follower: Told) -> None:
        """It is told nothing more; the last one ends the reading."""
        self._followers.remove(follower)
        if not self._followers:
            self.task.cancel()
            await asyncio.wait([self.task])

    def reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether all before ``ends`` was given to all."""
        return all(self._handled.get(partition, -1) >= end for partition, end in ends.items())

    async def _go_on(self) -> None:
        while True:
            try:
                await self._follow()
            except ConfigurationError:
                raise
            except TimeoutError:  # perhaps the broker is away
                log.warning("%s: its reader gives no answer; another reads on", self._of.topic)
            except Exception as error:  # whatever else a client raises
                log.exception("%s: its reader ended (%s: %s)", self._of.topic, type(error).__name__, error)
                await asyncio.sleep(_RETRY)

    async def _follow(self) -> None:
        begun = None
        while begun is None:
            try:
                begun = await self._begin()
            except BrokerError as error:
                log.warning("%s: %s; trying again", self._of.topic, error)
                await asyncio.sleep(_RETRY)
        self.consumer, ends = begun
        self.begun = True
        reading = asyncio.create_task(self._read(self.consumer, ends))
        try:
            stood = await stands(reading, lambda: self._stepped, _ANSWERS)
        except GeneratorExit:  # its event loop is gone, and nothing can be waited for
            raise
        except BaseException:
            await self._let_go(reading, self.consumer)
            raise
        await self._let_go(reading, self.consumer)
        if stood:
            raise TimeoutError

    async def _let_go(self, reading: "asyncio.Task[None]", gone: Consumer) -> None:
        await ended([reading])
        self.consumer = None
        await stopped(gone)

    async def _read(self, consumer: Consumer, ends: Mapping[TopicPartition, int]) -> None:
        """By one client."""
        loop = asyncio.get_running_loop()
        while True:
            self._stepped = loop.time()
            try:
                # A client's position may be past records that it has not given yet: it says what was handled only
                # before more is asked for.
                self._handled = {partition: await consumer.position(partition) for partition in ends}
                if self.reached(ends):
                    self.ready.set()
                records = await consumer.get_many(wait=0.2 if self.ready.is_set() else 0.02)
            except BrokerError as error:
                log.warning("%s: %s; trying again", self._of.topic, error)
                await asyncio.sleep(_RETRY)
                continue
            for record in records:
                self._take(record)
                self._handled[TopicPartition(record.topic, record.partition)] = record.offset + 1

    def _take(self, record: Record) -> None:
        if self._of.start_at == "beginning":
            unreadable = isinstance(record, Unreadable)
            place = (record.partition, record.key, unreadable)
            self._newest.pop(place, None)
            if unreadable or record.value is not None:
                self._newest[place] = record
        for follower in tuple(self._followers):
            follower.take(record)

    async def _begin(self) -> tuple[Consumer, Mapping[TopicPartition, int]]:
        """A consumer that reads, and where the topic ends now."""
        if self._of.every_partition:
            count = (await self._broker.admin().partitions([self._of.topic])).get(self._of.topic, 1)
            self.partitions = [TopicPartition(self._of.topic, i) for i in range(count)]
        consumer = self._broker.consumer(partitions=self.partitions, start_at=self._of.start_at)
        try:
            await consumer.start()
            for partition, position in self._handled.items():
                await consumer.seek(partition, position)
            return consumer, await consumer.end_offsets(self.partitions)
        except BaseException:
            await stopped(consumer)
            raise


_READERS: WeakValueDictionary[tuple[int, Of], TopicReader] = WeakValueDictionary()
"""By the identity of their broker, which they hold."""


def reader_of(broker: Broker, of: Of) -> TopicReader:
    """The one of this process, for who joins it now; another where that one has ended."""
    found = _READERS.get((id(broker), of))
    if found is None or found.over or found.task.get_loop() is not asyncio.get_running_loop():
        found = _READERS[id(broker), of] = TopicReader(broker, of)
    return found

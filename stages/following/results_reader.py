"""Reading the results of apps from now on, of more apps as they are registered: for those who wait or watch."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from sluicegate.stages.following.skipped_records import Skipping
from sluicegate.stages.runtime.background_tasks import stands
from sluicegate.streams.ports import Broker, BrokerError, Consumer, Record, TopicPartition
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)

_RETRY = 0.5
_STEPS = 0.45
"""Seconds, twice, that a client may take to say that nothing came, which takes it a fifth of one."""


class ResultsReader:
    """Reads results topics. ``handle`` gets each outcome record that is written after its app was added.

    A record at which it raises is logged and skipped; a broker that is away is waited for, whatever else a client
    raises is tried again, and one that gives no answer is replaced by another that reads on where it was. ``gather``:
    seconds between reads; what comes close together is cheaper read together.
    ``ready``: whether the apps are read, and could be when that was last tried.
    """

    def __init__(
        self, broker: Broker, topics: Topics, handle: Callable[[Record], None], *, gather: float = 0.0
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._handle = handle
        self._gather = gather
        self._apps: set[str] = set()
        self._adding = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._readers: dict[int, tuple[asyncio.Task[None], dict[TopicPartition, int]]] = {}
        self._reading: dict[int, Consumer] = {}
        self._number = 0
        self._skipping = Skipping(log)
        self._added = False
        self._failing: set[int] = set()
        self._stepped: dict[int, float] = {}

    @property
    def ready(self) -> bool:
        """Whether all that was added is read."""
        return self._added and not self._failing

    async def add(self, apps: Iterable[str]) -> None:
        """Read these as well. What is written once this has returned is read; topics that are not there are waited for,
        while the others are read."""
        async with self._adding:
            missing = {self._topics.results(app): app for app in set(apps) - self._apps}
            while missing:
                try:
                    begun = await self._begin(sorted(missing))
                except BrokerError as error:
                    log.warning("results: %s; trying again", error)
                    await asyncio.sleep(_RETRY)
                    continue
                if begun is not None:
                    self._follow(*begun)
                    self._apps.update(missing.pop(topic) for topic in {place.topic for place in begun[1]})
                if missing:
                    log.warning("results: %s not there; trying again", ", ".join(sorted(missing)))
                    await asyncio.sleep(_RETRY)
            self._added = True

    def keep(self, apps: Iterable[str]) -> None:
        """Read no others any more."""
        self._apps.intersection_update(apps)
        kept = {self._topics.results(app) for app in self._apps}
        for number, (task, handled) in tuple(self._readers.items()):
            gone = [place for place in handled if place.topic not in kept]
            for place in gone:
                del handled[place]
            if not handled:
                task.cancel()
                del self._readers[number]
                self._failing.discard(number)
            elif gone and number in self._reading:
                self._reading[number].pause(gone)

    def _follow(self, consumer: Consumer, handled: dict[TopicPartition, int]) -> None:
        self._number += 1
        task = asyncio.create_task(self._keep_reading(self._number, consumer, handled))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._readers[self._number] = task, handled

    async def _begin(self, topics: list[str]) -> tuple[Consumer, dict[TopicPartition, int]] | None:
        """A consumer at the end of those ``topics`` that exist, and where that is."""
        counts = await self._broker.admin().partitions(topics)
        partitions = [TopicPartition(topic, i) for topic, count in sorted(counts.items()) for i in range(count)]
        if not partitions:
            return None
        consumer = self._broker.consumer(partitions=partitions, start_at="end")
        try:
            await consumer.start()
            return consumer, {partition: await consumer.position(partition) for partition in partitions}
        except BaseException:
            await consumer.stop()
            raise

    async def close(self) -> None:
        """Read no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep_reading(self, number: int, consumer: Consumer, handled: dict[TopicPartition, int]) -> None:
        """Read, by one client after the other where they give no answer."""
        while True:
            self._stepped[number] = asyncio.get_running_loop().time()
            reading = asyncio.create_task(self._read(number, consumer, handled))
            try:
                await stands(reading, lambda: self._stepped[number], _STEPS)
            finally:
                reading.cancel()
                await asyncio.wait([reading], timeout=_RETRY)
            self._failing.add(number)
            log.warning("results: their reader gives no answer; another reads on")
            consumer = await self._another(handled)

    async def _another(self, handled: dict[TopicPartition, int]) -> Consumer:
        while True:
            consumer = self._broker.consumer(partitions=list(handled), start_at="end")
            try:
                await consumer.start()
                for partition, position in tuple(handled.items()):
                    await consumer.seek(partition, position)
            except Exception as error:
                log.warning("results: %s; trying again", str(error) or type(error).__name__)
                await consumer.stop()
                await asyncio.sleep(_RETRY)
            else:
                return consumer

    async def _read(self, number: int, consumer: Consumer, handled: dict[TopicPartition, int]) -> None:
        loop = asyncio.get_running_loop()
        self._reading[number] = consumer
        try:
            while True:
                self._stepped[number] = loop.time()
                try:
                    records = await consumer.get_many(wait=0.2)
                except Exception as error:
                    self._failing.add(number)
                    defect = None if isinstance(error, BrokerError) else error
                    log.warning("results: %s; trying again", str(error) or type(error).__name__, exc_info=defect)
                    await asyncio.sleep(_RETRY)
                    continue
                self._failing.discard(number)
                for record in records:
                    place = TopicPartition(record.topic, record.partition)
                    if place in handled:
                        self._take(record)
                        handled[place] = record.offset + 1
                await asyncio.sleep(self._gather)
        finally:
            if self._reading.get(number) is consumer:
                del self._reading[number]
            await consumer.stop()

    def _take(self, record: Record) -> None:
        try:
            self._handle(record)
        except Exception as error:
            self._skipping.skipped(record, error)

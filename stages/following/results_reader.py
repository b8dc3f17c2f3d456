"""Reading the results of apps from now on, of more apps as they are registered: for those who wait or watch."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from sluicegate.stages.following.skipped_records import Skipping
from sluicegate.streams.ports import Broker, BrokerError, Consumer, Record, TopicPartition
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)

_RETRY = 0.5


class ResultsReader:
    """Reads results topics. ``handle`` gets each outcome record that is written after its app was added.

    A record at which it raises is logged and skipped; a broker that is away is waited for, and whatever else a client
    raises is tried again. ``gather``: seconds between reads; what comes close together is cheaper read together.
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
        self._tasks: list[asyncio.Task[None]] = []
        self._skipping = Skipping(log)
        self._added = False
        self._failing: set[Consumer] = set()

    @property
    def ready(self) -> bool:
        """Whether all that was added is read."""
        return self._added and not self._failing

    async def add(self, apps: Iterable[str]) -> None:
        """Read these as well. What is written once this has returned is read."""
        async with self._adding:
            new = sorted(set(apps) - self._apps)
            counts = await self._broker.admin().partitions([self._topics.results(app) for app in new])
            partitions = [TopicPartition(topic, i) for topic, count in sorted(counts.items()) for i in range(count)]
            if partitions:
                consumer = self._broker.consumer(partitions=partitions, start_at="end")
                await consumer.start()
                self._tasks.append(asyncio.create_task(self._read(consumer)))
            self._apps.update(new)
            self._added = True

    async def close(self) -> None:
        """Read no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self, consumer: Consumer) -> None:
        try:
            while True:
                try:
                    records = await consumer.get_many(wait=0.2)
                except Exception as error:
                    self._failing.add(consumer)
                    defect = None if isinstance(error, BrokerError) else error
                    log.warning("results: %s; trying again", str(error) or type(error).__name__, exc_info=defect)
                    await asyncio.sleep(_RETRY)
                    continue
                self._failing.discard(consumer)
                for record in records:
                    self._take(record)
                await asyncio.sleep(self._gather)
        finally:
            self._failing.discard(consumer)
            await consumer.stop()

    def _take(self, record: Record) -> None:
        try:
            self._handle(record)
        except Exception as error:
            self._skipping.skipped(record, error)

"""Following a compacted control topic: read to its end before serving, then go on."""

import asyncio
import logging
from collections.abc import Callable

from domain.errors import InvalidInputError
from streams.ports import Broker, Consumer, Record, TopicPartition

log = logging.getLogger(__name__)


class Follower:
    """Gives each record of a one-partition topic to ``handle``, from ``start_at``, in order.

    ``ready`` is set once the end that was seen at the start has been reached. Records that ``handle`` cannot
    understand (InvalidInputError) are logged and skipped.
    """

    def __init__(
        self, broker: Broker, topic: str, handle: Callable[[Record], None], *, start_at: str = "beginning"
    ) -> None:
        self._broker = broker
        self._partition = TopicPartition(topic, 0)
        self._handle = handle
        self._start_at = start_at
        self.ready = asyncio.Event()
        self._consumer: Consumer | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until ``stop``."""
        consumer = self._consumer = self._broker.consumer(partitions=[self._partition], start_at=self._start_at)
        await consumer.start()
        try:
            end = (await consumer.end_offsets([self._partition]))[self._partition]
            while not stop.is_set():
                if not self.ready.is_set() and await consumer.position(self._partition) >= end:
                    self.ready.set()
                for record in await consumer.get_many(wait=0.2 if self.ready.is_set() else 0.02):
                    self._take(record)
        finally:
            await consumer.stop()

    async def catch_up(self) -> None:
        """Wait until everything that is on the topic now has been given to ``handle``."""
        await self.ready.wait()
        consumer = self._consumer
        if consumer is None:
            return
        end = (await consumer.end_offsets([self._partition]))[self._partition]
        while await consumer.position(self._partition) < end:
            await asyncio.sleep(0.01)

    def _take(self, record: Record) -> None:
        try:
            self._handle(record)
        except InvalidInputError as error:
            log.warning("%s offset %d skipped: %s", record.topic, record.offset, error)

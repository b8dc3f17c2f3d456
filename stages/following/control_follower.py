"""Following a compacted control topic: read to its end before serving, then go on.

What one record does to its reader, that record alone is skipped for: control topics are input like any other. A reader
whose client fails, or gives no answer, is replaced by one that reads on where it was.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from sluicegate.domain.errors import ConfigurationError
from sluicegate.stages.following.skipped_records import Skipping
from sluicegate.stages.runtime.background_tasks import ended, stands, stopped
from sluicegate.streams.ports import Broker, BrokerError, Consumer, Record, TopicPartition, Unreadable

log = logging.getLogger(__name__)

_RETRY = 0.5
_ANSWERS = 0.45
"""Seconds, twice, that a client may take to say that nothing came, which takes it a fifth of one."""


class Follower:
    """Gives each record of a one-partition topic to ``handle``, from ``start_at``, in order.

    ``every_partition``: of a topic with any number of them, in order within each. ``ready`` is set once the end that
    was seen at the start has been reached. A record at which ``handle`` raises is logged and skipped; ``passed_over``
    is called after each that counts for nothing.
    """

    def __init__(
        self,
        broker: Broker,
        topic: str,
        handle: Callable[[Record], None],
        *,
        start_at: str = "beginning",
        every_partition: bool = False,
        passed_over: Callable[[], None] = lambda: None,
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._partitions = [TopicPartition(topic, 0)]
        self._every_partition = every_partition
        self._handle = handle
        self._passed_over = passed_over
        self._start_at = start_at
        self._skipping = Skipping(log)
        self.ready = asyncio.Event()
        self._consumer: Consumer | None = None
        self._over = False
        self._handled: dict[TopicPartition, int] = {}
        self._stepped = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until ``stop``. A broker that is away is waited for. Raises ConfigurationError."""
        try:
            await self._go_on(stop)
        finally:
            self._over = True

    async def _go_on(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self._follow(stop)
            except ConfigurationError:
                raise
            except TimeoutError:  # perhaps the broker is away
                log.warning("%s: its reader gives no answer; another reads on", self._topic)
            except Exception as error:  # whatever else a client raises
                log.exception("%s: its reader ended (%s: %s)", self._topic, type(error).__name__, error)
                await asyncio.sleep(_RETRY)

    async def _follow(self, stop: asyncio.Event) -> None:
        begun = None
        while begun is None:
            try:
                begun = await self._begin()
            except BrokerError as error:
                log.warning("%s: %s; trying again", self._topic, error)
                await asyncio.sleep(_RETRY)
                if stop.is_set():
                    return
        consumer, ends = begun
        self._consumer = consumer
        reading = asyncio.create_task(self._read(consumer, ends, stop))
        try:
            if await stands(reading, lambda: self._stepped, _ANSWERS):
                raise TimeoutError
        finally:
            await ended([reading])
            self._consumer = None
            await stopped(consumer)

    async def _read(self, consumer: Consumer, ends: Mapping[TopicPartition, int], stop: asyncio.Event) -> None:
        """By one client."""
        loop = asyncio.get_running_loop()
        while not stop.is_set():
            self._stepped = loop.time()
            try:
                # A client's position may be past records that it has not given yet: it says what was handled only
                # before more is asked for.
                self._handled = {partition: await consumer.position(partition) for partition in ends}
                if self._reached(ends):
                    self.ready.set()
                records = await consumer.get_many(wait=0.2 if self.ready.is_set() else 0.02)
            except BrokerError as error:
                log.warning("%s: %s; trying again", self._topic, error)
                await asyncio.sleep(_RETRY)
                continue
            for record in records:
                self._take(record)
                self._handled[TopicPartition(record.topic, record.partition)] = record.offset + 1

    async def _begin(self) -> tuple[Consumer, Mapping[TopicPartition, int]]:
        """A consumer that reads, and where the topic ends now."""
        if self._every_partition:
            count = (await self._broker.admin().partitions([self._topic])).get(self._topic, 1)
            self._partitions = [TopicPartition(self._topic, i) for i in range(count)]
        consumer = self._broker.consumer(partitions=self._partitions, start_at=self._start_at)
        try:
            await consumer.start()
            for partition, position in self._handled.items():
                await consumer.seek(partition, position)
            return consumer, await consumer.end_offsets(self._partitions)
        except BaseException:
            await stopped(consumer)
            raise

    async def catch_up(self) -> None:
        """Wait until everything that is on the topic now has been given to ``handle``, however long that takes: also
        while one reader is replaced by another. Raises BrokerError once it is followed no more."""
        await self.ready.wait()
        while not self._over:
            consumer = self._consumer
            try:
                if consumer is None:
                    raise BrokerError("its reader is being replaced")
                ends = await consumer.end_offsets(self._partitions)
                while not self._reached(ends):
                    await asyncio.sleep(0.01)
            except (BrokerError, ConfigurationError) as error:
                if isinstance(error, ConfigurationError) and self._consumer is consumer:
                    raise  # not for being stopped meanwhile
                log.warning("%s: %s; trying again", self._topic, error)
                await asyncio.sleep(_RETRY)
            else:
                return
        raise BrokerError(f"{self._topic} is followed no more")

    def _reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        return all(self._handled.get(partition, -1) >= end for partition, end in ends.items())

    def _take(self, record: Record) -> None:
        if isinstance(record, Unreadable):
            self._passed_over()  # the consumer has told of it
            return
        try:
            self._handle(record)
        except Exception as error:
            self._skipping.skipped(record, error)
            self._passed_over()

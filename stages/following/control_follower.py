"""Following a compacted control topic: read to its end before serving, then go on.

Who follows a topic by the same broker shares a reader of it (``sluicegate.stages.following.topic_reader``). What one
record does to its follower, that record alone is skipped for, by that follower alone: control topics are input like any
other.
"""

import asyncio
import logging
from collections.abc import Callable

from sluicegate.domain.errors import ConfigurationError
from sluicegate.stages.following.skipped_records import Skipping
from sluicegate.stages.following.topic_reader import Of, TopicReader, reader_of
from sluicegate.streams.ports import Broker, BrokerError, Record, Unreadable

log = logging.getLogger(__name__)

_RETRY = 0.5


class Follower:
    """Gives each record of a one-partition topic to ``handle``, from ``start_at``, in order.

    ``every_partition``: of a topic with any number of them, in order within each. ``ready`` is set once the end that
    was seen at the start has been reached. A record at which ``handle`` raises is logged and skipped; ``passed_over``
    is called after each that counts for nothing. From the beginning, who comes when the topic is read already is given
    the newest record of each key.
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
        self._of = Of(topic, start_at, every_partition)
        self._handle = handle
        self._passed_over = passed_over
        self._skipping = Skipping(log)
        self.ready = asyncio.Event()
        self.reader: TopicReader | None = None
        self._over = False

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until ``stop``. A broker that is away is waited for. Raises ConfigurationError."""
        reader = self.reader = reader_of(self._broker, self._of)
        has_begun = reader.begun
        reader.join(self)
        stopping = asyncio.create_task(stop.wait())
        waiting = asyncio.create_task(self._get_ready(reader, has_begun))
        try:
            pending = {stopping, reader.task, waiting}
            while stopping in pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            self._over = True
            stopping.cancel()
            waiting.cancel()
            await reader.leave(self)

    def take(self, record: Record) -> None:
        """One record, from the reader."""
        if isinstance(record, Unreadable):
            self._passed_over()  # the consumer has told of it
            return
        try:
            self._handle(record)
        except Exception as error:
            self._skipping.skipped(record, error)
            self._passed_over()

    async def catch_up(self) -> None:
        """Wait until everything that is on the topic now has been given to ``handle``, however long that takes: also
        while one client is replaced by another. Raises BrokerError once it is followed no more."""
        await self.ready.wait()
        await self._reach_end()

    async def _get_ready(self, reader: TopicReader, has_begun: bool) -> None:
        if has_begun:
            await self._reach_end()
        else:
            await reader.ready.wait()
        self.ready.set()

    async def _reach_end(self) -> None:
        assert self.reader is not None
        while not self._over:
            consumer = self.reader.consumer
            try:
                if consumer is None:
                    raise BrokerError("its reader is being replaced")
                ends = await consumer.end_offsets(self.reader.partitions)
                while not self.reader.reached(ends):
                    await asyncio.sleep(0.01)
            except (BrokerError, ConfigurationError) as error:
                if isinstance(error, ConfigurationError) and self.reader.consumer is consumer:
                    raise  # not for being stopped meanwhile
                log.warning("%s: %s; trying again", self._of.topic, error)
                await asyncio.sleep(_RETRY)
            else:
                return
        raise BrokerError(f"{self._of.topic} is followed no more")

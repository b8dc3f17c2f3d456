"""The client's topics, held by any broker of ours: by it commands ask the memory log of another process, too."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from sluicegate.streams.ports import Broker, BrokerError, Consumer, Producer, TopicPartition
from sluicegate_client.log import Headers, Received

log = logging.getLogger(__name__)

_RETRY = 0.5


class BrokerLog:
    """A broker as ``sluicegate_client.log.Log``. It is closed with the client."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._producer: Producer | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        """Where it is."""
        return self._broker.url

    async def open(self) -> None:
        """Connect."""
        self._producer = self._broker.producer()
        await self._producer.start()

    async def topics(self) -> frozenset[str]:
        """Names of all topics."""
        return await self._broker.admin().topics()

    async def send(self, topic: str, value: bytes, *, key: bytes, headers: Headers) -> None:
        """Write a record."""
        assert self._producer is not None, "open() comes first"
        await (await self._producer.send(topic, value, key=key, headers=headers))

    async def follow(
        self, topics: Sequence[str], heard: Callable[[Received], None], *, beginning: bool
    ) -> asyncio.Future[None]:
        """Hear what is written from now on."""
        counts = await self._broker.admin().partitions(topics)
        partitions = [TopicPartition(topic, i) for topic, count in sorted(counts.items()) for i in range(count)]
        consumer = self._broker.consumer(partitions=partitions, start_at="beginning" if beginning else "end")
        await consumer.start()
        reading = asyncio.create_task(_read(consumer, heard))
        self._tasks.append(reading)
        return reading

    async def close(self) -> None:
        """Disconnect."""
        producer, self._producer = self._producer, None
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if producer is not None:
            await producer.stop()
        await self._broker.close()


async def _read(consumer: Consumer, heard: Callable[[Received], None]) -> None:
    try:
        while True:
            try:
                records = await consumer.get_many(wait=0.2)
            except BrokerError as error:
                log.warning("reading: %s; trying again", error)
                await asyncio.sleep(_RETRY)
                continue
            for record in records:
                heard(Received(record.topic, record.key, record.value, record.headers))
    finally:
        await consumer.stop()

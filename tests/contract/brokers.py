"""What tests of brokers share: topics of their own, writing, reading, a served log."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from sluicegate.streams.ports import Broker, Consumer, Producer, Record, TopicSpec
from sluicegate.streams.remote import server
from tests.harness import PATIENCE_S

MEMORY = pytest.param("memory", marks=pytest.mark.virtual)
KAFKA = pytest.param("kafka", marks=pytest.mark.kafka)
RDKAFKA = pytest.param("rdkafka", marks=(pytest.mark.kafka, pytest.mark.thorough))
"""Of which kinds a broker is, as parameters of fixtures that make one."""
_numbers = itertools.count()


@asynccontextmanager
async def serve(broker: Broker, token: str | None = None, home: Path | None = None) -> AsyncIterator[str]:
    """The URL of a memory log that is served as ``sluice up`` does."""
    application = web.Application()
    application.add_routes(server.routes(broker, token=token, home=home))
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"memory+http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def need_rdkafka() -> None:
    """Skip where librdkafka is not installed."""
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: pip install 'sluicegate[rdkafka]'")


async def new_topic(broker: Broker, partitions: int = 1, **more: object) -> str:
    """A topic of its own for a test."""
    name = f"conformance.{time.time_ns()}.{next(_numbers)}"
    await broker.admin().create_topics([TopicSpec(name=name, partitions=partitions, **more)])  # type: ignore[arg-type]
    return name


async def started(broker: Broker) -> Producer:
    """A producer ready to send."""
    producer = broker.producer()
    await producer.start()
    return producer


async def write(producer: Producer, topic: str, values: Sequence[bytes], **more: object) -> None:
    """Write values and wait for all acknowledgements."""
    await asyncio.gather(*[await producer.send(topic, value, **more) for value in values])  # type: ignore[arg-type]


async def read(consumer: Consumer, count: int) -> list[Record]:
    """At least ``count`` records."""
    records: list[Record] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(records) < count:
            records += await consumer.get_many(wait=0.5)
    return records


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until ``condition`` holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.05)

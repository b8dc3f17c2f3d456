"""Brokers that tests of the ports run on: memory, a served log, Apache Kafka."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sluicegate.streams import connect
from sluicegate.streams.broker_settings import KafkaSettings, MemorySettings
from sluicegate.streams.ports import Broker
from tests.contract.brokers import KAFKA, MEMORY, RDKAFKA, need_rdkafka, serve


@pytest.fixture(params=["aiokafka", pytest.param("rdkafka", marks=pytest.mark.thorough)])
def library(request: pytest.FixtureRequest) -> str:
    """What reads and writes Apache Kafka."""
    if request.param == "rdkafka":
        need_rdkafka()
    return str(request.param)


@pytest.fixture(params=[MEMORY, "remote", KAFKA, RDKAFKA])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """A broker that is closed afterwards, leaving no task behind."""
    async with _open(request) as made:
        yield made


@pytest.fixture(params=[MEMORY, KAFKA, RDKAFKA])
async def grouping(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """A broker that has groups."""
    async with _open(request) as made:
        yield made


@asynccontextmanager
async def _open(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    match request.param:
        case "memory":
            made = connect("memory://", memory=MemorySettings(session_timeout=3.0))
            yield made
        case "kafka":
            made = connect(request.getfixturevalue("kafka_url"), kafka=KafkaSettings(session_timeout=3.0))
            yield made
        case "rdkafka":
            need_rdkafka()
            settings = KafkaSettings(session_timeout=3.0, library="rdkafka")
            made = connect(request.getfixturevalue("kafka_url"), kafka=settings)
            yield made
        case _:
            behind = connect("memory://")
            async with serve(behind) as url:
                made = connect(url)
                yield made
                await made.close()
            made = behind
    await made.close()
    await asyncio.sleep(0)
    assert not asyncio.all_tasks() - {asyncio.current_task()}

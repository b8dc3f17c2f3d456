"""A stop that is given up, because the client hangs, cuts its connection all the same."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from sluicegate.stages.runtime.background_tasks import stopped
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka import consumer as module
from sluicegate.streams.kafka.consumer import KafkaConsumer
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.subscription import Subscription

pytestmark = pytest.mark.virtual


class Hangs:
    """Stands for aiokafka's consumer, and for its client: neither begins nor ends."""

    def __init__(self) -> None:
        self._client = self
        self._fetcher = self._coordinator = None
        self.is_closed = False

    def assign(self, partitions: object) -> None: ...

    async def bootstrap(self) -> None: ...

    async def send(self, *_: object) -> None: ...

    async def start(self) -> None:
        await asyncio.Event().wait()

    stop = start

    async def close(self) -> None:
        self.is_closed = True


class Counts:
    async def partitions(self, topics: Iterable[str]) -> Mapping[str, int]:
        return {"t": 1}


async def test_who_does_not_wait_for_a_consumer_that_hangs_leaves_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = Hangs()
    monkeypatch.setattr(module, "AIOKafkaConsumer", lambda **_: inner)
    gone: list[Any] = []
    reads = Subscription(partitions=(TopicPartition("t", 0),))
    consumer = KafkaConsumer("here:1", KafkaSettings(stop_timeout=10.0), Counts(), reads, on_stop=gone.append)
    starting = asyncio.create_task(consumer.start())
    await asyncio.sleep(0.1)
    await stopped(consumer, 0.5)
    assert inner.is_closed and gone == [consumer]
    starting.cancel()
    await asyncio.wait([starting])
    assert asyncio.all_tasks() == {asyncio.current_task()}

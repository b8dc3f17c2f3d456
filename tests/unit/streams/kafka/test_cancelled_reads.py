"""A read that is given up just as it has fetched something leaves it to the next."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.consumer import KafkaConsumer
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.subscription import Subscription
from tests.unit.streams.kafka.test_cancelled_stops import Counts

pytestmark = pytest.mark.virtual

PLACE = TopicPartition("t", 3)


class Fetches:
    """Stands for aiokafka's consumer: ``reader`` is cancelled as records 7 and 8 are handed out."""

    reader: "asyncio.Task[Any]"

    def __init__(self) -> None:
        self.sought: list[tuple[Any, int]] = []

    async def getmany(self, **_: object) -> Mapping[Any, Any]:
        await asyncio.sleep(0.1)
        self.reader.cancel()
        return {PLACE: [SimpleNamespace(offset=offset) for offset in (7, 8)]}

    def seek(self, partition: Any, offset: int) -> None:
        self.sought.append((partition, offset))


async def test_what_was_fetched_as_its_reader_was_cancelled_is_read_again() -> None:
    inner = Fetches()
    reads = Subscription(partitions=(PLACE,))
    consumer = KafkaConsumer("here:1", KafkaSettings(), Counts(), reads, on_stop=lambda _: None)
    consumer._inner, consumer._held = inner, frozenset({PLACE})
    inner.reader = asyncio.create_task(consumer.get_many(wait=1.0))
    await asyncio.wait([inner.reader])
    assert inner.reader.cancelled()
    assert inner.sought == [(PLACE, 7)]

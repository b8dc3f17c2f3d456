"""A producer on librdkafka whose client meets an error that it cannot outlive: nothing waits for it for ever."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.ports import BrokerError, DeliveryError

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: pip install 'sluicegate[rdkafka]'")

from confluent_kafka import KafkaError, KafkaException

from sluicegate.streams.kafka.rdkafka import producer as rdkafka
from sluicegate.streams.kafka.topic_limits import Limits

FATAL = KafkaException(KafkaError(KafkaError._FATAL, "the broker knows this producer no more", True))
WITHIN = 5.0


class Library:
    """Stands for the library's producer, which acknowledges what is polled for until it ``fails``."""

    def __init__(self) -> None:
        self.fails = False
        self.refuses: KafkaException | None = None
        self._queued: list[Any] = []

    def produce(self, topic: str, value: bytes, *_: object, on_delivery: Any, **_more: object) -> None:
        if self.refuses is not None:
            raise self.refuses
        self._queued.append(on_delivery)

    def poll(self, timeout: float) -> None:
        if self.fails:
            raise FATAL
        self._settle(None)
        time.sleep(min(timeout, 0.005))

    def purge(self) -> None:
        self._settle(KafkaError(KafkaError._PURGE_QUEUE))

    def _settle(self, error: KafkaError | None) -> None:
        queued, self._queued = self._queued, []
        for told in queued:
            told(error, SimpleNamespace(partition=lambda: 3, offset=lambda: 70))


class Counts:
    async def partitions(self, topics: Iterable[str]) -> Mapping[str, int]:
        return dict.fromkeys(topics, 4)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Library]:
    """Clients of the library, in the order in which they were made."""
    clients: list[Library] = []

    def make(_properties: object) -> Library:
        clients.append(Library())
        return clients[-1]

    monkeypatch.setattr(rdkafka, "Producer", make)
    return clients


async def started() -> rdkafka.RdkafkaProducer:
    settings = KafkaSettings()
    producer = rdkafka.RdkafkaProducer("here:1", settings, Limits(settings), Counts())
    await producer.start()
    return producer


async def test_a_client_that_fails_for_good_is_replaced_and_what_it_held_is_told(made: list[Library]) -> None:
    producer = await started()
    async with asyncio.timeout(WITHIN):
        assert (await (await producer.send("t", b"1"))).offset == 70
        made[0].fails = True
        lost = await producer.send("t", b"2")
        with pytest.raises(DeliveryError):
            await lost
        assert (await (await producer.send("t", b"3"))).partition == 3
        await producer.flush()
        await producer.stop()
    assert len(made) == 2


async def test_a_client_that_takes_nothing_more_is_replaced(made: list[Library]) -> None:
    producer = await started()
    async with asyncio.timeout(WITHIN):
        await (await producer.send("t", b"1"))
        made[0].refuses = FATAL
        assert (await (await producer.send("t", b"2"))).offset == 70
        await producer.stop()
    assert len(made) == 2


async def test_what_the_client_refuses_otherwise_is_an_error_of_the_broker(made: list[Library]) -> None:
    producer = await started()
    made[0].refuses = KafkaException(KafkaError(KafkaError._STATE, "not now"))
    with pytest.raises(BrokerError, match="t: cannot be written to"):
        await producer.send("t", b"1")
    async with asyncio.timeout(WITHIN):
        await producer.stop()
    assert len(made) == 1

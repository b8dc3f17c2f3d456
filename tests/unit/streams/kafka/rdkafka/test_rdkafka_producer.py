"""A producer on librdkafka that meets errors: of its client, for good, or of a record. Nothing waits for ever."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.ports import BrokerError, DeliveryError, Written

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: pip install 'sluicegate[rdkafka]'")

from confluent_kafka import KafkaError, KafkaException

from sluicegate.streams.kafka.rdkafka import producer as rdkafka
from sluicegate.streams.kafka.topic_limits import Limits

FATAL = KafkaException(KafkaError(KafkaError._FATAL, "the broker knows this producer no more", True))
WITHIN = 5.0


class Library:
    """Stands for the library's producer, which acknowledges what is polled for until it ``fails``."""

    def __init__(self, batch: int, never: frozenset[bytes]) -> None:
        self._batch = batch
        self.fails = False
        self.refuses: KafkaException | None = None
        self.never = never
        """Batches with any of these are refused."""
        self._queued: list[tuple[bytes, Any]] = []

    def produce(self, topic: str, value: bytes, *_: object, on_delivery: Any, **_more: object) -> None:
        if self.refuses is not None:
            raise self.refuses
        self._queued.append((value, on_delivery))

    def poll(self, timeout: float) -> None:
        if self.fails:
            raise FATAL
        self._settle(None)
        time.sleep(min(timeout, 0.005))

    def purge(self) -> None:
        self._settle(KafkaError(KafkaError._PURGE_QUEUE))

    def _settle(self, error: KafkaError | None) -> None:
        queued, self._queued = self._queued, []
        while queued:
            batch, queued = queued[: self._batch], queued[self._batch :]
            refused = any(value in self.never for value, _ in batch)
            for _, told in batch:
                fate = KafkaError(KafkaError.INVALID_TIMESTAMP) if refused else error
                told(fate, SimpleNamespace(partition=lambda: 3, offset=lambda: 70))


class Counts:
    async def partitions(self, topics: Iterable[str]) -> Mapping[str, int]:
        return dict.fromkeys(topics, 4)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Library]:
    """Clients of the library, in the order in which they were made."""
    clients: list[Library] = []

    def make(properties: Mapping[str, Any]) -> Library:
        never = clients[-1].never if clients else frozenset[bytes]()
        clients.append(Library(properties.get("batch.num.messages", 500), never))
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


async def test_a_record_that_the_broker_refuses_is_refused_and_those_of_its_batch_are_written(
    made: list[Library],
) -> None:
    producer = await started()
    made[0].never = frozenset({b"old"})
    old, good = await producer.send("t", b"old"), await producer.send("t", b"good")
    async with asyncio.timeout(WITHIN):
        with pytest.raises(InvalidInputError, match="topic t does not take it"):
            await old
        assert await good == Written("t", 3, 70)
        await producer.stop()

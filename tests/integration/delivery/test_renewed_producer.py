"""A producer of Apache Kafka whose client is replaced while it is asked: what was asked of the old one goes on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka.errors import KafkaError, OutOfOrderSequenceNumber

from sluicegate.streams import connect
from sluicegate.streams.kafka.broker import KafkaBroker
from sluicegate.streams.kafka.producer import KafkaProducer
from sluicegate.streams.ports import DeliveryError, TopicPartition
from tests.contract.brokers import new_topic, read

pytestmark = pytest.mark.kafka


@pytest.fixture
async def kafka(kafka_url: str) -> AsyncIterator[KafkaBroker]:
    broker = connect(kafka_url)
    assert isinstance(broker, KafkaBroker)
    yield broker
    await broker.close()


@pytest.mark.parametrize("again", [False, True], ids=["sent", "sent again"])
async def test_who_waits_to_hear_of_a_topic_is_told_that_the_client_was_replaced_and_the_next_client_sends(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """A client that was stopped answers no more: heartbeats behind such a wait stood still until the process ended."""
    first = await new_topic(kafka)
    producer = kafka.producer()
    assert isinstance(producer, KafkaProducer)
    await producer.start()
    second = await new_topic(kafka)
    old: Any = producer._inner
    asked = asyncio.Event()

    def never(*_: object) -> "asyncio.Future[bool]":
        asked.set()
        return asyncio.get_running_loop().create_future()

    async with asyncio.timeout(30.0):
        if again:
            await (await producer.send(first, b"known"))
            sending = asyncio.create_task(_refused_once(producer, first, monkeypatch, never))
        else:
            monkeypatch.setattr(old.client, "force_metadata_update", never)
            sending = asyncio.create_task(_sent(producer, second))
        await asked.wait()
        producer._renew(producer._inner, KafkaError("its sequence is broken"))
        with pytest.raises(DeliveryError):
            await sending
        written = await (await producer.send(second, b"behind"))
    assert producer._inner is not old and written.topic == second
    await producer.stop()
    consumer = kafka.consumer(partitions=[TopicPartition(second, 0)], start_at="beginning")
    await consumer.start()
    assert [record.value for record in await read(consumer, 1)] == [b"behind"]
    await consumer.stop()


async def _sent(producer: KafkaProducer, topic: str) -> None:
    await (await producer.send(topic, b"asked"))


async def _refused_once(producer: KafkaProducer, topic: str, monkeypatch: pytest.MonkeyPatch, never: Any) -> None:
    """What was sent is to be sent again by another client, which has not heard of the topic."""
    old: Any = producer._inner
    refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def send(*_: Any) -> Any:
        return refused

    monkeypatch.setattr(old, "send", send)
    connect_another = producer._connect

    async def deaf() -> Any:
        inner = await connect_another()
        inner.client.cluster._partitions.pop(topic, None)
        monkeypatch.setattr(inner.client, "force_metadata_update", never)
        monkeypatch.setattr(producer, "_connect", connect_another)
        return inner

    monkeypatch.setattr(producer, "_connect", deaf)
    written = await producer.send(topic, b"refused")
    refused.set_exception(OutOfOrderSequenceNumber())
    await written

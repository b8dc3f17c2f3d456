"""Writers of Apache Kafka while another client is to take the place of one that writes no more: they are stopped, or
the broker refuses the other one."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    OutOfOrderSequenceNumber,
    TransactionalIdAuthorizationFailed,
    UnknownError,
)

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka import producer as module
from sluicegate.streams.kafka import transactions
from sluicegate.streams.kafka.producer import KafkaProducer
from sluicegate.streams.kafka.topic_limits import Limits
from sluicegate.streams.ports import BrokerError, DeliveryError, Letter, TopicPartition, Written

pytestmark = pytest.mark.virtual

SETTINGS = KafkaSettings(stop_timeout=10.0)


class Kafka:
    """Makes clients. While it is ``away``, they are refused, or hang."""

    def __init__(self) -> None:
        self.away = ""
        self.clients: list[Client] = []

    def client(self, **_: Any) -> "Client":
        self.clients.append(Client(self))
        return self.clients[-1]

    async def answer(self) -> None:
        while self.away == "hangs":
            await asyncio.sleep(0.1)
        if self.away:
            raise KafkaConnectionError("nobody is here")


class Client:
    """Stands for aiokafka's producer."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self.client = self.cluster = self
        self.fates: list[asyncio.Future[Any]] = []
        self._message_accumulator = SimpleNamespace(_batches={})

    async def bootstrap(self) -> None: ...

    async def force_metadata_update(self) -> bool:
        return True

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0}

    async def start(self) -> None:
        await self._kafka.answer()

    async def send(self, *_: object) -> "asyncio.Future[Any]":
        self.fates.append(asyncio.get_running_loop().create_future())
        if not self._kafka.away:
            self.fates[-1].set_result(SimpleNamespace(partition=0, offset=7))
        return self.fates[-1]

    async def flush(self) -> None:
        await asyncio.wait(self.fates)

    async def stop(self) -> None: ...


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    made = Kafka()
    monkeypatch.setattr(module, "AIOKafkaProducer", made.client)
    return made


async def renewing(kafka: Kafka, away: str) -> "tuple[KafkaProducer, asyncio.Future[Written]]":
    """A producer that sends a record again once there is another client, and the record's fate."""
    producer = KafkaProducer("here:1", SETTINGS, Limits(SETTINGS))
    await producer.start()
    kafka.away = away
    written = await producer.send("t", b"sent")
    kafka.clients[0].fates[0].set_exception(OutOfOrderSequenceNumber())
    await asyncio.sleep(1.0)
    return producer, written


@pytest.mark.parametrize("away", ["refuses", "hangs"])
async def test_where_no_broker_answers_it_stops_in_time_and_what_waits_is_told(kafka: Kafka, away: str) -> None:
    producer, written = await renewing(kafka, away)
    waiting = asyncio.create_task(producer.send("t", b"waits"))
    await asyncio.sleep(0.0)
    async with asyncio.timeout(SETTINGS.stop_timeout + 1.0):
        await producer.stop()
        with pytest.raises(DeliveryError, match="stopped"):
            await written
        with pytest.raises(ConfigurationError, match="stopped"):
            await waiting
    kafka.away = ""
    begun = len(kafka.clients)
    await asyncio.sleep(60.0)
    assert len(kafka.clients) == begun, "nothing connects for who was stopped"


async def test_what_the_next_client_can_still_write_before_the_stop_it_writes(kafka: Kafka) -> None:
    producer, written = await renewing(kafka, "refuses")
    stopping = asyncio.create_task(producer.stop())
    await asyncio.sleep(5.0)
    kafka.away = ""
    await stopping
    assert (await written).offset == 7


async def test_a_flush_waits_for_what_is_sent_again_and_disturbs_nothing_where_nobody_waits_for_it(
    kafka: Kafka,
) -> None:
    producer = KafkaProducer("here:1", SETTINGS, Limits(SETTINGS))
    await producer.start()
    kafka.away = "refuses"
    written = await producer.send("t", b"sent")
    flushing = asyncio.create_task(producer.flush())
    await asyncio.sleep(1.0)
    kafka.clients[0].fates[0].set_exception(OutOfOrderSequenceNumber())
    await asyncio.sleep(1.0)
    assert not flushing.done(), "nobody has it yet"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(producer.flush(), 1.0)
    kafka.away = ""
    await asyncio.wait_for(flushing, 5.0)
    assert written.done() and (await written).offset == 7
    await producer.flush()
    await producer.stop()


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (TransactionalIdAuthorizationFailed, ConfigurationError),
        (ClusterAuthorizationFailedError, ConfigurationError),
        (GroupAuthorizationFailedError, ConfigurationError),
        (UnknownError, BrokerError),
    ],
)
async def test_who_may_not_write_transactions_is_told_so_in_our_words(
    monkeypatch: pytest.MonkeyPatch, refusal: type[KafkaError], told: type[Exception]
) -> None:
    class Refused(Client):
        async def start(self) -> None:
            raise refusal("of id")

    kafka = Kafka()
    monkeypatch.setattr(transactions, "AIOKafkaProducer", lambda **_: Refused(kafka))
    limits = Limits(SETTINGS)
    writer = transactions.KafkaTransactions("here:1", SETTINGS, limits, cast(Any, SimpleNamespace()), "id")
    with pytest.raises(told, match=r"^id: cannot begin .*of id"):
        await writer.start()
    with pytest.raises(BrokerError, match=r"^id: .*of id"):  # it was let in once, and may be again
        await writer.write([Letter("t", b"v")], {TopicPartition("in", 0): 1}, "g")

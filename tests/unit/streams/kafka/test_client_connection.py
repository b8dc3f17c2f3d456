"""An application's connection to Apache Kafka: made again by another event loop, closed while one is replaced."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, KafkaTimeoutError, OutOfOrderSequenceNumber

import sluicegate_client
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.connection import connection
from sluicegate_client import ClientError, Security, over_kafka
from sluicegate_client.over_kafka import KafkaLog


class Kafka:
    """Makes clients, which are slow to start while it is ``away`` and refuse what they send while it is ``broken``
    or ``full``."""

    def __init__(self) -> None:
        self.away = self.broken = self.full = False
        self.made: list[Client] = []

    def client(self, **options: Any) -> "Client":
        self.made.append(Client(self, options))
        return self.made[-1]


class Client:
    """Stands for aiokafka's producer and consumer."""

    def __init__(self, kafka: Kafka, options: dict[str, Any]) -> None:
        self._kafka = kafka
        self.options = options
        self.client = self
        self.loop = asyncio.get_running_loop()
        self._fetcher = SimpleNamespace(error_future=self.loop.create_future())
        self.stops = 0

    async def force_metadata_update(self) -> None: ...

    async def fetch_all_metadata(self) -> Any:
        return SimpleNamespace(topics=lambda: {"t"}, partitions_for_topic=lambda _: {0})

    async def start(self) -> None:
        while self._kafka.away:
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.stops += 1

    async def send_and_wait(self, *_: object, **__: object) -> None:
        if self._kafka.full:
            await asyncio.sleep(1e-3 * self.options["request_timeout_ms"])
            raise KafkaTimeoutError
        if self._kafka.broken:
            raise OutOfOrderSequenceNumber

    def assign(self, partitions: object) -> None: ...

    async def end_offsets(self, partitions: object) -> dict[Any, int]:
        return {}

    async def getmany(self, timeout_ms: int) -> dict[Any, Any]:
        await asyncio.sleep(1e-3 * timeout_ms)
        return {}


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    made = Kafka()
    for name in ("AIOKafkaProducer", "AIOKafkaConsumer"):
        monkeypatch.setattr(over_kafka, name, made.client)
    return made


@pytest.mark.virtual
async def test_who_is_closed_while_a_producer_is_replaced_leaves_none_behind_and_tells_who_sends(kafka: Kafka) -> None:
    log = KafkaLog("here:1", Security())
    await log.open()
    kafka.away = kafka.broken = True
    sending = asyncio.create_task(log.send("t", b"v", key=b"k", headers=()))
    await asyncio.sleep(1.0)
    await log.close()
    kafka.away = False
    with pytest.raises(ClientError, match="closed before this was written"):
        await sending
    await asyncio.sleep(1.0)
    assert [client.stops for client in kafka.made] == [1, 1]


def test_who_connects_again_in_another_event_loop_closes_what_that_one_made(kafka: Kafka) -> None:
    log = KafkaLog("here:1", Security())

    async def connect() -> None:
        await log.open()
        await log.follow(["t"], lambda _: None, beginning=False)
        await log.close()

    for _ in range(2):
        asyncio.run(connect())
    assert [client.stops for client in kafka.made] == [1] * 4


async def test_who_writes_and_who_reads_wait_as_long_for_a_broker_as_stages_do(kafka: Kafka) -> None:
    log = KafkaLog("here:1", Security())
    await log.open()
    await log.follow(["t"], lambda _: None, beginning=False)
    await log.close()
    expected = {"request_timeout_ms": 10_000, "metadata_max_age_ms": 30_000}
    stages = connection("here:1", KafkaSettings())
    for options in (stages, *(client.options for client in kafka.made)):
        assert {name: options.get(name) for name in expected} == expected


async def test_a_broker_that_does_not_tell_its_topics_is_an_error_of_the_client(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(_: Client) -> None:
        raise KafkaConnectionError("gone")

    monkeypatch.setattr(Client, "fetch_all_metadata", gone)
    with pytest.raises(ClientError, match=r"topics at here:1 cannot be told .*gone"):
        async with sluicegate_client.Client("kafka://here:1"):
            pass


@pytest.mark.virtual
async def test_what_there_is_no_room_for_is_sent_by_the_same_producer_once_there_is(kafka: Kafka) -> None:
    log = KafkaLog("here:1", Security())
    await log.open()
    kafka.full = True
    sending = asyncio.create_task(log.send("t", b"v", key=b"k", headers=()))
    await asyncio.sleep(25.0)
    assert not sending.done()
    kafka.full = False
    await sending
    await log.close()
    assert len(kafka.made) == 1

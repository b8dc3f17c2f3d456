"""What Apache Kafka's clients make of a broker that dies: nothing is lost or doubled, and nothing hangs."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.local_kafka.broker import LocalBroker
from sluicegate.streams.ports import DeliveryError, TopicPartition, TopicSpec, Written
from sluicegate_client import ClientError, Security, over_kafka
from sluicegate_client.over_kafka import KafkaLog
from tests.contract.brokers import eventually
from tests.harness import PATIENCE_S

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def folder(kafka_url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a broker of their own. Where the session's cannot be had, these tests are skipped as well."""
    del kafka_url
    return tmp_path_factory.mktemp("outage")


@pytest.fixture
def server(folder: Path, sluice_home: Path) -> Iterator[LocalBroker]:
    """A broker to be killed."""
    broker = LocalBroker(folder, home=sluice_home)
    broker.start(within=PATIENCE_S)
    yield broker


@pytest.fixture(scope="module", autouse=True)
def _end(folder: Path, sluice_home: Path) -> Iterator[None]:
    """Leave no process behind."""
    yield
    LocalBroker(folder, home=sluice_home).stop()


def kill(server: LocalBroker) -> int:
    """End it without warning; returns its port."""
    status = server.status()
    assert status.pid is not None and status.port is not None
    os.kill(status.pid, signal.SIGKILL)
    return status.port


async def test_a_broker_that_is_killed_and_started_again_loses_and_doubles_nothing(
    server: LocalBroker, library: str
) -> None:
    broker = connect(server.status().url or "", kafka=KafkaSettings(session_timeout=6.0, library=library))
    topic = f"t.{library}"
    await broker.admin().create_topics([TopicSpec(name=topic, partitions=2)])
    producer = broker.producer()
    await producer.start()
    sent: list[asyncio.Future[Written]] = []
    stop = asyncio.Event()

    async def write() -> None:
        while not stop.is_set():
            sent.append(await producer.send(topic, str(len(sent)).encode(), key=str(len(sent)).encode()))
            await asyncio.sleep(0.002)

    writing = asyncio.create_task(write())

    async def more_than(count: int) -> bool:
        return len(sent) > count

    await eventually(lambda: more_than(100))
    port = kill(server)
    before = len(sent)
    await asyncio.sleep(1.0)
    await asyncio.to_thread(server.start, port=port, within=PATIENCE_S)
    await eventually(lambda: more_than(before + 100))
    stop.set()
    await writing
    async with asyncio.timeout(PATIENCE_S):
        written = await asyncio.gather(*sent)
    assert len(written) > before
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    consumer = broker.consumer(partitions=both)
    await consumer.start()
    values: list[int] = []
    ends = await consumer.end_offsets(both)
    while any([await consumer.position(tp) < ends[tp] for tp in both]):
        values += [int(r.value or b"") for r in await consumer.get_many(wait=1.0)]
    assert sorted(values) == list(range(len(sent)))
    await broker.close()


async def test_closing_without_a_broker_ends_within_its_bound_and_leaves_no_task(
    server: LocalBroker, library: str
) -> None:
    settings = KafkaSettings(session_timeout=6.0, stop_timeout=2.0, library=library)
    broker = connect(server.status().url or "", kafka=settings)
    topic = f"u.{library}"
    await broker.admin().create_topics([TopicSpec(name=topic)])
    producer = broker.producer()
    await producer.start()
    for consumer in (
        broker.consumer(topics=[topic], group=f"{topic}.g"),
        broker.consumer(partitions=[TopicPartition(topic, 0)]),
        broker.consumer(partitions=[TopicPartition(topic, 0)], group=f"{topic}.h"),
    ):
        await consumer.start()
    if library == "aiokafka":  # which has to know a topic before it queues for it
        await (await producer.send(topic, b"known"))
    kill(server)
    sent = [await producer.send(topic, b"never") for _ in range(3)]
    await asyncio.sleep(0.5)
    async with asyncio.timeout(PATIENCE_S):  # for ever, were it to wait for its broker
        await broker.close()
    for fate in await asyncio.gather(*sent, return_exceptions=True):
        assert isinstance(fate, DeliveryError)
    await asyncio.sleep(0.1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_client_that_is_closed_without_a_broker_tells_its_askers_within_a_bound(
    server: LocalBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(over_kafka, "_STOPS", 0.5)
    status = server.status()
    assert status.url is not None and status.pid is not None
    broker = connect(status.url)
    await broker.admin().create_topics([TopicSpec(name="client")])
    await broker.close()
    away = {}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        away[number] = KafkaLog(status.url.removeprefix("kafka://"), Security())
        await away[number].open()
        await away[number].follow(["client"], lambda _: None, beginning=False)
        await away[number].send("client", b"known", key=b"k", headers=())
    for number, log in away.items():
        os.kill(status.pid, number)
        sending = [asyncio.create_task(log.send("client", b"never", key=b"k", headers=())) for _ in range(3)]
        await asyncio.sleep(0.2)
        sending.pop().cancel()  # who waits no more
        async with asyncio.timeout(PATIENCE_S):
            await log.close()
            fates = await asyncio.gather(*sending, return_exceptions=True)
        assert [type(fate) for fate in fates] == [ClientError] * 2
        assert all("not acknowledged" in str(fate) for fate in fates)
        assert caplog.text.count("3 records were not acknowledged") == 1
        caplog.clear()
    await asyncio.sleep(0.1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_broker_that_is_not_there_is_told_in_one_line(library: str) -> None:
    broker = connect("kafka://127.0.0.1:1", kafka=KafkaSettings(library=library))
    with pytest.raises(ConfigurationError, match="no Kafka broker answers at 127"):
        await broker.producer().start()
    with pytest.raises(ConfigurationError, match="sluice broker start"):
        await broker.admin().topics()
    with pytest.raises(ConfigurationError, match="no Kafka broker answers"):
        await broker.consumer(topics=["t"], group="g").start()
    await broker.close()

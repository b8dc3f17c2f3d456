"""What Apache Kafka's clients make of a cluster of which a node dies: they go on with the others."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicegate.streams import connect
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.local_kafka.broker import LocalBroker
from sluicegate.streams.ports import Admin, BrokerError, Letter, TopicPartition, TopicSpec, Written
from tests.contract.brokers import eventually
from tests.harness import PATIENCE_S

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]


@pytest.fixture(scope="module")
def cluster(kafka_url: str, tmp_path_factory: pytest.TempPathFactory, sluice_home: Path) -> Iterator[LocalBroker]:
    """Three nodes. Where the session's broker cannot be had, these tests are skipped as well."""
    del kafka_url
    broker = LocalBroker(tmp_path_factory.mktemp("cluster"), home=sluice_home, nodes=3)
    broker.start(within=PATIENCE_S)
    yield broker
    broker.stop(within=1.0)


async def committed(admin: Admin, least: int) -> None:
    """What a transaction commits is seen once its marks are written, which is behind its answer."""

    async def seen() -> bool:
        return (await admin.committed("g", TopicPartition("t", 0)) or 0) >= least

    await eventually(seen)


async def test_any_node_may_die_and_nothing_is_lost_or_doubled(cluster: LocalBroker) -> None:
    broker = connect(cluster.status().url or "", kafka=KafkaSettings(session_timeout=6.0))
    admin = broker.admin()
    await admin.create_topics([TopicSpec(name="t", partitions=3), TopicSpec(name="u")])
    producer = broker.producer()
    await producer.start()
    sent: list[asyncio.Future[Written]] = []
    letters = 0
    stop = asyncio.Event()

    async def write() -> None:
        while not stop.is_set():
            sent.append(await producer.send("t", str(len(sent)).encode(), key=str(len(sent)).encode()))
            await asyncio.sleep(0.005)

    async def write_once() -> None:
        nonlocal letters
        transactions = broker.transactions("g/t/0")
        await transactions.start()
        while not stop.is_set():
            letter = Letter("u", str(letters).encode(), key=b"k")
            try:
                await transactions.write([letter], {TopicPartition("t", 0): letters + 1}, "g")
            except BrokerError:  # undone, to be written again
                continue
            letters += 1
            await asyncio.sleep(0.02)
        await transactions.stop()

    async def more(sends: int, commits: int) -> None:
        async def enough(count: int = len(sent) + sends, answered: int = letters + commits) -> bool:
            return len(sent) > count and letters > answered

        await eventually(enough)

    tasks = [asyncio.create_task(write()), asyncio.create_task(write_once())]
    await more(100, 10)
    for number, node in cluster.nodes.items():
        before, answered = len(sent), letters
        pid = node.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert {"t", "u"} <= await admin.topics()
        await committed(admin, answered)
        await admin.create_topics([TopicSpec(name=f"new-{number}", replication=2)])
        await more(50, 10)
        await asyncio.wait_for(asyncio.gather(*sent[:before]), PATIENCE_S)
        await asyncio.to_thread(cluster.start_node, number, within=PATIENCE_S)
    stop.set()
    await asyncio.gather(*tasks)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*sent)
    await committed(admin, letters)
    assert await admin.committed("g", TopicPartition("t", 0)) == letters
    for topic, count in (("t", len(sent)), ("u", letters)):
        partitions = [TopicPartition(topic, n) for n in range((await admin.partitions([topic]))[topic])]
        consumer = broker.consumer(partitions=partitions)
        await consumer.start()
        values: list[int] = []
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
            values += [int(r.value or b"") for r in await consumer.get_many(wait=1.0)]
        assert sorted(values) == list(range(count))
    await broker.close()


async def test_a_client_that_begins_finds_whichever_node_is_there(cluster: LocalBroker) -> None:
    url = cluster.status().url or ""
    await asyncio.to_thread(cluster.nodes[1].end, within=PATIENCE_S)  # the first of the list
    broker = connect(url)
    try:
        await broker.admin().create_topics([TopicSpec(name="found", replication=2)])
        producer = broker.producer()
        await producer.start()
        assert (await (await producer.send("found", b"here"))).offset == 0
    finally:
        await broker.close()
        await asyncio.to_thread(cluster.start_node, 1, within=PATIENCE_S)

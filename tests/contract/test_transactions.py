"""Exactly-once delivery on Apache Kafka: transactions of the port, and a system with a zombie."""

import asyncio
import gc
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import KafkaError

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.stages.runtime.exactly_once import transactional_id
from sluicegate.stages.worker.stage import WorkerStage
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.broker import KafkaBroker
from sluicegate.streams.ports import (
    Broker,
    BrokerError,
    FencedError,
    Letter,
    LettersNotTakenError,
    LettersWithoutTopicError,
    TopicPartition,
    TopicSpec,
)
from tests.contract.brokers import new_topic
from tests.harness import PATIENCE_S, running, settings_for

pytestmark = pytest.mark.kafka


@pytest.fixture
async def broker(kafka_url: str, library: str) -> AsyncIterator[Broker]:
    broker = connect(kafka_url, kafka=KafkaSettings(library=library))
    yield broker
    await broker.close()


async def topics(broker: Broker) -> tuple[TopicPartition, TopicPartition]:
    names = [uuid.uuid4().hex for _ in range(2)]
    await broker.admin().create_topics([TopicSpec(name=name) for name in names])
    return TopicPartition(names[0], 0), TopicPartition(names[1], 0)


async def read(broker: Broker, partition: TopicPartition, count: int) -> list[bytes | None]:
    """What is on the partition, once that is ``count`` records: the end of a transaction is marked after it is told."""
    for _ in range(50):
        found = [record.value async for record in read_results(broker, [partition], follow=False)]
        if len(found) >= count:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.3)
    return [record.value async for record in read_results(broker, [partition], follow=False)]


async def test_records_and_offsets_are_written_as_one(broker: Broker) -> None:
    source, target = await topics(broker)
    group = uuid.uuid4().hex
    writer = broker.transactions(f"{group}/a")
    await writer.start()
    letters = [Letter(target.topic, f"{i}".encode(), key=b"k", timestamp=1.5e9) for i in range(5)]
    await writer.write(letters, {source: 7}, group)
    assert await read(broker, target, 5) == [b"0", b"1", b"2", b"3", b"4"]
    assert await broker.admin().committed(group, source) == 7
    await writer.stop()


async def test_who_starts_with_the_same_id_ends_the_one_before(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = await topics(broker)
    group = uuid.uuid4().hex
    zombie, heir = (broker.transactions(f"{group}/a") for _ in range(2))
    await zombie.start()
    await zombie.write([Letter(target.topic, b"first")], {source: 1}, group)
    await heir.start()
    with pytest.raises(FencedError):
        await zombie.write([Letter(target.topic, b"from the grave")], {source: 2}, group)
    await heir.write([Letter(target.topic, b"second")], {source: 2}, group)
    assert await read(broker, target, 2) == [b"first", b"second"]
    assert await broker.admin().committed(group, source) == 2
    await zombie.stop()
    await heir.stop()
    del zombie, heir
    gc.collect()
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("deleted", [True, False])
async def test_letters_without_a_topic_are_named_and_the_others_can_be_written(
    broker: Broker, kafka_url: str, deleted: bool
) -> None:
    """What both libraries would wait for: aiokafka without an end where it had known the topic."""
    source, target = await topics(broker)
    gone = TopicPartition(uuid.uuid4().hex, 0)
    group = uuid.uuid4().hex
    writer = broker.transactions(f"{group}/a")
    await writer.start()
    if deleted:
        await broker.admin().create_topics([TopicSpec(name=gone.topic)])
        await writer.write([Letter(gone.topic, b"before")], {source: 1}, group)
        pruner = KafkaBroker(kafka_url.removeprefix("kafka://"), KafkaSettings())
        await pruner.admin().delete([gone.topic])
        await pruner.close()
    letters = [Letter(target.topic, b"0"), Letter(gone.topic, b"1", key=b"k"), Letter(gone.topic, b"2")]
    for _ in range(2):
        with pytest.raises(LettersWithoutTopicError, match=gone.topic) as raised:
            async with asyncio.timeout(PATIENCE_S):
                await writer.write(letters, {source: 7}, group)
        assert raised.value.letters == (1, 2)
    await writer.write(letters[:1], {source: 8}, group)
    assert await read(broker, target, 1) == [b"0"]
    assert await broker.admin().committed(group, source) == 8
    await broker.admin().create_topics([TopicSpec(name=gone.topic)])
    await writer.write(letters[1:], {source: 9}, group)
    assert await read(broker, gone, 2) == [b"1", b"2"]
    await writer.stop()


@pytest.mark.parametrize("fault", ["no key", "from tomorrow"])
async def test_letters_that_their_topic_never_takes_are_named_and_the_others_can_be_written(
    broker: Broker, fault: str
) -> None:
    """They were told as letters to be tried again, which stalled their partition for ever."""
    source, _ = await topics(broker)
    target = TopicPartition(await new_topic(broker, compacted=fault == "no key"), 0)
    group, now = uuid.uuid4().hex, time.time()
    writer = broker.transactions(f"{group}/a")
    await writer.start()
    refused = {
        "no key": Letter(target.topic, b"refused"),
        "from tomorrow": Letter(target.topic, b"refused", key=b"k", timestamp=now + 86_400.0),
    }[fault]
    before, behind = (Letter(target.topic, value, key=b"k", timestamp=now) for value in (b"before", b"behind"))
    for letters, at_fault in [((before, refused, behind), 1), ((refused,), 0)]:
        with pytest.raises(LettersNotTakenError, match=target.topic) as raised:
            async with asyncio.timeout(PATIENCE_S):
                await writer.write(letters, {source: 7}, group)
        assert at_fault in raised.value.letters
    await writer.write([before, behind], {source: 8}, group)
    assert await read(broker, target, 2) == [b"before", b"behind"]
    assert await broker.admin().committed(group, source) == 8
    await writer.stop()


async def test_a_client_whose_sender_ends_is_replaced_and_nothing_waits_for_it(kafka_url: str) -> None:
    """What a connection lost in the look-up of the coordinator leads to in aiokafka's client."""
    broker = connect(kafka_url)
    source, target = await topics(broker)
    group = uuid.uuid4().hex
    writer: Any = broker.transactions(f"{group}/a")
    await writer.start()
    await writer.write([Letter(target.topic, b"first")], {source: 1}, group)
    sender = writer._inner._sender

    async def lost(*_: object) -> int:
        await writer._inner.client.force_metadata_update()
        raise KafkaError("connection closed")

    sender._find_coordinator = lost
    for _ in range(2):  # while it begins, and once it is dead
        with pytest.raises(BrokerError, match="not written"):
            async with asyncio.timeout(PATIENCE_S):
                await writer.write([Letter(target.topic, b"second")], {source: 2}, group)
        if writer._inner is None:
            break
    async with asyncio.timeout(PATIENCE_S):
        await writer.write([Letter(target.topic, b"second")], {source: 2}, group)
    assert await read(broker, target, 2) == [b"first", b"second"]
    assert await broker.admin().committed(group, source) == 2
    await writer.stop()
    with pytest.raises(ConfigurationError, match="not started"):
        await writer.write([Letter(target.topic, b"third")], {source: 3}, group)
    await broker.close()


async def test_a_system_that_delivers_exactly_once(kafka_url: str, library: str, tmp_path: Path) -> None:
    settings = settings_for(kafka_url, tmp_path, delivery="exactly_once")
    async with running(settings, connect(kafka_url, kafka=KafkaSettings(library=library))) as run:
        await run.planned()
        await asyncio.gather(*(run.ask() for _ in range(200)))
        report = await run.settled()
        assert report.balanced, report
        assert report.kinds["answered"] == 200


async def test_who_is_fenced_but_serves_goes_on(kafka_url: str, library: str, tmp_path: Path) -> None:
    """As after a transaction that was open for too long, or of a zombie: of a member of a group, and of a worker."""
    settings = settings_for(kafka_url, tmp_path, delivery="exactly_once", devices=1)
    async with running(settings, connect(kafka_url, kafka=KafkaSettings(library=library))) as run:
        await run.planned()
        fences = {
            run.topics.admission_group: TopicPartition(run.topics.queries("toy"), 0),
            run.topics.worker_group("d0"): TopicPartition(run.topics.work("d0"), 0),
        }
        for group, partition in fences.items():
            zombie = run.broker.transactions(transactional_id(group, partition))
            await zombie.start()
            for _ in range(40):
                await run.ask(parameters={"latency_ms": 30_000})
            await zombie.stop()
        report = await run.settled()
        assert report.lost == 0, report
        assert report.duplicates == 0, report
        assert report.kinds["answered"] == 80


async def test_a_zombie_worker_answers_nothing_after_its_heir_began(
    kafka_url: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is taken for dead while its answers are on their way; it does not learn of it and writes them."""
    settings = settings_for(kafka_url, tmp_path, delivery="exactly_once", devices=2)
    async with running(settings, connect(kafka_url, kafka=KafkaSettings(library=library))) as run:
        await run.planned()
        worker = next(s for s in run.stages if isinstance(s, WorkerStage) and s.device.name == "d0")
        async with asyncio.timeout(PATIENCE_S):  # a silent one is given nothing, once that is noticed
            while "d0" not in {o.device for o in (await run.outcomes()).values()}:
                await run.ask(parameters={"latency_ms": 30_000})
                await asyncio.sleep(0.2)
        # Deaf to plans, without heartbeats, and never in doubt of itself: only the broker can stop it.
        monkeypatch.setattr(worker, "_on_plan", lambda record: None)
        monkeypatch.setattr(worker._plans, "_handle", lambda record: None)
        monkeypatch.setattr(worker, "_beat", lambda **_: None)
        monkeypatch.setattr(worker, "_notice_standstill", lambda now: None)
        intake = worker._answers.intake
        once = intake._exactly_once if intake is not None else None
        assert once is not None
        monkeypatch.setattr(once, "_interval", 4.0)  # answers wait for longer than the device timeout
        for _ in range(80):
            await run.ask(parameters={"latency_ms": 30_000})
            await asyncio.sleep(0.05)
        report = await run.settled()
        assert report.lost == 0, report
        assert report.duplicates == 0, report
        answered = Counter(o.device for o in (await run.outcomes()).values())
        assert answered["d1"] > 20
        assert once.partitions == frozenset()  # fenced


async def test_the_embedded_broker_has_no_transactions(tmp_path: Path) -> None:
    settings = settings_for("memory://", tmp_path, delivery="exactly_once")
    with pytest.raises(ConfigurationError, match="needs kafka"):
        async with running(settings, connect("memory://")):
            pass

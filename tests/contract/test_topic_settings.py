"""What topics are created with on Apache Kafka: how long they are kept, how often they are copied, what they refuse."""

import asyncio
import time
from math import inf
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.sluice.audit.retention import gone_before
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.admin import KafkaAdmin
from sluicegate.streams.ports import TopicSpec, Written
from tests.contract.brokers import new_topic, started


async def configs(url: str, topic: str) -> dict[str, str]:
    admin = AIOKafkaAdminClient(bootstrap_servers=url.removeprefix("kafka://"))
    await admin.start()
    try:
        answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        return {key: value for answer in answers for *_, entries in answer.resources for key, value, *_ in entries}
    finally:
        await admin.close()


@pytest.mark.kafka
async def test_topics_are_kept_and_copied_as_they_are_told(kafka_url: str) -> None:
    broker = connect(kafka_url, kafka=KafkaSettings(replication=1, min_insync_replicas=1))
    kept = await new_topic(broker, retention_s=7200.0)
    short = await new_topic(broker, retention_s=120.0)
    compacted = await new_topic(broker, compacted=True)
    for topic, milliseconds, segment in ((kept, "7200000", "900000"), (short, "120000", "60000")):
        found = await configs(kafka_url, topic)
        assert (found["retention.ms"], found["segment.ms"]) == (milliseconds, segment)
        assert found["cleanup.policy"] == "delete" and found["min.insync.replicas"] == "1"
    assert (await configs(kafka_url, compacted))["cleanup.policy"] == "compact"
    await broker.close()


@pytest.mark.kafka
async def test_how_old_what_is_gone_must_be_is_told_by_how_its_topic_is_kept(kafka_url: str) -> None:
    broker = connect(kafka_url)
    day, long, ever = [await new_topic(broker, retention_s=kept) for kept in (86_400.0, 864_000.0, None)]
    full = await new_topic(broker, retention_s=86_400.0)
    await broker.admin().configure(full, {"retention.bytes": "1000000"})
    found = await gone_before(broker, {day, long, ever, full, "there-is-none"}, 1.7e9)
    assert found == {day: 1.7e9 - 86_400.0, long: 1.7e9 - 864_000.0, ever: inf, full: inf, "there-is-none": inf}
    await broker.close()


@pytest.mark.kafka
async def test_without_a_number_of_copies_the_broker_s_own_counts(kafka_url: str) -> None:
    broker = connect(kafka_url)
    assert await broker.admin().partitions([topic := await new_topic(broker)]) == {topic: 1}
    await broker.close()
    too_many = connect(kafka_url, kafka=KafkaSettings(replication=2))  # it has one machine
    with pytest.raises(ConfigurationError, match="cannot be created"):
        await new_topic(too_many)
    await too_many.close()


@pytest.mark.kafka
async def test_the_limits_of_topics_are_read_from_the_broker(kafka_url: str) -> None:
    broker = connect(kafka_url)
    large = await new_topic(broker, max_message_bytes=3 << 20)
    plain = await new_topic(broker)
    found = await broker.admin().limits([large, plain, "there-is-none"])
    assert found == {large: 3 << 20, plain: int((await configs(kafka_url, plain))["max.message.bytes"])}
    await broker.close()


@pytest.mark.kafka
@pytest.mark.parametrize("fault", ["no key", "from tomorrow"])
async def test_a_record_that_its_topic_never_takes_is_refused_for_good_and_alone(
    kafka_url: str, library: str, fault: str
) -> None:
    """It was told as one to be sent again, which its sender did for ever."""
    broker = connect(kafka_url, kafka=KafkaSettings(library=library, linger=0.05))
    topic = await new_topic(broker, compacted=fault == "no key")
    producer = await started(broker)
    now = time.time()
    await (await producer.send(topic, b"first", key=b"k"))
    async with asyncio.timeout(30.0):
        before = await producer.send(topic, b"before", key=b"k", timestamp=now)
        if fault == "no key":
            refused = await producer.send(topic, b"refused")
        else:
            refused = await producer.send(topic, b"refused", key=b"k", timestamp=now + 86_400.0)
        behind = await producer.send(topic, b"behind", key=b"k", timestamp=now)
        with pytest.raises(InvalidInputError, match=f"record: topic {topic} does not take it"):
            await refused
        assert isinstance(await before, Written) and isinstance(await behind, Written)
        assert isinstance(await (await producer.send(topic, b"later", key=b"k")), Written)
    await producer.stop()
    await broker.close()


async def test_the_embedded_broker_tells_its_limits_too() -> None:
    broker = connect("memory://")
    await broker.admin().create_topics([TopicSpec(name="t", max_message_bytes=5000)])
    assert await broker.admin().limits(["t", "there-is-none"]) == {"t": 5000}
    await broker.close()


@pytest.mark.kafka
async def test_a_topic_is_deleted_once_the_broker_has_heard_of_it(
    kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller answers before that, and what is written meanwhile is acknowledged and lost."""
    broker = connect(kafka_url)
    admin: Any = broker.admin()
    kept, gone = [await new_topic(broker) for _ in range(2)]
    before, looks = await admin._described(), 0

    async def late(self: KafkaAdmin) -> list[dict[str, Any]]:
        nonlocal looks
        looks += 1
        return before if looks < 3 else [told for told in before if told["topic"] != gone]

    monkeypatch.setattr(KafkaAdmin, "_described", late)
    await admin.delete([gone])
    assert looks == 3
    monkeypatch.undo()
    assert await admin.partitions([kept, gone]) == {kept: 1}
    await broker.close()

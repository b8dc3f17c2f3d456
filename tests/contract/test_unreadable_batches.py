"""A batch that cannot be read costs its own offsets: what came before it and what comes behind it is read."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiokafka.codec
import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.broker import KafkaBroker
from sluicegate.streams.kafka.fetched_batches import MAX_UNPACKED
from sluicegate.streams.ports import Record, TopicPartition, Unreadable
from sluicegate_client import ClientError, Security
from sluicegate_client.over_kafka import KafkaLog
from tests.contract.brokers import new_topic, read
from tests.contract.damaged import damage, flip_payload, with_attributes, write_batch
from tests.harness import PATIENCE_S

pytestmark = pytest.mark.kafka


@pytest.fixture
async def kafka(kafka_url: str, library: str) -> AsyncIterator[KafkaBroker]:
    broker = connect(kafka_url, kafka=KafkaSettings(library=library))
    assert isinstance(broker, KafkaBroker)
    yield broker
    await broker.close()


def servers(broker: KafkaBroker) -> str:
    return broker.url.removeprefix("kafka://")


async def all_of(broker: KafkaBroker, topic: str, count: int, group: str | None = None) -> list[Record]:
    consumer = broker.consumer(partitions=[TopicPartition(topic, 0)], group=group, start_at="beginning")
    await consumer.start()
    try:
        return await read(consumer, count)
    finally:
        await consumer.stop()


def told(records: list[Record]) -> list[bytes | None]:
    return [None if isinstance(r, Unreadable) else r.value for r in records]


@pytest.mark.parametrize("codec", ["snappy", "lz4", "zstd", "gzip"])
async def test_every_codec_is_read(kafka: KafkaBroker, codec: str) -> None:
    topic = await new_topic(kafka)
    await write_batch(servers(kafka), topic, [b"a" * 100_000, b"b"], compression=codec)
    assert told(await all_of(kafka, topic, 2)) == [b"a" * 100_000, b"b"]


@pytest.mark.parametrize("codec", ["snappy", "lz4", "zstd"])
async def test_a_codec_that_is_not_installed_costs_its_batch_alone(
    kafka: KafkaBroker, library: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library == "rdkafka":
        pytest.skip("librdkafka brings all of them along")
    topic = await new_topic(kafka)
    for value, compression in ((b"before", None), (b"packed", codec), (b"behind", None)):
        await write_batch(servers(kafka), topic, [value, value], compression=compression)
    monkeypatch.setattr(aiokafka.codec, f"has_{codec}", lambda: False)
    records = await all_of(kafka, topic, 6)
    assert told(records) == [b"before", b"before", None, None, b"behind", b"behind"]
    assert [r.offset for r in records] == [0, 1, 2, 3, 4, 5]
    assert [codec in r.why for r in records if isinstance(r, Unreadable)] == [True, True]


async def test_a_header_without_a_value_is_one_of_no_bytes(kafka: KafkaBroker) -> None:
    """Kafka allows it, other languages write it, and whoever takes its length would end over it."""
    topic = await new_topic(kafka)
    written = [("ce_note", None), ("ce_id", b"7"), ("", None), ("ce_note", b"")]
    await write_batch(servers(kafka), topic, [b"a"], more=written)
    (record,) = await all_of(kafka, topic, 1)
    assert record.headers == (("ce_note", b""), ("ce_id", b"7"), ("", b""), ("ce_note", b""))


DAMAGE: dict[str, tuple[Callable[[bytearray], None], str]] = {
    "checksum": (flip_payload, "checksum"),
    "unknown codec": (lambda batch: with_attributes(batch, 6), "codec"),
    "not what its codec writes": (lambda batch: with_attributes(batch, 4), "unpacked"),
}


@pytest.mark.parametrize("kind", sorted(DAMAGE))
async def test_a_damaged_batch_costs_its_own_records(kafka: KafkaBroker, kafka_folder: Path, kind: str) -> None:
    how, why = DAMAGE[kind]
    topic = await new_topic(kafka)
    for values in ([b"a", b"b"], [b"c", b"d", b"e"], [b"f"]):
        await write_batch(servers(kafka), topic, values)
    damage(kafka_folder / "data", topic, 1, how)
    records = await all_of(kafka, topic, 6, group=f"group-of-{topic}")
    assert told(records) == [b"a", b"b", None, None, None, b"f"]
    assert [r.offset for r in records] == [0, 1, 2, 3, 4, 5]
    assert all(why in r.why for r in records if isinstance(r, Unreadable))


@pytest.mark.parametrize("kind", sorted(DAMAGE))
async def test_a_client_that_meets_a_damaged_batch_says_so_and_does_not_go_silent(
    kafka_url: str, kafka_folder: Path, kind: str
) -> None:
    broker, address = connect(kafka_url), kafka_url.removeprefix("kafka://")
    topic = await new_topic(broker)
    await broker.close()
    for values in ([b"a", b"b"], [b"c"]):
        await write_batch(address, topic, values)
    damage(kafka_folder / "data", topic, 1, DAMAGE[kind][0])
    log = KafkaLog(address, Security())
    await log.open()
    try:
        reading = await log.follow([topic], lambda _: None, beginning=True)
        assert reading is not None
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ClientError, match="cannot be read"):
                await reading
    finally:
        await log.close()


async def test_a_damaged_batch_at_the_end_does_not_hold_up_what_comes_next(
    kafka: KafkaBroker, kafka_folder: Path
) -> None:
    topic = await new_topic(kafka)
    await write_batch(servers(kafka), topic, [b"a", b"b"])
    damage(kafka_folder / "data", topic, 0, flip_payload)
    consumer = kafka.consumer(partitions=[TopicPartition(topic, 0)], start_at="beginning")
    await consumer.start()
    assert told(await read(consumer, 2)) == [None, None]
    await write_batch(servers(kafka), topic, [b"c"])
    assert told(await read(consumer, 1)) == [b"c"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_a_batch_that_unpacks_to_too_much_is_not_unpacked(kafka: KafkaBroker, library: str, codec: str) -> None:
    if library == "rdkafka" and codec != "zstd":
        pytest.skip("librdkafka unpacks them without a bound: docs/adr/0016-which-client.md")
    topic = await new_topic(kafka, max_message_bytes=16 << 20)
    await write_batch(servers(kafka), topic, [bytes(MAX_UNPACKED)], compression=codec)
    await write_batch(servers(kafka), topic, [b"small"], compression=codec)
    records = await all_of(kafka, topic, 2)
    assert told(records) == [None, b"small"]
    assert isinstance(records[0], Unreadable)
    assert str(MAX_UNPACKED) in records[0].why


async def test_who_reads_without_a_group_tells_of_each_once(kafka: KafkaBroker, kafka_folder: Path) -> None:
    topic = await new_topic(kafka)
    await write_batch(servers(kafka), topic, [b"a", b"b"])
    damage(kafka_folder / "data", topic, 0, flip_payload)
    seen: list[Unreadable] = []
    kafka.on_unreadable = seen.append
    consumer = kafka.consumer(partitions=[TopicPartition(topic, 0)], start_at="beginning")
    await consumer.start()
    await read(consumer, 2)
    await consumer.seek(TopicPartition(topic, 0), 0)
    await read(consumer, 2)
    assert [(r.topic, r.partition, r.offset) for r in seen] == [(topic, 0, 0), (topic, 0, 1)]


def test_a_codec_that_cannot_be_written_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiokafka.codec, "has_lz4", lambda: False)
    with pytest.raises(ConfigurationError, match=r"kafka.compression: lz4 .*pip install"):
        connect("kafka://127.0.0.1:1", kafka=KafkaSettings(compression="lz4"))
    connect("kafka://127.0.0.1:1", kafka=KafkaSettings(compression="gzip"))

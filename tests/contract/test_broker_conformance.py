"""One suite for every broker: what the ports promise, on memory, a served log and Apache Kafka."""

import asyncio
import itertools
import time
from contextlib import suppress

import pytest

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.ports import Broker, Record, TopicPartition, TopicSpec
from tests.contract.brokers import new_topic, read, started, write
from tests.harness import PATIENCE_S


async def test_what_is_written_is_read_back_in_order_with_key_headers_and_timestamp(broker: Broker) -> None:
    topic = await new_topic(broker)
    producer = await started(broker)
    headers = (("ce_id", b"1"), ("ce_id", b"2"), ("empty", b""))
    first = await (await producer.send(topic, b"a", key=b"k", headers=headers, timestamp=1234.5678))
    second = await (await producer.send(topic, None, key=b"k"))
    third = await (await producer.send(topic, b""))
    assert [first.offset, second.offset, third.offset] == [0, 1, 2]
    assert first.topic == topic and first.partition == 0
    consumer = broker.consumer(partitions=[TopicPartition(topic, 0)])
    await consumer.start()
    records = await read(consumer, 3)
    assert records[0] == Record(topic, 0, 0, b"k", b"a", headers, 1234.568)
    assert [(r.key, r.value) for r in records[1:]] == [(b"k", None), (None, b"")]
    assert abs(records[1].timestamp - time.time()) < 60


async def test_a_topic_in_the_broker_s_time_says_when_it_was_written_whatever_its_producer_says(broker: Broker) -> None:
    topic = await new_topic(broker, broker_time=True)
    producer = await started(broker)
    before = time.time()
    await (await producer.send(topic, b"a", timestamp=1234.5))
    await (await producer.send(topic, b"b", timestamp=before + 7200.0))
    consumer = broker.consumer(partitions=[TopicPartition(topic, 0)])
    await consumer.start()
    for record in await read(consumer, 2):
        assert before - 1.0 <= record.timestamp <= time.time() + 1.0


async def test_offsets_are_dense_per_partition_and_order_is_kept(broker: Broker) -> None:
    topic = await new_topic(broker, 3)
    producer = await started(broker)
    sent = [await producer.send(topic, str(i).encode(), partition=i % 3) for i in range(300)]
    written = await asyncio.gather(*sent)
    consumer = broker.consumer(partitions=[TopicPartition(topic, p) for p in range(3)])
    await consumer.start()
    records = await read(consumer, 300)
    for partition in range(3):
        mine = [r for r in records if r.partition == partition]
        assert [r.offset for r in mine] == list(range(100))
        assert [int(r.value or b"") for r in mine] == list(range(partition, 300, 3))
    assert {(w.partition, w.offset) for w in written} == {(r.partition, r.offset) for r in records}


async def test_a_read_that_is_given_up_at_any_moment_loses_nothing(broker: Broker) -> None:
    topic = await new_topic(broker)
    values = [str(i).encode() for i in range(200)]
    await write(await started(broker), topic, values)
    consumer = broker.consumer(partitions=[TopicPartition(topic, 0)])
    await consumer.start()
    records: list[Record] = []
    async with asyncio.timeout(PATIENCE_S):
        for steps in itertools.cycle(range(40)):
            if len(records) >= len(values):
                break
            reading = asyncio.create_task(consumer.get_many(wait=0.5, max_records=3))
            for _ in range(steps):
                await asyncio.sleep(0)
            reading.cancel()
            with suppress(asyncio.CancelledError):
                records += await reading
            if steps == 0:
                records += await consumer.get_many(wait=0.5, max_records=3)
    assert [record.value for record in records] == values


async def test_a_key_goes_to_the_partition_of_its_murmur2_hash_on_every_broker(broker: Broker) -> None:
    topic = await new_topic(broker, 7)
    producer = await started(broker)
    keys = [b"", b"a", b"query-1", b"query-22", b"query-333", bytes(range(256))]
    written = [await (await producer.send(topic, b"x", key=key)) for key in keys]
    assert [w.partition for w in written] == [2, 5, 3, 2, 5, 3]


async def test_get_many_waits_for_the_first_record_and_no_longer(broker: Broker) -> None:
    topic = await new_topic(broker)
    producer = await started(broker)
    consumer = broker.consumer(partitions=[TopicPartition(topic, 0)])
    await consumer.start()
    began = time.monotonic()
    assert list(await consumer.get_many(wait=0.3)) == []
    assert time.monotonic() - began > 0.25
    reading = asyncio.create_task(read(consumer, 1))
    await asyncio.sleep(0.1)
    await producer.send(topic, b"wake")
    assert [r.value for r in await reading] == [b"wake"]


async def test_get_many_gives_no_more_than_asked_for(broker: Broker) -> None:
    topic = await new_topic(broker)
    await write(await started(broker), topic, [b"x"] * 50)
    consumer = broker.consumer(partitions=[TopicPartition(topic, 0)])
    await consumer.start()
    offsets: list[int] = []
    while len(offsets) < 50:
        records = await consumer.get_many(wait=1.0, max_records=7)
        assert len(records) <= 7
        offsets += [r.offset for r in records]
    assert offsets == list(range(50))


async def test_seek_moves_the_position_both_ways(broker: Broker) -> None:
    topic = await new_topic(broker)
    tp = TopicPartition(topic, 0)
    await write(await started(broker), topic, [b"x"] * 20)
    consumer = broker.consumer(partitions=[tp])
    await consumer.start()
    await read(consumer, 20)
    await consumer.seek(tp, 17)
    assert await consumer.position(tp) == 17
    assert [r.offset for r in await read(consumer, 3)] == [17, 18, 19]
    await consumer.seek(tp, 2)
    assert (await read(consumer, 1))[0].offset == 2


async def test_paused_partitions_give_nothing_until_resumed(broker: Broker) -> None:
    topic = await new_topic(broker, 2)
    held, open_ = TopicPartition(topic, 0), TopicPartition(topic, 1)
    producer = await started(broker)
    consumer = broker.consumer(partitions=[held, open_])
    await consumer.start()
    consumer.pause([held])
    await write(producer, topic, [b"held"], partition=0)
    await write(producer, topic, [b"open"], partition=1)
    assert [r.value for r in await read(consumer, 1)] == [b"open"]
    assert list(await consumer.get_many(wait=0.3)) == []
    assert consumer.assignment() == {held, open_}
    consumer.resume([held])
    assert [r.value for r in await read(consumer, 1)] == [b"held"]


async def test_beginning_and_end_offsets_tell_what_is_kept(broker: Broker) -> None:
    topic = await new_topic(broker, 2)
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    await write(await started(broker), topic, [b"x"] * 4, partition=1)
    consumer = broker.consumer(partitions=both)
    await consumer.start()
    assert await consumer.beginning_offsets(both) == {both[0]: 0, both[1]: 0}
    assert await consumer.end_offsets(both) == {both[0]: 0, both[1]: 4}


@pytest.mark.kafka
async def test_where_a_partition_ends_is_told_while_a_read_waits_for_what_comes_next(
    kafka_url: str, library: str
) -> None:
    """A broker answers one request of a connection after another, and a fetch waits there: for longer than this."""
    broker = connect(kafka_url, kafka=KafkaSettings(fetch_wait=90.0, answer_timeout=100.0, library=library))
    topic = await new_topic(broker)
    tp = TopicPartition(topic, 0)
    await write(await started(broker), topic, [b"x"])
    consumer = broker.consumer(partitions=[tp])
    await consumer.start()
    await read(consumer, 1)
    async with asyncio.timeout(45.0):
        for _ in range(3):
            assert list(await consumer.get_many(wait=0.05)) == []
            assert await consumer.end_offsets([tp]) == {tp: 1}
            assert await consumer.beginning_offsets([tp]) == {tp: 0}
            assert await consumer.offsets_for_times({tp: 0.0}) == {tp: 0}
    await broker.close()


async def test_offsets_of_partitions_that_are_not_read_can_be_asked_too(broker: Broker) -> None:
    mine, other = await new_topic(broker), await new_topic(broker)
    await write(await started(broker), other, [b"x"] * 2)
    consumer = broker.consumer(partitions=[TopicPartition(mine, 0)])
    await consumer.start()
    tp = TopicPartition(other, 0)
    assert await consumer.end_offsets([tp]) == {tp: 2}
    with pytest.raises(ConfigurationError, match="no partition 5"):
        await consumer.end_offsets([TopicPartition(other, 5)])


async def test_offsets_for_times_finds_the_first_record_at_or_after(broker: Broker) -> None:
    topic = await new_topic(broker)
    tp = TopicPartition(topic, 0)
    producer = await started(broker)
    for i in range(5):
        await (await producer.send(topic, b"x", timestamp=1000.0 + i))
    consumer = broker.consumer(partitions=[tp])
    await consumer.start()
    for asked, expected in ((0.0, 0), (1002.0, 2), (1002.0005, 3), (1002.5, 3), (1004.0, 4), (1004.001, None)):
        assert await consumer.offsets_for_times({tp: asked}) == {tp: expected}, asked


async def test_topics_without_a_group_are_read_whole(broker: Broker) -> None:
    topic = await new_topic(broker, 3)
    producer = await started(broker)
    for partition in range(3):
        await write(producer, topic, [b"x"], partition=partition)
    consumer = broker.consumer(topics=[topic], start_at="beginning")
    await consumer.start()
    assert {r.partition for r in await read(consumer, 3)} == {0, 1, 2}
    with pytest.raises(ConfigurationError, match="group"):
        await consumer.commit({TopicPartition(topic, 0): 1})


async def test_creating_topics_again_changes_nothing(broker: Broker) -> None:
    topic = await new_topic(broker, 3)
    admin = broker.admin()
    await admin.create_topics([TopicSpec(name=topic, partitions=9), TopicSpec(name=f"{topic}.b", compacted=True)])
    assert await admin.partitions([topic, f"{topic}.b", f"{topic}.absent"]) == {topic: 3, f"{topic}.b": 1}
    assert {topic, f"{topic}.b"} <= await admin.topics()


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "x" * 250, "ä"])
async def test_names_that_are_no_topic_names_are_refused(broker: Broker, name: str) -> None:
    with pytest.raises(InvalidInputError, match="topic"):
        await broker.admin().create_topics([TopicSpec(name=name)])


async def test_writing_to_an_unknown_topic_or_partition_says_so(broker: Broker) -> None:
    topic = await new_topic(broker, 2)
    producer = await started(broker)
    with pytest.raises(ConfigurationError, match="does not exist"):
        await (await producer.send(f"{topic}.absent", b"x"))
    with pytest.raises(ConfigurationError, match="no partition 2"):
        await (await producer.send(topic, b"x", partition=2))
    with pytest.raises(InvalidInputError, match="neither key nor value"):
        await (await producer.send(topic, None))
    assert f"{topic}.absent" not in await broker.admin().topics()


async def test_reading_an_unknown_topic_or_partition_says_so(grouping: Broker) -> None:
    topic = await new_topic(grouping)
    for consumer, said in (
        (grouping.consumer(topics=[f"{topic}.absent"], group=f"{topic}.g"), "does not exist"),
        (grouping.consumer(partitions=[TopicPartition(f"{topic}.absent", 0)]), "does not exist"),
        (grouping.consumer(partitions=[TopicPartition(topic, 1)]), "no partition 1"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            await consumer.start()
        await consumer.stop()


async def test_consumers_that_cannot_be_are_refused_when_made(grouping: Broker) -> None:
    with pytest.raises(ConfigurationError, match="one of the two"):
        grouping.consumer()
    with pytest.raises(ConfigurationError, match="one of the two"):
        grouping.consumer(topics=["a"], partitions=[TopicPartition("a", 0)], group="g")
    with pytest.raises(ConfigurationError, match="start_at"):
        grouping.consumer(partitions=[TopicPartition("a", 0)], start_at="newest")


async def test_a_record_over_the_limit_is_refused_and_the_next_one_is_not(broker: Broker) -> None:
    topic = await new_topic(broker, max_message_bytes=400_000)
    producer = await started(broker)
    with pytest.raises(InvalidInputError, match="record"):
        await (await producer.send(topic, b"x" * 2_000_000))
    written = [await producer.send(topic, b"x" * size) for size in (100, 300_000, 100)]
    assert [w.offset for w in await asyncio.gather(*written)] == [0, 1, 2]


async def test_a_refused_record_takes_none_of_its_neighbours_along(broker: Broker) -> None:
    topic = await new_topic(broker, max_message_bytes=400_000)
    producer = await started(broker)
    fates = []
    for size in (10, 1_000_000, 10):
        try:
            fates.append(await producer.send(topic, b"x" * size))
        except InvalidInputError:  # memory knows at once, Kafka when the broker answers
            fates.append(None)
    outcomes = await asyncio.gather(*(f for f in fates if f is not None), return_exceptions=True)
    assert sum(isinstance(o, tuple) for o in outcomes) == 2
    consumer = broker.consumer(partitions=[TopicPartition(topic, 0)])
    await consumer.start()
    assert [len(r.value or b"") for r in await read(consumer, 2)] == [10, 10]


async def test_flush_waits_for_all_acknowledgements(broker: Broker) -> None:
    topic = await new_topic(broker)
    producer = await started(broker)
    sent = [await producer.send(topic, b"x") for _ in range(100)]
    await producer.flush()
    assert all(future.done() for future in sent)


async def test_a_stopped_producer_or_consumer_says_so(broker: Broker) -> None:
    topic = await new_topic(broker)
    producer = broker.producer()
    with pytest.raises(ConfigurationError, match="start"):
        await producer.send(topic, b"x")
    await producer.start()
    await producer.stop()
    with pytest.raises(ConfigurationError, match="start"):
        await producer.send(topic, b"x")
    consumer = broker.consumer(partitions=[TopicPartition(topic, 0)])
    with pytest.raises(ConfigurationError, match="start"):
        await consumer.get_many(wait=0.0)
    await consumer.start()
    await consumer.stop()
    await consumer.stop()
    with pytest.raises(ConfigurationError, match="start"):
        await consumer.get_many(wait=0.0)


async def test_many_records_reach_a_reader_that_reads_along(broker: Broker) -> None:
    topic = await new_topic(broker)
    producer = await started(broker)
    consumer = broker.consumer(partitions=[TopicPartition(topic, 0)])
    await consumer.start()
    reading = asyncio.create_task(read(consumer, 5000))
    for i in range(5000):
        await producer.send(topic, str(i).encode(), key=b"k")
    assert [int(r.value or b"") for r in await reading] == list(range(5000))

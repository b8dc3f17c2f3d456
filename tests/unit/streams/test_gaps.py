"""Records that a consumer passed over are read apart, in order, and once; what stands unused is told."""

import pytest

from sluicegate.streams import connect
from sluicegate.streams.faust.offset_gaps import Gaps
from sluicegate.streams.ports import Broker, TopicPartition, TopicSpec


async def a_topic(records: int) -> Broker:
    broker = connect("memory://")
    await broker.admin().create_topics([TopicSpec(name="counts", partitions=2)])
    producer = broker.producer()
    await producer.start()
    for i in range(records):
        await (await producer.send("counts", str(i).encode(), partition=0))
    await producer.stop()
    return broker


async def committed(broker: Broker, offset: int) -> None:
    consumer = broker.consumer(topics=["counts"], group="g")
    await consumer.start()
    await consumer.get_many(wait=0.1)
    await consumer.commit({TopicPartition("counts", 0): offset})
    await consumer.stop()


async def values(gaps: Gaps, offset: int) -> list[int]:
    return [int(record.value or b"") for record in await gaps.before(0, offset)]


async def test_what_was_passed_over_at_the_start_is_read_from_the_committed_offset_on() -> None:
    broker = await a_topic(10)
    await committed(broker, 3)
    gaps = Gaps(broker, "counts", "g")
    await gaps.assigned([0, 1])
    assert await values(gaps, 6) == [3, 4, 5]
    assert await values(gaps, 7) == []
    await broker.close()


async def test_without_a_committed_offset_the_beginning_counts() -> None:
    broker = await a_topic(4)
    gaps = Gaps(broker, "counts", "g")
    await gaps.assigned([0])
    assert await values(gaps, 2) == [0, 1]
    await broker.close()


@pytest.mark.parametrize("again", [0, 2, 4])
async def test_records_that_come_again_are_no_gap(again: int) -> None:
    broker = await a_topic(10)
    gaps = Gaps(broker, "counts", "g")
    await gaps.assigned([0])
    for offset in (*range(5), *range(again, 5)):
        assert await values(gaps, offset) == []
    assert await values(gaps, 8) == [5, 6, 7]
    await broker.close()


async def test_partitions_that_stand_still_though_they_hold_records_are_told_with_their_time() -> None:
    broker = await a_topic(10)
    gaps = Gaps(broker, "counts", "g")
    await gaps.assigned([0, 1])
    kept = {0: range(10), 1: range(0)}
    assert gaps.unused(kept, 5.0) == {0: (0, 0.0)}
    assert gaps.unused(kept, 8.0) == {0: (0, 3.0)}
    await gaps.before(0, 0)  # used: the time counts anew
    assert gaps.unused(kept, 9.0) == {0: (1, 0.0)}
    assert gaps.unused({}, 10.0) == {}  # nobody knows where they end
    assert gaps.unused(kept, 11.0) == {0: (1, 0.0)}
    assert gaps.unused({0: range(10, 10)}, 11.5) == {}  # retention has emptied it
    await gaps.before(0, 9)
    assert gaps.unused(kept, 12.0) == {}
    await gaps.assigned([1])
    assert gaps.unused({0: range(11), 1: range(0)}, 13.0) == {}
    await broker.close()

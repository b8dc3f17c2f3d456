"""What is read up: to where a partition ended once it was ours, and only as long as it is."""

import asyncio

import pytest

from sluicegate.stages.runtime.read_up import ReadUp
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import Consumer, TopicPartition, TopicSpec

pytestmark = pytest.mark.virtual

OLD, NEW = TopicPartition("old", 0), TopicPartition("new", 0)


async def test_a_partition_is_read_up_once_what_waited_there_is_read() -> None:
    broker = MemoryBroker()
    await broker.admin().create_topics([TopicSpec(name="old"), TopicSpec(name="new")])
    producer = broker.producer()
    await producer.start()
    for value in (b"1", b"2", b"3"):
        await (await producer.send("old", value))
    consumer = broker.consumer(topics=["old", "new"], group="g")
    await consumer.start()
    read_up = ReadUp(every=0.1)

    async def reads() -> Consumer:
        return consumer

    watching = asyncio.create_task(read_up.watch(reads))
    await asyncio.sleep(0.25)
    assert NEW in read_up and OLD not in read_up
    assert len(await consumer.get_many(wait=0.1, max_records=2)) == 2
    await (await producer.send("old", b"4"))  # what comes from now on is no older than what comes another way
    await asyncio.sleep(0.25)
    assert OLD not in read_up
    assert len(await consumer.get_many(wait=0.1, max_records=1)) == 1
    await asyncio.sleep(0.25)
    assert OLD in read_up
    read_up.forget([OLD])
    assert OLD not in read_up and NEW in read_up
    assert len(await consumer.get_many(wait=0.1)) == 1
    await asyncio.sleep(0.25)
    assert OLD in read_up, "it was given to us anew, and is read to its end again"
    await consumer.stop()
    await asyncio.sleep(0.25)  # looks on, and finds nothing of its own
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching

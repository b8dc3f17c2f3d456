"""Reading with commits: what is abandoned is never committed past."""

import asyncio
from collections.abc import Sequence

from sluicegate.stages.runtime.consumer_loop import Intake
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import Consumer, Record, TopicPartition, TopicSpec

WORK = TopicPartition("work", 0)


async def test_what_comes_after_it_was_abandoned_is_neither_handled_nor_committed() -> None:
    """The next fetch was under way: committing what it brings would commit what runs and is answered by nobody."""
    broker, stop, handled = MemoryBroker(), asyncio.Event(), list[bytes | None]()
    await broker.admin().create_topics([TopicSpec(name="work")])
    producer = broker.producer()
    await producer.start()

    def make(intake: Intake) -> Consumer:
        consumer = broker.consumer(partitions=[WORK], group="worker", listener=intake)
        fetch = consumer.get_many

        async def get_many(*, wait: float, max_records: int = 500) -> Sequence[Record]:
            if handled:
                await (await producer.send("work", b"after"))
                intake.abandon()
                stop.set()
            return await fetch(wait=wait, max_records=max_records)

        consumer.get_many = get_many  # type: ignore[method-assign]
        return consumer

    async def handle(records: Sequence[Record]) -> None:
        for record in records:
            handled.append(record.value)
            if record.value == b"after":
                intake.done(record)

    intake = Intake(make, drain_s=0.1)
    await (await producer.send("work", b"runs"))
    async with asyncio.timeout(5.0):
        await intake.run(handle, stop)
    assert handled == [b"runs"]
    assert await broker.admin().committed("worker", WORK) is None
    await producer.stop()

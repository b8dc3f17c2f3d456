"""Exactly-once writing: partitions do not wait for each other, and what waits is written together, within a bound."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import pytest

from sluicegate.stages.runtime.consumer_loop import Intake
from sluicegate.stages.runtime.exactly_once import ExactlyOnce
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import Letter, Record, TopicPartition, TopicSpec

pytestmark = pytest.mark.virtual

SOURCE = TopicPartition("in", 0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not condition():
            await asyncio.sleep(0.01)


class Held:
    """Implements ``sluicegate.streams.ports.Transactions``: of partition 0 they wait until they are let go."""

    def __init__(self, transactional_id: str, go: asyncio.Event, written: dict[TopicPartition, list[list[bytes]]]):
        self._waits = transactional_id == "group/in/0"
        self._go = go
        self._written = written

    async def start(self) -> None: ...

    async def write(self, letters: Sequence[Letter], offsets: Mapping[TopicPartition, int], group: str) -> None:
        if self._waits:
            await self._go.wait()
        (partition,) = offsets
        self._written.setdefault(partition, []).append([letter.value or b"" for letter in letters])

    async def stop(self) -> None: ...


async def test_partitions_do_not_wait_for_each_other_and_what_waits_is_written_together() -> None:
    broker = MemoryBroker()
    await broker.admin().create_topics([TopicSpec(name="in", partitions=2), TopicSpec(name="out")])
    go, written = asyncio.Event(), dict[TopicPartition, list[list[bytes]]]()
    slow, quick = TopicPartition("in", 0), TopicPartition("in", 1)
    once = ExactlyOnce(lambda name: Held(name, go, written), "group", interval=1.0)
    outbox = Outbox(broker.producer())

    async def answer(records: Sequence[Record]) -> None:
        for record in records:
            intake.answer(record, outbox, Letter("out", record.value))

    intake = Intake(lambda it: broker.consumer(topics=["in"], group="group", listener=it), exactly_once=once)
    stop = asyncio.Event()
    reading = asyncio.create_task(intake.run(answer, stop))
    producer = broker.producer()
    await producer.start()
    for value in (b"0", b"1", b"2"):
        for partition in (slow, quick):
            await (await producer.send("in", value, partition=partition.partition))
        await asyncio.sleep(0.4)
    await until(lambda: len(written.get(quick, ())) == 2)
    assert written == {quick: [[b"0"], [b"1", b"2"]]}, "at once, and then what came within the interval"
    go.set()
    await until(lambda: intake.in_flight == 0)
    assert written[slow] == [[b"0"], [b"1", b"2"]]
    stop.set()
    await reading


async def test_what_is_large_is_not_written_together_without_a_bound() -> None:
    """A transaction that takes longer than it may is undone, and would be tried again for ever."""
    broker = MemoryBroker()
    await broker.admin().create_topics([TopicSpec(name="in"), TopicSpec(name="out")])
    go, written = asyncio.Event(), dict[TopicPartition, list[list[bytes]]]()
    once = ExactlyOnce(lambda name: Held(name, go, written), "group")
    outbox = Outbox(broker.producer())
    sizes = [100 << 20, 1, 30 << 20, 30 << 20, 30 << 20, 1, 1 << 20, 100 << 20]

    async def answer(records: Sequence[Record]) -> None:
        for record in records:
            intake.answer(record, outbox, Letter("out", bytes(sizes[record.offset])))

    intake = Intake(lambda it: broker.consumer(topics=["in"], group="group", listener=it), exactly_once=once)
    stop = asyncio.Event()
    reading = asyncio.create_task(intake.run(answer, stop))
    producer = broker.producer()
    await producer.start()
    for number in range(len(sizes)):
        await (await producer.send("in", b"%d" % number))
    await until(lambda: intake.in_flight == len(sizes))
    go.set()
    await until(lambda: intake.in_flight == 0)
    stop.set()
    await reading
    together = [[len(value) for value in values] for values in written[SOURCE]]
    assert together == [[100 << 20], [1, 30 << 20, 30 << 20], [30 << 20, 1, 1 << 20], [100 << 20]]

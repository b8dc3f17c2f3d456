"""A control topic is read once for all of a process that follow it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from typing_extensions import override

from sluicegate.domain.errors import ConfigurationError
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.following.topic_reader import Of, TopicReader
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.memory.consumer import MemoryConsumer
from sluicegate.streams.ports import Producer, Record, TopicSpec, Unreadable

pytestmark = pytest.mark.virtual


class Counting(MemoryBroker):
    """``clients``: that read; those that were stopped are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.clients: list[MemoryConsumer] = []

    @override
    def consumer(self, **options: Any) -> Any:
        made = super().consumer(**options)
        stop = made.stop

        async def stopped() -> None:
            self.clients.remove(made)
            await stop()

        made.stop = stopped  # type: ignore[method-assign]
        self.clients.append(made)
        return made


@asynccontextmanager
async def topics(*names: str) -> AsyncIterator[tuple[Counting, Producer]]:
    broker = Counting()
    await broker.admin().create_topics([TopicSpec(name=name) for name in names])
    producer = broker.producer()
    await producer.start()
    yield broker, producer
    await producer.stop()


class Heard:
    """A follower and what it was given; ``odd`` is what it fails at."""

    def __init__(self, broker: MemoryBroker, topic: str, odd: bytes = b"odd", **options: Any) -> None:
        self.values: list[bytes | None] = []
        self.passed_over = 0
        self._odd = odd
        self.stop = asyncio.Event()
        self.follower = Follower(broker, topic, self._take, passed_over=self._passed, **options)
        self.task = asyncio.create_task(self.follower.run(self.stop))

    def _take(self, record: Record) -> None:
        if record.value == self._odd:
            raise ValueError("odd")
        self.values.append(record.value)

    def _passed(self) -> None:
        self.passed_over += 1
        self.values.append(b"-")

    async def end(self) -> None:
        self.stop.set()
        await self.task


async def write(producer: Producer, topic: str, **records: bytes | None) -> None:
    for key, value in records.items():
        await (await producer.send(topic, value, key=key.encode()))


async def test_those_who_follow_a_topic_from_one_place_share_a_client_and_each_gets_all() -> None:
    async with topics("plan", "acks") as (broker, producer):
        await write(producer, "plan", a=b"1")
        first, second = Heard(broker, "plan"), Heard(broker, "plan", odd=b"2")
        ending, others = Heard(broker, "plan", start_at="end"), Heard(broker, "acks")
        for one in (first, second, ending, others):
            await one.follower.ready.wait()
        assert len(broker.clients) == 3, "from the end, and another topic, by clients of their own"
        await write(producer, "plan", b=b"2", c=b"3")
        for one in (first, second, ending):
            await one.follower.catch_up()
        assert (first.values, second.values) == ([b"1", b"2", b"3"], [b"1", b"-", b"3"]), (
            "one's odd record is no other's"
        )
        assert (ending.values, others.values) == ([b"2", b"3"], [])
        await first.end()
        await write(producer, "plan", a=b"4")
        await second.follower.catch_up()
        assert (first.values[-1], second.values[-1]) == (b"3", b"4")
        for one in (second, ending, others):
            await one.end()
        assert broker.clients == []


async def test_who_comes_later_is_given_the_newest_of_each_key_in_their_order_and_is_ready_then() -> None:
    async with topics("plan") as (broker, producer):
        first = Heard(broker, "plan")
        await write(producer, "plan", a=b"1", b=b"2", c=b"3", d=b"4")
        await write(producer, "plan", a=b"5", c=None)
        await first.follower.catch_up()
        late = Heard(broker, "plan", odd=b"4")
        await write(producer, "plan", e=b"6")
        await late.follower.ready.wait()
        assert late.values == [b"2", b"-", b"5", b"6"]
        await write(producer, "plan", b=b"7")
        await late.follower.catch_up()
        assert late.values[-1] == first.values[-1] == b"7"
        await first.end()
        await late.end()
        alone = Heard(broker, "plan")
        await alone.follower.ready.wait()
        assert len(alone.values) == 8, "nobody followed: it is read anew, with all that stands on the topic"
        await alone.end()


async def test_what_cannot_be_read_is_told_to_those_who_come_later_too(monkeypatch: pytest.MonkeyPatch) -> None:
    get_many, damaged = MemoryConsumer.get_many, {1}

    async def some_damaged(self: MemoryConsumer, **options: Any) -> list[Record]:
        found = await get_many(self, **options)
        return [Unreadable.at(*r[:3], r.timestamp, "damaged") if r.offset in damaged else r for r in found]

    monkeypatch.setattr(MemoryConsumer, "get_many", some_damaged)
    async with topics("plan") as (broker, producer):
        first = Heard(broker, "plan")
        await write(producer, "plan", a=b"1", b=b"2", c=b"3")
        await first.follower.catch_up()
        late = Heard(broker, "plan")
        await late.follower.ready.wait()
        assert late.values == first.values == [b"1", b"-", b"3"]
        await first.end()
        await late.end()


async def test_a_topic_that_cannot_be_read_ends_all_who_follow_it_and_who_comes_again_tries_again() -> None:
    async with topics("plan") as (broker, producer):
        several = [Heard(broker, "later") for _ in range(2)]
        for one in several:
            with pytest.raises(ConfigurationError):
                await one.task
        await broker.admin().create_topics([TopicSpec(name="later")])
        await write(producer, "later", a=b"1")
        again = Heard(broker, "later")
        await again.follower.ready.wait()
        assert again.values == [b"1"]
        await again.end()


async def test_processes_share_no_reader() -> None:
    async with topics("plan") as (one, _), topics("plan") as (other, _):
        here, there = Heard(one, "plan"), Heard(other, "plan")
        await here.follower.ready.wait()
        await there.follower.ready.wait()
        assert (len(one.clients), len(other.clients)) == (1, 1)
        await here.end()
        await there.end()


def test_a_reader_whose_event_loop_is_gone_ends_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def begun() -> TopicReader:
        broker = MemoryBroker()
        await broker.admin().create_topics([TopicSpec(name="plan")])
        reader = TopicReader(broker, Of("plan", "beginning", every_partition=False))
        await asyncio.wait_for(reader.ready.wait(), 5.0)
        return reader

    loop = asyncio.new_event_loop()
    reader = loop.run_until_complete(begun())
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    coroutine = reader.task.get_coro()
    assert coroutine is not None
    coroutine.close()
    assert "its reader ended" not in caplog.text

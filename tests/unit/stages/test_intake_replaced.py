"""A client that gives no answer is replaced: noticed within a second, read on within three, nothing lost."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.stages.runtime.consumer_loop import Intake
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import BrokerError, Consumer, FencedError, Record, TopicPartition, TopicSpec

pytestmark = pytest.mark.virtual

PARTITIONS = [TopicPartition("work", 0), TopicPartition("work", 1)]


class Reading:
    """An intake whose clients stand from ``stand`` on. ``hold``: what is handled is not done yet. ``away``: no other
    client can be started. ``deaf``: one that stands keeps what it fetched, whoever cancels it, until it ``goes_on``."""

    def __init__(
        self,
        broker: MemoryBroker,
        *,
        grouped: bool,
        after_start: Callable[[Consumer], Awaitable[None]] | None = None,
        **options: Any,
    ) -> None:
        self.broker = broker
        self.grouped = grouped
        self.clients: list[Consumer] = []
        self.standing: set[Consumer] = set()
        self.broken: dict[Consumer, Exception] = {}
        self.goes_on = asyncio.Event()
        self.stops_too = False
        self.held: list[Record] = []
        self.hold = self.away = self.deaf = False
        self.seen: list[bytes | None] = []
        self.at: dict[bytes | None, float] = {}
        self.stop = asyncio.Event()
        self.intake = Intake(self._make, commit_every=0.05, drain_s=0.2, rest=0.1, **options)
        self.task = asyncio.create_task(self.intake.run(self._handle, self.stop, after_start=after_start))

    async def stand(self, *, stops_too: bool = False) -> None:
        """From the next read on."""
        self.stops_too = stops_too
        self.standing.add(self.clients[-1])
        await asyncio.sleep(0.25)

    def _make(self, intake: Intake) -> Consumer:
        if self.grouped:
            consumer = self.broker.consumer(topics=["work"], group="g", listener=intake)
        else:
            consumer = self.broker.consumer(partitions=PARTITIONS, group="g", listener=intake)
        get_many, stop, commit = consumer.get_many, consumer.stop, consumer.commit

        async def reads(**options: Any) -> Sequence[Record]:
            if consumer in self.standing and self.deaf:
                return await self._fetched_and_kept(get_many, options)
            if consumer in self.standing:
                await self.goes_on.wait()
            if (error := self.broken.get(consumer)) is not None:
                raise error
            return await get_many(**options)

        async def stops() -> None:
            if consumer in self.standing and self.stops_too:
                await self.goes_on.wait()
            await stop()

        async def commits(offsets: Mapping[TopicPartition, int]) -> None:
            if consumer in self.standing:
                await self.goes_on.wait()
            await commit(offsets)

        async def refused() -> None:
            raise BrokerError("away")

        if self.away:
            consumer.start = refused  # type: ignore[method-assign]
        consumer.get_many, consumer.stop, consumer.commit = reads, stops, commits  # type: ignore[method-assign]
        self.clients.append(consumer)
        return consumer

    async def _fetched_and_kept(
        self, get_many: Callable[..., Awaitable[Sequence[Record]]], options: Mapping[str, Any]
    ) -> Sequence[Record]:
        records: Sequence[Record] = ()
        while not records:
            records = await get_many(**options)
        while not self.goes_on.is_set():
            with suppress(asyncio.CancelledError):
                await self.goes_on.wait()
        return records

    async def end(self, *values: bytes, committed_to: int) -> None:
        """Stop, a while later: ``values`` were read, each as often as it stands there; what is done is committed."""
        await asyncio.sleep(2.0)
        self.stop.set()
        await self.task
        assert sorted(value or b"" for value in self.seen) == sorted(values)
        assert await committed(self.broker) == committed_to

    async def _handle(self, records: Sequence[Record]) -> None:
        for record in records:
            self.seen.append(record.value)
            self.at[record.value] = asyncio.get_running_loop().time()
            if self.hold:
                self.held.append(record)
            else:
                self.intake.done(record)


@pytest.fixture
async def broker() -> MemoryBroker:
    made = MemoryBroker()
    await made.admin().create_topics([TopicSpec(name="work", partitions=2)])
    return made


async def ask(broker: MemoryBroker, *values: bytes) -> None:
    producer = broker.producer()
    await producer.start()
    for value in values:
        await (await producer.send("work", value, key=value))
    await producer.stop()


async def until(condition: Callable[[], bool], within: float = 5.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


async def committed(broker: MemoryBroker) -> int:
    return sum([await broker.admin().committed("g", partition) or 0 for partition in PARTITIONS])


@pytest.mark.parametrize("grouped", [False, True])
async def test_another_client_reads_on(
    broker: MemoryBroker, grouped: bool, measured: Callable[[str, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    reading = Reading(broker, grouped=grouped)
    first = [b"%d" % i for i in range(6)]
    await ask(broker, *first)
    await until(lambda: len(reading.seen) == 6)
    await asyncio.sleep(0.2)
    assert await committed(broker) == 6
    await reading.stand()
    began = asyncio.get_running_loop().time()
    await ask(broker, b"after", b"later")
    await until(lambda: len(reading.seen) >= 8)
    took = reading.at[b"after"] - began
    measured(f"the client of a stage stands ({'in a group' if grouped else 'alone'})", f"read on after {took:.2f} s")
    assert took <= 3.0
    assert sorted(reading.seen) == sorted([*first, b"after", b"later"])
    assert "gives no answer; another reads on" in caplog.text and len(reading.clients) == 2
    await asyncio.sleep(0.3)
    assert await committed(broker) == 8
    await reading.end(*first, b"after", b"later", committed_to=8)


async def test_alone_it_reads_on_where_it_was_and_what_is_in_flight_stays_so(broker: MemoryBroker) -> None:
    reading = Reading(broker, grouped=False)
    reading.hold = True
    await ask(broker, b"a", b"b", b"c")
    await until(lambda: len(reading.seen) == 3)
    await reading.stand(stops_too=True)
    await ask(broker, b"d")
    await until(lambda: len(reading.seen) >= 4)
    await asyncio.sleep(0.5)
    assert sorted(reading.seen) == [b"a", b"b", b"c", b"d"], "each once"
    assert await committed(broker) == 0
    for record in reading.held:
        reading.intake.done(record)
    await asyncio.sleep(0.3)
    assert await committed(broker) == 4
    await reading.end(b"a", b"b", b"c", b"d", committed_to=4)


async def test_in_a_group_what_was_in_flight_is_read_again_and_not_committed_before(broker: MemoryBroker) -> None:
    reading = Reading(broker, grouped=True)
    await ask(broker, b"done")
    await until(lambda: len(reading.seen) == 1)
    await asyncio.sleep(0.2)
    reading.hold = True
    await ask(broker, b"a", b"b")
    await until(lambda: len(reading.seen) == 3)
    await reading.stand()
    await until(lambda: len(reading.seen) == 5)
    assert sorted(reading.seen[1:]) == [b"a", b"a", b"b", b"b"]
    stale, again = reading.held[:2], reading.held[2:]
    for record in stale:
        reading.intake.done(record)
    for record in again:
        reading.intake.done(record)
    await asyncio.sleep(0.3)
    assert await committed(broker) == 3
    await reading.end(b"done", b"a", b"a", b"b", b"b", committed_to=3)


async def test_while_the_broker_answers_nobody_no_other_client_is_made(broker: MemoryBroker) -> None:
    away = True

    async def answers() -> None:
        if away:
            raise BrokerError("away")

    reading = Reading(broker, grouped=False, answers=answers)
    await ask(broker, b"a")
    await until(lambda: len(reading.seen) == 1)
    await reading.stand()
    await asyncio.sleep(10.0)
    assert len(reading.clients) == 1
    away = False
    await ask(broker, b"b")
    await until(lambda: len(reading.seen) == 2)
    assert len(reading.clients) == 2
    await reading.end(b"a", b"b", committed_to=2)


@pytest.mark.parametrize("grouped", [False, True])
async def test_one_that_is_to_stop_looks_for_no_other_client_for_ever(broker: MemoryBroker, grouped: bool) -> None:
    reading = Reading(broker, grouped=grouped)
    await ask(broker, b"a")
    await until(lambda: len(reading.seen) == 1)
    await asyncio.sleep(0.2)
    reading.away = True
    await reading.stand()
    await until(lambda: len(reading.clients) >= 4)
    reading.stop.set()
    await asyncio.wait_for(reading.task, 2.0)
    assert reading.seen == [b"a"] and await committed(broker) == 1


async def test_one_that_stands_too_is_replaced_as_well(broker: MemoryBroker) -> None:
    reading = Reading(broker, grouped=True)
    await ask(broker, b"a")
    await until(lambda: len(reading.seen) == 1)
    await asyncio.sleep(0.2)
    await reading.stand()
    await until(lambda: len(reading.clients) == 2)
    await reading.stand()
    await until(lambda: len(reading.clients) == 3, within=20.0)
    await ask(broker, b"b")
    await until(lambda: reading.seen.count(b"b") == 1, within=30.0)
    await reading.end(b"a", b"b", committed_to=2)


async def test_one_whose_listener_takes_long_does_not_stand(broker: MemoryBroker) -> None:
    """Partitions are given up, and what is in flight of them takes its time: that happens within a read."""
    reading = Reading(broker, grouped=True)
    reading.intake._drain_s = 3.0
    reading.hold = True
    await ask(broker, *[b"%d" % i for i in range(8)])
    await until(lambda: len(reading.seen) == 8)
    other = broker.consumer(topics=["work"], group="g")
    await other.start()
    for _ in range(40):
        await other.get_many(wait=0.1)
    assert len(reading.clients) == 1
    again = len(reading.seen) - 8  # of the partition that it kept; the other's is another's
    assert reading.seen[8:] == [r.value for r in reading.held[8:]] and 0 < again < 8
    reading.hold = False
    for record in reading.held[8:]:
        reading.intake.done(record)
    await asyncio.sleep(0.3)
    assert await committed(broker) == again
    await other.stop()
    await reading.end(*[b"%d" % i for i in range(8)] * 2, committed_to=8)


async def test_where_nothing_was_read_yet_it_reads_on_from_where_it_was_to_begin(broker: MemoryBroker) -> None:
    async def seek(consumer: Consumer) -> None:
        for partition, end in (await consumer.end_offsets(PARTITIONS)).items():
            await consumer.seek(partition, end)

    await ask(broker, *[b"%d" % i for i in range(8)])
    reading = Reading(broker, grouped=False, after_start=seek)
    await until(lambda: reading.intake.stepped is not None)
    await reading.stand()
    await until(lambda: len(reading.clients) == 2)
    await ask(broker, b"new", b"newer")
    await reading.end(b"new", b"newer", committed_to=10)


@pytest.mark.parametrize("phase", [0.0, 0.1, 0.2, 0.3, 0.4])
async def test_one_that_takes_less_than_two_looks_does_not_stand(broker: MemoryBroker, phase: float) -> None:
    reading = Reading(broker, grouped=True)
    await asyncio.sleep(1.0 + phase)
    reading.standing.add(reading.clients[-1])
    await ask(broker, b"a")
    await asyncio.sleep(0.66)
    reading.goes_on.set()
    await reading.end(b"a", committed_to=1)
    assert len(reading.clients) == 1


async def test_what_a_client_brings_after_it_was_replaced_is_not_done_twice(broker: MemoryBroker) -> None:
    reading = Reading(broker, grouped=False)
    await ask(broker, b"a")
    await until(lambda: reading.seen == [b"a"])
    await asyncio.sleep(0.2)
    reading.deaf = True
    await reading.stand()
    await ask(broker, b"b")
    await until(lambda: len(reading.seen) == 2, within=30.0)
    reading.goes_on.set()
    await ask(broker, b"c")
    await reading.end(b"a", b"b", b"c", committed_to=3)
    assert len(reading.clients) == 2


@pytest.mark.parametrize("grouped", [False, True])
async def test_one_that_cannot_read_for_a_moment_is_replaced_and_nothing_is_lost(
    broker: MemoryBroker, grouped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    reading = Reading(broker, grouped=grouped)
    await ask(broker, b"a", b"b")
    await until(lambda: len(reading.seen) == 2)
    await asyncio.sleep(0.2)
    reading.hold = True
    await ask(broker, b"held")
    await until(lambda: len(reading.seen) == 3)
    for number in range(2):
        reading.broken[reading.clients[number]] = BrokerError("cannot read")
        await until(lambda number=number: len(reading.clients) == number + 2)
    await ask(broker, b"after")
    await until(lambda: b"after" in reading.seen)
    assert sorted(set(reading.seen[2:])) == [b"after", b"held"]
    assert reading.seen.count(b"held") == 1 or grouped
    assert await committed(broker) == 2
    for record in reading.held:
        reading.intake.done(record)
    await asyncio.sleep(0.3)
    assert await committed(broker) == 4
    assert "work: cannot read; another client reads on" in caplog.text
    reading.stop.set()
    await reading.task


@pytest.mark.parametrize("error", [FencedError("another has taken over"), ConfigurationError("member taken")])
async def test_what_no_other_client_would_mend_ends_it(broker: MemoryBroker, error: Exception) -> None:
    reading = Reading(broker, grouped=True)
    await ask(broker, b"a")
    await until(lambda: len(reading.seen) == 1)
    reading.broken[reading.clients[0]] = error
    with pytest.raises(type(error), match=str(error)):
        await reading.task
    assert len(reading.clients) == 1


@pytest.mark.parametrize("grouped", [False, True])
async def test_one_that_cannot_begin_yet_is_replaced_until_one_does(broker: MemoryBroker, grouped: bool) -> None:
    begun: list[Consumer] = []

    async def after_start(consumer: Consumer) -> None:
        begun.append(consumer)

    reading = Reading(broker, grouped=grouped, after_start=after_start)
    reading.away = True
    await ask(broker, b"a", b"b")
    await until(lambda: len(reading.clients) == 3)
    assert reading.seen == begun == []
    reading.away = False
    await reading.end(b"a", b"b", committed_to=2)
    assert begun == reading.clients[3:] and len(begun) == 1


async def test_one_that_is_told_to_stop_before_it_could_begin_ends(broker: MemoryBroker) -> None:
    reading = Reading(broker, grouped=True)
    reading.away = True
    await until(lambda: len(reading.clients) == 2)
    reading.stop.set()
    await reading.task
    assert len(reading.clients) == 2


async def test_one_that_can_never_begin_says_why(broker: MemoryBroker) -> None:
    reading = Reading(broker, grouped=True, patience=1.0)
    reading.away = True
    with pytest.raises(BrokerError, match="away"):
        async with asyncio.timeout(10.0):
            await reading.task
    assert 8 <= len(reading.clients) <= 12

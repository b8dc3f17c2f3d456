"""Reading with commits: what is abandoned is never committed past."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from sluicegate.stages.runtime.consumer_loop import Intake, Overlaps
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import (
    BrokerError,
    Consumer,
    Letter,
    LostPartitionError,
    Record,
    TopicPartition,
    TopicSpec,
)

pytestmark = pytest.mark.virtual

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


async def test_what_a_record_led_to_that_has_no_topic_any_more_goes_elsewhere_and_holds_back_no_commit() -> None:
    """An app, or a device, was removed while queries of it were on their way."""
    broker, stop = MemoryBroker(), asyncio.Event()
    topics = ("work", "results", "dead")
    await broker.admin().create_topics([TopicSpec(name=name) for name in topics])
    producer = broker.producer()
    await producer.start()
    outbox = Outbox(producer)
    await outbox.start()
    intake = Intake(
        lambda _: broker.consumer(partitions=[WORK], group="worker"),
        bury=lambda record, error: Letter("dead", record.value, None, ((error.field, b""),)),
    )
    written = list[bytes | None]()

    async def handle(records: Sequence[Record]) -> None:
        for record in records:
            told = partial(written.append, record.value)
            lost = Letter("gone", b"", None, ())
            if record.value == b"no device":
                other = Letter("results", b"device lost", None, ())
                intake.answer(record, outbox, lost, written=told, elsewhere=lambda _, other=other: other)
            elif record.value == b"neither":
                intake.answer(record, outbox, lost, written=told, elsewhere=lambda _, lost=lost: lost)
            elif record.value == b"no app":
                intake.answer(record, outbox, lost, written=told)
            else:
                intake.answer(record, outbox, Letter("results", record.value, None, ()), written=told)

    for value in (b"no device", b"no app", b"neither", b"answered"):
        await (await producer.send("work", value))
    reading = asyncio.create_task(intake.run(handle, stop))
    async with asyncio.timeout(10.0):
        while await broker.admin().committed("worker", WORK) != 4:
            await asyncio.sleep(0.1)
    stop.set()
    await reading
    await outbox.stop()
    log = broker.consumer(partitions=[TopicPartition(name, 0) for name in topics[1:]], start_at="beginning")
    await log.start()
    found = sorted((r.topic, r.value, r.headers) for r in await log.get_many(wait=0.0))
    why = (("topic", b""),)
    assert found == [
        ("dead", b"neither", why),
        ("dead", b"no app", why),
        ("results", b"answered", ()),
        ("results", b"device lost", ()),
    ]
    assert written == [b"answered"]
    await producer.stop()


async def test_who_cannot_begin_leaves_the_group() -> None:
    broker, made = MemoryBroker(), list[Consumer]()
    await broker.admin().create_topics([TopicSpec(name="work", partitions=2)])

    def make(intake: Intake) -> Consumer:
        made.append(broker.consumer(topics=["work"], group="worker", listener=intake))
        return made[-1]

    async def seek(consumer: Consumer) -> None:
        raise LostPartitionError(f"{consumer.assignment()}")

    async def handle(records: Sequence[Record]) -> None:
        raise AssertionError(records)

    with pytest.raises(LostPartitionError):
        await Intake(make).run(handle, asyncio.Event(), after_start=seek)
    heir = broker.consumer(topics=["work"], group="worker")
    await heir.start()
    async with asyncio.timeout(5.0):
        while len(heir.assignment()) < 2:
            await heir.get_many(wait=0.1)
    await heir.stop()


@pytest.mark.parametrize("fails", ["start", "position", "after_start"])
async def test_who_cannot_begin_to_read_leaves_the_broker(fails: str) -> None:
    broker, stopped = MemoryBroker(), list[str]()
    await broker.admin().create_topics([TopicSpec(name="work")])

    async def away(*_: object) -> int:
        raise BrokerError("away")

    def make(intake: Intake) -> Consumer:
        consumer = broker.consumer(partitions=[WORK], group="worker", listener=intake)
        stop = consumer.stop

        async def stops() -> None:
            stopped.append(fails)
            await stop()

        consumer.stop = stops  # type: ignore[method-assign]
        if fails != "after_start":
            setattr(consumer, fails, away)
        return consumer

    async def handle(records: Sequence[Record]) -> None: ...

    with pytest.raises(BrokerError, match="away"):
        begins = away if fails == "after_start" else None
        await Intake(make, patience=0.0).run(handle, asyncio.Event(), after_start=begins)
    assert stopped == [fails]


async def test_a_commit_that_takes_long_is_not_overtaken_by_the_next() -> None:
    """Two of one member under way at once may arrive in either order: the group's offset would go back."""
    broker, stop = MemoryBroker(), asyncio.Event()
    await broker.admin().create_topics([TopicSpec(name="work")])
    producer = broker.producer()
    await producer.start()
    under_way, go_on = asyncio.Event(), asyncio.Event()
    arrived = list[int]()

    def make(intake: Intake) -> Consumer:
        consumer = broker.consumer(topics=["work"], group="worker", listener=intake)
        commit = consumer.commit

        async def late(offsets: Mapping[TopicPartition, int]) -> None:
            if not under_way.is_set():
                under_way.set()
                await go_on.wait()
            arrived.append(offsets[WORK])
            await commit(offsets)

        consumer.commit = late  # type: ignore[method-assign]
        return consumer

    async def handle(records: Sequence[Record]) -> None:
        for record in records:
            intake.done(record)

    intake = Intake(make, commit_every=0.01, drain_s=0.1)
    reading = asyncio.create_task(intake.run(handle, stop))
    async with asyncio.timeout(5.0):
        await (await producer.send("work", b"first"))
        await under_way.wait()
        await (await producer.send("work", b"second"))
        while intake.read < 2:
            await asyncio.sleep(0)
        revoked = asyncio.create_task(intake.on_revoked(frozenset([WORK])))
        for _ in range(20):
            await asyncio.sleep(0)
        go_on.set()
        await revoked
        stop.set()
        await reading
    assert arrived == [1, 2]
    assert await broker.admin().committed("worker", WORK) == 2
    await producer.stop()


async def test_a_record_that_leads_to_nothing_is_committed_once_those_before_it_are_done() -> None:
    broker, stop, came = MemoryBroker(), asyncio.Event(), list[Record]()
    await broker.admin().create_topics([TopicSpec(name="work")])
    producer = broker.producer()
    await producer.start()
    for value in (b"first", b"again"):
        await (await producer.send("work", value))

    async def handle(records: Sequence[Record]) -> None:
        for record in records:
            came.append(record)
            if record.value == b"again":
                intake.ignore(record)

    def make(intake: Intake) -> Consumer:
        return broker.consumer(partitions=[WORK], group="worker", listener=intake)

    intake = Intake(make, commit_every=0.01, drain_s=0.1)
    async with asyncio.timeout(5.0):
        running = asyncio.create_task(intake.run(handle, stop))
        while len(came) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert await broker.admin().committed("worker", WORK) is None and intake.in_flight == 1
        intake.done(came[0])
        await asyncio.sleep(0.1)
        assert await broker.admin().committed("worker", WORK) == 2
        stop.set()
        await running
    await producer.stop()


async def test_what_others_may_do_once_more_is_told_and_what_they_do_not_is_not() -> None:
    """Who the group has gone on without hears of it by its commit; what is taken unfinished is done again elsewhere."""
    broker, stop, told = MemoryBroker(), asyncio.Event(), list[str]()
    await broker.admin().create_topics([TopicSpec(name="work")])
    producer = broker.producer()
    await producer.start()
    came, refuse, wall = list[Record](), True, [0.0]

    def make(intake: Intake) -> Consumer:
        consumer = broker.consumer(topics=["work"], group="worker", listener=intake)
        commit = consumer.commit

        async def once_refused(offsets: Mapping[TopicPartition, int]) -> None:
            nonlocal refuse
            if refuse:
                refuse = False
                raise LostPartitionError("another generation has begun")
            await commit(offsets)

        consumer.commit = once_refused  # type: ignore[method-assign]
        return consumer

    async def handle(records: Sequence[Record]) -> None:
        came.extend(records)

    overlaps = Overlaps(lambda: told.append("overlap"), lambda: wall[-1])
    intake = Intake(make, commit_every=0.01, drain_s=0.05, overlaps=overlaps)
    async with asyncio.timeout(5.0):
        reading = asyncio.create_task(intake.run(handle, stop))
        for value in (b"done", b"runs"):
            await (await producer.send("work", value))
        while len(came) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert told == [], "nothing was done, nothing is committed"
        intake.done(came[0])
        await asyncio.sleep(0.1)
        assert told == ["overlap"], "the first commit was refused, the second was not"
        await intake.on_revoked(frozenset([WORK]))
        assert told == ["overlap"] * 2, "one was not finished"
        await intake.on_revoked(frozenset([WORK]))
        assert told == ["overlap"] * 2, "nothing is in flight any more"
        for now, times in ((0.0, 2), (4e9, 3)):  # before the next record is written, and after that
            wall.append(now)
            await intake.on_assigned(frozenset([WORK]))
            for value in (b"first", b"second"):
                await (await producer.send("work", value))
            while came[-1].value != b"second":
                await asyncio.sleep(0.01)
            intake.done(came[-2])
            intake.done(came.pop())
            assert len(told) == times, "once, where it was written before"
        stop.set()
        await reading
    await producer.stop()


class _Member:
    """One of the group ``workers`` that reads ``work``. What it handles is done at once, or held while ``holds``."""

    def __init__(self, broker: MemoryBroker, limit: int, *, holds: bool, takes_s: float = 0.0) -> None:
        def make(intake: Intake) -> Consumer:
            return broker.consumer(topics=["work"], group="workers", listener=intake)

        self.holds = holds
        self.handled = list[tuple[int, int]]()
        self.intake = Intake(make, limit=limit, drain_s=0.5)
        self._takes_s = takes_s

    async def handle(self, records: Sequence[Record]) -> None:
        for record in records:
            self.handled.append((record.partition, record.offset))
            if not self.holds:
                takes_s = self._takes_s * (1 + record.offset * 7919 % 101 / 25)
                asyncio.get_running_loop().call_later(takes_s, self.intake.done, record)


async def _work(records: Mapping[int, int]) -> MemoryBroker:
    """A topic ``work`` with as many records in each of its partitions."""
    broker = MemoryBroker()
    await broker.admin().create_topics([TopicSpec(name="work", partitions=len(records))])
    producer = broker.producer()
    await producer.start()
    for partition, count in records.items():
        for number in range(count):
            await (await producer.send("work", b"%d" % number, partition=partition))
    await producer.stop()
    return broker


async def test_what_is_fetched_of_partitions_that_come_while_there_is_no_room_is_handled() -> None:
    """Who has no room polls on, and what it is given meanwhile is not paused: what it reads then is not lost."""
    broker, stop = await _work({0: 60, 1: 90}), asyncio.Event()
    full, other = _Member(broker, 20, holds=True), _Member(broker, 1000, holds=False)
    running = [asyncio.create_task(full.intake.run(full.handle, stop))]
    await asyncio.sleep(0.5)
    assert full.intake.in_flight == 20
    full.holds = False
    running.append(asyncio.create_task(other.intake.run(other.handle, stop)))
    await asyncio.sleep(3.0)
    stop.set()
    await asyncio.gather(*running)
    assert {*full.handled, *other.handled} == {
        (part, number) for part, of in ((0, 60), (1, 90)) for number in range(of)
    }
    for partition, count in ((0, 60), (1, 90)):
        assert await broker.admin().committed("workers", TopicPartition("work", partition)) == count


async def test_a_full_member_reads_nothing_of_what_is_being_taken_from_it() -> None:
    """What it goes on reading is drained as well, without end, and then done again by who has it next."""
    broker, stop = await _work({0: 2000, 1: 3000}), asyncio.Event()
    members = [_Member(broker, limit, holds=False, takes_s=0.02) for limit in (40, 70)]
    running = [asyncio.create_task(members[0].intake.run(members[0].handle, stop))]
    await asyncio.sleep(0.525)
    running.append(asyncio.create_task(members[1].intake.run(members[1].handle, stop)))
    await asyncio.sleep(1.5)
    stop.set()
    await asyncio.gather(*running)
    handled = [place for member in members for place in member.handled]
    assert min(len(member.handled) for member in members) > 500
    assert len(handled) == len(set(handled))

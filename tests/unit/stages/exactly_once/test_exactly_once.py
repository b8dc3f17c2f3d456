"""Exactly-once reading: what fails is tried again, who is fenced takes back what it is left, nothing stalls."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from sluicegate.domain.errors import InvalidInputError, SluiceError
from sluicegate.stages.runtime.consumer_loop import Intake
from sluicegate.stages.runtime.exactly_once import Elsewhere, ExactlyOnce
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import (
    BrokerError,
    Consumer,
    FencedError,
    Letter,
    LettersNotTakenError,
    LettersWithoutTopicError,
    Record,
    TopicPartition,
    TopicSpec,
    UnreachableError,
)

pytestmark = pytest.mark.virtual

SOURCE = TopicPartition("in", 0)


class Log:
    """What transactions wrote, and who holds their id.

    ``troubles``: raised by the next writes; ``unanswered``: by those after them, although they were written.

    ``reluctant``, ``forgetful``: how often they cannot be started, because of ``why``, and their offset not be told.
    """

    def __init__(self) -> None:
        self.letters: list[bytes | None] = []
        self.committed: int | None = None
        self.holder: object = None
        self.troubles: list[Exception] = []
        self.unanswered: list[Exception] = []
        self.reluctant = self.forgetful = self.stopped = 0
        self.why: SluiceError = BrokerError("the coordinator is not there yet")
        self.limit = 100
        self.tells = True
        self.missing: set[str] = set()

    def transactions(self, transactional_id: str) -> "InMemory":
        assert transactional_id == "group/in/0"
        return InMemory(self)


class InMemory:
    """Implements ``sluicegate.streams.ports.Transactions``."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def start(self) -> None:
        if self._log.reluctant:
            self._log.reluctant -= 1
            raise self._log.why
        self._log.holder = self

    async def write(self, letters: Sequence[Letter], offsets: Mapping[TopicPartition, int], group: str) -> None:
        await asyncio.sleep(0)
        if self._log.holder is not self:
            raise FencedError("another has taken over")
        if self._log.troubles:
            raise self._log.troubles.pop()
        if topicless := tuple(i for i, letter in enumerate(letters) if letter.topic in self._log.missing):
            raise LettersWithoutTopicError("gone does not exist", topicless)
        large = tuple(i for i, letter in enumerate(letters) if len(letter.value or b"") > self._log.limit)
        if large:
            # Several in one batch of the broker's: it does not say which of them.
            refused = large if self._log.tells else tuple(range(len(letters)))
            raise LettersNotTakenError("too large", refused)
        assert group == "group"
        self._log.letters += [letter.value for letter in letters]
        self._log.committed = offsets[SOURCE]
        if self._log.unanswered:
            raise self._log.unanswered.pop()

    async def stop(self) -> None:
        self._log.stopped += 1


class Reading:
    """An intake that answers each record with its own value, or ``holds`` it. ``told``: those that were written so.

    ``fetched``: while it is clear, what was fetched does not arrive.
    """

    def __init__(self, broker: MemoryBroker, log: Log) -> None:
        self.broker = broker
        self.log = log
        self.stop = asyncio.Event()
        self.records: list[Record] = []
        self.holds = False
        self.fetched = asyncio.Event()
        self.fetched.set()
        self.told: list[bytes | None] = []
        self.repeated: bytes | None = None
        once = self.once = ExactlyOnce(log.transactions, "group", retry=0.01, patience=0.5)
        self.topics: dict[bytes | None, str] = {}
        self.elsewhere: Elsewhere | None = None
        self.intake = Intake(self._consumer, exactly_once=once, rest=0.05, patience=0.3, drain_s=0.2, bury=self.bury)
        self.task = asyncio.create_task(self.intake.run(self._handle, self.stop))

    def _consumer(self, intake: Intake) -> Consumer:
        consumer = self.broker.consumer(topics=["in"], group="group", listener=intake)

        async def committed(partition: TopicPartition) -> int | None:
            if self.log.forgetful:
                self.log.forgetful -= 1
                raise BrokerError("no coordinator")
            return self.log.committed

        get_many = consumer.get_many

        async def arrived(*, wait: float, max_records: int = 500) -> Sequence[Record]:
            records = await get_many(wait=wait, max_records=max_records)
            await self.fetched.wait()
            return records

        consumer.committed, consumer.get_many = committed, arrived  # type: ignore[method-assign]
        self.consumer = consumer
        return consumer

    async def _handle(self, records: Sequence[Record]) -> None:
        self.records += records
        for record in records:
            if record.value == self.repeated:
                self.intake.ignore(record)
            elif not self.holds:
                self.answer(record)

    def answer(self, record: Record) -> None:
        outbox = Outbox(self.broker.producer())
        written = partial(self.told.append, record.value)
        letter = Letter(self.topics.get(record.value, "out"), record.value)
        self.intake.answer(record, outbox, letter, self.instead, written, self.elsewhere)

    @staticmethod
    def bury(record: Record, error: InvalidInputError) -> Letter:
        assert "does not exist" in error.problem
        return Letter("dead", b"dead " + (record.value or b""))

    @staticmethod
    def instead(error: InvalidInputError) -> Letter:
        return Letter("out", b"too large")


@pytest.fixture
async def broker() -> MemoryBroker:
    made = MemoryBroker()
    await made.admin().create_topics([TopicSpec(name="in"), TopicSpec(name="out")])
    return made


async def ask(broker: MemoryBroker, values: Sequence[bytes]) -> None:
    producer = broker.producer()
    await producer.start()
    for value in values:
        await (await producer.send("in", value))
    await producer.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not condition():
            await asyncio.sleep(0.01)


async def test_what_cannot_be_written_is_written_later_and_once(broker: MemoryBroker) -> None:
    log = Log()
    log.troubles, log.reluctant, log.forgetful = [BrokerError("away"), BrokerError("away")], 2, 2
    reading = Reading(broker, log)
    await ask(broker, [b"0", b"1", b"2"])
    await until(lambda: log.committed == 3)
    assert log.letters == [b"0", b"1", b"2"]
    reading.stop.set()
    await reading.task


async def test_a_broker_that_is_away_while_a_partition_is_begun_is_waited_for(broker: MemoryBroker) -> None:
    log = Log()
    log.why, log.reluctant = UnreachableError("no broker answers"), 3
    reading = Reading(broker, log)
    await ask(broker, [b"0"])
    await until(lambda: log.committed == 1)
    reading.stop.set()
    await reading.task
    assert log.letters == [b"0"]


async def test_a_record_that_leads_to_nothing_is_passed_and_holds_up_nobody(broker: MemoryBroker) -> None:
    log = Log()
    reading = Reading(broker, log)
    reading.repeated = b"1"
    await ask(broker, [b"0", b"1", b"2", b"1"])
    await until(lambda: log.committed == 4 and reading.intake.in_flight == 0)
    assert log.letters == [b"0", b"2"]
    reading.stop.set()
    await reading.task


async def test_what_was_written_and_not_answered_is_not_written_again(broker: MemoryBroker) -> None:
    log = Log()
    log.unanswered, log.reluctant = [BrokerError("the connection is gone")], 1
    reading = Reading(broker, log)
    await ask(broker, [b"0", b"1", b"2"])
    await until(lambda: log.committed is not None and not reading.intake.in_flight)
    await ask(broker, [b"3"])
    await until(lambda: log.committed == 4)
    assert log.letters == reading.told == [b"0", b"1", b"2", b"3"]
    reading.stop.set()
    await reading.task


async def test_what_is_said_instead_may_come_later_and_those_behind_it_wait(broker: MemoryBroker) -> None:
    log = Log()
    log.limit = 4
    reading = Reading(broker, log)
    later: list[InvalidInputError] = []

    def instead(error: InvalidInputError) -> Letter | None:
        later.append(error)
        return None

    reading.instead = instead  # type: ignore[method-assign, assignment]
    await ask(broker, [b"0", b"too large", b"2"])
    await until(lambda: len(later) == 1)
    await asyncio.sleep(0.1)
    assert log.letters == [b"0"] and log.committed == 1
    (record,) = [record for record in reading.records if record.value == b"too large"]
    reading.intake.answer(record, Outbox(broker.producer()), Letter("out", b"kept"))
    await until(lambda: log.committed == 3)
    assert log.letters == [b"0", b"kept", b"2"] and len(later) == 1
    reading.stop.set()
    await reading.task


async def test_what_is_forgotten_while_it_is_found_to_be_too_large_is_others_to_answer(broker: MemoryBroker) -> None:
    log = Log()
    log.limit = 4
    reading = Reading(broker, log)
    asked: list[InvalidInputError] = []
    reading.instead = asked.append  # type: ignore[method-assign, assignment]
    write = InMemory.write

    async def abandoned(transactions: InMemory, letters: Sequence[Letter], *where: Any) -> None:
        if letters[0].value == b"too large":
            reading.intake.abandon()
        await write(transactions, letters, *where)

    with pytest.MonkeyPatch.context() as slow:
        slow.setattr(InMemory, "write", abandoned)
        await ask(broker, [b"0"])
        await until(lambda: log.committed == 1)
        await ask(broker, [b"too large"])
        await until(lambda: reading.intake.read == 2 and not reading.intake.in_flight)
        await asyncio.sleep(0.1)
    reading.stop.set()
    await reading.task
    assert (log.letters, log.committed, asked) == ([b"0"], 1, [])


async def test_a_member_that_a_zombie_fenced_takes_its_partition_back(broker: MemoryBroker) -> None:
    log = Log()
    reading = Reading(broker, log)
    await until(lambda: log.holder is not None)
    await log.transactions("group/in/0").start()  # before anything was committed
    await ask(broker, [b"0"])
    await until(lambda: log.committed == 1)
    zombie = log.transactions("group/in/0")
    await zombie.start()
    await ask(broker, [b"1", b"2"])
    await until(lambda: log.committed == 3)
    assert log.letters == [b"0", b"1", b"2"]
    with pytest.raises(FencedError):
        await zombie.write([Letter("out", b"from the grave")], {SOURCE: 1}, "group")
    await until(lambda: reading.intake.in_flight == 0)
    reading.stop.set()
    await reading.task


async def test_what_is_being_taken_back_is_so_though_another_partition_goes_to_somebody_else(
    broker: MemoryBroker,
) -> None:
    log = Log()
    reading = Reading(broker, log)
    await until(lambda: log.holder is not None)
    await ask(broker, [b"0"])
    await until(lambda: log.committed == 1)
    reading.intake._lost(SOURCE)
    await reading.intake.on_revoked(frozenset({TopicPartition("in", 7)}))
    await ask(broker, [b"1"])
    await until(lambda: log.committed == 2)
    assert log.letters == [b"0", b"1"]
    reading.stop.set()
    await reading.task


async def test_what_a_partition_held_when_it_was_revoked_is_not_written_by_whoever_read_it(
    broker: MemoryBroker,
) -> None:
    """Its next owner reads it again, and answers it."""
    log = Log()
    reading = Reading(broker, log)
    reading.holds = True
    await ask(broker, [b"0", b"1"])
    await until(lambda: len(reading.records) == 2)
    reading.answer(reading.records[0])
    await until(lambda: log.committed == 1)
    await reading.intake.on_revoked(frozenset({SOURCE}))
    assert reading.intake.in_flight == 0 and log.stopped == 1
    heir = log.transactions("group/in/0")
    await heir.start()
    reading.answer(reading.records[1])
    await asyncio.sleep(0.5)
    assert (log.letters, log.committed, reading.told) == ([b"0"], 1, [b"0"])
    assert log.holder is heir and reading.intake.in_flight == 0
    reading.stop.set()
    await reading.task


async def test_what_is_being_taken_back_is_let_go_once_it_is_revoked_and_is_read_where_it_comes_again(
    broker: MemoryBroker,
) -> None:
    """Taking it back would fence its next owner."""
    log = Log()
    reading = Reading(broker, log)
    await until(lambda: log.holder is not None)
    reading.intake._lost(SOURCE)
    await reading.intake.on_revoked(frozenset({SOURCE}))
    heir = log.transactions("group/in/0")
    await heir.start()
    await asyncio.sleep(0.5)
    assert log.holder is heir
    await reading.consumer.grant(frozenset({SOURCE}))
    assert log.holder is not heir
    await ask(broker, [b"0"])
    await until(lambda: log.committed == 1)
    assert log.letters == [b"0"]
    reading.stop.set()
    await reading.task


async def test_what_was_fetched_when_its_partition_was_fenced_is_read_once_it_is_taken_back(
    broker: MemoryBroker,
) -> None:
    log = Log()
    reading = Reading(broker, log)
    await until(lambda: log.holder is not None)
    reading.fetched.clear()
    await ask(broker, [b"0", b"1"])
    await asyncio.sleep(0.1)
    await reading.once.end([SOURCE])
    reading.intake._lost(SOURCE)
    reading.fetched.set()
    await until(lambda: log.committed == 2)
    assert [record.value for record in reading.records] == log.letters == [b"0", b"1"]
    reading.stop.set()
    await reading.task


@pytest.mark.parametrize("how", ["fenced", "revoked", "assigned anew"])
async def test_nobody_waits_for_what_is_forgotten(broker: MemoryBroker, how: str) -> None:
    """Neither does the reading hold still for it, nor does its end."""
    log = Log()
    reading = Reading(broker, log)
    reading.holds = True
    await ask(broker, [b"0", b"1"])
    await until(lambda: reading.intake.in_flight == 2)
    if how == "fenced":
        reading.intake._rest = 1000.0
        reading.intake._lost(SOURCE)
    elif how == "revoked":
        await reading.intake.on_revoked(frozenset({SOURCE}))
    else:
        await reading.intake.on_assigned(frozenset({SOURCE}))
        reading.consumer.pause([SOURCE])
    assert reading.intake.in_flight == 0
    began = asyncio.get_running_loop().time()
    reading.intake._drain_s = 60.0
    reading.stop.set()
    await reading.task
    assert asyncio.get_running_loop().time() - began < 5.0
    assert log.letters == []


async def test_where_writing_ends_of_a_defect_reading_ends_too(broker: MemoryBroker) -> None:
    log = Log()
    log.troubles = [ZeroDivisionError("a defect")]
    reading = Reading(broker, log)
    await ask(broker, [b"0"])
    async with asyncio.timeout(5.0):
        with pytest.raises(ZeroDivisionError):
            await reading.task


async def test_a_broker_that_is_never_ready_is_told_of(broker: MemoryBroker) -> None:
    log = Log()
    log.reluctant = 10**9
    reading = Reading(broker, log)
    async with asyncio.timeout(10.0):
        with pytest.raises(BrokerError, match="not there yet"):
            await reading.task


@pytest.mark.parametrize("tells", [True, False])
async def test_what_is_too_large_is_said_otherwise_alone_and_in_its_place(broker: MemoryBroker, tells: bool) -> None:
    log = Log()
    log.tells = tells
    reading = Reading(broker, log)
    await ask(broker, [b"a", b"b" * 200, b"c", b"d" * 200, b"e"])
    await until(lambda: log.committed == 5)
    reading.stop.set()
    await reading.task
    assert log.letters == [b"a", b"too large", b"c", b"too large", b"e"]
    assert reading.told == [b"a", b"c", b"e"]


async def test_what_cannot_be_said_at_all_is_left_out_and_the_partition_goes_on(broker: MemoryBroker) -> None:
    log = Log()
    log.limit = 8
    reading = Reading(broker, log)
    await ask(broker, [b"a", b"b" * 200, b"c"])
    await until(lambda: log.committed == 3)
    reading.stop.set()
    await reading.task
    assert log.letters == [b"a", b"c"]


async def test_what_is_for_a_topic_that_is_gone_is_said_elsewhere_and_the_partition_goes_on(
    broker: MemoryBroker,
) -> None:
    log = Log()
    log.missing = {"gone"}
    reading = Reading(broker, log)
    reading.topics = {b"b": "gone", b"d": "gone"}
    await ask(broker, [b"a", b"b", b"c", b"d", b"e"])
    await until(lambda: log.committed == 5 and not reading.intake.in_flight)
    reading.elsewhere = lambda error: Letter("out", error.problem.encode())
    await ask(broker, [b"b", b"f"])
    await until(lambda: log.committed == 7)
    log.missing = {"gone", "out"}
    await ask(broker, [b"d"])
    await until(lambda: log.committed == 8)
    reading.stop.set()
    await reading.task
    assert log.letters == [b"a", b"dead b", b"c", b"dead d", b"e", b"gone does not exist", b"f", b"dead d"]
    assert reading.told == [b"a", b"c", b"e", b"f"]


async def test_without_dead_letters_too_what_was_to_be_one_waits_for_them(broker: MemoryBroker) -> None:
    log = Log()
    log.missing = {"gone", "dead"}
    reading = Reading(broker, log)
    reading.topics = {b"a": "gone"}
    await ask(broker, [b"a", b"b"])
    await asyncio.sleep(1.0)
    assert log.committed is None
    log.missing = {"gone"}
    await until(lambda: log.committed == 2)
    reading.stop.set()
    await reading.task
    assert log.letters == [b"dead a", b"b"]

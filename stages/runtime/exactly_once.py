"""Exactly-once delivery: what a partition's records led to is written together with their offsets, in transactions.

Rules. Each record leads to one letter, or to the one that is to be said instead where its topic never takes that (it is
too large, for one), at once or later; those behind it wait. One that repeats another leads to none. A letter whose
topic does not exist (any more) cannot wait for it, as all behind it would: what is said instead goes elsewhere, at last
to the dead letters. Letters of the contiguous prefix of answered records are written at once with the offset behind
them, then their records are done; what is answered meanwhile, and ``interval`` seconds after that, is written together,
at most ``_MOST`` of it, or ``_MOST_BYTES``. Partitions do not wait for each other. One begins with its transactions'
id, which fences whoever had it before, and only then with the committed offset; where the broker is not ready for that,
it is tried again for ``patience`` seconds. Once it is fenced here, nothing more of it is written: its records are
another's. Where it is not known whether a transaction was written (its answer was lost), the committed offset says so,
once the transactions have begun anew, which ends what was left open.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

from sluicegate.domain.errors import InvalidInputError, SluiceError
from sluicegate.streams.ports import (
    BrokerError,
    Consumer,
    FencedError,
    Letter,
    LettersNotTakenError,
    LettersWithoutTopicError,
    Record,
    TopicPartition,
    Transactions,
    UnreachableError,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

_MOST = 1000
"""Letters in one transaction."""
_MOST_BYTES = 64 << 20
"""Of them, unless it is one: a transaction that takes longer than it may is undone, and would be tried for ever."""


def transactional_id(group: str, partition: TopicPartition) -> str:
    """Of whoever writes for the group what the records of ``partition`` led to."""
    return f"{group}/{partition.topic}/{partition.partition}"


Instead = Callable[[InvalidInputError], Letter | None]
"""What to write in the place of a letter that its topic never takes; it is told why. None: the record waits for one."""
Elsewhere = Callable[[InvalidInputError], Letter]
"""What to write, to another topic, in the place of a letter that has none; it is told why."""


@dataclass(slots=True)
class _Answer:
    """What a record led to: ``letter``, None where nothing is, or can be, written of it. ``written``: who is told.
    ``elsewhere``: by turns."""

    record: Record
    letter: Letter | None
    instead: Instead | None
    written: Callable[[], None] | None
    elsewhere: Sequence[Elsewhere]


class _Lane:
    """One input partition."""

    __slots__ = ("alone_below", "answers", "order", "transactions", "unsure")

    def __init__(self, transactions: Transactions) -> None:
        self.transactions = transactions
        self.unsure = False
        self.order: deque[int] = deque()
        self.answers: dict[int, _Answer] = {}
        self.alone_below = 0

    @property
    def ready(self) -> bool:
        """Whether the first record of those that wait is answered."""
        return bool(self.order) and self.order[0] in self.answers

    def due(self) -> list[_Answer]:
        """The prefix that is answered; alone, where one of several was refused."""
        found: list[_Answer] = []
        size = 0
        most = 1 if self.order and self.order[0] < self.alone_below else _MOST
        for offset in islice(self.order, most):
            answer = self.answers.get(offset)
            if answer is None:
                break
            if answer.letter is not None:
                size += len(answer.letter.value or b"")
            if size > _MOST_BYTES and found:
                break
            found.append(answer)
        return found

    def refused(self, answers: Sequence[_Answer], error: BrokerError) -> None:
        """At least one of these is never taken. Where what was to be said instead is not either, nothing can be."""
        if len(answers) > 1:
            self.alone_below = answers[-1].record.offset + 1
            return
        answer = answers[0]
        if answer.record.offset not in self.answers:
            return  # forgotten while it was being written
        if answer.letter is not None and answer.instead is None:
            log.error("what %s led to can never be written: %s", answer.record.place, error)
        instead, answer.letter, answer.written = answer.instead, None, None
        if instead is not None:
            answer.letter = instead(InvalidInputError("record", str(error)))
            answer.instead = None
            if answer.letter is None:
                del self.answers[answer.record.offset]

    def without_topic(self, answers: Sequence[_Answer], error: BrokerError) -> bool:
        """None of these has a topic; whether something else is to be written of any."""
        told = InvalidInputError("topic", str(error))
        changed = False
        for answer in answers:
            if answer.elsewhere and self.answers.get(answer.record.offset) is answer:  # else forgotten meanwhile
                elsewhere, *answer.elsewhere = answer.elsewhere
                answer.letter, answer.instead, answer.written = elsewhere(told), None, None
                changed = True
        return changed

    def written(self, count: int) -> None:
        """The first ``count`` are."""
        for _ in range(count):
            del self.answers[self.order.popleft()]

    def known(self, committed: int) -> list[_Answer]:
        """Everything below ``committed`` is written: the answers of it that were waited for."""
        found = [answer for answer in self.due() if answer.record.offset < committed]
        self.written(len(found))
        self.unsure = False
        return found


def _tell(answers: Iterable[_Answer], done: Callable[[Record], None]) -> None:
    """These are written."""
    for answer in answers:
        if answer.written is not None:
            answer.written()
        done(answer.record)


async def _committed(consumer: Consumer, partition: TopicPartition) -> int:
    committed = await consumer.committed(partition)
    return committed if committed is not None else (await consumer.beginning_offsets([partition]))[partition]


class ExactlyOnce:
    """The lanes of one intake. ``make``: transactions of an id. ``group``: whose offsets are committed."""

    def __init__(
        self,
        make: Callable[[str], Transactions],
        group: str,
        *,
        interval: float = 0.005,
        retry: float = 0.2,
        patience: float = 30.0,
    ) -> None:
        self._make = make
        self._group = group
        self._interval = interval
        self._retry = retry
        self._patience = patience
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._consumer: Consumer | None = None
        self._answered = asyncio.Event()

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Those that were begun."""
        return frozenset(self._lanes)

    async def begin(self, partitions: Iterable[TopicPartition], consumer: Consumer) -> None:
        """These are ours: fence others, then read on from what they had committed."""
        self._consumer = consumer
        for partition in sorted(partitions):
            await self.end([partition])
            transactions = self._make(transactional_id(self._group, partition))
            await self._patiently(transactions.start)
            self._lanes[partition] = _Lane(transactions)
            await consumer.seek(partition, await self._patiently(partial(_committed, consumer, partition)))

    def reads_by(self, consumer: Consumer) -> None:
        """The same partitions are read by another client from now on."""
        self._consumer = consumer

    async def _patiently(self, step: Callable[[], Awaitable[T]]) -> T:
        patient_until = asyncio.get_running_loop().time() + self._patience
        while True:
            try:
                return await step()
            except (BrokerError, UnreachableError) as error:
                if asyncio.get_running_loop().time() >= patient_until:
                    raise
                log.warning("%s; trying again", error)
                await asyncio.sleep(self._retry)

    async def end(self, partitions: Iterable[TopicPartition]) -> None:
        """These are not ours any more."""
        lanes = [lane for p in tuple(partitions) if (lane := self._lanes.pop(p, None)) is not None]
        await asyncio.gather(*(lane.transactions.stop() for lane in lanes))

    def forget(self) -> None:
        """Write nothing more of what was read so far."""
        for lane in self._lanes.values():
            lane.order.clear()
            lane.answers.clear()

    def read(self, records: Sequence[Record]) -> None:
        """These were read; ``answer`` follows for each."""
        for record in records:
            lane = self._lanes.get(TopicPartition(record.topic, record.partition))
            if lane is not None:
                lane.order.append(record.offset)

    def answer(
        self,
        record: Record,
        letter: Letter | None,
        instead: Instead | None = None,
        written: Callable[[], None] | None = None,
        elsewhere: Sequence[Elsewhere] = (),
    ) -> None:
        """What ``record`` led to, if anything, what to say ``instead`` where that is not taken, ``elsewhere`` where it
        has no topic, and who is told once it is ``written``. Ignored where it is."""
        lane = self._lanes.get(TopicPartition(record.topic, record.partition))
        if lane is not None and lane.order and record.offset >= lane.order[0]:
            lane.answers[record.offset] = _Answer(record, letter, instead, written, elsewhere)
            self._answered.set()

    async def run(self, done: Callable[[Record], None], lost: Callable[[TopicPartition], None]) -> None:
        """Write what is answered, until cancelled. ``done`` is called for each record written, ``lost`` when fenced."""
        writing: dict[asyncio.Task[None], _Lane] = {}
        try:
            while True:
                await self._answered.wait()
                self._answered.clear()
                for task in [task for task in writing if task.done()]:
                    del writing[task]
                    task.result()
                busy = set(writing.values())
                for partition, lane in tuple(self._lanes.items()):
                    if lane.ready and lane not in busy:
                        task = asyncio.create_task(self._write_and_rest(partition, lane, done, lost))
                        task.add_done_callback(lambda _: self._answered.set())
                        writing[task] = lane
        finally:
            for task in writing:
                task.cancel()
            await asyncio.gather(*writing, return_exceptions=True)

    async def _write_and_rest(
        self,
        partition: TopicPartition,
        lane: _Lane,
        done: Callable[[Record], None],
        lost: Callable[[TopicPartition], None],
    ) -> None:
        await self._write(partition, lane, done, lost)
        await asyncio.sleep(self._interval)

    async def _write(
        self,
        partition: TopicPartition,
        lane: _Lane,
        done: Callable[[Record], None],
        lost: Callable[[TopicPartition], None],
    ) -> None:
        due = lane.due()
        if not due or self._lanes.get(partition) is not lane:
            return
        behind = due[-1].record.offset + 1
        written = [answer for answer in due if answer.letter is not None]
        try:
            if lane.unsure:
                await self._learn(partition, lane, done)
                return
            letters = [answer.letter for answer in written if answer.letter is not None]
            await lane.transactions.write(letters, {partition: behind}, self._group)
        except (LettersNotTakenError, LettersWithoutTopicError) as error:
            log.warning("%s", error)
            await self._say_otherwise(lane, [written[i] for i in error.letters], error)
            self._answered.set()
        except FencedError as error:
            log.warning("%s/%d is another's now: %s", partition.topic, partition.partition, error)
            if self._lanes.get(partition) is lane:
                await self.end([partition])
                lost(partition)
        except SluiceError as error:
            if self._lanes.get(partition) is not lane:
                return
            log.warning("%s; trying again", error)
            lane.unsure = True
            await asyncio.sleep(self._retry)
            self._answered.set()
        else:
            if lane.order and lane.order[0] == due[0].record.offset:  # else forgotten meanwhile
                lane.written(len(due))
            _tell(due, done)
            if lane.answers:
                self._answered.set()

    async def _say_otherwise(
        self, lane: _Lane, answers: Sequence[_Answer], error: LettersNotTakenError | LettersWithoutTopicError
    ) -> None:
        if isinstance(error, LettersNotTakenError):
            lane.refused(answers, error)
        elif not lane.without_topic(answers, error):
            await asyncio.sleep(self._retry)

    async def _learn(self, partition: TopicPartition, lane: _Lane, done: Callable[[Record], None]) -> None:
        """Find out how much of the lane is written, after a transaction that ended nobody knows how."""
        assert self._consumer is not None
        await lane.transactions.start()
        committed = await _committed(self._consumer, partition)
        if self._lanes.get(partition) is lane:
            _tell(lane.known(committed), done)
            self._answered.set()

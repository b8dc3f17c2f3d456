"""Moving what a dead device left on its work topic, as the planner's core says of each record.

The core is told the worker's committed offset and the end of its topic, then every record between the two; what it says
becomes of them is written, then the offset is committed for the dead worker's group, and for the group of all that was
swept, which bears the fence out: no worker heeds one beyond it. Nothing is lost if this is cut short at any point: it
begins again from the offset. With exactly-once delivery the dead worker's transactions are
fenced first, and records move in transactions with their offsets; else what it answered without having committed is
looked up among its results.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, assert_never

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.outcome import Outcome
from sluicegate.domain.query import QueryKey
from sluicegate.planner.control.events import (
    Bury,
    End,
    Leave,
    Left,
    Move,
    PlannerEvent,
    Readmit,
    SweepBegan,
    Swept,
    TooLarge,
    Verdict,
    WorkLeft,
)
from sluicegate.stages.connections import Connections
from sluicegate.stages.following.answered import answered_by
from sluicegate.stages.following.served_apps import ServedApps, not_served
from sluicegate.stages.runtime.exactly_once import transactional_id
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.streams.ports import (
    FencedError,
    Headers,
    Letter,
    LettersNotTakenError,
    Record,
    TopicPartition,
    Transactions,
)
from sluicegate.streams.records import codec

log = logging.getLogger(__name__)

_Read = tuple[Record, codec.WorkMessage | InvalidInputError]
"""A record and what it carries, or why it cannot be read."""
Tell = Callable[[PlannerEvent], Sequence[Move | End]]
"""Tells the core; what it says of the records of the event."""


class _Said(NamedTuple):
    """What is written of a record. What counts once it is: ``outcome``, the end that it tells of, or ``buried``, the
    reason of a dead letter."""

    letter: Letter
    outcome: Outcome | None = None
    buried: str = ""


class Reclaimer:
    """Sweeps the work topics of dead devices. ``apps``: whose results are searched for answers."""

    def __init__(
        self, connections: Connections, outbox: Outbox, tell: Tell, *, apps: Sequence[str], exactly_once: bool = False
    ) -> None:
        self._broker = connections.broker
        self._topics = connections.topics
        self._clock = connections.clock
        self._meters = connections.telemetry.meters
        self._outbox = outbox
        self._tell = tell
        self._served = ServedApps(self._broker, self._topics, apps)
        self._exactly_once = exactly_once
        self._fences: dict[str, Transactions] = {}
        self._swept: dict[TopicPartition, int] = {}

    def registered(self, apps: Iterable[str]) -> None:
        """Answers of these apps are looked up too; those of retired ones go on being."""
        self._served.registered(apps)

    async def sweep(self, device: str) -> None:
        """Move what waits on the work topic of ``device``."""
        work = TopicPartition(self._topics.work(device), 0)
        group = self._topics.worker_group(device)
        transactions = await self._fence(device, work, group) if self._exactly_once else None
        consumer = self._broker.consumer(partitions=[work], group=group)
        await consumer.start()
        try:
            start = await consumer.position(work)
            end = (await consumer.end_offsets([work]))[work]
            if start >= end:
                await self._swept_to(work, end)
            self._tell(SweepBegan(device, start, end))
            if start >= end:
                return
            answered: frozenset[QueryKey] | None = frozenset() if transactions is not None else None
            while await consumer.position(work) < end:
                records = [r for r in await consumer.get_many(wait=0.5) if r.offset < end]
                if not records:
                    continue
                if answered is None:
                    answered = await self._answered_by(device, records)
                moves = self._moves(await self._read(records), device, answered)
                if transactions is None:
                    await self._post_all(moves, device)
                else:
                    await self._write_all(transactions, moves, device, group)
            if transactions is None:
                await consumer.commit({work: end})
            await self._swept_to(work, end)
            log.info("%s: what lay from %d to %d is moved to others", device, start, end)
            self._tell(Swept(device))
        except FencedError:  # by a worker that came back, or after a transaction that was open for too long: once more
            await self.let_in(device)
            raise
        finally:
            await consumer.stop()

    async def _answered_by(self, device: str, first: Sequence[Record]) -> frozenset[QueryKey]:
        """Those of what is left, of which these are the first."""
        now = self._clock.wall()
        return await answered_by(device, first, now, broker=self._broker, topics=self._topics, apps=self._served)

    async def _swept_to(self, work: TopicPartition, end: int) -> None:
        """Commit it for the group of all that was swept."""
        if self._swept.get(work, 0) == end:
            return
        consumer = self._broker.consumer(partitions=[work], group=self._topics.swept_group)
        await consumer.start()
        try:
            await consumer.commit({work: end})
        finally:
            await consumer.stop()
        self._swept[work] = end

    async def let_in(self, device: str) -> None:
        """Whoever serves as ``device`` may write again."""
        transactions = self._fences.pop(device, None)
        if transactions is not None:
            await transactions.stop()

    async def close(self) -> None:
        """Let go of what was fenced: whoever takes over fences anew."""
        fences, self._fences = self._fences, {}
        await asyncio.gather(*(transactions.stop() for transactions in fences.values()))

    async def _fence(self, device: str, work: TopicPartition, group: str) -> Transactions:
        """Take the id under which the dead worker wrote: from here on it writes nothing."""
        transactions = self._fences.get(device)
        if transactions is None:
            transactions = self._broker.transactions(transactional_id(group, work))
            await transactions.start()
            self._fences[device] = transactions
        return transactions

    async def _read(self, records: Sequence[Record]) -> list[_Read]:
        read = [(record, _decoded(record)) for record in records]
        named = {m.query.app for _, m in read if isinstance(m, codec.WorkMessage)}
        strangers = await self._served.strangers(named, anew=True)
        return [
            (record, not_served(message.query.app))
            if isinstance(message, codec.WorkMessage) and message.query.app in strangers
            else (record, message)
            for record, message in read
        ]

    def _moves(
        self, read: Sequence[_Read], device: str, answered: frozenset[QueryKey]
    ) -> list[tuple[_Read, _Said | None]]:
        """Where each record goes; None for one that was answered. Raises FencedError where another planner leads."""
        if not read:
            return []
        left = tuple(
            Left(record.offset, message.query, message.query.key in answered)
            if isinstance(message, codec.WorkMessage)
            else Left(record.offset, None)
            for record, message in read
        )
        for said in self._tell(WorkLeft(device, left)):
            if isinstance(said, Move):
                return [(one, self._said(one, verdict)) for one, verdict in zip(read, said.verdicts, strict=True)]
        raise FencedError(f"{device}: another planner leads; it moves what is left there")

    def _said(self, read: _Read, verdict: Verdict) -> _Said | None:
        record, message = read
        match verdict:
            case Leave():
                return None
            case Bury():
                assert isinstance(message, InvalidInputError)  # what cannot be read has no query to decide on
                return self._buried(record, message)
            case Readmit():
                assert isinstance(message, codec.WorkMessage)
                query = message.query
                back = codec.encode_admitted(
                    codec.QueryMessage(query, message.tensors, message.carried, message.claims)
                )
                return _Said(Letter(self._topics.admitted(query.app), back.value, back.key, back.headers))
            case End(outcome):
                assert isinstance(message, codec.WorkMessage)
                return self._ended(outcome, message.carried)
            case _:
                assert_never(verdict)

    def _buried(self, record: Record, error: InvalidInputError) -> _Said:
        dead = codec.dead_letter(record, error, stage="planner", now=self._clock.wall())
        letter = Letter(self._topics.dead_letters, dead.value, dead.key, dead.headers)
        return _Said(letter, buried=codec.letter_reason(error, record))

    def _ended(self, outcome: Outcome, carried: Headers) -> _Said:
        gone = codec.encode_outcome(outcome, (), carried=carried)
        return _Said(Letter(self._topics.results(outcome.app), gone.value, gone.key, gone.headers), outcome)

    def _written(self, said: _Said) -> None:
        if said.outcome is not None:
            self._meters.ended("planner", said.outcome)
        if said.buried:
            self._meters.add("sluice_dead_letters", "planner", said.buried)

    def _instead(self, read: _Read, device: str, error: InvalidInputError) -> _Said:
        """What becomes of a record that cannot go on as it is. Raises FencedError where another planner leads."""
        record, message = read
        if isinstance(message, InvalidInputError):
            return self._buried(record._replace(value=b""), message)
        for said in self._tell(TooLarge(device, message.query, error.problem)):
            if isinstance(said, End):
                return self._ended(said.outcome, message.carried)
        raise FencedError(f"{device}: another planner leads; it moves what is left there")

    async def _write_all(
        self, transactions: Transactions, moves: Sequence[tuple[_Read, _Said | None]], device: str, group: str
    ) -> None:
        """In one transaction; one each, where some are not taken."""
        last, _ = moves[-1][0]
        behind = {TopicPartition(last.topic, last.partition): last.offset + 1}
        all_said = [said for _, said in moves if said is not None]
        try:
            await self._transact(transactions, all_said, behind, group)
        except LettersNotTakenError as error:
            if len(moves) > 1:
                for move in moves:
                    await self._write_all(transactions, [move], device, group)
            else:
                told = InvalidInputError("record", str(error))
                try:
                    await self._transact(transactions, [self._instead(moves[0][0], device, told)], behind, group)
                except LettersNotTakenError as refused:
                    log.error("what becomes of %s can never be written: %s", last.place, refused)
                    await transactions.write([], behind, group)

    async def _transact(
        self, transactions: Transactions, all_said: Sequence[_Said], behind: Mapping[TopicPartition, int], group: str
    ) -> None:
        await transactions.write([said.letter for said in all_said], behind, group)
        for said in all_said:
            self._written(said)

    async def _post_all(self, moves: Sequence[tuple[_Read, _Said | None]], device: str) -> None:
        """Write them, and wait until all are acknowledged."""
        all_said = [(read, said) for read, said in moves if said is not None]
        acknowledged = asyncio.Event()
        outstanding = len(all_said)
        fenced: list[FencedError] = []

        def done(said: _Said | None = None) -> None:
            nonlocal outstanding
            if said is not None:
                self._written(said)
            outstanding -= 1
            if not outstanding:
                acknowledged.set()

        def instead(read: _Read) -> Callable[[InvalidInputError], None]:
            def refused(error: InvalidInputError) -> None:
                try:
                    other = self._instead(read, device, error)
                    self._outbox.put(other.letter, done=partial(done, other))
                except FencedError as lost:
                    fenced.append(lost)
                    done()

            return refused

        for read, said in all_said:
            self._outbox.put(said.letter, done=partial(done, said), refused=instead(read))
        if all_said:
            await acknowledged.wait()
        if fenced:
            raise fenced[0]


def _decoded(record: Record) -> codec.WorkMessage | InvalidInputError:
    try:
        return codec.decode_work(record)
    except InvalidInputError as error:
        return error

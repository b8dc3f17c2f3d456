"""How every stage reads: in batches, with back-pressure, committing the contiguous prefix of what is done.

Contract. ``handle`` gets records in offset order and must see to it that ``done(record)`` is called once, when all that
the record led to is acknowledged. At most ``limit`` records are in flight: beyond it the partitions are paused, the
membership stays. When partitions are revoked, what is in flight of them is waited for (bounded) and committed, then
forgotten. After ``stop`` nothing more is fetched, what is in flight gets ``drain_s`` to finish, is committed, and the
consumer leaves.

``answer`` sends what a record led to: through the outbox, to be done once acknowledged; or, exactly once, in a
transaction with the record's offset. A member of a group that is fenced, but that the group leaves the partition, takes
it back after ``rest`` seconds: it was a zombie that came back, which is fenced by that in its turn, or a transaction
was open for too long. Who reads without a group says with ``on_fenced`` what is to be done. What a record led to that
has no topic is its dead letter, which ``bury`` makes.

A client that cannot begin to read (for ``patience`` seconds), cannot read on, or gives no answer while the broker gives
one to others (``answers``), is replaced. Who reads without a group reads on where it was, with all that is in flight;
in a group the next client begins with what was committed, as after any other loss of partitions.

At least once, ``overlaps`` is told where another of the group may do, or have done, what is done here: the group has
gone on without this member, or took from it what it had not finished, or gave it what was written before.

What is done beside the reading, here or by the stage (``beside``), must not end unseen: where it fails, the reading
fails.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import NamedTuple

from sluicegate.domain.errors import InvalidInputError
from sluicegate.stages.runtime.background_tasks import ended, raise_failures, stopped
from sluicegate.stages.runtime.exactly_once import Elsewhere, ExactlyOnce, Instead
from sluicegate.stages.runtime.offset_tracker import CommitTracker
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.streams.ports import (
    Broker,
    BrokerError,
    Consumer,
    FencedError,
    Letter,
    LostPartitionError,
    Record,
    TopicPartition,
    UnreachableError,
)

log = logging.getLogger(__name__)

_LAG_EVERY = 5.0
_LOOKS = 0.45
"""Seconds, twice, that a client may take to say that nothing came, which takes it a fifth of one."""
_ANSWERS = 0.5
"""Seconds that the broker has to answer another client, and a client that gives no answer to end."""

Handler = Callable[[Sequence[Record]], Awaitable[None]]
ConsumerFactory = Callable[["Intake"], Consumer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a stage reads. ``member``: its name in its group, where that is fixed. ``max_in_flight``: records.

    ``exclusive``: of the members of its group all but one stand by. ``chained``: the stage before it is in this process
    and hands over what this one would read.
    """

    member: str | None = None
    max_in_flight: int = 4000
    exactly_once: Callable[[str], ExactlyOnce] | None = None
    exclusive: bool = False
    chained: bool = False


class Overlaps(NamedTuple):
    """Who is told of work that may be done twice. ``wall``: seconds, of the clock that dates records."""

    tell: Callable[[], None]
    wall: Callable[[], float]


class Intake:
    """Implements RebalanceListener for the consumer that ``make_consumer`` makes."""

    def __init__(
        self,
        make_consumer: ConsumerFactory,
        *,
        limit: int = 4000,
        commit_every: float = 0.2,
        poll: float = 0.2,
        drain_s: float = 5.0,
        rest: float = 1.0,
        patience: float = 30.0,
        exactly_once: ExactlyOnce | None = None,
        on_fenced: Callable[[], None] | None = None,
        overlaps: Overlaps | None = None,
        answers: Callable[[], Awaitable[object]] | None = None,
        bury: Callable[[Record, InvalidInputError], Letter] | None = None,
    ) -> None:
        self._bury = bury
        self._answers = answers
        self._exactly_once = exactly_once
        self._make_consumer = make_consumer
        self._limit = limit
        self._commit_every = commit_every
        self._poll = poll
        self._drain_s = drain_s
        self._rest = rest
        self._patience = patience
        self._on_fenced = on_fenced
        self._overlaps = None if exactly_once is not None else overlaps
        self._assigned = -inf
        """When partitions were, until something older is read of them."""
        self._abandoned = False
        self._shared = False
        self._fenced: set[TopicPartition] = set()
        self._returns: dict[asyncio.Task[None], TopicPartition] = {}
        self._tracker = CommitTracker()
        self._paused = False
        self._room = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._one_commit = asyncio.Lock()
        self._consumer: Consumer | None = None
        self._started = asyncio.Event()
        self._asking = self._rebalancing = False
        self._asked = 0
        self._unread: BrokerError | None = None
        self._next: dict[TopicPartition, int] = {}
        self.read = 0
        self.stepped: float | None = None
        """When it last took a step, by the event loop's clock; None where it does not read."""
        self.lag: int | None = None
        """Records not read yet when it was last looked up, None before."""

    @property
    def in_flight(self) -> int:
        """Records read whose consequences are not all acknowledged."""
        return self._tracker.in_flight

    def done(self, record: Record) -> None:
        """All that ``record`` led to is acknowledged."""
        self._tracker.done(TopicPartition(record.topic, record.partition), record.offset)
        in_flight = self._tracker.in_flight
        if not in_flight:
            self._empty.set()
        if self._paused and in_flight <= self._limit // 2:
            self._room.set()

    def answer(
        self,
        record: Record,
        outbox: Outbox,
        letter: Letter,
        instead: Instead | None = None,
        written: Callable[[], None] | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """``letter`` is all that ``record`` led to, and ``written`` is told once it is; ``instead`` makes another where
        it is too large for its topic, or none, where ``answer`` is called again. ``elsewhere``: where it has no topic
        (any more); where that has none either, ``record`` is buried."""
        ways = [] if elsewhere is None else [elsewhere]
        if self._bury is not None:
            ways.append(partial(self._bury, record))
        if self._exactly_once is not None:
            self._exactly_once.answer(record, letter, instead, written, ways)
            return

        def told() -> None:
            if written is not None:
                written()
            self.done(record)

        if instead is None:
            self._put(record, outbox, letter, ways, told)
        else:

            def refused(error: InvalidInputError) -> None:
                if (other := instead(error)) is not None:
                    self._put(record, outbox, other, ways)

            self._put(record, outbox, letter, ways, told, refused)

    def _put(
        self,
        record: Record,
        outbox: Outbox,
        letter: Letter,
        ways: Sequence[Elsewhere],
        done: Callable[[], None] | None = None,
        refused: Callable[[InvalidInputError], None] | None = None,
    ) -> None:
        """At least once: ``letter``, or, where it has no topic, what ``ways`` say by turns. The last of them waits."""
        done = done or partial(self.done, record)
        if not ways:
            outbox.put(letter, done=done, refused=refused)
            return
        way, *more = ways

        def gone(error: InvalidInputError) -> None:
            self._put(record, outbox, way(error), more)

        outbox.put(letter, done=done, refused=refused, gone=gone)

    def ignore(self, record: Record) -> None:
        """``record`` leads to nothing."""
        if self._exactly_once is not None:
            self._exactly_once.answer(record, None)
        else:
            self.done(record)

    async def run(
        self,
        handle: Handler,
        stop: asyncio.Event,
        *,
        after_start: Callable[[Consumer], Awaitable[None]] | None = None,
        beside: Sequence["asyncio.Task[None]"] = (),
    ) -> None:
        """Read until ``stop``, then drain and leave. ``after_start`` may seek. Raises what ended a task ``beside``."""
        consumer = self._consumer = self._make_consumer(self)
        once = self._exactly_once
        tasks: list[asyncio.Task[None]] = []
        try:
            patient_until = asyncio.get_running_loop().time() + self._patience
            while not await self._starts(consumer, patient_until):
                if stop.is_set():
                    return
                consumer = self._consumer = self._make_consumer(self)
            if once is not None:
                await once.begin(consumer.assignment() - once.partitions, consumer)
            if after_start is not None:
                await after_start(consumer)
            if not self._shared:
                self._next = {partition: await consumer.position(partition) for partition in consumer.assignment()}
            self._started.set()
            self.stepped = asyncio.get_running_loop().time()
            writing = [asyncio.create_task(once.run(self.done, self._lost))] if once is not None else []
            reading = asyncio.create_task(self._read(consumer, handle, stop, (*writing, *beside)))
            tasks = [reading, *writing]
            while await self._stands(reading):
                consumer = await self._replaced(consumer, reading, stop)
                reading = tasks[0] = asyncio.create_task(self._read(consumer, handle, stop, (*writing, *beside)))
            await self._drain()
        finally:
            self.stepped = None
            await ended(tasks)
            await self._let_go()
            await self._commit(consumer)
            if once is not None:
                await once.end(once.partitions)
            await consumer.stop()

    async def _starts(self, consumer: Consumer, patient_until: float) -> bool:
        """Whether it reads; False, after a rest, where the broker was not ready for it. Raises what no rest mends."""
        try:
            await consumer.start()
        except FencedError:
            raise
        except (BrokerError, UnreachableError) as error:
            if asyncio.get_running_loop().time() >= patient_until:
                raise
            log.warning("%s; trying again", error)
            await stopped(consumer)
            await asyncio.sleep(self._rest)
            return False
        return True

    async def _read(
        self, consumer: Consumer, handle: Handler, stop: asyncio.Event, beside: Sequence["asyncio.Task[None]"]
    ) -> None:
        """By one client."""
        tasks = [asyncio.create_task(self._watch_lag(consumer))]
        if self._exactly_once is None:
            tasks.append(asyncio.create_task(self._commit_often(consumer)))
        try:
            while not stop.is_set():
                await self._step(consumer, handle)
                self.stepped = asyncio.get_running_loop().time()
                raise_failures((*tasks, *beside))
        finally:
            await ended(tasks)

    async def _stands(self, reading: "asyncio.Task[None]") -> bool:
        """Whether its client gives no answer, or cannot read; False once it has ended. After one look alone this
        process itself may have stood still. Raises what ended it."""
        seen = missed = 0
        while not (await asyncio.wait([reading], timeout=_LOOKS))[0]:
            is_still = self._asking and not self._rebalancing and self._asked == seen
            missed = missed + 1 if is_still else 0
            seen = self._asked
            if missed >= 2 and await self._broker_answers() and self._asked == seen:  # it may have answered meanwhile
                log.warning("a client that reads %s gives no answer; another reads on", self._read_topics())
                return True
        failed = None if reading.cancelled() else reading.exception()
        if failed is not None and failed is self._unread:
            log.warning("%s: %s; another client reads on", self._read_topics(), failed)
            await asyncio.sleep(self._rest)
            return True
        reading.result()
        return False

    def _read_topics(self) -> str:
        return _topics(self._consumer.assignment() if self._consumer is not None else ())

    async def _broker_answers(self) -> bool:
        """Whether it does to another client: where the broker is away, a second client is no better."""
        if self._answers is None:
            return True
        try:
            async with asyncio.timeout(_ANSWERS):
                await self._answers()
        except Exception as error:
            log.debug("the broker does not answer others either (%s)", error)
            return False
        return True

    async def _replaced(self, gone: Consumer, reading: "asyncio.Task[None]", stop: asyncio.Event) -> Consumer:
        """Another client, in the place of ``gone``, which gives no answer or fails. After ``stop`` one is tried, which
        commits."""
        self._started.clear()
        self._consumer = None  # what is still heard of it counts for nothing
        await ended([reading])
        await stopped(gone, _ANSWERS)
        await self._let_go()
        if self._shared:
            self._forget(frozenset(self._next))
            self._next.clear()
        while True:
            consumer = self._consumer = self._make_consumer(self)
            try:
                await consumer.start()
                for partition, offset in self._next.items():
                    await consumer.seek(partition, offset)
            except Exception as error:  # a broker that has gone away meanwhile, whatever a client raises
                await stopped(consumer)
                if stop.is_set():
                    log.warning("no other client reads on (%s): what is not committed is read again later", error)
                    return consumer
                log.warning("no other client reads on yet (%s); trying again", error)
                await asyncio.sleep(self._rest)
            else:
                break
        if self._exactly_once is not None and not self._shared:
            self._exactly_once.reads_by(consumer)
        self._started.set()
        return consumer

    async def consumer(self) -> Consumer:
        """What it reads by, once it reads at all."""
        while self._consumer is None or not self._started.is_set():
            await self._started.wait()
        return self._consumer

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Read these topics from now on, once it reads at all."""
        await (await self.consumer()).subscribe(topics)

    def abandon(self) -> None:
        """Read and commit nothing more: others have taken over what was read. What is not answered of it lies below
        whatever would be committed next."""
        self._abandoned = True
        if self._consumer is not None:
            self._forget(self._consumer.assignment())
        if self._exactly_once is not None:
            self._exactly_once.forget()

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Finish and commit what is theirs, within the bound; the rest is read again by its next owner."""
        self._rebalancing = True
        try:
            await self._let_go(partitions)
            await self._drain()
            if self._consumer is not None:
                await self._commit(self._consumer)
            if self._exactly_once is not None:
                await self._exactly_once.end(partitions)
            if self._tracker.in_flight:
                self._overlap()
            self._forget(partitions)
        finally:
            self._rebalancing = False

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Start with nothing in flight."""
        self._shared = self._rebalancing = True
        try:
            self._forget(partitions)
            if self._overlaps is not None and partitions:
                self._assigned = self._overlaps.wall()
            if self._exactly_once is not None and self._consumer is not None:
                await self._exactly_once.begin(partitions, self._consumer)
        finally:
            self._rebalancing = False

    def _lost(self, partition: TopicPartition) -> None:
        self._forget(frozenset([partition]))
        if self._on_fenced is not None:
            self._on_fenced()
        elif self._shared and self._consumer is not None and partition in self._consumer.assignment():
            self._fenced.add(partition)
            self._consumer.pause([partition])
            task = asyncio.create_task(self._take_back(partition, self._consumer))
            self._returns[task] = partition
            task.add_done_callback(self._returns.pop)

    async def _take_back(self, partition: TopicPartition, consumer: Consumer) -> None:
        """Begin anew with what was fenced. Nothing of it is read meanwhile."""
        assert self._exactly_once is not None
        while partition in self._fenced:
            await asyncio.sleep(self._rest)
            try:
                await self._exactly_once.begin([partition], consumer)
            except Exception as error:  # whatever it is: nobody else begins with it
                log.warning("%s/%d is not taken back yet: %s", partition.topic, partition.partition, error)
            else:
                self._fenced.discard(partition)
                self._forget(frozenset([partition]))
                consumer.resume([partition])

    async def _let_go(self, partitions: frozenset[TopicPartition] | None = None) -> None:
        """Nothing of ``partitions``, or of all, is taken back any more."""
        ending = [task for task, of in self._returns.items() if partitions is None or of in partitions]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._fenced = set() if partitions is None else self._fenced - partitions

    def _overlap(self) -> None:
        if self._overlaps is not None:
            self._overlaps.tell()

    def _forget(self, partitions: frozenset[TopicPartition]) -> None:
        self._tracker.forget(partitions)
        if not self._tracker.in_flight:
            self._empty.set()

    async def _step(self, consumer: Consumer, handle: Handler) -> None:
        room = self._limit - self._tracker.in_flight
        if room > 0:
            records = await self._ask(consumer, self._poll, min(room, 500))
        else:
            records = await self._wait_for_room(consumer)
        if self._abandoned or consumer is not self._consumer:
            return
        if self._fenced:
            records = [r for r in records if TopicPartition(r.topic, r.partition) not in self._fenced]
        if not records:
            return
        begin = self._tracker.begin
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            begin(partition, record.offset)
            self._next[partition] = record.offset + 1
        if self._exactly_once is not None:
            self._exactly_once.read(records)
        self._empty.clear()
        self.read += len(records)
        if self._assigned > -inf and any(record.timestamp < self._assigned for record in records):
            self._assigned = -inf
            self._overlap()  # who read here before, and could not say so, may have done these
        await handle(records)

    async def _ask(self, consumer: Consumer, wait: float, most: int = 500) -> Sequence[Record]:
        self._asking = True
        self._asked += 1
        try:
            return await consumer.get_many(wait=wait, max_records=most)
        except FencedError:  # another reads on
            raise
        except BrokerError as error:
            self._unread = error
            raise
        finally:
            self._asking = False

    async def _wait_for_room(self, consumer: Consumer) -> Sequence[Record]:
        """Hold still, without fetching, until half of what is in flight is done. Returns what came nevertheless, of
        partitions that were assigned meanwhile and are not paused."""
        assigned = consumer.assignment()
        consumer.pause(assigned)
        self._paused = True
        self._room.clear()
        try:
            async with asyncio.timeout(self._poll):
                await self._room.wait()
        except TimeoutError:
            return await self._ask(consumer, 0.0, 1)  # a group member must go on polling
        finally:
            self._paused = False
            consumer.resume((assigned & consumer.assignment()) - self._fenced)
        return ()

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._drain_s):
                await self._empty.wait()
        except TimeoutError:
            log.warning("%d records still in flight after %.1f s: read again later", self.in_flight, self._drain_s)

    async def _commit_often(self, consumer: Consumer) -> None:
        while True:
            await asyncio.sleep(self._commit_every)
            await self._commit(consumer)

    async def _watch_lag(self, consumer: Consumer) -> None:
        while True:
            await asyncio.sleep(_LAG_EVERY)
            try:
                ends = await consumer.end_offsets(assigned) if (assigned := consumer.assignment()) else {}
                self.lag = sum([max(0, end - await consumer.position(of)) for of, end in ends.items()])
            except asyncio.CancelledError:
                raise
            except Exception as error:  # partitions that were just given up, a broker that is away: look again later
                log.debug("lag cannot be looked up (%s)", error)

    async def _commit(self, consumer: Consumer) -> None:
        async with self._one_commit:  # an earlier one that arrives later would take the group's offset back
            due = self._tracker.due() if self._exactly_once is None else {}
            due = {partition: offset for partition, offset in due.items() if partition in consumer.assignment()}
            if not due:
                return
            try:
                await consumer.commit(due)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # a lost commit only means reading again; the next one repairs it
                log.warning("commit failed (%s); trying again", error)
                if isinstance(error, LostPartitionError):  # until the group is heard of, others read the same
                    self._overlap()
            else:
                self._tracker.committed(due)


def topic_seen(broker: Broker, topic: str) -> Callable[[], Awaitable[object]]:
    """Asks the broker, by another client than those that read, for something small."""
    return lambda: broker.admin().partitions([topic])


def _topics(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(sorted({partition.topic for partition in partitions})) or "nothing yet"

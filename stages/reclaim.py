"""Moving what a dead device left on its work topic to those that live.

The worker's committed offset is the fence: records below it are answered. What lies between it and the end of the topic
goes back to the admitted topic (or ends as expired), except what the dead worker answered without having committed;
then the offset is committed for its group. Nothing is lost if this is cut short at any point: it begins again from the
offset. Where what expires belongs to an app with a promise, safe mode is announced first. While the device is absent
the sweep is repeated, since a router with an old plan may still write there. With exactly-once delivery the dead
worker's transactions are fenced first, and records move in transactions with their offsets.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from domain.actions import Announce
from domain.clock import Clock
from domain.errors import InvalidInputError
from domain.outcome import Outcome, OutcomeKind, Reason
from domain.query import QueryKey
from stages.exactly_once import transactional_id
from stages.outbox import Outbox
from stages.telemetry import Telemetry
from streams import codec, control
from streams.ports import (
    Broker,
    Consumer,
    FencedError,
    Letter,
    LettersTooLargeError,
    Record,
    TopicPartition,
    Transactions,
)
from streams.topics import Topics

log = logging.getLogger(__name__)


class Reclaimer:
    """Sweeps the work topics of dead devices. ``answered_window``: seconds of results searched for answers.

    ``promised``: apps with a promise; it may change. ``may``: asked before anything is written, whether this planner
    still leads.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        outbox: Outbox,
        topics: Topics,
        apps: Sequence[str],
        clock: Clock,
        promised: Collection[str] = (),
        exactly_once: bool = False,
        answered_window: float = 30.0,
        telemetry: Telemetry | None = None,
        may: Callable[[], bool] = lambda: True,
    ) -> None:
        self._may = may
        self._meters = (telemetry or Telemetry()).meters
        self._broker = broker
        self._outbox = outbox
        self._topics = topics
        self._apps = tuple(apps)
        self._clock = clock
        self._window = answered_window
        self._promised = promised
        self._exactly_once = exactly_once
        self._fences: dict[str, Transactions] = {}
        self._announced: set[tuple[str, str]] = set()

    def registered(self, apps: Iterable[str]) -> None:
        """Answers of these apps are looked up too; those of retired ones go on being."""
        self._apps = tuple(sorted({*self._apps, *apps}))

    async def sweep(self, device: str) -> int:
        """Move what waits on the work topic of ``device``; returns the fence (the offset all below which is done)."""
        work = TopicPartition(self._topics.work(device), 0)
        group = self._topics.worker_group(device)
        transactions = await self._fence(device, work, group) if self._exactly_once else None
        consumer = self._broker.consumer(partitions=[work], group=group)
        await consumer.start()
        try:
            start = await consumer.position(work)
            end = (await consumer.end_offsets([work]))[work]
            if start >= end:
                return end
            answered = await self._answered_by(device) if transactions is None else frozenset()
            moved = 0
            while await consumer.position(work) < end:
                records = [r for r in await consumer.get_many(wait=0.5) if r.offset < end]
                moves = [(r, self._moved(r, device, answered)) for r in records]
                moved += len(records)
                if not self._may():
                    raise FencedError(f"{device}: another planner leads; it moves what is left there")
                if transactions is None:
                    await self._post_all(moves, device)
                elif records:
                    await self._write_all(transactions, moves, device, group)
            if transactions is None:
                await consumer.commit({work: end})
            log.info("%s: %d records below %d moved to others", device, moved, end)
            return end
        except FencedError:  # by a worker that came back, or after a transaction that was open for too long: once more
            await self._unfence(device)
            raise
        finally:
            await consumer.stop()

    async def _fence(self, device: str, work: TopicPartition, group: str) -> Transactions:
        """Take the id under which the dead worker wrote: from here on it writes nothing."""
        transactions = self._fences.get(device)
        if transactions is None:
            transactions = self._broker.transactions(transactional_id(group, work))
            await transactions.start()
            self._fences[device] = transactions
        return transactions

    async def _unfence(self, device: str) -> None:
        transactions = self._fences.pop(device, None)
        if transactions is not None:
            await transactions.stop()

    async def _write_all(
        self, transactions: Transactions, moves: Sequence[tuple[Record, Letter | None]], device: str, group: str
    ) -> None:
        """In one transaction; one each, where some are too large."""
        last = moves[-1][0]
        behind = {TopicPartition(last.topic, last.partition): last.offset + 1}
        try:
            await transactions.write([letter for _, letter in moves if letter is not None], behind, group)
        except LettersTooLargeError as error:
            if len(moves) > 1:
                for move in moves:
                    await self._write_all(transactions, [move], device, group)
            else:
                told = InvalidInputError("record", str(error))
                await transactions.write([self._too_large(last, device, told)], behind, group)

    async def _post_all(self, moves: Sequence[tuple[Record, Letter | None]], device: str) -> None:
        """Write them, and wait until all are acknowledged."""
        letters = [(record, letter) for record, letter in moves if letter is not None]
        acknowledged = asyncio.Event()
        outstanding = len(letters)

        def done() -> None:
            nonlocal outstanding
            outstanding -= 1
            if not outstanding:
                acknowledged.set()

        def instead(record: Record) -> Callable[[InvalidInputError], None]:
            return lambda error: self._outbox.put(self._too_large(record, device, error), done=done)

        for record, letter in letters:
            self._outbox.put(letter, done=done, refused=instead(record))
        if letters:
            await acknowledged.wait()

    def _moved(self, record: Record, device: str, answered: frozenset[QueryKey]) -> Letter | None:
        """Where a record goes; None for one that was answered."""
        now = self._clock.wall()
        try:
            message = codec.decode_work(record)
        except InvalidInputError as error:
            dead = codec.dead_letter(record, error, stage="planner", now=now)
            return Letter(self._topics.dead_letters, dead.value, dead.key, dead.headers)
        query = message.query
        if query.key in answered:
            return None
        if query.deadline > now:
            back = codec.encode_admitted(codec.QueryMessage(query, message.tensors, message.traceparent))
            return Letter(self._topics.admitted(query.app), back.value, back.key, back.headers)
        if query.app in self._promised:
            self._say(query.app, device, "safe_mode")
            now = self._clock.wall()
        outcome = Outcome.of(
            query,
            OutcomeKind.EXPIRED,
            now,
            reason=Reason.DEVICE_LOST,
            device=device,
            queue_s=now - query.arrival,
        )
        self._meters.ended("planner", outcome)
        gone = codec.encode_outcome(outcome, (), traceparent=message.traceparent)
        return Letter(self._topics.results(query.app), gone.value, gone.key, gone.headers)

    def _too_large(self, record: Record, device: str, error: InvalidInputError) -> Letter:
        """What becomes of a record whose query cannot go back."""
        now = self._clock.wall()
        try:
            message = codec.decode_work(record)
        except InvalidInputError as undecoded:
            dead = codec.dead_letter(record._replace(value=b""), undecoded, stage="planner", now=now)
            return Letter(self._topics.dead_letters, dead.value, dead.key, dead.headers)
        query = message.query
        why = {"reason": Reason.TOO_LARGE, "detail": error.problem[:500], "device": device}
        outcome = Outcome.of(query, OutcomeKind.FAILED, now, queue_s=now - query.arrival, **why)
        self._meters.ended("planner", outcome)
        gone = codec.encode_outcome(outcome, (), traceparent=message.traceparent)
        return Letter(self._topics.results(query.app), gone.value, gone.key, gone.headers)

    async def close(self) -> None:
        """Let go of what was fenced: whoever takes over fences anew."""
        fences, self._fences = self._fences, {}
        await asyncio.gather(*(transactions.stop() for transactions in fences.values()))

    async def returned(self, device: str) -> None:
        """``device`` serves again: what was said of promises for its sake is over."""
        await self._unfence(device)
        for app in [app for app, of in self._announced if of == device]:
            self._say(app, device, "promise_kept")

    def _say(self, app: str, device: str, state: str) -> None:
        place = (app, device)
        if (place in self._announced) is (state == "safe_mode"):
            return
        self._announced ^= {place}
        detail = f"{device} was lost with queries of this app" if state == "safe_mode" else f"{device} is back"
        said = Announce(f"app:{app}", state, detail)
        self._meters.add("sluice_announcements", "planner", state)
        self._meters.set("sluice_safe_mode", float(state == "safe_mode"), said.subject, "planner")
        key = f"{said.subject}@planner-{device}".encode()
        self._outbox.post(self._topics.status, control.encode_announce(said), key=key, timestamp=self._clock.wall())

    async def _answered_by(self, device: str) -> frozenset[QueryKey]:
        """Queries that ``device`` has answered within the window: its last commits may not tell of them."""
        partitions: list[TopicPartition] = []
        counts = await self._broker.admin().partitions([self._topics.results(app) for app in self._apps])
        for topic, count in sorted(counts.items()):
            partitions += [TopicPartition(topic, i) for i in range(count)]
        if not partitions:
            return frozenset()
        consumer = self._broker.consumer(partitions=partitions, start_at="end")
        await consumer.start()
        try:
            return await self._read_keys(consumer, partitions, device)
        finally:
            await consumer.stop()

    async def _read_keys(
        self, consumer: Consumer, partitions: list[TopicPartition], device: str
    ) -> frozenset[QueryKey]:
        ends = await consumer.end_offsets(partitions)
        since = self._clock.wall() - self._window
        starts = await consumer.offsets_for_times(dict.fromkeys(partitions, since))
        open_partitions = set()
        for partition in partitions:
            start = starts[partition]
            if start is not None and start < ends[partition]:
                await consumer.seek(partition, start)
                open_partitions.add(partition)
        found = set()
        while open_partitions:
            for record in await consumer.get_many(wait=0.5):
                if codec.outcome_device(record) == device and record.key is not None:
                    app = self._topics.app_of(record.topic) or ""
                    found.add(QueryKey(app, codec.query_source_of(record), record.key.decode(errors="replace")))
            for partition in tuple(open_partitions):
                if await consumer.position(partition) >= ends[partition]:
                    open_partitions.discard(partition)
        return frozenset(found)

"""Faults that we once had, or might make, put back: exploring must find each, or it proves nothing.

Each replaces one method for as long as it is entered. ``PLANTED`` says what each is; ``TEETH`` are those to be found.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sluicegate.planner.control.events import SweepBegan
from sluicegate.policies.admission.dedupe import DedupeWindow
from sluicegate.policies.promises.history import MissHistory
from sluicegate.policies.promises.stream_book import Recall
from sluicegate.policies.promises.tracker import StreamState
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.planner.dead_device_sweep import Reclaimer
from sluicegate.stages.router import RouterStage
from sluicegate.stages.runtime.consumer_loop import Intake
from sluicegate.stages.runtime.exactly_once import ExactlyOnce
from sluicegate.stages.runtime.offset_tracker import CommitTracker
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.worker.stage import WorkerStage
from sluicegate.streams.ports import Record, TopicPartition
from tests.explore.clients import Consumer, Transactions
from tests.explore.shells import BreakableExecutor

Plant = Callable[[], AbstractContextManager[None]]


def instead(owner: type, name: str, replacement: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Plant:
    """``owner.name`` is what ``replacement`` makes of it."""

    @contextmanager
    def planted() -> Iterator[None]:
        original = getattr(owner, name)
        setattr(owner, name, replacement(original))
        try:
            yield
        finally:
            setattr(owner, name, original)

    return planted


@contextmanager
def nothing() -> Iterator[None]:
    """The code as it is."""
    yield


def _stale(consumer: Consumer, positions: dict[TopicPartition, int], most: int) -> Sequence[Record]:
    """What was on its way for positions that are gone."""
    held, consumer._positions = consumer._positions, dict(positions)
    try:
        return consumer._collect(most)
    finally:
        consumer._positions = held


def _fetch_outlasts_a_rebalance(get_many: Any) -> Any:
    """What was fetched for an assignment that is gone is handed out all the same."""

    async def careless(self: Consumer, *, wait: float, max_records: int = 500) -> Sequence[Record]:
        before, assigned = dict(self._positions), self._assigned
        records: Sequence[Record] = await get_many(self, wait=wait, max_records=max_records)
        if records or assigned == self._assigned:
            return records
        return _stale(self, before, max_records)

    return careless


def _position_past_a_revoked_fetch(get_many: Any) -> Any:
    """What was fetched for an assignment that is gone is thrown away, and who gets the partition again reads on behind
    it."""

    async def careless(self: Consumer, *, wait: float, max_records: int = 500) -> Sequence[Record]:
        before, assigned = dict(self._positions), self._assigned
        records: Sequence[Record] = await get_many(self, wait=wait, max_records=max_records)
        if not records and assigned != self._assigned:
            for record in _stale(self, before, max_records):
                place = TopicPartition(record.topic, record.partition)
                if place in self._positions:
                    self._positions[place] = max(self._positions[place], record.offset + 1)
        return records

    return careless


def _client_ends_with_its_connection(write: Any) -> Any:
    """After a broker was away, what was asked of a transactional client never ends."""

    async def hanging(self: Transactions, *arguments: Any) -> None:
        away = not self._link.up
        if away:
            await asyncio.get_running_loop().create_future()
        await write(self, *arguments)

    return hanging


def _fenced_yet_serving(lost: Any) -> Any:
    """Who was fenced goes on reading, and what it answers goes nowhere."""
    del lost
    return lambda self, partition: None


def _not_known_is_not_written(write: Any) -> Any:
    """A transaction that ended nobody knows how is written again without a look."""

    async def again(self: ExactlyOnce, partition: Any, lane: Any, done: Any, lost: Any) -> None:
        lane.unsure = False
        await write(self, partition, lane, done, lost)

    return again


def _knows_no_sources(add: Any) -> Any:
    """Two who count their queries alike are one to it: the second one's queries are copies of the first one's."""

    def alike(self: DedupeWindow, app: str, source: str, *rest: Any) -> bool:
        del source
        return bool(add(self, app, "", *rest))

    return alike


def _read_again_is_a_copy(add: Any) -> Any:
    """A record that is read again counts as a second asking."""

    def forgetful(self: DedupeWindow, app: str, source: str, query_id: str, place: int, now: float) -> bool:
        return bool(add(self, app, source, query_id, hash((place, now)), now))

    return forgetful


def _commits_what_was_read(due: Any) -> Any:
    """Offsets go ahead of what is done."""

    def early(self: CommitTracker) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = due(self)
        for partition, state in self._partitions.items():
            if state.order:
                found[partition] = state.order[-1] + 1
        return found

    return early


def _reads_on_when_declared_dead(abandon: Any) -> Any:
    """A worker that was declared dead answers the fetch under way, and commits past what it let go."""

    def careless(self: Intake) -> None:
        abandon(self)
        self._abandoned = False

    return careless


def _unacknowledged_is_done(acknowledged: Any) -> Any:
    """A send that failed counts as one that was written."""

    def trusting(self: Outbox, posted: Any, future: "asyncio.Future[Any]") -> None:
        if not future.cancelled() and future.exception() is not None:
            self._settle(posted.done)
        else:
            acknowledged(self, posted, future)

    return trusting


def _handed_over_is_done(take: Any) -> Any:
    """What admission hands to the router beside it is committed before what came of it is written."""

    def early(self: RouterStage, message: Any, record: Record, intake: Intake) -> None:
        take(self, message, record, intake)
        intake.done(record)

    return early


def _dead_devices_are_not_swept(sweep: Any) -> Any:
    """What a dead device left is nobody's."""
    del sweep

    async def looked_away(self: Reclaimer, device: str) -> None:
        work = TopicPartition(self._topics.work(device), 0)
        consumer = self._broker.consumer(partitions=[work], group=self._topics.worker_group(device))
        await consumer.start()
        end = (await consumer.end_offsets([work]))[work]
        await consumer.commit({work: end})
        await consumer.stop()
        self._tell(SweepBegan(device, end, end))

    return looked_away


def _swept_once_only(sweep: Any) -> Any:
    """What a router with an old plan writes behind the fence is left there."""

    async def once(self: Reclaimer, device: str) -> None:
        swept: set[str] = self.__dict__.setdefault("_swept", set())
        if device not in swept:
            await sweep(self, device)
            swept.add(device)
            return
        work = TopicPartition(self._topics.work(device), 0)
        consumer = self._broker.consumer(partitions=[work], group=self._topics.worker_group(device))
        await consumer.start()
        first = await consumer.position(work)
        await consumer.stop()
        self._tell(SweepBegan(device, first, first))

    return once


def _returning_reads_from_the_fence_on(seek: Any) -> Any:
    """Who comes back begins at the end of its work topic."""
    del seek

    async def late(self: WorkerStage, consumer: Any) -> None:
        work = TopicPartition(self._topics.work(self.device.name), 0)
        await consumer.seek(work, (await consumer.end_offsets([work]))[work])

    return late


def _dead_answers_are_moved(answered: Any) -> Any:
    """The heir moves what the dead one had answered: a second answer, once exactly, where it is not fenced."""
    del answered

    async def no_fence(self: Reclaimer, device: str, work: Any, group: str) -> Any:
        made: Any = self._broker.transactions(f"other-{group}")
        await made.start()
        return made

    return no_fence


def _unknown_past_is_a_good_one(before: Any) -> Any:
    """Whoever serves a promised stream next takes its past, of which it knows nothing, for one without a miss."""
    del before

    def rosy(self: Recall, query: Any, place: Any, turns: int, look: int) -> Any:
        del self, query, place, turns
        return StreamState(look, (False,) * look), None

    return rosy


def _other_turns_other_terms(succeeded: Any) -> Any:
    """Where a plan gives a stream other turns, what it had to keep until then is forgotten at once."""
    del succeeded

    def at_once(self: MissHistory, constraints: tuple[tuple[int, int], ...]) -> MissHistory:
        del self
        after = MissHistory(constraints)
        after.spend()
        return after

    return at_once


def _copies_untold(_overlap: Any) -> Any:
    """Two routers send the same queries to different devices, and nobody says so."""

    def silent(self: Intake) -> None:
        del self

    return silent


def _holds_for_ever(catch_up: Any) -> Any:
    """Who stood still while the broker was away waits for the newest plan for ever."""

    async def never(self: Follower) -> None:
        consumer = self.reader.consumer if self.reader is not None else None
        if consumer is not None and not consumer._link.up:  # type: ignore[attr-defined]
            await asyncio.get_running_loop().create_future()
        await catch_up(self)

    return never


def _every_state_is_sent_again(_superseded: Any) -> Any:
    """What may not have been written is sent again, behind a newer record of its key too."""

    def never(self: Outbox, posted: Any) -> bool:
        del self, posted
        return False

    return never


def _batches_may_take_for_ever(run: Any) -> Any:
    """Nobody ends a batch that hangs."""

    async def patient(self: BreakableExecutor, variant: str, inputs: Any, rows: int, *, within: Any = None) -> Any:
        del within
        return await run(self, variant, inputs, rows)

    return patient


TEETH: Mapping[str, Plant] = {
    "fetch-outlasts-rebalance": instead(Consumer, "get_many", _fetch_outlasts_a_rebalance),
    "position-past-a-revoked-fetch": instead(Consumer, "get_many", _position_past_a_revoked_fetch),
    "transactional-client-ends": instead(Transactions, "write", _client_ends_with_its_connection),
    "fenced-yet-serving": instead(Intake, "_lost", _fenced_yet_serving),
    "unknown-commit-repeated": instead(ExactlyOnce, "_write", _not_known_is_not_written),
    "dedupe-by-id-alone": instead(DedupeWindow, "add", _knows_no_sources),
    "read-again-is-a-copy": instead(DedupeWindow, "add", _read_again_is_a_copy),
    "commit-what-was-read": instead(CommitTracker, "due", _commits_what_was_read),
    "dead-worker-reads-on": instead(Intake, "abandon", _reads_on_when_declared_dead),
    "handed-over-is-done": instead(RouterStage, "take", _handed_over_is_done),
    "failed-send-is-done": instead(Outbox, "_acknowledged", _unacknowledged_is_done),
    "dead-device-not-swept": instead(Reclaimer, "sweep", _dead_devices_are_not_swept),
    "swept-once-only": instead(Reclaimer, "sweep", _swept_once_only),
    "returns-behind-its-work": instead(WorkerStage, "_seek_to_fence", _returning_reads_from_the_fence_on),
    "heir-does-not-fence": instead(Reclaimer, "_fence", _dead_answers_are_moved),
    "promises-forget": instead(Recall, "before", _unknown_past_is_a_good_one),
    "turns-change-at-once": instead(MissHistory, "succeeded", _other_turns_other_terms),
    "held-for-ever": instead(Follower, "catch_up", _holds_for_ever),
    "stale-state-sent-again": instead(Outbox, "_superseded", _every_state_is_sent_again),
    "batch-never-ends": instead(BreakableExecutor, "run", _batches_may_take_for_ever),
}
"""What exploring must find."""

SELDOM: Mapping[str, Plant] = {"copies-untold": instead(Intake, "_overlap", _copies_untold)}
"""What takes more worlds to be found than can be asked for: this one not in 2,000."""

PLANTED: Mapping[str, Plant] = {"nothing": nothing, **TEETH, **SELDOM}

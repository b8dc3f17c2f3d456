"""One slice of a device: its station, its staging, the batches that run, the promises kept there.

Rules.
- Each of its executors, one where nothing else was set, runs one batch at a time. A batch that fails is run again query
  by query (``running_batch``), there, and all of them end together.
- All executors hold the same: a variant is loaded once all have loaded it, and where one of them cannot, none has it.
- The policy hears of misses before they are told: it may have to announce them. Where nothing is hosted yet for an app
  with a promise there is none: safe mode is announced before the first miss, and its end once something is hosted, or
  nothing is to be.
- A variant is forgotten once the batches that run with it have ended, and what is loaded in its place waits for that.
- An app that leaves is retired once none of its queries waits or runs here.
- An executor whose process ends is made whole again (``sluicegate.policies.serving.kept_executor``), alone: what is to
  be loaded waits for that, and batches run on the others.
- A batch that takes far longer than its profile says is overdue: heartbeats tell where no executor is left without one.
- A batch of queries that were abandoned runs to its end and answers nobody.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import assert_never

from sluicegate.domain.actions import (
    Acknowledge,
    Announce,
    Drop,
    Expire,
    Host,
    Load,
    Retire,
    Run,
    StationAction,
    Unload,
    WakeAt,
)
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import (
    Arrived,
    Finished,
    LoadEnded,
    LoadLost,
    Offered,
    PlanPublished,
    Refused,
    Retired,
    StagingEvent,
    StationEvent,
    TurnsTold,
    Woke,
)
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.outcome import OutcomeKind, PromiseState, Reason
from sluicegate.domain.query import Query
from sluicegate.domain.table import TablesChanged
from sluicegate.policies.placement.ack_barrier import Gathering
from sluicegate.policies.promises.stream_book import StreamBook
from sluicegate.policies.protocols import StagingPolicy, StationPolicy
from sluicegate.policies.routing.known_poison import REFUSED
from sluicegate.policies.serving.batch_times import BatchTimes
from sluicegate.policies.serving.device_actions import (
    Answer,
    DeviceAction,
    End,
    LoadVariant,
    Repeated,
    RunBatch,
    Say,
    SendBack,
    SliceReport,
    UnloadVariant,
    WakeMe,
)
from sluicegate.policies.serving.device_events import (
    BatchEnded,
    BatchFailed,
    ExecutorEvent,
    Failure,
    Loaded,
    Reloaded,
)
from sluicegate.policies.serving.kept_executor import KILLS, KILLS_WITHIN, KeptExecutor
from sluicegate.policies.serving.running_batch import Batch, Neighbours, Retry

_WOKE = Woke()
_OFFERED = Offered()
_ANSWERED = OutcomeKind.ANSWERED
_ON_ITS_WAY = 0.001
"""Seconds that a slice is overdue whose executor is being started again, or loads."""


class SliceCore:
    """The slice of ``executors``. ``held``: all queries of the device, with their turns; ``gathering``: of its slices'
    reports. ``neighbours``: what shares queries among the slices, if anything does.
    """

    def __init__(
        self,
        executors: Sequence[KeptExecutor],
        *,
        station: StationPolicy,
        staging: StagingPolicy,
        times: BatchTimes,
        book: StreamBook,
        held: dict[Query, int],
        gathering: Gathering,
        neighbours: Neighbours | None,
    ) -> None:
        name = self.name = executors[0].part
        self.executors = tuple(executors)
        self.poison = executors[0].poison
        self.station = station
        self.staging = staging
        self.times = times
        self.book = book
        self._promises = False  # whether anything hosted here was promised something
        self._held = held
        self._gathering = gathering
        self._neighbours = neighbours
        self.staging_key = f"{name}/staging"
        self._retiring: dict[str, None] = {}
        self._warned: dict[str, None] = {}  # apps whose safe mode no policy has announced
        self._waiting: deque[LoadVariant | UnloadVariant] = deque()  # loads and what makes room for them, in order
        self._load_ends: dict[int, bool] = {}  # of the load under way, by executor
        self._late: dict[int, Batch] = {}  # at the last heartbeat
        self.left = False  # what waited went back, since the batch is overdue

    @property
    def queued(self) -> int:
        """Queries waiting or running."""
        return self.station.queued + sum([len(batch.run.queries) for batch in self.batches if not batch.gone])

    @property
    def batches(self) -> Iterator[Batch]:
        """Those that run."""
        return (batch for executor in self.executors if (batch := executor.batch) is not None)

    @property
    def loaded(self) -> tuple[str, ...]:
        """Variants ready."""
        return self.staging.loaded

    @property
    def hosts(self) -> bool:
        """Whether anything is hosted."""
        return bool(self.staging.hosted_apps)

    def report(self, now: float) -> SliceReport:
        """For a heartbeat; what was measured is told once."""
        busy = age = 0.0
        running = list(self.batches)
        if running:
            age = now - min(batch.started for batch in running)
        if len(running) == len(self.executors):
            busy = min(max(0.0, self.times.expected(one.run) - (now - one.started)) for one in running)
        observed = self.station.take_observed(now)
        return SliceReport(
            self.name,
            self.times.kind,
            self.station.rows,
            busy,
            self.loaded,
            self.times.take_measured(),
            observed,
            max(0.0, age),
            min([self._overdue(executor, now) for executor in self.executors]),
            self.station.margins,
        )

    def _overdue(self, executor: KeptExecutor, now: float) -> float:
        """By how much, at two heartbeats in a row: of one alone this process itself may be late.

        An executor that is being started again is on its way: routers leave it, and plans keep it. So is one that
        loads: it may be one that runs nothing meanwhile.
        """
        batch, seat = executor.batch, executor.seat
        before = self._late.pop(seat, None)
        if batch is None or not executor.whole:
            return 0.0 if executor.whole else _ON_ITS_WAY
        late = now - max(batch.started, executor.loaded_at) - self.times.patience(batch.run)
        if executor.loading:
            late = min(late, _ON_ITS_WAY)
        if late > 0.0:
            self._late[seat] = batch
        return late if late > 0.0 and before is batch else 0.0

    def arrived(self, event: Arrived, now: float, actions: list[DeviceAction]) -> None:
        """A query is put on this slice."""
        if self._promises:
            if self.book.repeated(event.query):
                self._leave(event.query)
                actions.append(Repeated(event.query))
                return
            if (resumed := self.book.arrived(event.query)) is not None:
                self._tell(resumed, now, actions)
        if event.flaw or self.poison.refuses(event.query, now):
            self._refuse(event.query, now, actions, event.flaw)
            return
        decided = self.station.handle(event, now)
        if decided:
            self._do(decided, now, actions)
        if self._retiring:
            self._retire(now, actions)

    def purge(self, now: float, actions: list[DeviceAction]) -> None:
        """What waits here and is known by now to end executors is not run."""
        poison = self.poison
        for app in sorted({query.app for query in self._held if poison.refuses(query, now)}):
            for query in self.station.drain(app):
                if poison.refuses(query, now):
                    self._refuse(query, now, actions)
                else:
                    self._tell(Arrived(query, self._held[query]), now, actions)

    def _refuse(self, query: Query, now: float, actions: list[DeviceAction], flaw: str = "") -> None:
        self._leave(query)
        if self._promises and query.query_class is QueryClass.STRICT:
            self._tell(Refused(query), now, actions)
        self._warn(query, actions)
        reason, kept = Reason.OBJECT_UNREADABLE if flaw else Reason.EXECUTOR_KILLED, self._kept(query, True)
        actions.append(End(self.name, query, OutcomeKind.FAILED, now, reason, flaw or REFUSED, kept))

    def woke(self, now: float, actions: list[DeviceAction]) -> None:
        """The station asked for it."""
        self._tell(_WOKE, now, actions)

    def turned(self, told: TurnsTold, now: float, actions: list[DeviceAction]) -> None:
        """The router of an app has given so many turns."""
        if self.staging.wants(told.app):
            self._tell(told, now, actions)

    def swap(self, tables: TablesChanged, now: float, actions: list[DeviceAction]) -> None:
        """Other selection tables are in force."""
        self._tell(tables, now, actions)

    def abandon(self, apps: Collection[str]) -> None:
        """Forget every query that waits; the batch that runs is answered by nobody here."""
        self.book.abandon()
        for app in apps:
            self.station.drain(app)
        for executor in self.executors:
            if executor.batch is not None:
                executor.batch.gone = True
                executor.abandon()

    def take_waiting(self, apps: Collection[str], now: float, actions: list[DeviceAction]) -> list[Query]:
        """Take out what waits of ``apps``, and not what runs."""
        taken = [query for app in apps for query in self.station.drain(app)]
        for query in taken:
            self._leave(query)
        self._retire(now, actions)
        return taken

    def ended(self, event: BatchEnded, now: float, actions: list[DeviceAction]) -> None:
        """What ran has ended."""
        executor, batch = self._ran(event, now)
        run, execution_s = batch.run, event.execution_s
        if batch.retry is not None:
            self.times.ran(run.variant, batch.retry.rows)
            batch.retry.answered(execution_s, now)
            self._run_next_alone(executor, batch, batch.retry, now, actions)
            return
        if executor.loading or batch.started < executor.loaded_at:
            self.times.ran_beside_a_load(run, event.seconds)
        elif event.seconds > 0.0:
            self.times.note(run, event.seconds, batch.together if len(self.executors) > 1 else 0)
        executor.batch = None
        finished = Finished(run.queries[0].app, run.variant, run.rows, execution_s)
        if batch.gone:
            self._finish(finished, now, actions)
            return
        missed = False
        held, neighbours = self._held, self._neighbours
        for query in run.queries:
            del held[query]
            if query.deadline < now:
                missed = True
            if neighbours is not None:
                neighbours.left(query)
        if missed:
            self._finish(finished, now, actions)
        promises = () if not self._promises else tuple(self._kept(q, q.deadline < now) for q in run.queries)
        actions.append(Answer(self.name, run, run.queries, batch.started, now, execution_s, promises))
        if not missed:
            self._finish(finished, now, actions)

    def failed(self, failed: BatchFailed, now: float, actions: list[DeviceAction]) -> None:
        """What ran failed."""
        executor, batch = self._ran(failed, now)
        if not executor.whole:
            executor.failure = failed
            return
        if failed.failure is Failure.KILLED:
            self._killed(executor, batch.run.variant, now, actions)
        if batch.retry is None:
            batch.retry = Retry(batch.run.queries, failed, self.poison, now)
        else:
            batch.retry.failed(failed, now)
        self._run_next_alone(executor, batch, batch.retry, now, actions)

    def _killed(self, executor: KeptExecutor, variant: str, now: float, actions: list[DeviceAction]) -> None:
        """Too often: plans do without it for a while, where the app has another."""
        if not executor.killed(variant, now) or self.times.is_only(variant):
            return
        told = (
            f"{variant} ended its executor {KILLS} times within {KILLS_WITHIN:.0f} s; plans do without it for a while"
        )
        self._withdraw("quarantined", variant, told, actions)

    def _withdraw(self, what: str, variant: str, told: str, actions: list[DeviceAction]) -> None:
        actions.append(Say(what, told))
        withdrawn = self._gathering.withdrawn(self.name, variant)
        if withdrawn is not None:
            actions.append(withdrawn)

    def _at(self, seat: int, now: float) -> KeptExecutor:
        if not 0 <= seat < len(self.executors):
            raise IllegalEventError(f"{self.name} has no executor {seat} at {now}")
        return self.executors[seat]

    def _ran(self, event: BatchEnded | BatchFailed, now: float) -> tuple[KeptExecutor, Batch]:
        seat, executors = event.seat, self.executors
        executor = executors[seat] if 0 <= seat < len(executors) else self._at(seat, now)
        if executor.batch is None:
            raise IllegalEventError(f"{type(event).__name__} of {self.name} at {now} while nothing runs there")
        return executor, executor.batch

    def _idle(self, run: Run, now: float) -> KeptExecutor:
        """Of those without a batch the first that runs, else the first."""
        first = self.executors[0]
        if first.batch is None and first.whole:
            return first
        idle = [executor for executor in self.executors if executor.batch is None]
        if not idle:
            runs = ", ".join(batch.run.variant for batch in self.batches)
            raise IllegalEventError(f"{self.name} is to run {run.variant} at {now} while {runs} runs")
        return next((executor for executor in idle if executor.whole), idle[0])

    def _begin(self, run: Run, now: float, actions: list[DeviceAction]) -> None:
        executor = self._idle(run, now)
        held = self._held
        for query in run.queries:
            if query not in held:
                raise IllegalEventError(f"{self.name} is to run query {query.id} at {now}, which is not here")
        executor.batch = Batch(run, now)
        if len(self.executors) > 1:
            self._count_away()
            together = sum([1 for _ in self.batches])
            for batch in self.batches:
                batch.together = max(batch.together, together)
        if self._neighbours is not None:
            self._neighbours.started(self.name, run.queries, now, actions)
        executor.run(RunBatch(self.name, run, self.times.limit(run), seat=executor.seat), actions)

    def _run_next_alone(
        self, executor: KeptExecutor, batch: Batch, retry: Retry, now: float, actions: list[DeviceAction]
    ) -> None:
        query = None if batch.gone else retry.next(now)
        if query is not None:
            run = Run(batch.run.variant, (query,), query.rows)
            executor.run(RunBatch(self.name, run, self.times.limit(run), again=True, seat=executor.seat), actions)
            return
        executor.batch = None
        run = batch.run
        self._finish(Finished(run.queries[0].app, run.variant, run.rows, 0.0, failed=True), now, actions)
        for query, kind, at, execution_s, detail, reason in () if batch.gone else retry.ends:
            self._leave(query)
            promise = self._kept(query, kind is not _ANSWERED or query.deadline < at)
            if kind is _ANSWERED:
                promises = () if promise is None else (promise,)
                actions.append(Answer(self.name, run, (query,), batch.started, at, execution_s, promises))
            elif kind is OutcomeKind.FAILED:
                actions.append(End(self.name, query, kind, at, reason, detail, promise, run, batch.started))
            else:
                actions.append(End(self.name, query, kind, at, None, detail, promise))

    def _finish(self, event: Finished, now: float, actions: list[DeviceAction]) -> None:
        if self._neighbours is not None:
            self._neighbours.ended(self.name, event.app, now, actions)
        self._tell(event, now, actions)
        if self._waiting:
            self._load_on(actions)

    def _end(
        self, query: Query, kind: OutcomeKind, reason: Reason | None, now: float, actions: list[DeviceAction]
    ) -> None:
        self._leave(query)
        self._warn(query, actions)
        actions.append(End(self.name, query, kind, now, reason, None, self._kept(query, True)))

    def _warn(self, query: Query, actions: list[DeviceAction]) -> None:
        """Of a miss that no policy hears of."""
        if self.book.unheard(query):
            self._warned[query.app] = None
            self._say(query.app, "safe_mode", "queries are missed before anything is hosted for them", actions)

    def _leave(self, query: Query) -> None:
        if self._held.pop(query, None) is None:
            raise IllegalEventError(f"query {query.id} of {query.app} ends a second time on {self.name}")
        if self._neighbours is not None:
            self._neighbours.left(query)

    def _kept(self, query: Query, missed: bool) -> PromiseState | None:
        return self.book.ended(query, missed) if self._promises else None

    def _say(self, app: str, state: str, detail: str, actions: list[DeviceAction]) -> None:
        self.book.announced(app, state)
        actions.append(Announce(f"app:{app}", state, detail))

    def _unwarn(self, app: str, detail: str, actions: list[DeviceAction]) -> None:
        if app in self._warned:
            del self._warned[app]
            self._say(app, "promise_kept", detail, actions)

    def _tell(self, event: StationEvent, now: float, actions: list[DeviceAction]) -> None:
        decided = self.station.handle(event, now)
        if decided:
            self._do(decided, now, actions)
        if self._retiring:
            self._retire(now, actions)

    def _do(self, decided: list[StationAction], now: float, actions: list[DeviceAction]) -> None:
        for action in decided:
            if isinstance(action, Run):
                self._begin(action, now, actions)
            elif isinstance(action, WakeAt):
                actions.append(WakeMe(action.at, self.name))
            elif isinstance(action, Expire):
                self._end(action.query, OutcomeKind.EXPIRED, None, now, actions)
            elif isinstance(action, Drop):
                self._end(action.query, OutcomeKind.DROPPED, action.reason, now, actions)
            else:
                self.book.announced(action.subject.removeprefix("app:"), action.state)
                actions.append(action)

    def plan(self, event: PlanPublished, now: float, actions: list[DeviceAction]) -> None:
        """A plan counts on this device."""
        self._stage(event, now, actions)
        for app in [app for app in self._warned if not self.staging.wants(app)]:
            self._unwarn(app, "it is served elsewhere", actions)

    def staging_woke(self, now: float, actions: list[DeviceAction]) -> None:
        """Staging asked for it."""
        self._stage(_WOKE, now, actions)

    def loaded_variant(self, event: Loaded, now: float, actions: list[DeviceAction]) -> None:
        """A load has ended in one of the executors, and with the last of them altogether."""
        executor, variant, ends = self._at(event.seat, now), event.variant, self._load_ends
        if not executor.loaded(variant, event.ok, now, actions):
            return
        ends[event.seat] = event.ok
        if event.ok:
            self.times.loaded(variant, event.seconds)
        if len(ends) < len(self.executors):
            return
        ok = all(ends.values())
        if not ok:
            actions += [UnloadVariant(self.name, variant, seat) for seat, loaded in ends.items() if loaded]
        ends.clear()
        self._stage(LoadEnded(variant, ok), now, actions)

    def _stage(self, event: StagingEvent, now: float, actions: list[DeviceAction]) -> None:
        for action in self.staging.handle(event, now):
            match action:
                case Load(variant, max_batch):
                    self._waiting.append(LoadVariant(self.name, variant, max_batch, self.times.load_limit(variant)))
                case Unload(variant):
                    self._waiting.append(UnloadVariant(self.name, variant))
                case Host(change):
                    self.book.hosting(change)
                    self._promises = not self.book.empty
                    if change.hosted:
                        self._unwarn(change.app, "something is hosted", actions)
                    self._tell(change, now, actions)
                    if self._neighbours is not None:
                        self._neighbours.hosted(self.name, change, now, actions)
                    if not change.hosted:
                        self._send_waiting_back(change.app, now, actions)
                case Acknowledge():
                    staged = self._gathering.staged(self.name, action)
                    if staged is not None:
                        actions.append(staged)
                case Retire(app):
                    self._retiring[app] = None
                    self._retire(now, actions)
                case WakeAt(at):
                    actions.append(WakeMe(at, self.staging_key))
                case _ as unreachable:
                    assert_never(unreachable)
        self._load_on(actions)

    def _send_waiting_back(self, app: str, now: float, actions: list[DeviceAction]) -> None:
        """What waits for an app that nothing is hosted for any more is for others, but for what a stream counts on."""
        for query in () if self.staging.wants(app) else self.station.drain(app):
            if self.book.counts(query):
                self._tell(Arrived(query, self._held[query]), now, actions)
            else:
                self._leave(query)
                actions.append(SendBack(query))

    def executor_told(self, event: ExecutorEvent, now: float, actions: list[DeviceAction]) -> None:
        """Its process has ended, or it is being made whole."""
        executor = self._at(event.seat, now)
        if isinstance(event, Reloaded):
            if event.ok:
                self.times.loaded(event.variant, event.seconds)
            else:
                told = f"{event.variant} could not be loaded again; plans do without it for a while"
                self._withdraw("not_reloaded", event.variant, told, actions)
                if not executor.died:  # else it is tried once more
                    self._stage(LoadLost(event.variant), now, actions)
        # What it has loaded already while others still load it is to be loaded again, too.
        under_way = (executor.loads_last,) if self._load_ends.get(event.seat) else ()
        batch = executor.batch
        # What runs with a variant that is to leave is run again with it; that leaves once it has ended.
        running = (batch.run.variant,) if batch is not None and not batch.gone else ()
        actions += executor.told(event, tuple(dict.fromkeys((*self.loaded, *under_way, *running))), now)
        self._count_away()
        if not executor.whole:
            return
        failure, executor.failure = executor.failure, None
        if failure is not None:
            self.failed(failure, now, actions)
        self._load_on(actions)
        if len(self.executors) > 1:
            self._tell(_OFFERED, now, actions)

    def _count_away(self) -> None:
        if len(self.executors) > 1:
            self.station.away = sum([not one.whole and one.batch is None for one in self.executors])

    def _load_on(self, actions: list[DeviceAction]) -> None:
        if not all(executor.whole for executor in self.executors):
            return
        run = {batch.run.variant for batch in self.batches}
        waiting = self._waiting
        while waiting and not (isinstance(waiting[0], UnloadVariant) and waiting[0].variant in run):
            asked = waiting.popleft()
            for executor in self.executors:
                mine = replace(asked, seat=executor.seat) if executor.seat else asked
                if isinstance(mine, LoadVariant):
                    executor.load(mine, actions)
                else:
                    actions.append(mine)

    def _retire(self, now: float, actions: list[DeviceAction]) -> None:
        if not self._retiring:
            return
        running = {batch.run.queries[0].app for batch in self.batches}
        for app in tuple(self._retiring):
            if app not in running and app in self._retiring and not self.station.queued_of(app):
                del self._retiring[app]
                self._stage(Retired(app), now, actions)

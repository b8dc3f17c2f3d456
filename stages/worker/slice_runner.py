"""One slice at work: its station and staging policies, its executor, their timers.

A shell: it turns policy actions into executor calls and outcomes, and holds no decision. Everything runs on one event
loop, so ``handle`` is never entered twice; batches and loads run as tasks.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

from sluicegate.domain.actions import (
    Acknowledge,
    Announce,
    Drop,
    Expire,
    Host,
    Load,
    Retire,
    Run,
    StagingAction,
    Unload,
    WakeAt,
)
from sluicegate.domain.clock import Clock
from sluicegate.domain.errors import ExecutionError, LoadError
from sluicegate.domain.events import (
    Arrived,
    Finished,
    HostingChanged,
    LatencyMeasured,
    LoadEnded,
    PlanPublished,
    Retired,
    StagingEvent,
    StationEvent,
    TurnsTold,
    Woke,
)
from sluicegate.domain.executor import Executor
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.plan import NO_EPOCH, Epoch, Plan
from sluicegate.domain.query import Query
from sluicegate.domain.table import TableObserved, TablesChanged
from sluicegate.policies.promises.stream_book import Recall, StreamBook
from sluicegate.policies.protocols import FollowsTables
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.runtime.timers import Wakes
from sluicegate.stages.telemetry.telemetry import Telemetry
from sluicegate.stages.telemetry.tracing import Tracing
from sluicegate.stages.worker.batch_runner import Batches, Ending, RunLimits
from sluicegate.stages.worker.kept_executor import KeptExecutor

log = logging.getLogger(__name__)

Outputs = Sequence[Tensor]


class Ends(Protocol):
    """Takes each query's end: the outcome and, when answered, its outputs."""

    def __call__(self, query: Query, outcome: Outcome, outputs: Outputs) -> None:
        """The query has ended."""
        ...


class Watch(Protocol):
    """Hears what becomes of a slice, to choose among several."""

    def hosted(self, part: str, change: HostingChanged) -> None:
        """It hosts other variants of an app."""
        ...

    def started(self, part: str, queries: tuple[Query, ...]) -> None:
        """It runs a batch."""
        ...

    def ended(self, part: str) -> None:
        """The batch has ended."""
        ...


@dataclass(slots=True)
class _Waiting:
    tensors: Sequence[Tensor]
    since: float
    epoch: Epoch


class SliceRunner:
    """``station`` and ``staging`` decide; ``ends`` is told each query's outcome, ``acknowledge`` each staged epoch.

    ``fails`` is told of what should never be raised here: the slice may stand still from then on.
    """

    def __init__(
        self,
        *,
        device: Device,
        part: Slice,
        station: Any,
        staging: Any,
        policy: str,
        executor: Executor,
        catalogue: Catalogue,
        clock: Clock,
        ends: Ends,
        acknowledge: Callable[[str, Acknowledge], None],
        fails: Callable[[BaseException], None],
        announce: Callable[[Announce, float], None] = lambda _said, _at: None,
        telemetry: Telemetry | None = None,
        limits: RunLimits | None = None,
    ) -> None:
        telemetry = telemetry or Telemetry()
        self._meters, self._tracing = telemetry.meters, telemetry.tracing
        self._device = device
        self._slice = part
        self._station = station
        self._staging = staging
        self._policy = policy
        self._executor = executor
        self._catalogue = catalogue
        self._clock = clock
        self._ends = ends
        self._acknowledge = acknowledge
        self._announce = announce
        self._fails = fails
        self.watch: Watch | None = None
        self._waiting: dict[Query, _Waiting] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unloads: set[asyncio.Task[None]] = set()
        self._wakes = Wakes(clock)
        self._retiring: set[str] = set()
        self._running_app: str | None = None
        self._running_variant: str | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._best = {app: catalogue.best_accuracy(app) for app in catalogue.apps}
        self._batches = Batches(
            device,
            part,
            executor=executor,
            catalogue=catalogue,
            clock=clock,
            meters=self._meters,
            inputs=self._inputs,
            restart=lambda: self._kept.restart(),
            limits=limits,
        )
        self._kept = KeptExecutor(
            executor,
            f"{device.name}/{part.name}",
            clock=clock,
            held=lambda: [catalogue.variants[name] for name in self._staging.loaded],
            spawn=self._spawn,
            restarts=lambda: self._meters.add("sluice_executor_restarts", device.name),
            loaded=self._batches.loaded,
        )
        self._book = StreamBook((device.name, part.name))

    @property
    def station(self) -> Any:
        """What decides upon batches."""
        return self._station

    @property
    def executor(self) -> Executor:
        """What runs them."""
        return self._executor

    @property
    def queued(self) -> int:
        """Queries waiting or running."""
        return len(self._waiting)

    @property
    def kind(self) -> str:
        """What profiles call this slice."""
        return self._batches.kind

    @property
    def loaded(self) -> tuple[str, ...]:
        """Variants ready."""
        return tuple(self._staging.loaded)

    @property
    def hosts(self) -> bool:
        """Whether anything is hosted."""
        return bool(self._staging.hosted_apps)

    def serves(self, app: str) -> bool:
        """Whether queries of ``app`` can be answered here."""
        return bool(self._staging.wants(app))

    def take_measured(self) -> list[LatencyMeasured]:
        """Batch latencies since the last call, one mean a variant and size."""
        return self._batches.take_measured()

    @property
    def busy_for(self) -> float:
        """Seconds until the running batch is expected to end, 0 while idle."""
        return self._batches.busy_for

    def take_busy(self) -> float:
        """Seconds the executor ran since the last call."""
        return self._batches.take_busy()

    def registered(self, served: Catalogue) -> None:
        """Other apps or variants are served from now on; the catalogue handed at the start knows them already."""
        self._best |= {app: served.best_accuracy(app) for app in served.apps}
        self._batches.registered()

    async def start(self) -> None:
        """Start the executor."""
        await self._kept.start()

    def arrived(self, query: Query, tensors: Sequence[Tensor], epoch: Epoch, turn: int = -1) -> None:
        """A query came by the work topic, as number ``turn`` of those that the router sent (-1: not counted)."""
        now = self._clock.wall()
        self._waiting[query] = _Waiting(tensors, now, epoch)
        if not self._book.empty and (resumed := self._book.arrived(query)) is not None:
            self._tell_station(resumed)
        self._tell_station(Arrived(query, turn))

    def recalled(self, recall: Recall) -> None:
        """What the results topics tell of streams that were promised something, before the first query comes."""
        self._book.recalled(recall)

    def swap(self, tables: TablesChanged) -> None:
        """Other selection tables are in force."""
        self._tell_station(tables)

    def turned(self, told: TurnsTold) -> None:
        """The router of an app has given so many turns."""
        if self.serves(told.app):
            self._tell_station(told)

    def take_observed(self) -> tuple[TableObserved, ...]:
        """What became of queries under selection tables since the last call."""
        policies = (self._station.policy_of(app) for app in self._staging.hosted_apps)
        return tuple(o for p in policies if isinstance(p, FollowsTables) for o in p.take_observed(self._clock.wall()))

    def plan(self, plan: Plan) -> None:
        """A plan was published."""
        self._tell_staging(PlanPublished(plan))

    def abandon(self) -> tuple[Query, ...]:
        """Forget every query that waits: others answer them. The batch that runs is answered by nobody here."""
        gone = tuple(self._waiting)
        self._waiting.clear()
        self._book.abandon()
        for app in self._catalogue.apps:
            self._station.drain(app)
        return gone

    def take_waiting(self, but: Collection[str]) -> list[tuple[Query, tuple[Tensor, ...], Epoch]]:
        """Take out what waits, for another device; not of the apps ``but``, and not what runs."""
        taken = []
        for query in [q for app in self._catalogue.apps if app not in but for q in self._station.drain(app)]:
            waiting = self._waiting.pop(query, None)
            if waiting is not None:
                taken.append((query, tuple(waiting.tensors), waiting.epoch))
        self._try_to_retire()
        return taken

    async def close(self) -> None:
        """Stop timers, tasks and the executor."""
        self._wakes.cancel()
        self._kept.let_go()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._kept.close()

    # -- the station

    def _tell_station(self, event: StationEvent, now: float | None = None) -> None:
        now = self._clock.wall() if now is None else now
        for action in self._station.handle(event, now):
            match action:
                case Run():
                    self._running_app = action.queries[0].app
                    self._running_variant = action.variant
                    self._idle.clear()
                    if self.watch is not None:
                        self.watch.started(self._slice.name, action.queries)
                    self._spawn(self._run(action))
                case Drop(query, reason):
                    self._end(Ending(query, OutcomeKind.DROPPED, self._clock.wall(), reason))
                case Expire(query):
                    self._end(Ending(query, OutcomeKind.EXPIRED, self._clock.wall()))
                case WakeAt(at):
                    self._wakes.wake_at("station", at, self._station_woke)
                case Announce(subject, state):
                    self._book.announced(subject.removeprefix("app:"), state)
                    self._announce(action, now)
                case _ as unreachable:
                    assert_never(unreachable)
        if self._retiring:
            self._try_to_retire()

    def _station_woke(self) -> None:
        self._tell_station(Woke())

    async def _run(self, run: Run) -> None:
        started = self._clock.wall()
        await self._kept.ready()
        ran = await self._batches.run(run)
        if self._tracing is not None and ran.ends:
            self._trace(self._tracing, run, started)
        event = Finished(run.queries[0].app, run.variant, run.rows, ran.execution_s, ran.failed)
        now = ran.ends[0].at if ran.ends and not ran.failed else self._clock.wall()
        missed = not all(end.on_time for end in ran.ends)
        if missed:  # the policy hears of misses before they are written: it may have to announce them
            self._finished(event, now)
        for end in ran.ends:
            self._end(end)
        if not missed:
            self._finished(event, now)

    def _inputs(self, query: Query) -> Sequence[Tensor] | None:
        waiting = self._waiting.get(query)
        return None if waiting is None else waiting.tensors

    def _trace(self, tracing: Tracing, run: Run, started: float) -> None:
        told = {"sluice.variant": run.variant, "sluice.device": self._device.name, "sluice.rows": run.rows}
        tracing.batch((query.key for query in run.queries), started, self._clock.wall(), told)

    def _finished(self, event: Finished, now: float) -> None:
        self._running_app = self._running_variant = None
        self._idle.set()
        if self.watch is not None:
            self.watch.ended(self._slice.name)
        self._tell_station(event, now)

    def _end(self, end: Ending) -> None:
        query, run, started = end.query, end.run, end.started
        waiting = self._waiting.pop(query, None)
        if waiting is None:
            return  # abandoned meanwhile: another device answers it
        answered = end.kind is OutcomeKind.ANSWERED
        outcome = Outcome.of(
            query,
            end.kind,
            end.at,
            reason=end.reason,
            detail=end.detail,
            variant=run.variant if run else None,
            accuracy=self._catalogue.variants[run.variant].accuracy if run and answered else 0.0,
            best_accuracy=self._best[query.app],
            device=self._device.name,
            slice=self._slice.name,
            epoch=waiting.epoch if waiting.epoch != NO_EPOCH else None,
            policy=self._policy,
            batch_size=run.rows if run else 0,
            queue_s=(end.at if started is None else started) - waiting.since,
            batch_s=0.0 if started is None else end.at - started,
            execution_s=end.execution_s,
            promise=None if self._book.empty else self._book.ended(query, not end.on_time),
        )
        self._ends(query, outcome, end.outputs)

    # -- staging

    def _tell_staging(self, event: StagingEvent) -> None:
        self._do_staging(self._staging.handle(event, self._clock.wall()))

    def _do_staging(self, actions: Sequence[StagingAction]) -> None:
        for action in actions:
            match action:
                case Load(variant, max_batch):
                    self._spawn(self._load(variant, max_batch, tuple(self._unloads)))
                case Unload(variant):
                    unload = self._spawn(self._unload(variant))
                    self._unloads.add(unload)
                    unload.add_done_callback(self._unloads.discard)
                case Host(change):
                    self._book.hosting(change)
                    self._tell_station(change)
                    if self.watch is not None:
                        self.watch.hosted(self._slice.name, change)
                case Acknowledge():
                    self._acknowledge(self._slice.name, action)
                case Retire(app):
                    self._retiring.add(app)
                    self._try_to_retire()
                case WakeAt(at):
                    self._wakes.wake_at("staging", at, self._staging_woke)
                case _ as unreachable:
                    assert_never(unreachable)

    def _staging_woke(self) -> None:
        self._tell_staging(Woke())

    def _try_to_retire(self) -> None:
        for app in tuple(self._retiring):
            if not self._station.queued_of(app) and self._running_app != app:
                self._retiring.discard(app)
                self._tell_staging(Retired(app))

    async def _load(self, variant: str, max_batch: int, after: Sequence["asyncio.Task[None]"]) -> None:
        """``after``: what makes room for it; a batch may still run there."""
        if after:
            await asyncio.wait(after)
        try:
            await self._kept.load(self._catalogue.variants[variant], max_batch)
        except (LoadError, ExecutionError) as error:
            log.error("%s cannot be loaded on %s: %s", variant, self._device.name, error)
            self._meters.add("sluice_variant_loads", self._device.name, variant, "no")
            self._tell_staging(LoadEnded(variant, ok=False))
        else:
            self._meters.add("sluice_variant_loads", self._device.name, variant, "yes")
            self._tell_staging(LoadEnded(variant, ok=True))

    async def _unload(self, variant: str) -> None:
        """Forget it once the batch that still runs with it, if any, has ended: no further one will begin."""
        while self._running_variant == variant:
            await self._idle.wait()
        await self._kept.unload(variant)

    # -- tasks and timers

    def _spawn(self, work: Any) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)
        return task

    def _reap(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("%s/%s: %s", self._device.name, self._slice.name, error, exc_info=error)
            self._fails(error)

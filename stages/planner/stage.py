"""The planner: a shell around its core (``sluicegate.planner.control.core``), which decides everything.

It turns records into events and actions into records; plans are solved and tables made beside it, sweeping dead
devices' work topics runs as tasks. What the core asked for as a leader ends when it steps down.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import assert_never

from sluicegate.domain.actions import Announce, Publish, Reclaim, WakeAt
from sluicegate.domain.errors import IllegalEventError, InvalidInputError, SluiceError
from sluicegate.planner.control.core import PlannerCore
from sluicegate.planner.control.events import (
    CatchUp,
    ClockRead,
    DeviceHeard,
    DeviceNoted,
    End,
    Heard,
    LetIn,
    LogReached,
    Move,
    Parted,
    PlanHidden,
    PlannerAction,
    PlannerEvent,
    PlanRead,
    PlansRead,
    SafeMode,
    SafeModeRead,
    StandIn,
    Stopping,
    Sweep,
    SweepFailed,
    TableRead,
    TablesReached,
)
from sluicegate.planner.control.leader_lease import Lead, LeaseRead, StepDown, Write
from sluicegate.planner.control.replan_trigger import Solve, Solved
from sluicegate.planner.greedy_fill import GreedyFill
from sluicegate.planner.policy_tables.keys import decode_name, encode_name
from sluicegate.planner.policy_tables.table_codec import decode, encode
from sluicegate.planner.policy_tables.table_requests import LibraryRules
from sluicegate.planner.policy_tables.table_schedule import Made, Make, PutTable, WithdrawTable, missing_load
from sluicegate.planner.problems.problem import Planner, Problem
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.connections import Connections
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.following.work_topics import WorkTopics
from sluicegate.stages.planner.dead_device_sweep import Reclaimer
from sluicegate.stages.planner.solver import Solver, SolvesHere
from sluicegate.stages.planner.table_publisher import TableMaker
from sluicegate.stages.runtime.background_tasks import BackgroundTasks, beside
from sluicegate.stages.runtime.decision_log import Handle
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.telemetry.telemetry import SafeModes, count_plan, stands_by
from sluicegate.streams.ports import BrokerError, Record, TopicPartition
from sluicegate.streams.records import control
from sluicegate.streams.records.demand_windows import WindowReader, decode_windows

log = logging.getLogger(__name__)

_Said = Write | Publish | Announce | SafeMode | PutTable | WithdrawTable
_Work = CatchUp | Solve | StandIn | Sweep | LetIn | Make
_Done = _Said | _Work | WakeAt | Lead | StepDown | Reclaim

_LOGGED = {
    "took_over": "leads",
    "hears_again": "hears again",
    "overrules": "overrules",
    "refuses_lease": "refuses",
    "drift": "drift",
    "as_promised": "as promised",
    "starved": "starved",
    "keeps_up": "keeps up",
    "contested": "is run by two workers",
}
"""States that the log tells too, and how."""
_FOR_DEVICE = "@planner-"
"""In keys of the status topic: between an app and the device for whose sake the planner speaks of its promise."""
_STANDS_IN = SolvesHere(GreedyFill())
_CATCH_UP = 0.5
"""Seconds that reading the newest plan may take before it is tried again."""
_PARTING = 2.0
"""Seconds that what was said may take to be written before the lease is given back."""


class PlannerStage:
    """One leads a system, any number may run.

    ``handle``: of ``core``, as it is recorded. ``solver``: answers questions. ``apps``: whose results tell what dead
    devices answered. ``library``: how tables are made, where batching goes by them. ``demand_windows``: demand is read
    from the windows that stages ``demand`` make, not as admission counts it.
    """

    name = "planner"

    def __init__(
        self,
        connections: Connections,
        core: PlannerCore,
        handle: Handle[PlannerEvent, PlannerAction],
        *,
        solver: Solver,
        apps: Sequence[str],
        exactly_once: bool = False,
        library: LibraryRules | None = None,
        demand_windows: bool = False,
    ) -> None:
        self._broker = connections.broker
        self._topics = connections.topics
        self._clock = connections.clock
        self._meters = connections.telemetry.meters
        self._safe_modes = SafeModes(self._meters, apps)
        self._core = core
        self._handle = handle
        self._solver = solver
        self._windows = WindowReader() if demand_windows else None
        self._outbox = Outbox(connections.producer, connections.topics.control)
        connections.telemetry.of_outbox(self.name, self._outbox)
        self._reclaimer = Reclaimer(connections, self._outbox, self._tell, apps=apps, exactly_once=exactly_once)
        self._works = WorkTopics(self._broker, self._topics, self._clock)
        self._maker = TableMaker(library) if library is not None else None
        self._plans = Follower(self._broker, self._topics.plan, self._on_plan, passed_over=self._on_hidden)
        self._wake_at = 0.0
        self._stirred = asyncio.Event()
        self._tasks = BackgroundTasks("planner")

    @property
    def planner(self) -> Planner:
        """What plans are asked of."""
        return self._solver.planner

    @property
    def core(self) -> PlannerCore:
        """What decides."""
        return self._core

    def leads(self) -> bool:
        """Whether it may act now: this process may have stood still since it last looked."""
        return self._core.leads(self._clock.monotonic())

    async def run(self, stop: asyncio.Event) -> None:
        """Plan while this one leads, listen while another does, until ``stop``."""
        await self._outbox.start()
        await self._works.look()
        at_start = [self._plans, Follower(self._broker, self._topics.status, self._on_status)]
        tables = Follower(self._broker, self._topics.policies, self._on_table)
        followers = [
            *at_start,
            Follower(self._broker, self._topics.demand_windows, self._on_windows)
            if self._windows is not None
            else Follower(self._broker, self._topics.demand, self._on_demand, start_at="end", every_partition=True),
            Follower(self._broker, self._topics.devices_metrics, self._on_heartbeat, start_at="end"),
            Follower(self._broker, self._topics.acks, self._on_acknowledged, start_at="end"),
            Follower(self._broker, self._topics.devices, self._on_note),
            *([tables] if self._maker is not None else []),
        ]
        try:
            following = [follower.run(stop) for follower in followers]
            async with beside([*following, self._tables_known(tables), self._outbox.failure()]):
                for follower in at_start:
                    await follower.ready.wait()
                self._tell(ClockRead(self._clock.wall()))
                self._tell(LogReached())
                while not stop.is_set():
                    self._tell(ClockRead(self._clock.wall()))
                    await self._pause()
        finally:
            self._tell(Stopping())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PARTING):
                    await self._outbox.flush()
            self._tell(Parted())
            await self._tasks.over()
            await self._solver.close()
            await self._works.close()
            await self._reclaimer.close()
            if self._maker is not None:
                await self._maker.close()
            await self._outbox.stop()

    async def registered(self, served: Catalogue) -> None:
        """Other apps or variants are served from now on."""
        self._reclaimer.registered(served.apps)
        self._safe_modes.registered(served.apps)
        self._tell(served.registered)

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._wake_at - self._clock.monotonic())):
                await self._stirred.wait()
        self._stirred.clear()

    async def _tables_known(self, tables: Follower) -> None:
        if self._maker is not None:
            await tables.ready.wait()
            self._tell(TablesReached())

    def _on_plan(self, record: Record) -> None:
        if record.value is not None:
            self._tell(PlanRead(control.decode_plan(record.value)))

    def _on_hidden(self) -> None:
        self._tell(PlanHidden())

    def _on_status(self, record: Record) -> None:
        if record.value is None:
            self._tell(Heard())
        elif record.key == control.LEASE_KEY:
            self._tell(LeaseRead(control.decode_lease(record.value)))
        else:
            self._tell(Heard())
            subject, by_planner, device = (record.key or b"").decode("utf-8", "replace").partition(_FOR_DEVICE)
            if by_planner:
                on = control.decode_announce(record.value).state == "safe_mode"
                self._tell(SafeModeRead(subject.removeprefix("app:"), device, on))
                self._safe_modes.told(subject, device, on=on)
            elif self._maker is not None:
                missing = missing_load(control.decode_announce(record.value))
                if missing is not None:
                    self._tell(missing)

    def _on_demand(self, record: Record) -> None:
        if record.value is not None:
            self._tell(control.decode_demand(record.value))

    def _on_windows(self, record: Record) -> None:
        if record.value is not None and self._windows is not None:
            for counted in self._windows.read(decode_windows(record.value), self._clock.wall()):
                self._tell(counted)

    def _on_heartbeat(self, record: Record) -> None:
        if record.value is None:
            return
        beat = control.decode_heartbeat(record.value)
        if self._works.lacking([beat.seen.device]):
            self._works.look_soon()
            raise InvalidInputError("heartbeat.seen.device", f"{beat.seen.device!r:.80} has no work topic")
        overdue = min((part.overdue for part in beat.slices), default=0.0)
        self._tell(DeviceHeard(beat.seen, beat.measured, beat.observed, overdue, beat.late, beat.ended))

    def _on_acknowledged(self, record: Record) -> None:
        if record.value is None:
            return
        try:
            self._tell(control.decode_acknowledged(record.value))
        except IllegalEventError as error:  # no worker acknowledges what nobody published
            raise InvalidInputError("acknowledgement", str(error).partition("\n")[0]) from None

    def _on_note(self, record: Record) -> None:
        if record.value is None:
            device, _, by = (record.key or b"").decode("utf-8", "replace").rpartition("@")
            self._tell(DeviceNoted(device, by))
        else:
            note = control.decode_note(record.value)
            self._tell(DeviceNoted(note.device, note.by, note.withdrawn, note.price))

    def _on_table(self, record: Record) -> None:
        name = decode_name(record.key)
        self._tell(TableRead(name, None if record.value is None else decode(record.value)))

    def _tell(self, event: PlannerEvent) -> list[Move | End]:
        """Have it decided, and do that; what was said of records that a dead device left is its reader's to do."""
        of_records: list[Move | End] = []
        for action in self._handle(event, self._clock.monotonic()):
            if isinstance(action, Move | End):
                of_records.append(action)
            else:
                self._do(action)
        return of_records

    def _do(self, action: _Done) -> None:
        match action:
            case WakeAt(at):
                self._wake_at = at
            case Write() | Publish() | Announce() | SafeMode() | PutTable() | WithdrawTable():
                self._say(action)
            case Lead():
                self._meters.set("sluice_planner_leading", 1.0)
                if self._maker is not None:
                    self._tasks.begin(self._maker.start())
            case StepDown(reason):
                if reason:
                    log.warning("planner: stands by: %s", reason)
                stands_by(self._meters)
                self._tasks.cancel()
                if self._maker is not None:
                    self._tasks.begin(self._maker.close())
            case Reclaim(device):
                self._meters.add("sluice_devices_lost", device)
            case CatchUp() | Solve() | StandIn() | Sweep() | LetIn() | Make():
                self._tasks.begin(self._work(action))
            case _:
                assert_never(action)

    def _say(self, action: _Said) -> None:
        topics, post = self._topics, self._outbox.post
        match action:
            case Write(lease):
                post(topics.status, control.encode_lease(lease), key=control.LEASE_KEY)
            case Publish(plan):
                post(topics.plan, control.encode_plan(plan), key=b"plan")
                count_plan(self._meters, plan)
            case Announce(subject, state, detail):
                if state in _LOGGED:
                    log.warning("%s: %s: %s", subject, _LOGGED[state], detail)
                self._meters.add("sluice_announcements", self.name, state)
                post(topics.status, control.encode_announce(action), key=subject.encode())
            case SafeMode(_, device):
                said = action.said
                self._meters.add("sluice_announcements", self.name, said.state)
                key = f"{said.subject}{_FOR_DEVICE}{device}".encode()
                post(topics.status, control.encode_announce(said, self._clock.wall()), key=key)
            case PutTable(name, table):
                post(topics.policies, encode(table), key=encode_name(name))
            case WithdrawTable(name):
                post(topics.policies, None, key=encode_name(name))
            case _:
                assert_never(action)

    async def _work(self, action: _Work) -> None:
        match action:
            case CatchUp(term):
                await self._catch_up(term)
            case Solve(problem, reason):
                await self._solve(self._solver, problem, reason, action.number)
            case StandIn(problem, reason, number):
                await self._solve(_STANDS_IN, problem, reason, number, provisional=True)
            case Sweep(device):
                await self._sweep(device)
            case LetIn(device):
                await self._reclaimer.let_in(device)
            case Make():
                await self._make(action)
            case _:
                assert_never(action)

    async def _catch_up(self, term: int) -> None:
        try:
            async with asyncio.timeout(_CATCH_UP):
                await self._plans.catch_up()
                if not await self._works.look():
                    raise BrokerError("work topics cannot be looked up")
                devices = self._works.devices()
                fenced = [device for device in self._core.fences if device in devices]
                done = await asyncio.gather(*(self._committed(device) for device in fenced))
        except (TimeoutError, BrokerError) as error:
            log.warning("planner: the newest plan cannot be read (%s); it cannot lead yet", str(error) or "no answer")
            self._tell(PlansRead(term, ok=False))
        else:
            self._tell(PlansRead(term, devices=devices, committed=dict(zip(fenced, done, strict=True))))
            self._stirred.set()

    async def _committed(self, device: str) -> int:
        """Up to where what lies on its work topic is done: by its worker, or by who swept."""
        work, admin = TopicPartition(self._topics.work(device), 0), self._broker.admin()
        groups = (self._topics.worker_group(device), self._topics.swept_group)
        return max(found or 0 for found in await asyncio.gather(*(admin.committed(group, work) for group in groups)))

    async def _solve(
        self, solver: Solver, problem: Problem, reason: str, number: int, *, provisional: bool = False
    ) -> None:
        started = self._clock.monotonic()
        allocation = await solver.solve(problem)
        self._tell(Solved(allocation, reason, self._clock.monotonic() - started, number, provisional))

    async def _sweep(self, device: str) -> None:
        try:
            if self._works.lacking([device]) and await self._works.gone(device):
                self._tell(SweepFailed(device, gone=True))
                return
            await self._reclaimer.sweep(device)
        except Exception as error:  # the broker may be away; the sweep is repeated until it ends well
            log.warning("sweeping %s failed (%s); trying again", device, error)
            self._tell(SweepFailed(device, gone=await self._works.gone(device)))

    async def _make(self, make: Make) -> None:
        assert self._maker is not None  # the core asks for tables where there are rules for them
        started = self._clock.monotonic()
        shelf = make.question.shelf
        try:
            tables = await self._maker.make(make)
        except SluiceError as error:
            log.error("no tables for %s on %s: %s", shelf.app, shelf.worker_class, error)
            self._tell(Made(make, (), failed=True))
            return
        took = self._clock.monotonic() - started
        log.info("%d tables for %s on %s in %.2f s", len(tables), shelf.app, shelf.worker_class, took)
        self._tell(Made(make, tables))

"""The planner: listens to demand and heartbeats, has plans made, publishes them, looks after dead devices.

A shell around the controller: solving runs in a thread, one at a time; where it takes longer than ``patience`` while
capacity is missing (ten times that otherwise), a heuristic's plan stands in until it ends. Sweeping a dead device's
work topic runs as a task until a new incarnation of its worker is let in.

Any number may run, one leads: who holds the lease on the status topic (``planner.lease``). The others hear what it
hears and publish nothing. Who takes over reads the newest plan first and goes on in a higher term, so that whatever an
older leader still publishes is refused everywhere; that one asks its clock before it acts on anything, and stands by
once it could not renew.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from domain.actions import Announce, ControllerAction, Publish, Reclaim
from domain.clock import Clock
from domain.errors import InvalidInputError
from domain.events import ControllerEvent, Ticked
from domain.plan import NO_EPOCH, Plan, follows
from planner.asking import Solve, Solved
from planner.controller import Controller
from planner.controller_settings import ControllerSettings
from planner.fallback import answered
from planner.greedy import GreedyFill
from planner.hearing import Hearing
from planner.lease import (
    RENEWALS,
    CaughtUp,
    Lead,
    LeaderLease,
    LeaseEvent,
    LeaseRead,
    StepDown,
    Stopping,
    TermSeen,
    Write,
)
from planner.problem import Allocation, Planner, Problem
from profiles.catalogue import Catalogue
from stages.beside import beside
from stages.control import Follower
from stages.inventory import Inventory
from stages.memory import release_freed
from stages.outbox import Outbox
from stages.reclaim import Reclaimer
from stages.table_publishing import TablePublisher
from stages.telemetry import Telemetry, count_plan
from stages.work_topics import WorkTopics
from streams import control
from streams.demand_windows import WindowReader, decode_windows
from streams.ports import Broker, Producer, Record
from streams.topics import Topics

log = logging.getLogger(__name__)

STANDS_IN = "stands in"
"""Ends the reason of a plan that a heuristic made while the planner's own was awaited."""
_TICK = 0.1
_SWEEP_EVERY = 0.5
_CATCH_UP = 0.5
"""Seconds that reading the newest plan may take before the lease is looked at again."""
_PARTING = 2.0
"""Seconds that what was said may take to be written before the lease is given back."""
_HEARING_MARGIN = 0.25
"""Seconds by which a renewal of the lease may be read late."""
_CALM = 10
"""Times the patience where a plan is in force and nothing is urgent: a stand-in would only cost loads."""


class PlannerStage:
    """One leads a system. ``make_controller(term, newest plan or None)`` builds its decisions.

    ``lease``: seconds that a leader may be silent before another takes over; ``holder``: its name there, never used
    again (by default one is made up).
    ``make_tables``: what publishes the selection tables for its plans, where batching goes by them. ``patience``:
    seconds that an urgent plan may take before a stand-in is published. ``demand_windows``: demand is read from the
    windows that stages ``demand`` make, not as admission counts it.
    """

    name = "planner"

    def __init__(
        self,
        *,
        broker: Broker,
        producer: Producer,
        topics: Topics,
        clock: Clock,
        planner: Planner,
        apps: Sequence[str],
        make_controller: Callable[[int, Plan | None], Controller],
        promised: Collection[str] = (),
        exactly_once: bool = False,
        make_tables: Callable[[Outbox], TablePublisher] | None = None,
        telemetry: Telemetry | None = None,
        patience: float = 1.0,
        lease: float = 3.0,
        holder: str | None = None,
        demand_windows: bool = False,
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._clock = clock
        self._planner = planner
        self._make_controller = make_controller
        self._patience = patience
        self._windows = WindowReader() if demand_windows else None
        self._outbox = Outbox(producer)
        telemetry = telemetry or Telemetry()
        self._meters = telemetry.meters
        telemetry.of_outbox(self.name, self._outbox)
        self._reclaimer = Reclaimer(
            broker=broker,
            outbox=self._outbox,
            topics=topics,
            apps=apps,
            clock=clock,
            promised=promised,
            exactly_once=exactly_once,
            telemetry=telemetry,
            may=self.leads,
        )
        self._works = WorkTopics(broker, topics, clock)
        self._lease = LeaderLease(holder or uuid.uuid4().hex[:12], lease=lease)
        self._hearing = Hearing(lease / RENEWALS + _HEARING_MARGIN)
        self._to_lead: Lead | None = None
        self._leading = False
        self._stirred = asyncio.Event()
        self._make_tables = make_tables
        self._tables: TablePublisher | None = None
        self._tables_task: asyncio.Task[None] | None = None
        self._problem: Problem | None = None
        self._newest: Plan | None = None
        self._controller = make_controller(0, None)
        self._sweeps: dict[str, asyncio.Task[None]] = {}
        self._dead: dict[str, str] = {}  # device -> incarnation declared dead
        self._returning: set[str] = set()
        self._fences: dict[str, int] = {}
        self._inventory = Inventory()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def planner(self) -> Planner:
        """What plans are asked of."""
        return self._planner

    @property
    def settings(self) -> ControllerSettings:
        """Those of its decisions."""
        return self._controller.settings

    async def run(self, stop: asyncio.Event) -> None:
        """Plan while this one leads, listen while another does, until ``stop``."""
        await self._outbox.start()
        await self._works.look()
        plans = Follower(self._broker, self._topics.plan, self._on_plan)
        leases = Follower(self._broker, self._topics.status, self._on_status)
        followers = [
            plans,
            leases,
            Follower(self._broker, self._topics.demand_windows, self._on_windows)
            if self._windows is not None
            else Follower(self._broker, self._topics.demand, self._on_demand, start_at="end", every_partition=True),
            Follower(self._broker, self._topics.devices_metrics, self._on_heartbeat, start_at="end"),
            Follower(self._broker, self._topics.acks, self._on_acknowledged, start_at="end"),
            Follower(self._broker, self._topics.devices, self._inventory.handle),
        ]
        try:
            async with beside(follower.run(stop) for follower in followers):
                await plans.ready.wait()
                await leases.ready.wait()
                self._lease_tell(CaughtUp())
                while not stop.is_set():
                    self._lease_tell(Ticked())
                    if self._to_lead is not None:
                        await self._lead(plans)
                    if not self._hearing.deaf(self._clock.monotonic()):
                        self._tell(Ticked())
                    await self._pause()
        finally:
            self._stop_acting()
            await self._give_back()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._works.close()
            await self._reclaimer.close()
            await self._outbox.stop()

    async def registered(self, served: Catalogue) -> None:
        """Other apps or variants are served from now on."""
        self._reclaimer.registered(served.apps)
        if self._tables is not None:
            self._tables.registered()
        for action in self._controller.registered(served, self._clock.wall(), leads=self.leads()):
            self._do(action)

    async def _pause(self) -> None:
        """Until the next tick, or until this one is to lead."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TICK):
                await self._stirred.wait()
        self._stirred.clear()

    # -- who leads

    def leads(self) -> bool:
        """Whether it may act now: this process may have stood still since it last looked."""
        return self._leading and self._lease.leads(self._clock.monotonic())

    def _lease_tell(self, event: LeaseEvent) -> None:
        for action in self._lease.handle(event, self._clock.monotonic()):
            match action:
                case Write(lease):
                    self._outbox.post(self._topics.status, control.encode_lease(lease), key=control.LEASE_KEY)
                case Lead():
                    self._to_lead = action
                    self._stirred.set()
                case StepDown(reason):
                    log.warning("planner: stands by: %s", reason)
                    self._stop_acting()

    async def _lead(self, plans: Follower) -> None:
        """Take over, once every plan that was published has been read; tried again at the next tick."""
        lead = self._to_lead
        try:
            async with asyncio.timeout(_CATCH_UP):
                await plans.catch_up()
        except TimeoutError:
            log.warning("planner: the newest plan cannot be read; it cannot lead yet")
            return
        if lead is None or lead is not self._to_lead or not self._lease.leads(self._clock.monotonic()):
            return
        self._to_lead = None
        self._leading = True
        self._meters.set("sluice_planner_leading", 1.0)
        self._fences = dict(self._newest.fences) if self._newest else {}
        reason = "first plan"
        if self._make_tables is not None:
            self._tables = self._make_tables(self._outbox)
            self._tables_task = asyncio.create_task(self._tables.run(asyncio.Event()))
        if lead.before or self._newest is not None:
            reason = f"term {lead.term} follows {lead.before or 'the one before'}"
            log.warning("planner: leads: %s", reason)
            self._do(Announce("planner", "took_over", reason))
        for action in self._controller.lead(lead.term, self._newest, reason, self._clock.wall()):
            self._do(action)

    def _stop_acting(self) -> None:
        """Solving, sweeping and tables are another's from now on."""
        self._to_lead = None
        self._leading = False
        self._meters.set("sluice_planner_leading", 0.0)
        ended = [*self._sweeps.values(), *([self._tables_task] if self._tables_task is not None else [])]
        for task in (*ended, *self._tasks):
            task.cancel()
        for task in ended:
            self._tasks.add(task)
            task.add_done_callback(self._reap)
        self._tables = self._tables_task = None
        self._sweeps.clear()
        self._returning.clear()
        self._dead.clear()

    async def _give_back(self) -> None:
        """Let another lead at once: the lease is released behind everything that was said."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PARTING):
                await self._outbox.flush()
        self._lease_tell(Stopping())

    # -- what is heard

    def _hear(self) -> None:
        """Something was read of what comes at least twice a second, or with each renewal of the lease."""
        if self._hearing.heard(self._clock.monotonic()):
            log.warning("planner: the log was silent; devices are given time to be heard again")
            self._controller.excuse(self._clock.wall())

    def _on_plan(self, record: Record) -> None:
        if record.value is None:
            return
        plan = control.decode_plan(record.value)
        if follows(plan.epoch, self._newest.epoch if self._newest is not None else NO_EPOCH):
            self._newest = plan
            own = self._controller.plan
            strange = self.leads() and own is not None and own.epoch.term == plan.epoch.term and own.epoch < plan.epoch
            # A stranger's plan in the term of this leader is put behind by leading in a higher one.
            self._lease_tell(TermSeen(plan.epoch.term + strange))

    def _on_status(self, record: Record) -> None:
        self._hear()
        if record.key == control.LEASE_KEY and record.value is not None:
            self._lease_tell(LeaseRead(control.decode_lease(record.value)))

    def _on_demand(self, record: Record) -> None:
        self._hear()
        if record.value is not None:
            self._tell(control.decode_demand(record.value))

    def _on_windows(self, record: Record) -> None:
        self._hear()
        if record.value is not None and self._windows is not None:
            for counted in self._windows.read(decode_windows(record.value), self._clock.wall()):
                self._tell(counted)

    def _on_heartbeat(self, record: Record) -> None:
        self._hear()
        if record.value is None:
            return
        beat = control.decode_heartbeat(record.value)
        if self._works.lacking([beat.seen.device]):
            self._works.look_soon()
            raise InvalidInputError("heartbeat.seen.device", f"{beat.seen.device!r:.80} has no work topic")
        seen = self._inventory.noted(beat.seen)
        if self._dead.get(seen.device) == seen.incarnation:
            return  # declared dead: it learns that from the plan and comes back under another incarnation
        if seen.device in self._sweeps:
            self._returning.add(seen.device)  # let in once the sweep under way is complete
            return
        self._tell(seen)
        for measured in beat.measured:
            self._tell(measured)
        if self._tables is not None:
            self._tables.counted(beat.observed)

    def _on_acknowledged(self, record: Record) -> None:
        if record.value is not None:
            self._tell(control.decode_acknowledged(record.value))

    # -- what is decided

    def _tell(self, event: ControllerEvent | Solved) -> None:
        if not self.leads():
            self._controller.listen(event, self._clock.wall())
            return
        for action in self._controller.handle(event, self._clock.wall()):
            self._do(action)

    def _do(self, action: ControllerAction | Solve) -> None:
        match action:
            case Publish(plan):
                fenced = replace(plan, fences=dict(self._fences))
                self._outbox.post(self._topics.plan, control.encode_plan(fenced), key=b"plan")
                count_plan(self._meters, fenced)
                if self._tables is not None and self._problem is not None:
                    self._tables.follow(fenced, self._problem.devices, self._problem.latency_factor)
            case Solve():
                self._problem = action.problem
                self._spawn(self._solve(action))
            case Reclaim(device, incarnation):
                self._dead[device] = incarnation
                self._meters.add("sluice_devices_lost", device)
                if device not in self._sweeps and not self._works.lacking([device]):
                    self._sweeps[device] = asyncio.create_task(self._sweep(device))
            case Announce():
                self._meters.add("sluice_announcements", self.name, action.state)
                self._outbox.post(self._topics.status, control.encode_announce(action), key=action.subject.encode())

    async def _solve(self, solve: Solve) -> None:
        started = self._clock.monotonic()
        work = asyncio.create_task(asyncio.to_thread(_solved, self._planner, solve.problem))
        urgent = solve.urgent or not solve.problem.previous
        try:
            await asyncio.wait({work}, timeout=self._patience * (1 if urgent else _CALM))
            if not work.done():
                stand_in = await asyncio.to_thread(answered, GreedyFill(), solve.problem.merged())
                took = self._clock.monotonic() - started
                reason = f"{solve.reason}; {self._planner.name} is late, greedy-fill {STANDS_IN}"
                self._tell(Solved(stand_in, reason, took, solve.number, provisional=True))
            allocation = await work
        finally:
            work.cancel()
        self._tell(Solved(allocation, solve.reason, self._clock.monotonic() - started, solve.number))
        in_force = self._controller.plan
        if self._tables is not None and in_force is not None:  # latencies may be others even where the plan stays
            demand: dict[str, float] = {}
            for d in solve.problem.demands:
                demand[d.app] = demand.get(d.app, 0.0) + d.qps * d.headroom
            now = replace(in_force, demand=demand)
            self._tables.follow(now, solve.problem.devices, solve.problem.latency_factor)

    async def _sweep(self, device: str) -> None:
        """Move what comes to a dead device, again and again, telling the controller each fence."""
        while True:
            try:
                fence = await self._reclaimer.sweep(device)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # the broker may be away; the sweep is repeated until it ends well
                log.warning("sweeping %s failed (%s); trying again", device, error)
            else:
                self._fences[device] = fence
                if device in self._returning:
                    self._returning.discard(device)
                    del self._sweeps[device]
                    await self._reclaimer.returned(device)
                    return
            await asyncio.sleep(_SWEEP_EVERY)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)

    def _reap(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("planner: %s", error, exc_info=error)


def _solved(planner: Planner, problem: Problem) -> Allocation:
    """What ``planner`` allocates; its solver's memory goes back at once."""
    try:
        return answered(planner, problem)
    finally:
        release_freed()

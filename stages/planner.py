"""The planner: listens to demand and heartbeats, has plans made, publishes them, looks after dead devices.

A shell around the controller: solving runs in a thread, one at a time; where it takes longer than ``patience`` while
capacity is missing (ten times that otherwise), a heuristic's plan stands in until it ends. Sweeping a dead device's
work topic runs as a task until a new incarnation of its worker is let in. A starting planner reads the newest plan
first and goes on in a higher term, so that whatever an older planner still publishes is refused everywhere.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from domain.actions import Announce, ControllerAction, Publish, Reclaim
from domain.clock import Clock
from domain.events import ControllerEvent, Ticked
from domain.plan import Plan
from planner.controller import Controller, Solve, Solved
from planner.fallback import answered
from planner.greedy import GreedyFill
from planner.problem import Planner, Problem
from stages.control import Follower
from stages.outbox import Outbox
from stages.reclaim import Reclaimer
from stages.table_publishing import TablePublisher
from stages.telemetry import Telemetry, count_plan
from streams import control
from streams.ports import Broker, Producer, Record
from streams.topics import Topics

log = logging.getLogger(__name__)

_TICK = 0.1
_SWEEP_EVERY = 0.5
_CALM = 10
"""Times the patience where a plan is in force and nothing is urgent: a stand-in would only cost loads."""


class PlannerStage:
    """One active planner a system. ``make_controller(term, newest plan or None)`` builds its decisions.

    ``make_tables``: what publishes the selection tables for its plans, where batching goes by them. ``patience``:
    seconds that an urgent plan may take before a stand-in is published.
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
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._clock = clock
        self._planner = planner
        self._make_controller = make_controller
        self._patience = patience
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
        )
        self._tables = make_tables(self._outbox) if make_tables is not None else None
        self._problem: Problem | None = None
        self._newest: Plan | None = None
        self._controller: Controller | None = None
        self._sweeps: dict[str, asyncio.Task[None]] = {}
        self._dead: dict[str, str] = {}  # device -> incarnation declared dead
        self._returning: set[str] = set()
        self._fences: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Plan until ``stop``."""
        await self._outbox.start()
        plans = Follower(self._broker, self._topics.plan, self._on_plan)
        followers = [
            plans,
            Follower(self._broker, self._topics.demand, self._on_demand, start_at="end"),
            Follower(self._broker, self._topics.devices_metrics, self._on_heartbeat, start_at="end"),
            Follower(self._broker, self._topics.acks, self._on_acknowledged, start_at="end"),
        ]
        tasks = [asyncio.create_task(f.run(stop)) for f in followers]
        if self._tables is not None:
            tasks.append(asyncio.create_task(self._tables.run(stop)))
        try:
            await plans.ready.wait()
            term = self._newest.epoch.term + 1 if self._newest else 1
            self._fences = dict(self._newest.fences) if self._newest else {}
            self._controller = self._make_controller(term, self._newest)
            while not stop.is_set():
                self._tell(Ticked())
                await asyncio.sleep(_TICK)
        finally:
            for task in (*tasks, *self._tasks, *self._sweeps.values()):
                task.cancel()
            await asyncio.gather(*tasks, *self._tasks, *self._sweeps.values(), return_exceptions=True)
            await self._outbox.stop()

    # -- what is heard

    def _on_plan(self, record: Record) -> None:
        if record.value is None:
            return
        plan = control.decode_plan(record.value)
        if self._newest is None or plan.epoch > self._newest.epoch:
            self._newest = plan

    def _on_demand(self, record: Record) -> None:
        if record.value is not None:
            self._tell(control.decode_demand(record.value))

    def _on_heartbeat(self, record: Record) -> None:
        if record.value is None:
            return
        beat = control.decode_heartbeat(record.value)
        seen = beat.seen
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
        if self._controller is None:
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
                if device not in self._sweeps:
                    self._sweeps[device] = asyncio.create_task(self._sweep(device))
            case Announce():
                self._meters.add("sluice_announcements", self.name, action.state)
                self._outbox.post(self._topics.status, control.encode_announce(action), key=action.subject.encode())

    async def _solve(self, solve: Solve) -> None:
        started = self._clock.monotonic()
        work = asyncio.create_task(asyncio.to_thread(answered, self._planner, solve.problem))
        urgent = solve.urgent or not solve.problem.previous
        try:
            await asyncio.wait({work}, timeout=self._patience * (1 if urgent else _CALM))
            if not work.done():
                stand_in = await asyncio.to_thread(answered, GreedyFill(), solve.problem.merged())
                took = self._clock.monotonic() - started
                reason = f"{solve.reason}; {self._planner.name} is late, greedy-fill stands in"
                self._tell(Solved(stand_in, reason, took, solve.number, provisional=True))
            allocation = await work
        finally:
            work.cancel()
        self._tell(Solved(allocation, solve.reason, self._clock.monotonic() - started, solve.number))
        in_force = self._controller.plan if self._controller is not None else None
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

"""The control plane of the live planner stage: its core, as often as planners run, over a log with modelled hops.

Rules. What a planner writes (its lease, plans) reaches all of them, itself too, after one hop of control. Solving takes
as long as the scenario says; sweeping a dead device, and what a heuristic answers, no time. A planner that fails says
and hears nothing; its next start reads the newest lease and plan first, and has another name on the lease.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, assert_never

from sluicegate.domain.actions import Announce, Publish, Reclaim, WakeAt
from sluicegate.domain.events import InstanceRead, Registered
from sluicegate.planner.capacity.events import VariantWanted
from sluicegate.planner.capacity.procurement import Kind
from sluicegate.planner.control.core import PlannerCore
from sluicegate.planner.control.events import (
    CatchUp,
    ClockRead,
    DeviceHeard,
    DeviceNoted,
    End,
    Left,
    LetIn,
    LogReached,
    Move,
    PlannerAction,
    PlannerEvent,
    PlanRead,
    PlansRead,
    Readmit,
    SafeMode,
    SafeModeRead,
    StandIn,
    Sweep,
    SweepBegan,
    Swept,
    TableRead,
    TablesReached,
    WorkLeft,
)
from sluicegate.planner.control.leader_lease import Lead, LeaseRead, StepDown, Write
from sluicegate.planner.control.replan_trigger import Solve, Solved
from sluicegate.planner.control.solve_or_fallback import answered
from sluicegate.planner.greedy_fill import GreedyFill
from sluicegate.planner.policy_tables.table_schedule import Make, PutTable, WithdrawTable
from sluicegate.planner.problems.problem import Planner
from sluicegate.policies.serving.device_actions import Beat
from sluicegate.simulator.engine.control_plane import ControlEvent, Plant
from sluicegate.simulator.engine.faults import Failure, downtimes
from sluicegate.simulator.engine.modelled_tables import TableModel, TablesTopic

MakeCore = Callable[[str], PlannerCore]
"""A planner's core by its name on the lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerModel:
    """How planners are modelled.

    ``solve_s``: seconds from asking for a plan to having it, or as long as this solve took (then runs differ).

    ``hop_s``: of what planners write. ``planners``: how many run, called planner0 and so on; ``failures``: of theirs.
    ``tables``: how selection tables are made.
    """

    solve_s: float | Literal["measured"]
    hop_s: float
    planners: int
    failures: tuple[Failure, ...]
    tables: TableModel = field(default_factory=TableModel)


@dataclass(slots=True)
class SimulatedPlanner:
    """One planner. ``core``: None while it is down. ``term``: counts what ends its work: failures, stepping down.

    ``planner``: of this start, what answers its questions.
    """

    name: str
    planner: Planner
    core: PlannerCore | None = None
    starts: int = 0
    term: int = 0


@dataclass(slots=True)
class _ToOne:
    """An event for a planner, of no interest once its ``term`` is over."""

    to: SimulatedPlanner
    event: PlannerEvent
    term: int = field(init=False)

    def __post_init__(self) -> None:
        self.term = self.to.term


class Controlled:
    """Planners, as they run: ``running``. ``make_planner``: of what is behind each; ``timer``: wall seconds, to measure
    solves."""

    def __init__(
        self, make_core: MakeCore, make_planner: Callable[[], Planner], model: PlannerModel, timer: Callable[[], float]
    ) -> None:
        self._make_core = make_core
        self._make_planner = make_planner
        self._model = model
        self._timer = timer
        self.running = tuple(SimulatedPlanner(f"planner{i}", make_planner()) for i in range(model.planners))
        self._lease: LeaseRead | None = None
        self._plan: PlanRead | None = None
        self._registered: Registered | None = None
        self._noted: dict[tuple[str, str], DeviceNoted] = {}
        self._safe: dict[tuple[str, str], SafeModeRead] = {}
        self._tables = TablesTopic(model.tables, timer)
        self.solve_s: list[float] = []
        self.epochs = 0
        self._swept: dict[str, int] = {}  # device -> offset below which all is done
        self.nondeterministic = 0
        self.cost: Mapping[Kind, float] = {}

    def start(self, plant: Plant, now: float) -> None:
        """All planners start; who claims first leads."""
        self._plant = plant
        for one in self.running:
            for dies, returns in downtimes(f for f in self._model.failures if f.device == one.name):
                plant.timeline.at(dies, self._fails, one)
                plant.timeline.at(returns, self._starts, one)
        for one in self.running:
            self._starts(one, now)

    def heard(self, event: ControlEvent, now: float) -> None:
        """Every planner hears what concerns planners."""
        if isinstance(event, InstanceRead | VariantWanted):
            return
        if isinstance(event, DeviceNoted):
            self._noted[event.device, event.by] = event
        elif isinstance(event, Registered):
            self._registered = event
        told = _heard(event) if isinstance(event, Beat) else event
        for one in self.running:
            self._tell(one, told, now)

    def _starts(self, one: SimulatedPlanner, now: float) -> None:
        if one.core is not None:
            return
        if one.starts:
            one.planner = self._make_planner()
        one.starts += 1
        one.core = self._make_core(f"{one.name}.{one.starts}")
        self._tell(one, ClockRead(now), now)
        read = (
            *self._noted.values(),
            self._registered,
            self._plan,
            *self._safe.values(),
            self._lease,
            LogReached(),
            *self._tables.standing,
            TablesReached(),
        )
        for known in read:
            if known is not None:
                self._tell(one, known, now)

    def _fails(self, one: SimulatedPlanner, now: float) -> None:  # noqa: ARG002 (a happening takes the time)
        one.core = None
        one.term += 1

    def _wakes(self, core: PlannerCore, now: float) -> None:
        for one in self.running:
            if one.core is core:
                self._tell(one, ClockRead(now), now)

    def _tell(self, one: SimulatedPlanner, event: PlannerEvent, now: float) -> Sequence[Move | End]:
        """What it says of the records of ``event``; the rest is done."""
        if one.core is None:
            return ()
        of_records: list[Move | End] = []
        for action in one.core.handle(event, now):
            if isinstance(action, Move | End):
                of_records.append(action)
            else:
                self._do(one, action, now)
        return of_records

    def _do(self, one: SimulatedPlanner, action: PlannerAction, now: float) -> None:
        at, hop = self._plant.timeline.at, self._model.hop_s
        match action:
            case WakeAt(when):
                at(when, self._wakes, one.core)
            case Write(lease):
                at(now + hop, self._written, LeaseRead(lease))
            case Publish(plan):
                self.epochs += 1
                self._plant.publish(plan, now)
                at(now + hop, self._written, PlanRead(plan))
            case CatchUp(term):
                devices = tuple(self._plant.work_topics)
                read = PlansRead(term, devices=devices, committed=dict(self._swept))
                at(now + hop, self._arrives, _ToOne(one, read))
            case Solve() | StandIn():
                self._solve(one, action, now)
            case Sweep(device):
                self._sweep(one, device, now)
            case StepDown():
                one.term += 1
            case SafeMode(app, device, on):
                self._plant.announced(f"planner-{device}", action.said, now)
                at(now + hop, self._written, SafeModeRead(app, device, on))
            case Make() | PutTable() | WithdrawTable():
                self._do_of_tables(one, action, now)
            case Lead() | Reclaim() | LetIn() | Announce():
                pass
            case Move() | End():
                raise AssertionError("said of records alone")
            case _:
                assert_never(action)

    def _do_of_tables(self, one: SimulatedPlanner, action: Make | PutTable | WithdrawTable, now: float) -> None:
        at, hop = self._plant.timeline.at, self._model.hop_s
        match action:
            case Make():
                made, took = self._tables.made(action)
                at(now + took, self._arrives, _ToOne(one, made))
            case PutTable(name, table):
                at(now + hop, self._tabled, TableRead(name, table))
            case WithdrawTable(name):
                at(now + hop, self._tabled, TableRead(name, None))
            case _:
                assert_never(action)

    def _written(self, event: LeaseRead | PlanRead | SafeModeRead, now: float) -> None:
        match event:
            case PlanRead():
                self._plan = event
            case LeaseRead():
                self._lease = event
            case SafeModeRead(app, device):
                self._safe[app, device] = event
            case _:
                assert_never(event)
        for one in self.running:
            self._tell(one, event, now)

    def _tabled(self, read: TableRead, now: float) -> None:
        self._plant.table(self._tables.put(read), now)
        for one in self.running:
            self._tell(one, read, now)

    def _arrives(self, said: _ToOne, now: float) -> None:
        if said.term == said.to.term:
            self._tell(said.to, said.event, now)

    def _solve(self, one: SimulatedPlanner, solve: Solve | StandIn, now: float) -> None:
        if isinstance(solve, StandIn):
            provisional = Solved(
                answered(GreedyFill(), solve.problem), solve.reason, 0.0, solve.number, provisional=True
            )
            self._plant.timeline.at(now, self._arrives, _ToOne(one, provisional))
            return
        started = self._timer()
        allocation = answered(one.planner, solve.problem)
        took = self._timer() - started
        self.solve_s.append(took)
        self.nondeterministic += allocation.nondeterministic
        latency = took if self._model.solve_s == "measured" else self._model.solve_s
        # A plan carries the latency it was given: the wall time of this machine would make equal runs differ.
        solved = Solved(allocation, solve.reason, latency, solve.number)
        self._plant.timeline.at(now + latency, self._arrives, _ToOne(one, solved))

    def _sweep(self, one: SimulatedPlanner, device: str, now: float) -> None:
        start, queries = self._plant.left(device)
        end = self._swept[device] = start + len(queries)
        self._tell(one, SweepBegan(device, start, end), now)
        if not queries:
            return
        records = tuple(Left(offset, query) for offset, query in enumerate(queries, start))
        for said in self._tell(one, WorkLeft(device, records), now):
            if isinstance(said, Move):
                for query, verdict in zip(queries, said.verdicts, strict=True):
                    if isinstance(verdict, Readmit):
                        self._plant.readmit(query, now)
                    elif isinstance(verdict, End):
                        self._plant.ended(query, verdict.outcome)
        self._tell(one, Swept(device), now)


def _heard(beat: Beat) -> DeviceHeard:
    """What planners read of a heartbeat."""
    return DeviceHeard(
        beat.seen,
        tuple([measured for part in beat.slices for measured in part.measured]),
        tuple([observed for part in beat.slices for observed in part.observed]),
        min([part.overdue for part in beat.slices], default=0.0),
        beat.late,
        beat.ended,
    )

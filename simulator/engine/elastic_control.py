"""Elastic capacity in a run: the live core beside the control plane, with a modelled driver and market.

Rules. A worker serves ``start_s`` after it was asked for, and ends at once, which it says. Spot is granted by chance;
what is granted or ordered is up ``boot_s`` later. A spot instance whose notice runs out while a worker still runs there
is taken away under it; a notice for a device that has none takes nothing. What runs beside a planner (model-less
scaling) fails and starts with it; the workers stay.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from sluicegate.domain.actions import Announce
from sluicegate.domain.events import DemandCounted, InstanceRead, Registered, Ticked
from sluicegate.planner.capacity.core import CapacityCore
from sluicegate.planner.capacity.events import (
    Bill,
    CapacityAction,
    CapacityEvent,
    EndInstance,
    Leading,
    LookUp,
    Ordered,
    Release,
    Released,
    Restore,
    Serving,
    Start,
    Stop,
    Told,
    VariantWanted,
    Wants,
    Wishes,
    Withdraw,
    WorkerReported,
    WorkerStarted,
    WorkerStopped,
)
from sluicegate.planner.capacity.procurement import (
    AskSpot,
    CostMeter,
    InstanceUp,
    Kind,
    Noticed,
    OrderOnDemand,
    SpotAnswered,
)
from sluicegate.planner.control.events import DeviceNoted
from sluicegate.planner.model_less.wishes import FollowsWishes
from sluicegate.policies.serving.device_actions import Beat
from sluicegate.simulator.engine.control_plane import ControlEvent, ControlPlane, Plant
from sluicegate.simulator.engine.planned_control import SimulatedPlanner


@dataclass(frozen=True, slots=True)
class SpotNotice:
    """At ``at`` it is told that the instance of ``device`` is taken back at ``deadline``."""

    device: str
    at: float
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityModel:
    """What capacity does in a simulation.

    ``driven``: devices whose workers the core starts and ends; ``others``: those of which another core does. Seconds:
    ``period`` between looks, ``heartbeat`` between heartbeats of a worker.

    ``granted``: whether spot is granted, drawn anew at each call.
    """

    driven: tuple[str, ...]
    others: tuple[str, ...] = ()
    period: float = 1.0
    heartbeat: float = 0.5
    start_s: float
    notices: tuple[SpotNotice, ...] = ()
    boot_s: float = 20.0
    granted: Callable[[], bool] = lambda: True


class ElasticControl:
    """A control plane whose devices come and go. ``inner``: the control plane.

    ``meter``: of what runs, where the core sends no bills; of several that share one each starts what runs from the
    start. ``beside``: the planner that the core serves.
    """

    def __init__(
        self,
        inner: ControlPlane,
        make_core: Callable[[], CapacityCore],
        model: CapacityModel,
        *,
        meter: CostMeter | None = None,
        beside: SimulatedPlanner | None = None,
    ) -> None:
        self._inner = inner
        self._make_core = make_core
        self._core = make_core()
        self._model = model
        self._meter = meter
        self._beside = beside
        self._starts = 1
        self._led = False
        self._up: dict[tuple[str, Kind], float] = {}
        self._spot = set(model.driven)  # devices that have a spot instance, not noticed
        self._noticed: dict[str, float] = {}  # deadlines of those whose old worker still runs
        self._billed: Mapping[Kind, float] = {}

    @property
    def cost(self) -> Mapping[Kind, float]:
        """Money so far, by kind of instance, where it is counted: what is billed, and what the control plane counts."""
        if self._meter is not None:
            return self._meter.by_kind(self._plant.timeline.now)
        inner = self._inner.cost
        return {kind: self._billed.get(kind, 0.0) + inner.get(kind, 0.0) for kind in {**self._billed, **inner}}

    @property
    def solve_s(self) -> Sequence[float]:
        """Of the control plane."""
        return self._inner.solve_s

    @property
    def epochs(self) -> int:
        """Of the control plane."""
        return self._inner.epochs

    @property
    def nondeterministic(self) -> int:
        """Of the control plane."""
        return self._inner.nondeterministic

    def start(self, plant: Plant, now: float) -> None:
        """No driven device has a worker at first."""
        self._plant = plant
        for device in self._model.driven:
            plant.end_worker(device, now)
        if self._meter is not None:
            run = set(plant.work_topics).difference(self._model.driven, self._model.others)
            for device in sorted(run):  # equal runs cost the same
                self._meter.start(device, Kind.ON_DEMAND, now)
        self._inner.start(plant, now)
        for notice in self._model.notices:
            plant.timeline.at(notice.at, self._notice, notice)
        self._look(None, now)

    def heard(self, event: ControlEvent, now: float) -> None:
        """The control plane hears it, and capacity what concerns that."""
        self._inner.heard(event, now)
        if isinstance(event, DemandCounted | InstanceRead | Registered | VariantWanted):
            self._tell(event, now)
        elif isinstance(event, Beat) and not event.stands_by:
            seen = event.seen
            used = min(1.0, event.busy_s / self._model.heartbeat)
            variants = tuple(variant for part in event.slices for variant in part.loaded)
            rows = sum(part.rows for part in event.slices)
            self._tell(WorkerReported(seen.device, seen.type, used, event.queued, variants, seen.leaving, rows), now)

    def _look(self, _: object, now: float) -> None:
        self._plant.timeline.at(now + self._model.period, self._look)
        self._tell(Ticked(), now)

    def _notice(self, notice: SpotNotice, now: float) -> None:
        if notice.device in self._spot:
            self._spot.remove(notice.device)
            self._noticed.setdefault(notice.device, notice.deadline)
            self._plant.timeline.at(notice.deadline, self._taken, notice)
        self._tell(Noticed(notice.device, notice.deadline), now)

    def _taken(self, notice: SpotNotice, now: float) -> None:
        if self._noticed.get(notice.device) == notice.deadline:
            del self._noticed[notice.device]
            self._ends(notice.device, now)
            self._plant.end_worker(notice.device, now)

    def _tell(self, event: CapacityEvent, now: float) -> None:
        beside = self._beside
        if beside is not None:
            if beside.core is None:
                return
            if beside.starts != self._starts:
                self._begins(beside.starts, now)
            leads = beside.core.leads(now)
            if leads is not self._led:
                self._led = leads
                self._tell(Leading(leads), now)
        for action in self._core.handle(event, now):
            self._do(action, now)

    def _begins(self, start: int, now: float) -> None:
        """Its process has started anew."""
        self._starts = start
        self._led = False
        self._core = self._make_core()
        for key, instance in self._plant.instances.items():
            self._tell(InstanceRead(key, instance), now)

    def _do(self, action: CapacityAction, now: float) -> None:
        at = self._plant.timeline.at
        match action:
            case Start():
                at(now + self._model.start_s, self._started, (action.device, self._starts))
            case Stop(device):
                self._noticed.pop(device, None)
                self._ends(device, now)
                self._plant.stop_worker(device, now)
                at(now, self._tell, WorkerStopped(device))
            case Withdraw(device):
                self._inner.heard(DeviceNoted(device, "capacity", withdrawn=True), now)
            case Restore(device, price):
                self._inner.heard(DeviceNoted(device, "capacity", price=price), now)
            case AskSpot() | OrderOnDemand() | LookUp() | Release():
                self._trade(action, now)
            case Bill(paid):
                self._billed = paid
            case Wants() | Serving() | Told() | Announce():
                pass
            case Wishes():
                assert self._beside is not None and isinstance(self._beside.planner, FollowsWishes)
                self._beside.planner.wishes = action
            case EndInstance(key):
                self._plant.record(key, None, now)
            case _:
                assert_never(action)

    def _started(self, asked: tuple[str, int], now: float) -> None:
        device, start = asked
        if self._meter is not None:
            self._meter.start(device, Kind.ON_DEMAND, now)
        self._plant.begin_worker(device, now)
        if start == self._starts:  # else who asked is no more
            self._tell(WorkerStarted(device), now)

    def _ends(self, device: str, now: float) -> None:
        if self._meter is not None:
            self._meter.stop(device, Kind.ON_DEMAND, now)

    def _trade(self, call: AskSpot | OrderOnDemand | LookUp | Release, now: float) -> None:
        at, boots = self._plant.timeline.at, now + self._model.boot_s
        match call:
            case AskSpot(node):
                granted = self._model.granted()
                if granted:
                    self._up[node, Kind.SPOT] = boots
                at(now, self._tell, SpotAnswered(node, granted))
            case OrderOnDemand(node):
                self._up[node, Kind.ON_DEMAND] = boots
                at(now, self._tell, Ordered(node))
            case LookUp(node, kind):
                if self._up.get((node, kind), now + 1.0) <= now:
                    del self._up[node, kind]
                    if kind is Kind.SPOT:
                        self._spot.add(node)
                    at(now, self._tell, InstanceUp(node, kind))
            case Release(node, kind):
                at(now, self._tell, Released(node, kind))

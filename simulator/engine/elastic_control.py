"""Elastic capacity in a run: the live core beside the control plane, with a modelled driver and market.

Rules. A worker serves ``start_s`` after it was asked for, and ends at once. Spot is granted by chance; what is granted
or ordered is up ``boot_s`` later. A device whose notice runs out while its worker still runs is taken away under it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from sluicegate.domain.actions import Announce
from sluicegate.domain.events import DemandCounted, Ticked
from sluicegate.planner.capacity.core import CapacityCore
from sluicegate.planner.capacity.events import (
    Bill,
    CapacityAction,
    CapacityEvent,
    EndInstance,
    LookUp,
    Ordered,
    Release,
    Released,
    Restore,
    Serving,
    Start,
    Stop,
    Told,
    Wants,
    Wishes,
    Withdraw,
    WorkerReported,
    WorkerStarted,
    WorkerStopped,
)
from sluicegate.planner.capacity.procurement import AskSpot, InstanceUp, Kind, Noticed, OrderOnDemand, SpotAnswered
from sluicegate.planner.control.events import DeviceHeard, DeviceNoted
from sluicegate.simulator.engine.control_plane import ControlEvent, ControlPlane, Plant


@dataclass(frozen=True, slots=True)
class SpotNotice:
    """At ``at`` it is told that the instance of ``device`` is taken back at ``deadline``."""

    device: str
    at: float
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityModel:
    """What capacity does in a simulation.

    ``driven``: devices whose workers the core starts and ends. ``period``: seconds between looks.

    ``granted``: whether spot is granted, drawn anew at each call.
    """

    driven: tuple[str, ...]
    period: float = 1.0
    start_s: float = 0.0
    notices: tuple[SpotNotice, ...] = ()
    boot_s: float = 20.0
    granted: Callable[[], bool] = lambda: True


class ElasticControl:
    """A control plane whose devices come and go.

    ``inner``: the control plane. ``cost``: money so far, by kind of instance, where it is counted.
    """

    def __init__(self, inner: ControlPlane, core: CapacityCore, model: CapacityModel) -> None:
        self._inner = inner
        self._core = core
        self._model = model
        self._up: dict[tuple[str, Kind], float] = {}
        self._noticed: set[str] = set()  # devices whose old worker still runs
        self.cost: Mapping[Kind, float] = {}

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
        self._inner.start(plant, now)
        for notice in self._model.notices:
            plant.timeline.at(notice.at, self._notice, notice)
        self._look(None, now)

    def heard(self, event: ControlEvent, now: float) -> None:
        """The control plane hears it, and capacity what concerns that."""
        self._inner.heard(event, now)
        if isinstance(event, DemandCounted):
            self._tell(event, now)
        elif isinstance(event, DeviceHeard):
            seen = event.seen
            queued, variants = self._plant.holds(seen.device)
            self._tell(WorkerReported(seen.device, seen.type, 0.0, queued, variants, seen.leaving), now)

    def _look(self, _: object, now: float) -> None:
        self._plant.timeline.at(now + self._model.period, self._look)
        self._tell(Ticked(), now)

    def _notice(self, notice: SpotNotice, now: float) -> None:
        self._noticed.add(notice.device)
        self._plant.timeline.at(notice.deadline, self._taken, notice.device)
        self._tell(Noticed(notice.device, notice.deadline), now)

    def _taken(self, device: str, now: float) -> None:
        if device in self._noticed:
            self._noticed.discard(device)
            self._plant.end_worker(device, now)

    def _tell(self, event: CapacityEvent, now: float) -> None:
        for action in self._core.handle(event, now):
            self._do(action, now)

    def _do(self, action: CapacityAction, now: float) -> None:
        at = self._plant.timeline.at
        match action:
            case Start():
                at(now + self._model.start_s, self._started, action.device)
            case Stop(device):
                self._noticed.discard(device)
                self._plant.end_worker(device, now)
                at(now, self._tell, WorkerStopped(device))
            case Withdraw(device):
                self._inner.heard(DeviceNoted(device, "capacity", withdrawn=True), now)
            case Restore(device, price):
                self._inner.heard(DeviceNoted(device, "capacity", price=price), now)
            case AskSpot() | OrderOnDemand() | LookUp() | Release():
                self._trade(action, now)
            case Bill(paid):
                self.cost = paid
            case Wants() | Serving() | Told() | Announce():
                pass
            case Wishes() | EndInstance():
                raise NotImplementedError("model-less scaling has no modelled instances")
            case _:
                assert_never(action)

    def _started(self, device: str, now: float) -> None:
        self._plant.begin_worker(device, now)
        self._tell(WorkerStarted(device), now)

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
                    at(now, self._tell, InstanceUp(node, kind))
            case Release(node, kind):
                at(now, self._tell, Released(node, kind))

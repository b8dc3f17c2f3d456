"""Model-less scaling of a running system: what the scaling planner is to know, and which workers start and end.

Rules.
- An interfered instance is mitigated by the next tick's plan: its device is avoided for ``hold`` seconds from when the
  instance was last seen so, as far as the other devices are enough (INFaaS: idle resources, else another worker).
- A variant that queries ask for and nothing runs is wanted for ``keep`` seconds from when it was last asked for.
- Workers: the three rules of ``workers``; what they add is a spare device of that hardware, in their order. A dead one
  is replaced by itself, where it is a spare (its driver starts it again), else by a spare of its hardware; what was
  recorded of it is what its replacement gets. Where no spare is left that is said.
- A spare that has held nothing for ``idle`` seconds is ended. It is a spare again ``settle`` seconds later.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from sluicegate.domain.actions import Announce
from sluicegate.domain.events import InstanceRead, Ticked
from sluicegate.domain.fleet.instance import Instance, InstanceState
from sluicegate.planner.capacity.events import (
    CapacityAction,
    CapacityEvent,
    EndInstance,
    Leading,
    Start,
    Stop,
    Told,
    VariantWanted,
    Wishes,
    WorkerReported,
)
from sluicegate.planner.capacity.worker_count import (
    AddWorker,
    ReplaceWorker,
    WorkerBeat,
    WorkerLeft,
    WorkerScaling,
    WorkerTick,
)


@dataclass(frozen=True, slots=True)
class InstancesSeen:
    """All instances whose records count; ``recorded``: what stands of dead workers too, device -> variants."""

    instances: Sequence[Instance]
    recorded: Mapping[str, tuple[str, ...]]


_FADE = 0.3
"""Weight of a heartbeat in how much of a worker is used: about the last two seconds."""

LiveEvent = VariantWanted | InstancesSeen | WorkerBeat | WorkerLeft | Ticked


LiveAction = Start | Stop | Announce


class LiveScaling:
    """Which spare workers a scaling planner gets. ``spare``: device -> hardware, in the order in which they are
    started. Times in seconds."""

    def __init__(
        self,
        spare: Mapping[str, str],
        *,
        timeout: float,
        hold: float = 30.0,
        keep: float = 30.0,
        idle: float = 60.0,
        settle: float = 5.0,
    ) -> None:
        self._spare = dict(spare)
        self._hold = hold
        self._keep = keep
        self._idle = idle
        self._settle = settle
        self._workers = WorkerScaling(timeout=timeout)
        self._avoided: dict[str, float] = {}
        self._wanted: dict[str, float] = {}
        self._recorded: Mapping[str, tuple[str, ...]] = {}
        self._restored: dict[str, tuple[str, ...]] = {}
        self._running: dict[str, float] = {}  # spare devices whose worker runs -> since when it has held nothing
        self._ended: dict[str, float] = {}

    def wishes(self, now: float) -> Wishes:
        """As of ``now``."""
        return Wishes(
            tuple(sorted(device for device, until in self._avoided.items() if until > now)),
            tuple(sorted(variant for variant, until in self._wanted.items() if until > now)),
            dict(self._restored),
        )

    def listen(self, event: LiveEvent, now: float) -> None:
        """Stand by: take note, decide nothing, and forget who has been dead for long."""
        if not isinstance(event, Ticked):
            self.handle(event, now)
            return
        for worker in self._workers.forget(now):
            self._running.pop(worker, None)
            self._restored.pop(worker, None)

    def handle(self, event: LiveEvent, now: float) -> list[LiveAction]:
        """Decide."""
        match event:
            case VariantWanted(variant):
                self._wanted[variant] = now + self._keep
                return []
            case InstancesSeen(instances, recorded):
                self._recorded = recorded
                return self._mitigate(instances, now)
            case WorkerBeat():
                self._heard(event, now)
                self._workers.handle(event, now)
                return []
            case WorkerLeft(worker):
                self._running.pop(worker, None)
                self._restored.pop(worker, None)
                self._workers.handle(event, now)
                return []
            case Ticked():
                return [*self._tick(now), *self._end_idle(now)]
            case _:
                assert_never(event)

    def _mitigate(self, instances: Iterable[Instance], now: float) -> list[LiveAction]:
        said: list[LiveAction] = []
        for instance in instances:
            if instance.state is not InstanceState.INTERFERED:
                continue
            if self._avoided.get(instance.device, 0.0) <= now:
                detail = f"{instance.variant} takes {instance.slowdown:.2f} times its profile on {instance.device}"
                said.append(
                    Announce(f"instance:{instance.key}", "interfered", f"{detail}; it is moved where that can be")
                )
            self._avoided[instance.device] = now + self._hold
        return said

    def _heard(self, beat: WorkerBeat, now: float) -> None:
        if beat.worker in self._spare and (beat.worker not in self._running or beat.instances):
            self._running[beat.worker] = now
        if beat.instances:
            self._restored.pop(beat.worker, None)

    def _tick(self, now: float) -> list[LiveAction]:
        actions: list[LiveAction] = []
        spare = tuple(self._spare[device] for device in self._free(now))
        for found in self._workers.handle(WorkerTick(spare), now):
            match found:
                case AddWorker(hardware, why):
                    actions += self._start(hardware, f"one more worker of {hardware} ({why})", (), now)
                case ReplaceWorker(worker, hardware, variants):
                    held = self._recorded.get(worker) or variants
                    self._running.pop(worker, None)
                    told = f"{worker} is dead; another is to hold {', '.join(held) or 'nothing'}"
                    actions += self._start(hardware, told, held, now, first=worker)
                case _:
                    assert_never(found)
        return actions

    def _free(self, now: float) -> list[str]:
        return [d for d in self._spare if d not in self._running and self._ended.get(d, 0.0) <= now]

    def _start(
        self, hardware: str, why: str, holds: tuple[str, ...], now: float, *, first: str = ""
    ) -> list[LiveAction]:
        free = [device for device in self._free(now) if self._spare[device] == hardware]
        if not free:
            return [Announce(f"workers:{hardware}", "none_left", f"{why}; no spare is left")]
        device = first if first in free else free[0]
        self._running[device] = now
        if holds:
            self._restored[device] = holds
        return [Start(device), Announce(f"workers:{hardware}", "started", f"{why}: {device}")]

    def _end_idle(self, now: float) -> list[LiveAction]:
        idle = [device for device, since in self._running.items() if now - since > self._idle]
        for device in idle:
            del self._running[device]
            self._restored.pop(device, None)
            self._ended[device] = now + self._settle
            self._workers.handle(WorkerLeft(device), now)
        return [Stop(device) for device in idle]


class Instances(Protocol):
    """What records say of instances."""

    def put(self, key: str, instance: Instance | None) -> None:
        """A record was read."""
        ...

    def at(self, now: float) -> Sequence[Instance]:
        """Those whose records count."""
        ...

    def on(self, device: str) -> Sequence[Instance]:
        """What was recorded of a worker, expired or not."""
        ...

    def states(self, device: str, now: float) -> Mapping[str, InstanceState]:
        """State of each variant on a worker."""
        ...

    def expired(self, now: float, after: float) -> list[str]:
        """Keys of records that expired more than ``after`` seconds ago."""
        ...


class ModelLessScaling:
    """Model-less scaling as a rule of capacity. ``scaling`` fed with what a system tells; ``instances``: empty at
    first. ``lease``: seconds that a record counts.

    Who does not lead takes note of all, and tells the planner beside it what to avoid; it starts, ends and says
    nothing.
    """

    def __init__(self, scaling: LiveScaling, instances: Instances, *, lease: float) -> None:
        self._scaling = scaling
        self._instances = instances
        self._lease = lease
        self._leads = False
        self._used: dict[str, float] = {}

    def handle(self, event: CapacityEvent, now: float) -> list[CapacityAction]:
        """Decide."""
        match event:
            case Leading(on):
                self._leads = on
            case InstanceRead(key, instance):
                self._instances.put(key, instance)
            case WorkerReported():
                return self._reported(event, now)
            case VariantWanted():
                return self._tell(event, now)
            case Ticked():
                return self._ticked(now)
            case _:
                pass
        return []

    def _reported(self, event: WorkerReported, now: float) -> list[CapacityAction]:
        device = event.device
        if event.leaving:
            self._used.pop(device, None)
            return self._tell(WorkerLeft(device), now)
        used = self._used.get(device, event.utilisation)
        self._used[device] = used + _FADE * (event.utilisation - used)
        states = self._instances.states(device, now)
        return self._tell(WorkerBeat(device, event.hardware, self._used[device], states), now)

    def _ticked(self, now: float) -> list[CapacityAction]:
        seen = self._instances.at(now)
        devices = sorted({i.device for i in seen} | set(self._used))
        recorded = {device: tuple(i.variant for i in self._instances.on(device)) for device in devices}
        actions = [*self._tell(InstancesSeen(seen, recorded), now), *self._tell(Ticked(), now)]
        actions.append(self._scaling.wishes(now))
        if self._leads:
            for key in self._instances.expired(now, after=self._lease):  # of the dead: nobody else will end them
                self._instances.put(key, None)
                actions.append(EndInstance(key))
        return actions

    def _tell(self, event: LiveEvent, now: float) -> list[CapacityAction]:
        if not self._leads:
            self._scaling.listen(event, now)
            return []
        actions: list[CapacityAction] = []
        for action in self._scaling.handle(event, now):
            match action:
                case Start(device):
                    actions.append(Told(f"starts the worker of {device}"))
                case Stop(device):
                    actions.append(Told(f"the worker of {device} holds nothing and ends"))
                case Announce():
                    actions.append(Told(f"{action.state}: {action.detail}"))
            actions.append(action)
        return actions

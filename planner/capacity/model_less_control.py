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
from typing import assert_never

from sluicegate.domain.actions import Announce
from sluicegate.domain.events import Ticked
from sluicegate.domain.fleet.instance import Instance, InstanceState
from sluicegate.planner.capacity.worker_count import (
    AddWorker,
    ReplaceWorker,
    WorkerBeat,
    WorkerLeft,
    WorkerScaling,
    WorkerTick,
)


@dataclass(frozen=True, slots=True)
class VariantWanted:
    """A query that only this variant can answer found nothing that runs it."""

    variant: str


@dataclass(frozen=True, slots=True)
class InstancesSeen:
    """All instances whose records count; ``recorded``: what stands of dead workers too, device -> variants."""

    instances: Sequence[Instance]
    recorded: Mapping[str, tuple[str, ...]]


LiveEvent = VariantWanted | InstancesSeen | WorkerBeat | WorkerLeft | Ticked


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start the worker of ``device``, a spare."""

    device: str


@dataclass(frozen=True, slots=True)
class StopWorker:
    """End the worker of ``device``: it holds nothing."""

    device: str


LiveAction = StartWorker | StopWorker | Announce


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the scaling planner is to know at its next call."""

    avoided: frozenset[str]
    wanted: frozenset[str]
    restored: Mapping[str, tuple[str, ...]]


class LiveScaling:
    """``spare``: device -> hardware, in the order in which they are started. Times in seconds."""

    def __init__(
        self,
        spare: Mapping[str, str],
        *,
        timeout: float = 2.0,
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
            frozenset(device for device, until in self._avoided.items() if until > now),
            frozenset(variant for variant, until in self._wanted.items() if until > now),
            dict(self._restored),
        )

    def listen(self, event: LiveEvent, now: float) -> None:
        """Stand by: take note, decide nothing."""
        if not isinstance(event, Ticked):
            self.handle(event, now)

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
        for found in self._workers.handle(WorkerTick(), now):
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

    def _start(
        self, hardware: str, why: str, holds: tuple[str, ...], now: float, *, first: str = ""
    ) -> list[LiveAction]:
        free = [
            device
            for device, kind in self._spare.items()
            if kind == hardware and device not in self._running and self._ended.get(device, 0.0) <= now
        ]
        if not free:
            return [Announce(f"workers:{hardware}", "none_left", f"{why}; no spare is left")]
        device = first if first in free else free[0]
        self._running[device] = now
        if holds:
            self._restored[device] = holds
        return [StartWorker(device), Announce(f"workers:{hardware}", "started", f"{why}: {device}")]

    def _end_idle(self, now: float) -> list[LiveAction]:
        idle = [device for device, since in self._running.items() if now - since > self._idle]
        for device in idle:
            del self._running[device]
            self._restored.pop(device, None)
            self._ended[device] = now + self._settle
            self._workers.handle(WorkerLeft(device), now)
        return [StopWorker(device) for device in idle]

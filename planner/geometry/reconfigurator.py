"""When a GPU is cut anew: mismatch counted, token taken, drained, changed, back up.

Rules, for each GPU:
1. UP. A geometry is asked for at every tick. The same multiset as the current one clears target and counter. Another
   target starts the count anew; each tick with the same target counts one.
2. After ``patience`` ticks, if nothing is in flight on the GPU and a token is free: DRAINING. Its slices take no new
   work.
3. Idle slices: CHANGING (quit MPS, destroy, create: about two seconds). Then UP again with the new geometry, counter 0,
   token back. A change that failed gives the token back and leaves the old geometry; the count starts anew.
4. At most max(1, floor(fraction * GPUs)) tokens are out at a time: the rest of the fleet serves.
5. A GPU that goes away gives its token back and forgets its target.

``published`` is the rule as printed (PROTEAN, Algorithm 2): the counter is tested before it is incremented (it fires
on the fourth mismatch), shared by all targets, reset by equality alone, and blind to a change in flight, so that the
same change is issued at every tick until it shows; geometries are compared in their order.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from sluicegate.domain.errors import IllegalEventError, InvalidInputError
from sluicegate.planner.geometry.mig_tables import Geometry


class GpuState(StrEnum):
    """Where a GPU is in a change of geometry."""

    UP = "up"
    DRAINING = "draining"
    CHANGING = "changing"


@dataclass(frozen=True, slots=True)
class Desired:
    """A tick: ``gpu`` should be cut like this."""

    gpu: str
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class SlicesIdle:
    """Nothing runs on ``gpu`` any more."""

    gpu: str


@dataclass(frozen=True, slots=True)
class GeometryChanged:
    """The change on ``gpu`` ended; where not ``ok`` the old geometry stands."""

    gpu: str
    ok: bool = True


@dataclass(frozen=True, slots=True)
class GpuLeft:
    """A GPU has left. ``gpu`` is gone."""

    gpu: str


@dataclass(frozen=True, slots=True)
class GpuJoined:
    """A GPU has joined. ``gpu`` is there, cut like this."""

    gpu: str
    geometry: Geometry


ReconfigurationEvent = Desired | SlicesIdle | GeometryChanged | GpuLeft | GpuJoined


@dataclass(frozen=True, slots=True)
class Drain:
    """Give ``gpu`` no new work; answer with SlicesIdle once nothing runs there."""

    gpu: str
    target: Geometry


@dataclass(frozen=True, slots=True)
class Reshape:
    """Cut ``gpu`` anew; answer with GeometryChanged."""

    gpu: str
    target: Geometry


@dataclass(frozen=True, slots=True)
class Resume:
    """The end of a cut. ``gpu`` takes work again, cut like this."""

    gpu: str
    geometry: Geometry


ReconfigurationAction = Drain | Reshape | Resume


@dataclass(slots=True)
class _Gpu:
    geometry: Geometry
    state: GpuState = GpuState.UP
    target: Geometry | None = None
    counter: int = 0
    changing_to: Geometry | None = None


def change_limit(gpus: int, fraction: float = 0.3) -> int:
    """GPUs that may change at a time."""
    return max(1, math.floor(fraction * gpus + 1e-9))


class Reconfigurator:
    """All GPUs of a fleet. ``patience``: ticks of mismatch before a change; ``fraction``: of GPUs at a time."""

    def __init__(
        self,
        gpus: Mapping[str, Geometry],
        *,
        patience: int = 3,
        fraction: float = 0.3,
        published: bool = False,
    ) -> None:
        if patience < 1 or not 0.0 <= fraction <= 1.0:
            raise InvalidInputError(
                "reconfiguration", f"patience {patience} is below 1 or fraction {fraction} not 0..1"
            )
        self._gpus = {name: _Gpu(tuple(geometry)) for name, geometry in gpus.items()}
        self._patience = patience
        self._fraction = fraction
        self._published = published
        self.issued = 0
        """Changes asked for so far, repeated ones included."""

    @property
    def limit(self) -> int:
        """Tokens there are."""
        return change_limit(len(self._gpus), self._fraction)

    @property
    def in_flight(self) -> tuple[str, ...]:
        """GPUs that hold a token."""
        return tuple(name for name, gpu in self._gpus.items() if gpu.state is not GpuState.UP)

    def state(self, gpu: str) -> GpuState:
        """Raises IllegalEventError for an unknown GPU."""
        return self._known(gpu).state

    def geometry(self, gpu: str) -> Geometry:
        """What the GPU is cut into now (while it changes: what it was)."""
        return self._known(gpu).geometry

    def counter(self, gpu: str) -> int:
        """Ticks of mismatch so far."""
        return self._known(gpu).counter

    def handle(self, event: ReconfigurationEvent, now: float) -> list[ReconfigurationAction]:  # noqa: ARG002
        """Decide; see the rules of the module. Raises IllegalEventError for an event that its state forbids."""
        match event:
            case Desired(name, geometry):
                return self._tick(name, self._known(name), tuple(geometry))
            case SlicesIdle(name):
                gpu = self._expect(name, GpuState.DRAINING, event)
                gpu.state = GpuState.CHANGING
                assert gpu.changing_to is not None
                return [Reshape(name, gpu.changing_to)]
            case GeometryChanged(name, ok):
                gpu = self._expect(name, GpuState.CHANGING, event)
                if ok and gpu.changing_to is not None:
                    gpu.geometry = gpu.changing_to
                gpu.state, gpu.changing_to = GpuState.UP, None
                if not self._published:
                    gpu.counter, gpu.target = 0, None
                return [Resume(name, gpu.geometry)]
            case GpuLeft(name):
                self._known(name)
                del self._gpus[name]
                return []
            case GpuJoined(name, geometry):
                if name in self._gpus:
                    raise IllegalEventError(f"{name} joined, but it was there already")
                self._gpus[name] = _Gpu(tuple(geometry))
                return []
            case _ as unreachable:
                assert_never(unreachable)

    def _tick(self, name: str, gpu: _Gpu, desired: Geometry) -> list[ReconfigurationAction]:
        if self._published:
            return self._tick_as_published(name, gpu, desired)
        if sorted(desired) == sorted(gpu.geometry):
            gpu.counter, gpu.target = 0, None
            return []
        if gpu.target is None or sorted(desired) != sorted(gpu.target):
            gpu.target, gpu.counter = desired, 0
        gpu.counter += 1
        if gpu.counter < self._patience or gpu.state is not GpuState.UP or len(self.in_flight) >= self.limit:
            return []
        return self._begin(name, gpu, desired)

    def _tick_as_published(self, name: str, gpu: _Gpu, desired: Geometry) -> list[ReconfigurationAction]:
        if desired == gpu.geometry:
            gpu.counter = 0
            return []
        fires = gpu.counter >= self._patience
        gpu.counter += 1
        others = [n for n in self.in_flight if n != name]
        if not fires or len(others) >= self.limit:
            return []
        return self._begin(name, gpu, desired)

    def _begin(self, name: str, gpu: _Gpu, target: Geometry) -> list[ReconfigurationAction]:
        self.issued += 1
        if gpu.state is GpuState.CHANGING:
            # Only the published rule gets here: the change that runs is asked for again.
            return [Drain(name, target)]
        gpu.state, gpu.changing_to = GpuState.DRAINING, target
        if not self._published:
            gpu.counter = 0
        return [Drain(name, target)]

    def _known(self, name: str) -> _Gpu:
        gpu = self._gpus.get(name)
        if gpu is None:
            raise IllegalEventError(f"no GPU is called {name}")
        return gpu

    def _expect(self, name: str, state: GpuState, event: ReconfigurationEvent) -> _Gpu:
        gpu = self._known(name)
        if gpu.state is not state:
            raise IllegalEventError(f"{type(event).__name__} of {name}, which is {gpu.state}, not {state}")
        return gpu

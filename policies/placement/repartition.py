"""How the worker of a GPU follows plans that cut it otherwise: drain, cut, serve again.

Rules.
1. SERVING. A plan that names other slices for the device (another multiset of profiles), and places nothing there,
   begins a drain. A plan that places something there counts on the slices as they are, whatever else it says.
2. DRAINING. What is here is finished. A later plan may name another cut, which then is what it drains for, or none:
   the slices stay and go on serving.
3. CUTTING, once nothing waits or runs. It cannot be called off; of the plans that come meanwhile the newest counts.
4. SERVING again, with the new slices, or with those that are there after a cut that failed. The plan that asked for
   that one is not tried again, nor is one that came meanwhile and asks for the same; a later one is.

Illegal: Drained while nothing drains, CutEnded while nothing is cut.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import PlanPublished
from sluicegate.domain.fleet.device import Slice
from sluicegate.domain.plan import NO_EPOCH, Epoch, Plan, follows


class CutState(StrEnum):
    """Where the device is in a change of its slices."""

    SERVING = "serving"
    DRAINING = "draining"
    CUTTING = "cutting"


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing waits or runs on the device any more."""


@dataclass(frozen=True, slots=True)
class CutEnded:
    """The device has ``slices`` now. ``fault``: why they are not those asked for; "" where they are."""

    slices: tuple[Slice, ...]
    fault: str = ""


RecuttingEvent = PlanPublished | Drained | CutEnded


@dataclass(frozen=True, slots=True)
class Drain:
    """Finish what is here; answer with Drained."""


@dataclass(frozen=True, slots=True)
class Stay:
    """The drain is called off: serve as before."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut the device into slices of ``profiles``; answer with CutEnded."""

    profiles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Serve:
    """Begin to serve with ``slices``."""

    slices: tuple[Slice, ...]


RecuttingAction = Drain | Stay | Cut | Serve


class Recutting:
    """One device. ``slices``: as it is cut at the start."""

    def __init__(self, device: str, slices: Sequence[Slice]) -> None:
        self._device = device
        self.slices = tuple(slices)
        self.state = CutState.SERVING
        self.fault = ""
        self.fault_epoch: Epoch = NO_EPOCH
        self._newest: Plan | None = None
        self._target: tuple[str, ...] = ()
        self._asked: Epoch = NO_EPOCH

    def handle(self, event: RecuttingEvent) -> list[RecuttingAction]:
        """Decide. Raises IllegalEventError."""
        match event:
            case PlanPublished(plan):
                if not follows(plan.epoch, self._newest.epoch if self._newest is not None else NO_EPOCH):
                    return []
                self._newest = plan
                return self._follow(plan)
            case Drained():
                if self.state is not CutState.DRAINING:
                    raise IllegalEventError(f"{self._device} is drained while it is {self.state}")
                self.state = CutState.CUTTING
                self.fault, self.fault_epoch = "", NO_EPOCH
                return [Cut(self._target)]
            case CutEnded(slices, fault):
                if self.state is not CutState.CUTTING:
                    raise IllegalEventError(f"{self._device} was cut while it is {self.state}")
                self.state = CutState.SERVING
                self.slices = slices
                self.fault, self.fault_epoch = fault, NO_EPOCH
                if fault:
                    newest = self._newest
                    same = newest is not None and Counter(self._wanted(newest)) == Counter(self._target)
                    self.fault_epoch = newest.epoch if newest is not None and same else self._asked
                again = self._follow(self._newest) if self._newest is not None else []
                return [Serve(slices), *again]
            case _ as unreachable:
                assert_never(unreachable)

    def _follow(self, plan: Plan) -> list[RecuttingAction]:
        if self.state is CutState.CUTTING:
            return []
        wanted = self._wanted(plan)
        if wanted is None:
            drained, self.state = self.state is CutState.DRAINING, CutState.SERVING
            return [Stay()] if drained else []
        self._target, self._asked = wanted, plan.epoch
        if self.state is CutState.DRAINING:
            return []
        self.state = CutState.DRAINING
        return [Drain()]

    def _wanted(self, plan: Plan) -> tuple[str, ...] | None:
        """Profiles that the plan wants instead of those there are."""
        asked = plan.geometries.get(self._device)
        if not asked or not follows(plan.epoch, self.fault_epoch) or plan.of_device(self._device):
            return None
        profiles = tuple(part.profile for part in asked)
        return None if Counter(profiles) == Counter(part.profile for part in self.slices) else profiles

"""Which spare devices have a worker: started as the number wanted grows, withdrawn and ended once it has fallen.

Rules:
- OFF -> STARTING (Start, and Restore should it still be withdrawn) when more devices are wanted than serve. STARTING ->
  UP with its first heartbeat; without one for ``start_timeout`` it is started again.
- UP or STARTING -> WITHDRAWN when fewer are wanted: plans leave it out while its worker finishes what it has. The last
  of the list goes first. Wanted again meanwhile it is restored: that costs nothing.
- WITHDRAWN -> ENDING (Stop) once it has hosted and held nothing for a heartbeat that came ``settle`` seconds after, at
  the latest after ``patience``. ENDING -> OFF when its worker has ended.
- A worker that is silent for ``start_timeout`` while UP died: it is started again. One that is heard while OFF (it ran
  before this began) is UP.
- A start that failed is not tried again for ``start_timeout``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from sluicegate.domain.errors import InvalidInputError
from sluicegate.planner.capacity.events import Restore, Start, Stop, Withdraw


class SpareState(StrEnum):
    """Of a device that need not have a worker."""

    OFF = "off"
    STARTING = "starting"
    UP = "up"
    WITHDRAWN = "withdrawn"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many devices should serve. ``devices`` should serve, those that always do counted."""

    devices: int


@dataclass(frozen=True, slots=True)
class WorkerHeard:
    """A heartbeat. ``idle``: nothing hosted and nothing queued there. ``leaving``: the worker ends."""

    device: str
    idle: bool
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """The worker has ended as asked, or (``failed``) could not be started."""

    device: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Look again."""


ElasticEvent = Wanted | WorkerHeard | WorkerEnded | TimePassed


ElasticAction = Start | Withdraw | Restore | Stop


@dataclass(slots=True)
class _Spare:
    state: SpareState = SpareState.OFF
    since: float = 0.0
    heard: float = 0.0
    barred: float = float("-inf")


class ElasticFleet:
    """Starts and withdraws spare devices. ``fixed``: how many devices always serve; ``spare``: the others, in the order
    in which they are started."""

    def __init__(
        self,
        fixed: int,
        spare: Sequence[str],
        *,
        settle: float,
        patience: float,
        start_timeout: float = 30.0,
    ) -> None:
        if fixed < 0 or len(set(spare)) != len(spare) or not 0.0 <= settle <= patience:
            raise InvalidInputError("spare", f"{fixed} fixed devices and {', '.join(spare)}: give each name once")
        self._fixed = fixed
        self._spare = {name: _Spare() for name in spare}
        self._wanted = fixed
        self._settle = settle
        self._patience = patience
        self._start_timeout = start_timeout

    @property
    def serving(self) -> int:
        """Devices that serve or are about to."""
        return self._fixed + sum(s.state in (SpareState.STARTING, SpareState.UP) for s in self._spare.values())

    def state(self, device: str) -> SpareState:
        """Of a spare device."""
        return self._spare[device].state

    def handle(self, event: ElasticEvent, now: float) -> list[ElasticAction]:
        """Decide; devices that are not spare are ignored."""
        actions: list[ElasticAction] = []
        match event:
            case Wanted(devices):
                self._wanted = devices
            case WorkerHeard(device, idle, leaving):
                actions += self._heard(device, idle, leaving, now)
            case WorkerEnded(device, failed):
                self._ended(device, failed, now)
            case TimePassed():
                actions += self._overdue(now)
            case _:
                assert_never(event)
        return [*actions, *self._balance(now)]

    def _heard(self, device: str, idle: bool, leaving: bool, now: float) -> Iterable[ElasticAction]:
        spare = self._spare.get(device)
        if spare is None or leaving:
            return []
        spare.heard = now
        if spare.state in (SpareState.OFF, SpareState.STARTING):
            self._to(spare, SpareState.UP, now)
        elif spare.state is SpareState.WITHDRAWN and idle and now - spare.since >= self._settle:
            self._to(spare, SpareState.ENDING, now)
            return [Stop(device)]
        return []

    def _ended(self, device: str, failed: bool, now: float) -> None:
        spare = self._spare.get(device)
        if spare is None or spare.state not in (SpareState.STARTING, SpareState.ENDING):
            return
        if failed:
            spare.barred = now + self._start_timeout
        self._to(spare, SpareState.OFF, now)

    def _overdue(self, now: float) -> Iterable[ElasticAction]:
        for name, spare in self._spare.items():
            silent = now - max(spare.since, spare.heard)
            if spare.state in (SpareState.STARTING, SpareState.UP) and silent > self._start_timeout:
                self._to(spare, SpareState.STARTING, now)
                yield Start(name)
            elif spare.state is SpareState.WITHDRAWN and now - spare.since > self._patience:
                self._to(spare, SpareState.ENDING, now)
                yield Stop(name)

    def _balance(self, now: float) -> Iterable[ElasticAction]:
        for name, spare in self._spare.items():
            if self.serving >= self._wanted:
                break
            if spare.state is SpareState.WITHDRAWN:
                self._to(spare, SpareState.UP, now)
                yield Restore(name)
        for name, spare in self._spare.items():
            if self.serving >= self._wanted:
                break
            if spare.state is SpareState.OFF and now >= spare.barred:
                self._to(spare, SpareState.STARTING, now)
                yield from (Restore(name), Start(name))
        for name, spare in reversed(self._spare.items()):
            if self.serving <= self._wanted:
                break
            if spare.state in (SpareState.STARTING, SpareState.UP):
                self._to(spare, SpareState.WITHDRAWN, now)
                yield Withdraw(name)

    @staticmethod
    def _to(spare: _Spare, state: SpareState, now: float) -> None:
        spare.state, spare.since = state, now

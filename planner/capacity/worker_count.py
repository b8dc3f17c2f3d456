"""How many workers: three rules, and the replacement of those that died (INFaaS 5.2).

Rules, every two seconds, at most one worker at a time and none within 30 s of the last.
- Used: the least used worker of a hardware is used above 80 %: one more of it.
- Interfered: every instance on every worker of a hardware is INTERFERED: one more of it.
- Overloaded: more than 80 % of all workers hold an OVERLOADED instance: one more of the hardware that most of them are.
- Where several need one, the first of them that a spare is left of gets it; one that has none holds up no other.
- A worker not heard of for the timeout is replaced at once, whatever the cooldown, by one of its hardware that loads
  what the dead one was recorded to hold.
- Who stands by forgets a worker not heard of for ``FORGOTTEN`` more: whoever led has replaced it. One that died with
  its leader is replaced by who takes over.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import assert_never

from sluicegate.domain.fleet.instance import InstanceState

USED, COOLDOWN, EVERY = 0.8, 30.0, 2.0
FORGOTTEN = 30.0
"""Seconds: longer than another takes to take over."""


@dataclass(frozen=True, slots=True)
class WorkerBeat:
    """A heartbeat: how much of the worker is used, 0..1, and the state of each instance on it."""

    worker: str
    hardware: str
    used: float
    instances: Mapping[str, InstanceState]


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """It ends in good order: nobody is to replace it."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerTick:
    """Time went on. ``spare``: the hardware of which another worker can be had; None: all."""

    spare: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class AddWorker:
    """Start a worker of ``hardware``. ``why``: the rule."""

    hardware: str
    why: str


@dataclass(frozen=True, slots=True)
class ReplaceWorker:
    """The order to replace a dead worker. ``worker`` is dead: start another of its hardware and load ``variants``
    there."""

    worker: str
    hardware: str
    variants: tuple[str, ...]


class WorkerScaling:
    """Decides how many workers there are. ``timeout``: seconds without a heartbeat after which a worker is dead."""

    __slots__ = ("_beats", "_last", "_looked", "_told", "timeout")

    def __init__(self, *, timeout: float = 2.0) -> None:
        self.timeout = timeout
        self._beats: dict[str, tuple[WorkerBeat, float]] = {}
        self._last = -inf
        self._looked = -inf
        self._told = -inf

    def handle(self, event: WorkerBeat | WorkerLeft | WorkerTick, now: float) -> list[AddWorker | ReplaceWorker]:
        """Decide."""
        match event:
            case WorkerBeat():
                self._beats[event.worker] = (event, now)
                return []
            case WorkerLeft(worker):
                self._beats.pop(worker, None)
                return []
            case WorkerTick(spare):
                return [*self._replace(now), *self._add(spare, now)]
            case _:
                assert_never(event)

    def forget(self, now: float) -> list[str]:
        """Workers that another leader has replaced, by now: they are known no more."""
        gone = [worker for worker, (_, at) in self._beats.items() if now - at > self.timeout + FORGOTTEN]
        for worker in gone:
            del self._beats[worker]
        return gone

    def _replace(self, now: float) -> list[AddWorker | ReplaceWorker]:
        dead = [beat for beat, at in self._beats.values() if now - at > self.timeout]
        for beat in dead:
            del self._beats[beat.worker]
        return [ReplaceWorker(b.worker, b.hardware, tuple(sorted(b.instances))) for b in dead]

    def _add(self, spare: tuple[str, ...] | None, now: float) -> list[AddWorker | ReplaceWorker]:
        if now - self._looked < EVERY or now - self._last < COOLDOWN or not self._beats:
            return []
        self._looked = now
        needed = list(self._needed([beat for beat, _ in self._beats.values()]))
        for found in needed:
            if spare is None or found.hardware in spare:
                self._last = now
                return [found]
        if not needed or now - self._told < COOLDOWN:
            return []
        self._told = now
        return [needed[0]]

    def _needed(self, beats: list[WorkerBeat]) -> Iterator[AddWorker]:
        for hardware in sorted({b.hardware for b in beats}):
            mine = [b for b in beats if b.hardware == hardware]
            if min(b.used for b in mine) > USED:
                yield AddWorker(hardware, "used")
                continue
            states = [state for b in mine for state in b.instances.values()]
            if states and all(state is InstanceState.INTERFERED for state in states):
                yield AddWorker(hardware, "interfered")
        holding = [b for b in beats if InstanceState.OVERLOADED in b.instances.values()]
        if len(holding) > USED * len(beats):
            most = Counter(b.hardware for b in holding)
            for hardware in sorted(most, key=lambda h: (-most[h], h)):
                yield AddWorker(hardware, "overloaded")

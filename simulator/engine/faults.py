"""What goes wrong in a run: devices that die and return, devices and hosts that are slow for a while."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf

from sluicegate.domain.fleet.device import Device


@dataclass(frozen=True, slots=True)
class Failure:
    """A device's death and return. ``device`` (a name or pattern) dies at ``at`` seconds and its worker returns at
    ``until``."""

    device: str
    at: float
    until: float = inf


@dataclass(frozen=True, slots=True)
class Straggler:
    """Every batch on ``device`` (a name or pattern) takes ``factor`` times as long from ``at`` to ``until`` seconds."""

    device: str
    factor: float
    at: float = 0.0
    until: float = inf


@dataclass(frozen=True, slots=True)
class StarvedHost:
    """From ``at`` to ``until`` seconds the worker on ``device`` (a name or pattern) hears of what its executors
    have ended ``delay`` seconds later."""

    device: str
    delay: float
    at: float = 0.0
    until: float = inf


@dataclass(frozen=True, slots=True)
class ExecutorFailure:
    """At ``at`` seconds the process behind the executor of slice ``part`` ends ("": of all) of ``device`` (a name or
    pattern)."""

    device: str
    at: float
    part: str


@dataclass(frozen=True, slots=True)
class Faults:
    """All of a run. ``executor_start_s``: seconds that an executor's process takes to start again."""

    failures: tuple[Failure, ...] = ()
    stragglers: tuple[Straggler, ...] = ()
    executors: tuple[ExecutorFailure, ...] = ()
    executor_start_s: float = 0.5
    starved: tuple[StarvedHost, ...] = ()

    def downtimes_of(self, device: Device) -> Sequence[tuple[float, float]]:
        """When ``device`` dies and returns."""
        return downtimes(f for f in self.failures if hits(f.device, device))

    def slowdown_of(self, device: Device) -> Callable[[float], float] | None:
        """Factor on service times of ``device`` at a time; None where it is always 1."""
        mine = tuple(s for s in self.stragglers if hits(s.device, device))
        return (lambda now: _factor(mine, now)) if mine else None

    def delay_of(self, device: Device) -> Callable[[float], float] | None:
        """Seconds by which the worker of ``device`` hears late at a time; None where it never does."""
        mine = tuple(s for s in self.starved if hits(s.device, device))
        return (lambda now: sum([s.delay for s in mine if s.at <= now < s.until])) if mine else None


def downtimes(failures: Iterable[Failure]) -> Sequence[tuple[float, float]]:
    """(dies, returns) of what all ``failures`` hit, ascending: of those that overlap it returns with the last."""
    found: list[tuple[float, float]] = []
    for at, until in sorted((f.at, f.until) for f in failures):
        if found and at <= found[-1][1]:
            at, until = found[-1][0], max(found.pop()[1], until)
        found.append((at, until))
    return found


def hits(pattern: str, device: Device) -> bool:
    """Whether ``pattern`` (a name, or with * and ?) means ``device``."""
    return fnmatchcase(device.name, pattern)


def _factor(stragglers: Sequence[Straggler], now: float) -> float:
    factor = 1.0
    for straggler in stragglers:
        if straggler.at <= now < straggler.until:
            factor *= straggler.factor
    return factor

"""What greedy scaling strives for: the least cost, or the best accuracy on what is there.

An aim ranks single moves of one app; feasibility, the loop over apps and ticks, and patience are ``greedy``'s.

Rules of ``LeastCost`` (INFaaS, ATC 2021, 5.1).
- Up: enough instances of one variant that runs (replicate), or of another of the same architecture with more capacity
  (upgrade; of any, where nothing runs), whichever costs least, ``C k (1 + lambda Tload)``, ties to the lower loading
  time, then by name. Only what keeps the SLO and fits. What nothing alone can hold is filled as far as resources go,
  most capacity a resource first.
- Down: an instance less, or one in the place of a dearer one, or of several that cost more together (else a load that
  grows slowly would leave many small ones), the largest saving first; possible once for ``Tload`` of what would have to
  be loaded again (or is loaded).

Rules of ``MostAccurate`` (INFaaS-Accuracy, Proteus, ASPLOS 2024, 6.1: accuracy in the place of cost, a fixed cluster).
- Up: of all single steps (one more of a variant on what is free, or one in the place of another on the same hardware)
  that add capacity, the one that costs least mean accuracy, then the one that adds most; again until it is enough.
- Down: one in the place of another on the same hardware that raises the mean accuracy, the largest gain first; again
  until nothing gains. Nothing is given back.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from sluicegate.planner.model_less.scaling_problem import Fleet, ScalingVariant

Changes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Saving:
    """A change that what is asked bears; ``wait``: seconds for which that must have been so."""

    changes: Changes
    wait: float = 0.0


class Aim(Protocol):
    """Ranks moves. ``at_once``: moves are made until none is left, all within one tick."""

    at_once: bool

    def grow(self, fleet: Fleet, app: str, need: float) -> Changes:
        """Where ``need`` queries/s are short: what to add; nothing where nothing helps."""
        ...

    def improve(self, fleet: Fleet, app: str, spare: float) -> Saving | None:
        """Where ``spare`` queries/s are more than is needed: the best change that keeps enough."""
        ...


class LeastCost:
    """The objective of least cost. ``rate``: lambda, 1/s."""

    at_once = False

    def __init__(self, rate: float = 0.0) -> None:
        self.rate = rate

    def grow(self, fleet: Fleet, app: str, need: float) -> Changes:
        """Replicate or upgrade; fill where neither is enough."""
        options = []
        for v in _candidates(fleet, app):
            k = ceil(need / v.capacity - 1e-9)
            if k * v.resources <= fleet.free(v.hardware) + 1e-9:
                options.append((v.cost * k * (1.0 + self.rate * v.load), v.load, v.name, k))
        if options:
            _, _, name, k = min(options)
            return {name: k}
        return _fill(fleet, app, need)

    def improve(self, fleet: Fleet, app: str, spare: float) -> Saving | None:
        """Remove, or downgrade."""
        able = fleet.of_app(app)
        options: list[tuple[float, str, int, str, float]] = []
        for v in sorted((v for v in fleet.variants if v.app == app and fleet.count(v.name)), key=lambda v: v.name):
            loss = v.capacity if v in able else 0.0
            if spare >= loss:
                options.append((-v.cost, v.name, 1, "", v.load))
            for w in able:
                most = _spared(spare + w.capacity, loss, fleet.count(v.name)) if w is not v else 0
                fits = w.resources <= fleet.after({v.name: -most}).free(w.hardware) + 1e-9
                if most and w.cost < most * v.cost * (1.0 - 1e-9) and fits:
                    options.append((w.cost - most * v.cost, v.name, most, w.name, max(v.load, w.load)))
        if not options:
            return None
        _, removed, count, added, wait = min(options)
        return Saving({removed: -count, added: 1} if added else {removed: -count}, wait)


class MostAccurate:
    """Accuracy on a fixed cluster."""

    at_once = True

    def grow(self, fleet: Fleet, app: str, need: float) -> Changes:
        """The step that costs least mean accuracy."""
        del need
        now = _Mean.of(fleet, app)
        best: tuple[float, float, str] | None = None
        chosen: Changes = {}
        for step, after in _steps(fleet, app, now, free=True):
            if after.capacity > now.capacity + 1e-9:
                added = next(name for name, more in step.items() if more > 0)
                if best is None or _before(best, after, added):
                    best, chosen = (round(after.accuracy, 9), after.capacity, added), step
        return chosen

    def improve(self, fleet: Fleet, app: str, spare: float) -> Saving | None:
        """The exchange that gains most."""
        now = _Mean.of(fleet, app)
        best: tuple[float, float, str] | None = None
        chosen: Changes = {}
        for step, after in _steps(fleet, app, now, free=False):
            if after.capacity >= now.capacity - spare and after.accuracy > now.accuracy + 1e-9:
                added = next(name for name, more in step.items() if more > 0)
                if best is None or _before(best, after, added):
                    best, chosen = (round(after.accuracy, 9), after.capacity, added), step
        return Saving(chosen) if chosen else None


@dataclass(frozen=True, slots=True)
class _Mean:
    """A mean accuracy by capacity. ``weighted``: accuracy times capacity, summed."""

    capacity: float
    weighted: float

    @staticmethod
    def of(fleet: Fleet, app: str) -> "_Mean":
        running = [(v, fleet.count(v.name)) for v in fleet.of_app(app)]
        return _Mean(sum(v.capacity * n for v, n in running), sum(v.capacity * v.accuracy * n for v, n in running))

    @property
    def accuracy(self) -> float:
        return self.weighted / self.capacity if self.capacity > 0.0 else 0.0

    def with_one(self, v: ScalingVariant, more: int) -> "_Mean":
        return _Mean(self.capacity + more * v.capacity, self.weighted + more * v.capacity * v.accuracy)


def _steps(fleet: Fleet, app: str, now: _Mean, *, free: bool) -> Iterator[tuple[Changes, _Mean]]:
    """Single steps, those onto what is free first."""
    able = fleet.of_app(app)
    room = {h: fleet.free(h) for h in {v.hardware for v in able}} if free else {}
    for target in able:
        grown = now.with_one(target, 1)
        if room.get(target.hardware, 0.0) >= target.resources - 1e-9:
            yield {target.name: 1}, grown
        for source in able:
            if source is not target and source.hardware == target.hardware and fleet.count(source.name):
                yield {source.name: -1, target.name: 1}, grown.with_one(source, -1)


def _before(best: tuple[float, float, str], after: _Mean, added: str) -> bool:
    """Whether a step is better: accuracy, then capacity, then the name of what it adds."""
    mean = round(after.accuracy, 9)
    return (mean, after.capacity) > best[:2] or ((mean, after.capacity) == best[:2] and added < best[2])


def _candidates(fleet: Fleet, app: str) -> list[ScalingVariant]:
    able = fleet.of_app(app)
    running = [v for v in able if fleet.count(v.name)]
    if not running:
        return list(able)
    least = {v.architecture: min(w.capacity for w in running if w.architecture == v.architecture) for v in running}
    upgrades = [v for v in able if v not in running and v.architecture in least and v.capacity > least[v.architecture]]
    return [*running, *upgrades]


def _fill(fleet: Fleet, app: str, need: float) -> dict[str, int]:
    """No one variant fits as often as is needed: as many as fit, most capacity a resource first."""
    added: dict[str, int] = {}
    ranked = sorted(fleet.of_app(app), key=lambda v: (-v.capacity / v.resources, v.cost / v.capacity, v.name))
    for v in ranked:
        if need <= 0.0:
            break
        k = min(ceil(need / v.capacity - 1e-9), int(fleet.after(added).free(v.hardware) / v.resources + 1e-9))
        if k > 0:
            added[v.name] = k
            need -= k * v.capacity
    return added


def _spared(over: float, each: float, running: int) -> int:
    """Of ``running`` instances, how many can go where capacity exceeds what is wanted by ``over``."""
    if over < 0.0:
        return 0
    return running if each <= 0.0 else min(running, int(over / each))

"""Scaling as INFaaS does it on line: one step an app and tick, up at once, down only when it has long been possible.

Rules, an app, every second.
- Up: where capacity is below 1.05 times the load, add enough instances of one variant: of one that runs (replicate), or
  of another of the same architecture with more capacity (upgrade; of any, where nothing runs), whichever costs least,
  ``C k (1 + lambda Tload)``, ties to the lower loading time, then by name. Only what keeps the SLO and fits.
- What nothing alone can hold is filled as far as resources go, largest capacity first, so that (3) always holds.
- Down: remove an instance, or put one in the place of a dearer one, or of several that cost more together (else a load
  that grows slowly would leave many small ones), the largest saving first, where what is left holds 1.05 times the
  load; only once that has been possible for ``ceil(Tload)`` consecutive ticks of what would have to be loaded again (or
  is loaded). So a constant load is never scaled up after it was scaled down.
"""

from collections.abc import Mapping
from math import ceil

from planner.scaling.fleet import SLACK, Fleet, ScalingVariant


class GreedyScaling:
    """``rate``: lambda, 1/s. ``tick``: seconds between calls."""

    __slots__ = ("_possible", "rate", "slack", "tick")

    def __init__(self, *, slack: float = SLACK, rate: float = 0.0, tick: float = 1.0) -> None:
        self.slack = slack
        self.rate = rate
        self.tick = tick
        self._possible: dict[str, tuple[tuple[str, str], int]] = {}

    def step(self, fleet: Fleet) -> dict[str, int]:
        """Changes to the number of instances for this tick, of all apps."""
        changes: dict[str, int] = {}
        for app in sorted(fleet.asked):
            now = fleet.after(changes)
            for name, more in self._step(now, app).items():
                changes[name] = changes.get(name, 0) + more
        return {name: more for name, more in changes.items() if more}

    def _step(self, fleet: Fleet, app: str) -> Mapping[str, int]:
        need = self.slack * fleet.asked[app].load - fleet.capacity(app)
        if need > 1e-9 * fleet.asked[app].load:
            self._possible.pop(app, None)
            return self._up(fleet, app, need)
        return self._down(fleet, app)

    # -- up

    def _up(self, fleet: Fleet, app: str, need: float) -> Mapping[str, int]:
        options = []
        for v in self._candidates(fleet, app):
            k = ceil(need / v.capacity - 1e-9)
            if k * v.resources <= fleet.free(v.hardware) + 1e-9:
                options.append((v.cost * k * (1.0 + self.rate * v.load), v.load, v.name, k))
        if options:
            _, _, name, k = min(options)
            return {name: k}
        return self._fill(fleet, app, need)

    def _candidates(self, fleet: Fleet, app: str) -> list[ScalingVariant]:
        able = fleet.of_app(app)
        running = [v for v in able if fleet.count(v.name)]
        if not running:
            return list(able)
        least = {v.architecture: min(w.capacity for w in running if w.architecture == v.architecture) for v in running}
        upgrades = [
            v for v in able if v not in running and v.architecture in least and v.capacity > least[v.architecture]
        ]
        return [*running, *upgrades]

    def _fill(self, fleet: Fleet, app: str, need: float) -> Mapping[str, int]:
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

    # -- down

    def _down(self, fleet: Fleet, app: str) -> Mapping[str, int]:
        best = self._saving(fleet, app)
        if best is None:
            self._possible.pop(app, None)
            return {}
        removed, count, added, wait = best
        what, ticks = self._possible.get(app, ((removed, added), 0))
        ticks = ticks + 1 if what == (removed, added) else 1
        if ticks < max(1, ceil(wait / self.tick - 1e-9)):
            self._possible[app] = ((removed, added), ticks)
            return {}
        self._possible.pop(app, None)
        return {removed: -count, added: 1} if added else {removed: -count}

    def _saving(self, fleet: Fleet, app: str) -> tuple[str, int, str, float] | None:
        """(variant to remove, how many, one in their place or "", seconds that this must have been possible)."""
        wanted = self.slack * fleet.asked[app].load * (1.0 - 1e-9)
        capacity = fleet.capacity(app)
        able = fleet.of_app(app)
        options: list[tuple[float, str, int, str, float]] = []
        for v in sorted((v for v in fleet.variants if v.app == app and fleet.count(v.name)), key=lambda v: v.name):
            loss = v.capacity if v in able else 0.0
            if capacity - loss >= wanted:
                options.append((-v.cost, v.name, 1, "", v.load))
            for w in able:
                most = _spared(capacity + w.capacity - wanted, loss, fleet.count(v.name)) if w is not v else 0
                fits = w.resources <= fleet.after({v.name: -most}).free(w.hardware) + 1e-9
                if most and w.cost < most * v.cost * (1.0 - 1e-9) and fits:
                    options.append((w.cost - most * v.cost, v.name, most, w.name, max(v.load, w.load)))
        if not options:
            return None
        _, removed, count, added, wait = min(options)
        return removed, count, added, wait


def _spared(over: float, each: float, running: int) -> int:
    """Of ``running`` instances, how many can go where capacity exceeds what is wanted by ``over``."""
    if over < 0.0:
        return 0
    return running if each <= 0.0 else min(running, int(over / each))

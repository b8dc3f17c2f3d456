"""Greedy scaling: one step an app and tick, up at once, down only when it has long been possible.

Rules.
- Apps are looked at one after the other, by name, each with what it holds now; none gives anything up for another.
- Where capacity is below ``slack`` times the load the aim says what to add; what has long been possible is forgotten.
- Where it is above, the aim says what can be saved; that is done once it has been possible for as long as the aim asks,
  in consecutive ticks. So a constant load is never scaled up after it was scaled down.
- An aim whose moves take no time makes them until none is left, within one tick.

After INFaaS (ATC 2021), 5.1, and, with accuracy as the aim, the baseline of Proteus (ASPLOS 2024), 6.1.
"""

from math import ceil

from sluicegate.planner.model_less.objectives import Aim, Changes, LeastCost
from sluicegate.planner.model_less.scaling_problem import SLACK, Fleet

_MOVES = 10_000
"""Moves of an app within a tick at most."""


class GreedyScaling:
    """INFaaS's greedy scaling. ``rate``: lambda, 1/s, of the default aim. ``tick``: seconds between calls."""

    __slots__ = ("_possible", "aim", "slack", "tick")

    def __init__(self, *, slack: float = SLACK, rate: float = 0.0, tick: float = 1.0, aim: Aim | None = None) -> None:
        self.slack = slack
        self.tick = tick
        self.aim: Aim = LeastCost(rate) if aim is None else aim
        self._possible: dict[str, tuple[object, int]] = {}

    def step(self, fleet: Fleet) -> dict[str, int]:
        """Changes to the number of instances for this tick, of all apps."""
        changes: dict[str, int] = {}
        for app in sorted(fleet.asked):
            for _ in range(_MOVES if self.aim.at_once else 1):
                moved = self._move(fleet.after(changes), app)
                if not moved:
                    break
                for name, more in moved.items():
                    changes[name] = changes.get(name, 0) + more
        return {name: more for name, more in changes.items() if more}

    def _move(self, fleet: Fleet, app: str) -> Changes:
        load = fleet.asked[app].load
        need = self.slack * load - fleet.capacity(app)
        if need > 1e-9 * load:
            self._possible.pop(app, None)
            return self.aim.grow(fleet, app, need)
        saving = self.aim.improve(fleet, app, fleet.capacity(app) - self.slack * load * (1.0 - 1e-9))
        if saving is None:
            self._possible.pop(app, None)
            return {}
        what = tuple(sorted((name, more > 0) for name, more in saving.changes.items()))
        before, ticks = self._possible.get(app, (what, 0))
        ticks = ticks + 1 if before == what else 1
        if ticks < max(1, ceil(saving.wait / self.tick - 1e-9)):
            self._possible[app] = (what, ticks)
            return {}
        self._possible.pop(app, None)
        return saving.changes

"""The Oracle: knows what will come, cuts GPUs for free, and takes what turns out best, interval by interval.

Rules:
- At the start of each interval it goes through all undominated geometries for the whole fleet, mixtures of the best
  two, and what PROTEAN's and the joint rule have now, each with each way to place; it lets a copy of the world run
  through the interval with the true arrivals, and keeps the plan with the fewest late strict queries (then the least
  best-effort time).
- It is a bound for what a better forecast and faster reconfiguration could bring, interval by interval; nothing live
  can do what it does.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.geometry.reconfiguration import Desired
from planner.geometry.tables import Geometry
from policies.placement.strategies import SlicePlacement
from simulator.slices.world import Dispatch, World

_AFTER = 1.0
"""Seconds beyond the interval in which its last batches may end."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to place: a queue for each GPU and a dispatch."""

    make_queue: Callable[[], SlicePlacement]
    make_dispatch: Callable[[], Dispatch]


@dataclass(frozen=True, slots=True)
class _Plan:
    geometries: tuple[Geometry, ...]
    way: str


class OracleControl:
    """``ways``: by name, the first is the usual one. ``multiplier``: of the SLO. ``shadows``: rivals, run beside."""

    def __init__(
        self, ways: Mapping[str, Way], *, period: float, multiplier: float, shadows: Mapping[str, World] | None = None
    ) -> None:
        self.period = period
        self.chosen: Counter[str] = Counter()
        self._ways = dict(ways)
        self._multiplier = multiplier
        self._shadows = dict(shadows or {})
        self._way = next(iter(self._ways))

    def tick(self, world: World, now: float) -> list[Desired]:
        """Act on the world: the best plan for the interval that begins."""
        first = self._way
        plans = [_Plan(tuple(g.geometry for g in world.gpus), way) for way in self._ways]
        plans += [_Plan((g,) * len(world.gpus), first) for g in world.placements.undominated]
        for shadow in self._shadows.values():
            shadow.run_until(now)
            there = tuple(g.geometry for g in shadow.gpus)
            plans += [_Plan(there, way) for way in self._ways]
        scored = self._scored(world, plans, now)
        one, two = self._best_geometries(scored)
        half = len(world.gpus) // 2
        mixed = [_Plan((one,) * n + (two,) * (len(world.gpus) - n), way) for n in {half, 2} for way in self._ways]
        mixed += [_Plan((one,) * len(world.gpus), way) for way in self._ways]
        scored |= self._scored(world, [p for p in mixed if p not in scored], now)
        best = min(scored, key=lambda p: scored[p])
        self._apply(world, best, now)
        self.chosen[f"{best.way} {'+'.join(best.geometries[0])}"] += 1
        self._way = best.way
        return []

    def _scored(self, world: World, plans: list[_Plan], now: float) -> dict[_Plan, tuple[float, float]]:
        return {plan: self._score(world, plan, now) for plan in dict.fromkeys(plans)}

    def _best_geometries(self, scored: Mapping[_Plan, tuple[float, float]]) -> tuple[Geometry, Geometry]:
        uniform = {
            p.geometries[0]: s for p, s in sorted(scored.items(), key=lambda x: x[1]) if len(set(p.geometries)) == 1
        }
        ranked = sorted(uniform, key=lambda g: uniform[g])
        return ranked[0], ranked[1]

    def _score(self, world: World, plan: _Plan, now: float) -> tuple[float, float]:
        """Late strict queries and seconds of best-effort ones in the interval."""
        copy = world.fork()
        copy.control = None
        self._apply(copy, plan, now)
        end = now + self.period + _AFTER
        copy.run_until(end)
        late, others = 0.0, 0.0
        done: set[int] = set()
        for ended in copy.ended:
            done.add(ended.batch.key)
            if ended.batch.strict:
                slo = self._multiplier * world.table.demands[ended.batch.variant].solo
                late += ended.batch.arrivals.searchsorted(ended.at - slo - 1e-9)
            else:
                others += ended.batch.rows * (ended.at - ended.batch.formed)
        for key in copy.unfinished():
            batch = world.workload.batches[key]
            if key in done:
                continue
            if batch.strict:
                slo = self._multiplier * world.table.demands[batch.variant].solo
                late += batch.arrivals.searchsorted(end - slo)
            else:
                others += batch.rows * (end - batch.formed)
        return late, others

    def _apply(self, world: World, plan: _Plan, now: float) -> None:
        way = self._ways[plan.way]
        world.set_rules(way.make_queue, way.make_dispatch())
        for at, geometry in enumerate(plan.geometries):
            world.set_geometry(at, geometry, now)

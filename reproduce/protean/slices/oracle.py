"""The Oracle: the best of the plans that are known here, interval by interval, in hindsight and with free recutting.

Rules:
- At the start of each interval it goes through all undominated geometries for the whole fleet, mixtures of the best
  two, and what PROTEAN's and the joint rule have now; it lets a copy of the world run through the interval with the
  true arrivals, and keeps the plan with the fewest late strict queries (then the least best-effort time). The usual
  ways to place are tried first; where strict queries are late under all of these plans, every queue with every dispatch
  is, on each of the geometries.
- Cutting a GPU takes no time, once what runs there has ended.
- It is no bound. It knows these geometries and ways alone, looks one interval ahead, keeps a plan for all of it, and
  begins the turns over GPUs anew with each: a rule that it does not know, or one left undisturbed, can do better.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from reproduce.protean.gpu_choice import Dispatch
from reproduce.protean.slices.workload import Batch
from reproduce.protean.slices.world import World
from sluicegate.domain.errors import ConfigurationError
from sluicegate.planner.geometry.mig_tables import Geometry
from sluicegate.planner.geometry.reconfigurator import Desired
from sluicegate.policies.placement.slice_queue_port import SlicePlacement

_TOLERANCE = 1e-9
_STEPS = 16
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
    """The best known plan of every interval, in hindsight. ``usual``: ways by name, the first is that of the start;
    ``others``: tried where strict queries are late under those. ``multiplier``: of the SLO. ``shadows``: rivals, run
    beside."""

    def __init__(
        self,
        usual: Mapping[str, Way],
        others: Mapping[str, Way],
        *,
        period: float,
        multiplier: float,
        shadows: Mapping[str, World] | None = None,
    ) -> None:
        self.period = period
        self.first = 0.0
        self.chosen: Counter[str] = Counter()
        self._usual = tuple(usual)
        self._ways = {**usual, **others}
        self._multiplier = multiplier
        self._shadows = dict(shadows or {})
        self._way = self._usual[0]

    def tick(self, world: World, now: float) -> list[Desired]:
        """Act on the world: the best plan for the interval that begins."""
        first, count = self._way, len(world.gpus)
        there = [tuple(g.geometry for g in world.gpus)]
        for shadow in self._shadows.values():
            shadow.run_until(now)
            there.append(tuple(g.geometry for g in shadow.gpus))
        alike = [(g,) * count for g in world.placements.undominated]
        ways = dict.fromkeys((first, *self._usual))
        plans = [_Plan(g, way) for g in there for way in ways] + [_Plan(g, first) for g in alike]
        scored = self._scored(world, plans, now)
        one, two = self._best_geometries(scored)
        mixed = [(one,) * n + (two,) * (count - n) for n in {count // 2, 2, count}]
        scored |= self._scored(world, [_Plan(g, way) for g in mixed for way in ways], now, scored)
        if min(scored.values())[0] > 0.0:
            every = [_Plan(g, way) for g in (*there, *mixed, *alike) for way in self._ways]
            scored |= self._scored(world, every, now, scored)
        best = min(scored, key=lambda p: scored[p])
        self._apply(world, best, now)
        self.chosen[f"{best.way} {'+'.join(best.geometries[0])}"] += 1
        self._way = best.way
        return []

    def _scored(
        self, world: World, plans: list[_Plan], now: float, known: Mapping[_Plan, tuple[float, float]] | None = None
    ) -> dict[_Plan, tuple[float, float]]:
        """Scores of those that are not ``known``; a plan is given up as soon as it is worse than the best so far: by
        strict queries alone where none is known, since the runner-up's best-effort time counts then."""
        scored: dict[_Plan, tuple[float, float]] = {}
        least = min(known.values()) if known else (math.inf, math.inf)
        for plan in dict.fromkeys(plans):
            if known is None or plan not in known:
                found = scored[plan] = self._score(world, plan, now, least)
                least = min(least, found if known else (found[0], math.inf))
        return scored

    def _best_geometries(self, scored: Mapping[_Plan, tuple[float, float]]) -> tuple[Geometry, Geometry]:
        uniform = {
            p.geometries[0]: s for p, s in sorted(scored.items(), key=lambda x: x[1]) if len(set(p.geometries)) == 1
        }
        ranked = sorted(uniform, key=lambda g: uniform[g])
        return ranked[0], ranked[1]

    def _score(self, world: World, plan: _Plan, now: float, least: tuple[float, float]) -> tuple[float, float]:
        """Late strict queries and seconds of best-effort ones in the interval; infinite where a batch has no slice."""
        try:
            return self._tried(world, plan, now, least)
        except ConfigurationError:
            return math.inf, math.inf

    def _tried(self, world: World, plan: _Plan, now: float, least: tuple[float, float]) -> tuple[float, float]:
        copy = world.fork()
        copy.control = None
        self._apply(copy, plan, now)
        end = now + self.period + _AFTER
        late, others = 0.0, 0.0
        for step in range(1, _STEPS + 1):
            copy.run_until(now + (end - now) * step / _STEPS)
            for ended in copy.ended:
                if ended.batch.strict:
                    late += self._late(world, ended.batch, ended.at)
                else:
                    others += ended.batch.rows * (ended.at - ended.batch.formed)
            copy.ended.clear()
            if (late, others) > least:
                return late, math.inf
        for key in copy.unfinished():
            batch = world.workload.batches[key]
            if batch.strict:
                late += self._late(world, batch, end)
            else:
                others += batch.rows * (end - batch.formed)
        return late, others

    def _late(self, world: World, batch: Batch, at: float) -> float:
        """Queries of a batch that are late if it ends at ``at``."""
        slo = self._multiplier * world.table.demands[batch.variant].solo
        return float(batch.arrivals.searchsorted(at - slo - _TOLERANCE))

    def _apply(self, world: World, plan: _Plan, now: float) -> None:
        way = self._ways[plan.way]
        world.set_rules(way.make_queue, way.make_dispatch())
        for at, geometry in enumerate(plan.geometries):
            world.set_geometry(at, geometry, now)

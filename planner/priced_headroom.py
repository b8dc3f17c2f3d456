"""Headroom at its price: as much spare capacity as saves more queries than its accuracy costs.

A uniform headroom buys too little where capacity is idle anyway and too much at the peak, where it is paid for with the
accuracy of every query. This planner weighs the two.

Rules:
- Demand of an app over the time that queues cannot bridge is taken for normal with mean s and standard deviation
  ``spread`` s. Of a capacity C = (1 + k spread) s it overflows by ``spread`` (phi(k) - k (1 - Phi(k))) of s on average
  (the newsvendor's loss function). C is what the plan hosts, idle devices that it filled included.
- Each rung z of ``ladder`` asks the base planner, unpolished, for headroom 1 + z spread (within ``floor`` and
  ``HEADROOM_CAP``). The rung with the largest accuracy over all demand - ``price`` x overflow is planned in full, where
  polish could make more of it; of rungs that are worth the same the lowest. Where loads hold devices up, a rung is
  worth less by what its loads cost: they take the capacity that it asks for. Beside serving they do not, and what they
  cost there is that demand returns, which headroom is for.
  ``price`` 1 is a right answer lost for each query beyond capacity. Queues, other hosts and the next plan save some of
  those, but demand has longer tails than the normal distribution; the two about make up for each other.
- Where an app has few units queues bridge more than a spread of the demand: what is late there is the tail of the
  waiting time in heavy traffic (Kingman), r exp(-2 (1 - r) C w / (r D)), with utilisation r = s / C, what an answer may
  wait w = SLO - the time of one query alone, and D the dispersion of arrivals. So the most accurate variants stay as
  long as their utilisation allows. Demand moves between plans as everywhere: headroom is ``cautious`` at least.
- A rung that cannot serve everybody (who can be served at all) ends the search, unless it is the first; so does one
  that is worth all that any could be: everybody served by the best, and nobody late.
- Where selection tables pick variants, capacity stretches at the price of accuracy: the ``floor`` is enough.
- A demand without spread keeps the headroom it came with; where none has one this is the base planner.
"""

import math
from dataclasses import dataclass, field, replace

from sluicegate.domain.fleet.device import profile_type
from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.allocation.rounding import WORTH_THE_SAME
from sluicegate.planner.problems.kept_rates import kept
from sluicegate.planner.problems.problem import Allocation, Problem
from sluicegate.planner.problems.problem_checks import check
from sluicegate.planner.problems.throughput import throughput

HEADROOM_CAP = 8.0
_SERVED = 1.0 - 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedHeadroom:
    """The default planner: the allocation of ``base`` with headroom at the problem's ``price``. ``ladder``: headrooms
    tried, in spreads, ascending. ``floor``: least headroom, and ``cautious`` where an app has fewer than ``few`` units.
    ``queue_time``: seconds that spreads are about."""

    name: str = "allocation"
    base: AllocationPlanner = field(default_factory=AllocationPlanner)
    floor: float = 1.05
    ladder: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
    few: float = 4.0
    cautious: float = 1.1
    queue_time: float = 0.3

    def allocate(self, problem: Problem) -> Allocation:
        """The base planner's answer at the best rung. Raises InvalidInputError as it does."""
        check(problem, by_slo=problem.tables is not None)
        if problem.tables is not None:
            return self.base.allocate(self._with(problem, 0.0, self.floor))
        if not any(d.spread > 0.0 for d in problem.demands):
            return self.base.allocate(problem)
        rough = replace(self.base, polish=False)
        units = sum(len(device.slices) for device in problem.devices)
        few = units < self.few * len({d.app for d in problem.demands})
        known: dict[float, Allocation] = {}
        able: set[str] = set()
        if few:
            known[0.0] = rough.allocate(self._with(problem, 0.0, self.cautious))
            able = _served_at_all(known[0.0])
            if units >= self.few * len(able) or not _serves(known[0.0], able):
                few, known = False, {}
        floor = self.cautious if few else self.floor
        best, best_worth, found = self.ladder[0], -math.inf, None
        for z in self.ladder:
            asked = self._with(problem, z, floor)
            answer = known.get(z) or rough.allocate(asked)
            if z == self.ladder[0]:
                able = _served_at_all(answer)
            elif not _serves(answer, able):
                break
            lost = late(asked, answer, self.queue_time) if few else overflow(asked, answer)
            worth = _accuracy(asked, answer) - problem.price * lost
            if problem.loads == "exclusive":
                worth -= answer.load_cost
            if worth > best_worth + WORTH_THE_SAME:
                best, best_worth, found = z, worth, answer
            if best_worth > 1.0 - 0.5 * WORTH_THE_SAME:
                break
        chosen = self._with(problem, best, floor)
        planned = {d.app: d.headroom for d in chosen.demands}
        line = f"headroom: {best:g} spreads, {min(planned.values()):.2f} to {max(planned.values()):.2f} by app"
        answer = self.base.allocate(chosen) if found is None or found.rough else found
        return replace(answer, headroom=planned, steps=(line, *answer.steps))

    def _with(self, problem: Problem, z: float, floor: float) -> Problem:
        demands = tuple(
            replace(d, headroom=min(HEADROOM_CAP, max(floor, 1.0 + z * d.spread))) if d.spread > 0.0 else d
            for d in problem.demands
        )
        return replace(problem, demands=demands)


def _served_at_all(answer: Allocation) -> set[str]:
    """Who has no variant that runs on what there is gets nothing at any headroom, and is no reason for less of it."""
    return {app for app, share in answer.served.items() if share > 0.0}


def _serves(answer: Allocation, apps: set[str]) -> bool:
    return min((answer.served[app] for app in apps), default=0.0) >= _SERVED


def overflow(problem: Problem, answer: Allocation) -> float:
    """Share of all demand, by the weights of apps, expected to exceed what its app's hosts can serve."""
    capacity = _capacities(problem, answer)
    total = sum(d.qps * d.weight for d in problem.demands)
    if not total > 0.0:
        return 0.0
    weight = {d.app: d.weight for d in problem.demands}
    qps: dict[str, float] = {}
    variance: dict[str, float] = {}
    for d in problem.demands:
        qps[d.app] = qps.get(d.app, 0.0) + d.qps
        variance[d.app] = variance.get(d.app, 0.0) + (d.spread * d.qps) ** 2
    over = {a: _excess(qps[a], math.sqrt(variance[a]), capacity.get(a, 0.0)) for a in sorted(qps)}
    return sum(weight[a] * over[a] for a in over) / total


def late(problem: Problem, answer: Allocation, queue_time: float) -> float:
    """Share of all demand, by the weights of apps, expected to wait too long in the queues of what the plan hosts."""
    capacity = _capacities(problem, answer)
    alone: dict[str, float] = {}
    kinds = {(d.name, s.name): profile_type(d.type, s.profile) for d in problem.devices for s in d.slices}
    for p in answer.placements:
        for variant in p.variants:
            kind = kinds[p.device, p.slice]
            factor = problem.latency_factor.get((variant, kind), 1.0)
            seconds = factor * problem.catalogue.profiles[variant, kind].curve(problem.quantile)(1)
            alone[p.app] = max(seconds, alone.get(p.app, 0.0))
    found = total = 0.0
    for d in problem.demands:
        total += d.qps * d.weight
        room = capacity.get(d.app, 0.0)
        if not d.qps > 0.0:
            continue
        if d.qps >= room:
            found += d.qps * d.weight
            continue
        busy = d.qps / room
        dispersion = max(1.0, d.spread**2 * queue_time * d.qps)
        wait = max(0.0, d.slo - alone[d.app])
        found += d.qps * d.weight * busy * math.exp(-2.0 * (1.0 - busy) * room * wait / (busy * dispersion))
    return found / total if total > 0.0 else 0.0


def _excess(mean: float, deviation: float, capacity: float) -> float:
    """Expected part above ``capacity`` of a normal demand."""
    if deviation <= 0.0:
        return max(0.0, mean - capacity)
    k = (capacity - mean) / deviation
    density = math.exp(-0.5 * k * k) / math.sqrt(2.0 * math.pi)
    return deviation * (density - 0.5 * k * math.erfc(k / math.sqrt(2.0)))


def _capacities(problem: Problem, answer: Allocation) -> dict[str, float]:
    """Queries/s by app of what is hosted; a slice that several apps share counts in equal parts."""
    kinds = {(d.name, s.name): profile_type(d.type, s.profile) for d in problem.devices for s in d.slices}
    sharers: dict[tuple[str, str], int] = {}
    for p in answer.placements:
        sharers[p.device, p.slice] = sharers.get((p.device, p.slice), 0) + 1
    slo = {d.app: d.slo for d in problem.demands}
    known: dict[tuple[tuple[str, ...], str, int, float], float] = {}
    found: dict[str, float] = {}
    for p in answer.placements:
        if p.app not in slo:
            continue
        kind, apps = kinds[p.device, p.slice], sharers[p.device, p.slice]
        goal = p.slo or slo[p.app]
        key = (p.variants, kind, apps, goal)
        if key not in known:
            known[key] = max(_rate(problem, v, kind, goal / (apps + 1)) for v in p.variants) / apps
        found[p.app] = found.get(p.app, 0.0) + known[key]
    return found


def _rate(problem: Problem, variant: str, kind: str, budget: float) -> float:
    catalogue, factor = problem.catalogue, problem.latency_factor.get((variant, kind), 1.0)
    profile = catalogue.profiles[variant, kind]
    found = throughput(profile, budget, capacity=problem.capacity, quantile=problem.quantile, factor=factor)
    return kept(found, profile, catalogue.apps[catalogue.variants[variant].app], budget, factor=factor).qps


def _accuracy(problem: Problem, answer: Allocation) -> float:
    """Mean over all demand, by the weights of apps; what is not served counts 0."""
    total = sum(d.qps * d.weight for d in problem.demands)
    served = sum(d.qps * d.weight * min(1.0, answer.served.get(d.app, 0.0)) for d in problem.demands)
    return answer.objective * served / total if total > 0.0 else answer.objective

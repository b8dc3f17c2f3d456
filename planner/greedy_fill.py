"""``greedy-fill``: a plan without a solver, for when there is none or it fails.

Rules:
- Serve first: the app with the smallest served fraction takes the host that serves most of what it lacks, until all is
  served or no unit is left. Where that takes the last unit, apps have fair fractions.
- Single units then move to whom lacks most, where that helps.
- Then accuracy: idle units, and units whose app can do with fewer, hold more accurate variants as long as service does
  not fall, the largest gain first; in steps of a part of the fleet, then of one unit.
- One variant a unit, unless units may hold several and apps are more than units: they share them then
  (``sluicegate.planner.shared_units``), so that each is hosted. The bound is the accuracy of the best
  variants: a loose one.
"""

from dataclasses import replace

import numpy as np

from sluicegate.planner.allocation import goal_chain
from sluicegate.planner.allocation.assignment import allocation, assign
from sluicegate.planner.allocation.columns import build
from sluicegate.planner.allocation.idle_units import fill
from sluicegate.planner.allocation.program import Ints, PoolKey, Program, Unit, Way
from sluicegate.planner.allocation.rounding import Whole, evaluate
from sluicegate.planner.allocation.unit_exchange import improved
from sluicegate.planner.allocation.unit_repair import repaired
from sluicegate.planner.allocation.units import count_loaded, group_units
from sluicegate.planner.problems.problem import Allocation, Problem
from sluicegate.planner.problems.problem_checks import check
from sluicegate.planner.shared_units import SharedUnits

_CHUNKS = 256


class GreedyFill:
    """Serve, then upgrade. Deterministic, no solver."""

    name = "greedy-fill"

    def allocate(self, problem: Problem) -> Allocation:
        """Always an allocation; raises InvalidInputError for input that is not finite or out of range."""
        check(problem, by_slo=problem.tables is not None)
        pools = group_units(problem.devices, problem.previous, by_price=problem.by_price)
        free = replace(problem, loads="free", max_loads=None, money_weight=0.0)
        if problem.variants_per_device > 1 and (shared := SharedUnits(free, pools)).needed:
            return self.place(*shared.hosted(), pools)
        single = replace(free, variants_per_device=1)
        program = build(single, {k: len(u) for k, u in pools.items()}, count_loaded(pools))
        return self.place(program, self.counts(program), pools)

    def counts(self, program: Program) -> Whole:
        """Units by host."""
        whole = repaired(program, goal_chain.servable(program), evaluate(program, serve(program)))
        for chunk in sorted({max(1, int(program.pool_count.sum()) // _CHUNKS), 1}, reverse=True):
            whole = improved(program, whole, chunk=chunk)
        return evaluate(program, fill(program, whole))

    def place(self, program: Program, whole: Whole, pools: dict[PoolKey, list[Unit]]) -> Allocation:
        """On concrete devices."""
        placements, loads = assign(program, whole, pools)
        best = np.zeros(len(program.demands))
        np.maximum.at(best, program.serve_demand, program.accuracy)
        gap = max(0.0, float(program.weight @ (whole.served * best)) - whole.accuracy)
        step = f"greedy-fill: served {float(program.weight @ whole.served):.4f}, accuracy {whole.accuracy:.6f}"
        return allocation(program, whole, gap, placements, loads=loads, steps=(step,))


def serve(program: Program) -> Ints:
    """Counts that serve as much as the pools and the budget carry, the worst served first."""
    units = np.zeros(len(program.hosts), dtype=np.int64)
    left = program.pool_count.copy()
    money = np.inf if program.budget is None else program.budget
    served = np.where((program.weight > 0) & program.served_somewhere, 0.0, np.inf)
    spot = np.where(program.strict, 1.0 - program.strict_on_demand, 1.0)
    ways: list[list[Way]] = [[] for _ in program.demands]
    for way in program.ways:
        ways[way.demand].append(way)
    chunk = max(1, int(left.sum()) // _CHUNKS)
    while np.isfinite(served).any() and left.any():
        d = min(np.flatnonzero(np.isfinite(served)), key=lambda d: (not program.strict[d], served[d], d))
        missing = 1.0 - served[d]
        gain: dict[Way, float] = {}
        for way in ways[d]:
            host = way.host
            if left[program.host_pool[host]] > 0 and program.rent[host] <= money + 1e-9:
                price = max(program.rent[host], 1e-9) if money < np.inf else 1.0
                most = min(missing, spot[d]) if program.spot[host] else missing
                gain[way] = min(most, chunk / way.need) / price
        best = max(gain, key=lambda way: (gain[way], way.accuracy, -way.host), default=None)
        if best is None or gain[best] <= 0:
            served[d] = np.inf
            continue
        need, host = best.need, best.host
        count = int(min(chunk, left[program.host_pool[host]], max(1, np.ceil(missing * need))))
        if program.rent[host] > 0 and money < np.inf:
            count = max(1, min(count, int(money / program.rent[host])))
            money -= count * program.rent[host]
        units[host] += count
        left[program.host_pool[host]] -= count
        spot[d] -= count / need if program.spot[host] else 0.0
        served[d] += count / need
        if served[d] >= 1.0 - 1e-9:
            served[d] = np.inf
    return units

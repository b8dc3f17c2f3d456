"""``greedy-fill``: a plan without a solver, for when there is none or it fails.

Rules:
- Serve first: the app with the smallest served fraction takes the host that serves most of what it lacks, until all is
  served or no unit is left. Where that takes the last unit, apps have fair fractions.
- Then accuracy: idle units, and units whose app can do with fewer, hold more accurate variants as long as service does
  not fall, the largest gain first.
- One variant a unit. The bound is the accuracy of the best variants: a loose one.
"""

from dataclasses import replace

import numpy as np

from planner.allocation.answer import allocation
from planner.allocation.assignment import assign
from planner.allocation.columns import build
from planner.allocation.program import Ints, PoolKey, Program, Unit
from planner.allocation.rounding import Whole, evaluate
from planner.allocation.spare import fill
from planner.allocation.units import count_loaded, group_units
from planner.problem import Allocation, Problem
from planner.validation import check

_CHUNKS = 256
_UPGRADES = 200


class GreedyFill:
    """Serve, then upgrade. Deterministic, no solver."""

    name = "greedy-fill"

    def allocate(self, problem: Problem) -> Allocation:
        """Always an allocation; raises InvalidInputError for input that is not finite or out of range."""
        check(problem)
        pools = group_units(problem.devices, problem.previous, by_price=False)
        single = replace(problem, variants_per_device=1, switching_weight=0.0, max_loads=None, money_weight=0.0)
        program = build(single, {k: len(u) for k, u in pools.items()}, count_loaded(pools))
        return self.place(program, self.counts(program), pools)

    def counts(self, program: Program) -> Whole:
        """Units by host."""
        whole = _upgrade(program, serve(program))
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
    """Counts that serve as much as the pools carry, the worst served first."""
    units = np.zeros(len(program.hosts), dtype=np.int64)
    left = program.pool_count.copy()
    served = np.where((program.weight > 0) & program.served_somewhere, 0.0, np.inf)
    serves: list[list[int]] = [[] for _ in program.demands]
    for i, serve in enumerate(program.serves):
        serves[serve.demand].append(i)
    chunk = max(1, int(left.sum()) // _CHUNKS)
    while np.isfinite(served).any() and left.any():
        d = min(np.flatnonzero(np.isfinite(served)), key=lambda d: (not program.strict[d], served[d], d))
        options = [i for i in serves[d] if left[program.hosts[program.serves[i].host].pool] > 0]
        if not options:
            served[d] = np.inf
            continue
        missing = 1.0 - served[d]
        gain = {i: min(missing, chunk / program.serves[i].need) for i in options}
        best = max(options, key=lambda i: (gain[i], program.serves[i].accuracy, -i))
        serve = program.serves[best]
        pool = program.hosts[serve.host].pool
        count = int(min(chunk, left[pool], max(1, np.ceil(missing * serve.need))))
        units[serve.host] += count
        left[pool] -= count
        served[d] += count / serve.need
        if served[d] >= 1.0 - 1e-9:
            served[d] = np.inf
    return units


def _upgrade(program: Program, units: Ints) -> Whole:
    """Trade units for more accurate ones of the same pool, and use idle ones, while service holds."""
    best = evaluate(program, units)
    chunk = max(1, int(program.pool_count.sum()) // _CHUNKS)
    for _ in range(_UPGRADES):
        used = np.bincount(program.host_pool, weights=best.units, minlength=len(program.pools)).astype(np.int64)
        improved: Whole | None = None
        for host in range(len(program.hosts)):
            pool = program.hosts[host].pool
            idle = int(program.pool_count[pool] - used[pool])
            givers = [-1] if idle > 0 else _givers(program, best, host)
            for giver in givers:
                trial = best.units.copy()
                count = min(chunk, idle) if giver < 0 else min(chunk, int(trial[giver]))
                if giver >= 0:
                    trial[giver] -= count
                trial[host] += count
                found = evaluate(program, trial)
                if found.score > (improved or best).score:
                    improved = found
        if improved is None:
            return best
        best = improved
    return best


def _givers(program: Program, best: Whole, host: int) -> list[int]:
    """Hosts of the same pool that could give a unit to ``host``: those of its app, less accurate."""
    app = program.demands[program.serves[program.serves_of_host[host][0]].demand].app
    accuracy = program.serves[program.serves_of_host[host][0]].accuracy
    found = []
    for other in np.flatnonzero((program.host_pool == program.hosts[host].pool) & (best.units > 0)):
        serve = program.serves[program.serves_of_host[int(other)][0]]
        if int(other) != host and (program.demands[serve.demand].app != app or serve.accuracy < accuracy):
            found.append(int(other))
    return found

"""Service that rounding lost: single units move to the worst served demand as long as that helps.

Rules:
- Only where whole units serve a demand less than a target, such as what the relaxed program serves.
- A move takes one unit from any host of a pool and gives it to a host of the same pool that serves the demand that
  lacks most. The best move is made, by the order in which answers are compared (service first), then the next is
  looked for.
- Only where every host serves one app, loads have no cap, and trials are few: on large fleets a unit matters little,
  and the search that follows finds the rest.
"""

import numpy as np

from sluicegate.planner.allocation import goal_chain
from sluicegate.planner.allocation.program import Floats, Program
from sluicegate.planner.allocation.rounding import Whole, evaluate

_TOLERANCE = 1e-6
_MOVES = 8
_TRIALS = 600


def repaired(program: Program, wanted: Floats, whole: Whole) -> Whole:
    """``whole`` or better, by the order of answers. ``wanted``: served fraction of each demand to strive for."""
    if not program.independent or program.max_loads is not None:
        return whole
    trials = 0
    for _ in range(_MOVES):
        lacks = np.minimum(wanted, goal_chain.servable(program)) - whole.served
        worst = int(np.argmax(lacks))
        if lacks[worst] <= _TOLERANCE:
            return whole
        moves = _moves(program, whole, worst)
        trials += len(moves)
        if trials > _TRIALS:
            return whole
        best = whole
        for giver, target in moves:
            units = whole.units.copy()
            units[target] += 1
            if giver is not None:
                units[giver] -= 1
            if not program.affordable(units):
                continue
            found = evaluate(program, units)
            if found.beats(best):
                best = found
        if best is whole:
            return whole
        whole = best
    return whole


def _moves(program: Program, whole: Whole, demand: int) -> list[tuple[int | None, int]]:
    """(host that gives a unit, host that gets it); None gives an idle one."""
    used = np.bincount(program.host_pool, weights=whole.units, minlength=len(program.pools))
    found: list[tuple[int | None, int]] = []
    for target in np.unique(program.serve_host[program.serve_demand == demand]).tolist():
        pool = int(program.host_pool[target])
        if used[pool] < program.pool_count[pool]:
            found.append((None, target))
            continue
        givers = np.flatnonzero((program.host_pool == pool) & (whole.units > 0)).tolist()
        found.extend((giver, target) for giver in givers if giver != target)
    return found

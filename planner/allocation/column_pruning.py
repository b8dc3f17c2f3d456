"""A smaller program with the hosts that matter, for the integer search where sets of variants make thousands of them.

Rules: at the prices of the relaxed program (of a unit of each pool, and of a demand's share) every host has a value:
what one unit of it could earn at best, less the unit. Hosts in use have value 0, others at most 0; the best of each
pool are kept, and all that the incumbent uses. What is found is feasible for the whole program; a bound is not, and is
not used.
"""

from dataclasses import dataclass, replace

import numpy as np

from sluicegate.planner.allocation.program import Floats, Ints, Program
from sluicegate.planner.allocation.rounding import Whole
from sluicegate.planner.allocation.solver_types import Solved

LARGE = 700
"""Ways to serve beyond which the search is given a part of the program."""
_HOSTS = 50
"""Hosts kept in each pool."""


@dataclass(frozen=True, slots=True)
class Restricted:
    """A program with some columns of the whole. ``hosts`` and ``serves``: indices in the whole program."""

    program: Program
    hosts: Ints
    serves: Ints

    def narrow(self, solved: Solved) -> Solved:
        """An answer to the whole program that uses kept hosts only."""
        return replace(solved, shares=solved.shares[self.serves], units=solved.units[self.hosts])

    def widen(self, units: Floats, hosts: int) -> Ints:
        """Host counts of the whole program."""
        whole = np.zeros(hosts, dtype=np.int64)
        whole[self.hosts] = np.rint(units).astype(np.int64)
        return whole


def restrict(program: Program, relaxed: Solved, incumbent: Whole) -> Restricted:
    """The part of ``program`` to search; ``relaxed`` was solved with duals."""
    value = _values(program, relaxed)
    value[incumbent.units > 0] = np.inf
    value[relaxed.units > 1e-9] = np.inf
    value[program.loaded > 0] = np.inf
    kept: list[int] = []
    for pool in range(len(program.pools)):
        mine = np.flatnonzero(program.host_pool == pool)
        order = sorted(mine.tolist(), key=lambda h: (-value[h], h))
        limit = max(_HOSTS, int(np.isinf(value[mine]).sum()))
        kept.extend(order[:limit])
    hosts = np.array(sorted(kept), dtype=np.int64)
    number = {int(h): i for i, h in enumerate(hosts)}
    serves = np.array([i for i, s in enumerate(program.serves) if s.host in number], dtype=np.int64)
    smaller = replace(
        program,
        hosts=tuple(program.hosts[h] for h in hosts),
        serves=tuple(replace(program.serves[i], host=number[program.serves[i].host]) for i in serves),
    )
    return Restricted(smaller, hosts, serves)


def _values(program: Program, relaxed: Solved) -> Floats:
    """Earnings of one unit of each host, less its price: a knapsack of shares, the best earning for its time first."""
    assert relaxed.demand_duals is not None
    assert relaxed.pool_duals is not None
    gain = program.accuracy * program.weight[program.serve_demand] - relaxed.demand_duals[program.serve_demand]
    value = -relaxed.pool_duals[program.host_pool]
    worth: list[float] = (gain / np.maximum(program.need, 1e-12)).tolist()
    for host, serves in enumerate(program.serves_of_host):
        left = dict.fromkeys((program.serves[i].lane for i in serves), 1.0)
        for i in sorted(serves, key=lambda i: -worth[i]):
            lane = program.serves[i].lane
            if gain[i] <= 0:
                break
            share = min(1.0, left[lane] / max(program.need[i], 1e-12))
            value[host] += share * gain[i]
            left[lane] -= share * program.need[i]
    return value

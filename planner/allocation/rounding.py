"""Whole units: what given host counts serve, and how a relaxed answer becomes whole.

Rules:
- Given whole counts, apps are independent as long as no unit is shared: each fills its hosts by accuracy, strict demand
  first, and hosts of one variant are loaded evenly. That serves the most and is then the most accurate.
- Round up: solve with k_t units of each pool held back, take the ceiling, and where it overflows hold back that much
  more, a few times; then as many as there are hosts in use, which is what ceilings can add at most. What still
  overflows loses the units that matter least.
- Answers are compared by service first: fair share and total of strict demands, then of best-effort ones, then value.
  Service that differs by no more than what programs leave to their tolerances is the same.
"""

from dataclasses import dataclass

import numpy as np

from sluicegate.planner.allocation import goal_chain
from sluicegate.planner.allocation.linear import Matrix
from sluicegate.planner.allocation.program import Floats, Ints, Program
from sluicegate.planner.allocation.solver_types import Solved

_PATIENT = 3
_ROUNDS = 6
_TOLERANCE = 1e-6
SAME = 3e-6
"""Of service: the chain of goals lets go of a millionth in two of its steps."""
WORTH_THE_SAME = 1e-12
"""Of values, which are sums: their last digits are the machine's."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A feasible answer in whole units. ``accuracy``: mean over all demand; ``value``: less prices."""

    units: Ints
    shares: Floats
    served: Floats
    accuracy: float
    value: float
    service: tuple[float, ...]

    def service_beyond(self, other: "Whole") -> float:
        """By how much it serves more (less: negative) in the first thing in which they differ; 0 in none."""
        differ = (m - t for m, t in zip(self.service, other.service, strict=True) if abs(m - t) > SAME)
        return next(differ, 0.0)

    def beats(self, other: "Whole") -> bool:
        """Whether it is better: service first, then value, by more than rounding makes of it."""
        beyond = self.service_beyond(other)
        return beyond > 0.0 if beyond else self.value - other.value > WORTH_THE_SAME

    def as_solved(self) -> Solved:
        """The same as a hint for the solver."""
        return Solved(self.value, self.value, self.shares, self.units.astype(np.float64), self.served, 0.0)


def evaluate(program: Program, units: Ints) -> Whole:
    """Best service and accuracy of these counts."""
    if program.independent:
        shares = _fill(program, units)
    else:
        shares = goal_chain.run(Matrix(program, units=units), program).solved.shares
        shares = _within_capacity(program, units, shares)
    served = np.zeros(len(program.demands))
    np.add.at(served, program.serve_demand, shares)
    served = np.minimum(served, 1.0)
    accuracy = float((program.accuracy * program.weight[program.serve_demand]) @ shares)
    value = accuracy - prices(program, units)
    return Whole(units, shares, served, accuracy, value, service_of(program, served))


def load_cost(program: Program, units: Ints) -> float:
    """What loads cost, in accuracy."""
    return float(np.maximum(0, units - program.loaded) @ program.load_price) if len(units) else 0.0


def prices(program: Program, units: Ints) -> float:
    """What loads and money cost, in accuracy."""
    cost = load_cost(program, units)
    if program.money_weight > 0 and len(units):
        cost += program.money_weight * float(units @ program.rent)
    return cost


def round_up(program: Program, relaxed: Solved) -> tuple[Whole, int]:
    """The best of a few roundings, and how many relaxed programs it took."""
    held = np.zeros(len(program.pools), dtype=np.int64)
    unspent = 0.0
    best: Whole | None = None
    rounds = 0
    while True:
        rounds += 1
        units = np.ceil(relaxed.units * (1 - 1e-12) - _TOLERANCE).astype(np.int64)
        used = np.zeros(len(program.pools), dtype=np.int64)
        np.add.at(used, program.host_pool, units)
        over = np.maximum(0, used - program.pool_count)
        dear = 0.0 if program.affordable(units) else float(program.rent @ units) - (program.budget or 0.0)
        found = evaluate(program, _trim(program, units, relaxed.units))
        if best is None or found.beats(best):
            best = found
        if not (over.any() or dear) or rounds == _ROUNDS:
            return best, rounds
        if rounds >= _PATIENT:
            over = np.maximum(0, np.bincount(program.host_pool[units > 0], minlength=len(held)) - held)
        held = np.minimum(held + np.maximum(over, rounds > _PATIENT), program.pool_count)
        budget = None
        if program.budget is not None:
            unspent = min(unspent + dear, program.budget)
            budget = program.budget - unspent
        relaxed = goal_chain.run(Matrix(program, counts=program.pool_count - held, budget=budget), program).solved


def _fill(program: Program, units: Ints) -> Floats:
    """Each demand takes hosts by accuracy; hosts of one variant evenly."""
    shares = np.zeros(len(program.serves))
    lane = program.serve_lane.tolist()
    free = units[program.lane_host].astype(np.float64)
    by_demand: list[dict[str, list[int]]] = [{} for _ in program.demands]
    for i, serve in enumerate(program.serves):
        if units[serve.host] > 0:
            by_demand[serve.demand].setdefault(serve.variant, []).append(i)
    for d in sorted(range(len(program.demands)), key=lambda d: (not program.strict[d], d)):
        left = 1.0
        spot = 1.0
        if program.strict_on_demand > 0 and program.strict[d]:
            mine = [i for serves in by_demand[d].values() for i in serves]
            left, spot = _with_core(program, mine, free)
        levels = by_demand[d].items()
        for _, serves in sorted(levels, key=lambda item: (-program.serves[item[1][0]].accuracy, item[0])):
            needs = [max(program.serves[i].need, 1e-12) for i in serves]
            room = [free[lane[i]] / n for i, n in zip(serves, needs, strict=True)]
            if spot < 1.0:
                away = [bool(program.spot[program.serves[i].host]) for i in serves]
                taken = sum(r for r, a in zip(room, away, strict=True) if a)
                part = min(1.0, spot / taken) if taken > 0 else 1.0
                room = [r * part if a else r for r, a in zip(room, away, strict=True)]
            capacity = sum(room)
            take = min(left, capacity)
            if take <= 0:
                continue
            for i, n, r in zip(serves, needs, room, strict=True):
                shares[i] = take * r / capacity
                free[lane[i]] = max(0.0, free[lane[i]] - shares[i] * n)
                spot -= shares[i] * (spot < 1.0 and bool(program.spot[program.serves[i].host]))
            left -= take
            if left <= 1e-12:
                break
    return shares


def _with_core(program: Program, serves: list[int], free: Floats) -> tuple[float, float]:
    """Most that can be served of a strict demand with its core on demand, and the part of it that spot may serve."""
    room = {True: 0.0, False: 0.0}
    for i in serves:
        away = bool(program.spot[program.serves[i].host])
        room[away] += free[program.serve_lane[i]] / max(program.serves[i].need, 1e-12)
    core = program.strict_on_demand
    served = min(1.0, room[True] + room[False], room[False] / core)
    return served, (1.0 - core) * served


def _within_capacity(program: Program, units: Ints, shares: Floats) -> Floats:
    """Shrink what a solver's tolerance let over the capacity of a lane."""
    room = units[program.lane_host]
    used = np.zeros(len(room))
    np.add.at(used, program.serve_lane, program.need * shares)
    factor = np.where(used > room, room / np.maximum(used, 1e-300), 1.0)
    return np.asarray(shares * factor[program.serve_lane], dtype=np.float64)


def service_of(program: Program, served: Floats) -> tuple[float, ...]:
    """Least share and total of strict demands, then of best-effort ones; ``served``: share of each demand."""
    high = goal_chain.servable(program)
    found: list[float] = []
    for strict in (True, False):
        members = np.flatnonzero((program.strict == strict) & (high > 0))
        if len(members):
            found.append(float(served[members].min()))
            found.append(float(program.weight[members] @ served[members]))
    return tuple(found)


def _trim(program: Program, units: Ints, relaxed: Floats) -> Ints:
    """Take units away where a pool overflows or loads exceed their cap, the least used ones first."""
    units = units.copy()
    for pool, count in enumerate(program.counts):
        hosts = np.flatnonzero(program.host_pool == pool)
        _take(units, relaxed, hosts, int(units[hosts].sum()) - count, np.zeros(len(units), dtype=np.int64))
    while not program.affordable(units):
        # The unit whose last part is used least for its price goes first.
        left = np.flatnonzero((units > 0) & (program.rent > 0))
        use = (relaxed[left] - (units[left] - 1)) / program.rent[left]
        units[left[np.argmin(use)]] -= 1
    if program.max_loads is not None:
        while np.maximum(0, beyond := program.loads_beyond_empty(units)).sum() > program.max_loads:
            hosts = np.flatnonzero((units > program.loaded) & (beyond[program.host_pool] > 0))
            _take(units, relaxed, hosts, 1, program.loaded)
    return units


def _take(units: Ints, relaxed: Floats, hosts: Ints, over: int, floor: Ints) -> None:
    """Take ``over`` units from ``hosts``, one each in order of how little of the last unit is used, round and round."""
    while over > 0:
        rest = [int(h) for h in hosts if units[h] > floor[h]]
        if not rest:
            return
        rest.sort(key=lambda h: (relaxed[h] - (units[h] - 1), h))
        for h in rest[:over]:
            units[h] -= 1
            over -= 1

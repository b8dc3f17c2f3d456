"""What becomes of units that the optimum leaves idle.

Rules:
- Where money counts idle units stay idle: they cost nothing.
- Nothing is evicted: counts only grow, and a unit that holds a variant of use keeps it (that costs no load).
- Before that, an app that no unit holds gets one, wherever one is left (its demand may be zero or unmet).
- Units that hold nothing go to the apps with the least spare capacity (capacity over demand with headroom). They hold
  the fastest variant at least as accurate as the app's answers are now, so that load can move there without a loss;
  where there is none, the most accurate one.
"""

import numpy as np

from sluicegate.planner.allocation.program import Floats, Ints, Program
from sluicegate.planner.allocation.rounding import Whole

_CHUNKS = 64


def fill(program: Program, whole: Whole) -> Ints:
    """Units by host, none fewer than before."""
    units = whole.units.copy()
    if program.money_weight > 0 or program.budget is not None or not len(program.hosts):
        return units
    left = program.pool_count - np.bincount(program.host_pool, weights=units, minlength=len(program.pools)).astype(
        np.int64
    )
    spare = _Spare(program, whole)
    _hostless(program, spare, units, left)
    _keep(program, spare, units, left)
    _give(program, spare, units, left)
    return units


class _Spare:
    """Capacity over demand, by app, as units are added."""

    def __init__(self, program: Program, whole: Whole) -> None:
        self.program = program
        self.apps = sorted({d.app for d in program.demands})
        index = {app: i for i, app in enumerate(self.apps)}
        self.app_of_demand = np.array([index[d.app] for d in program.demands], dtype=np.int64)
        self.wanted = np.zeros(len(self.apps))
        np.add.at(self.wanted, self.app_of_demand, np.array([d.headroom * d.qps for d in program.demands]))
        self.rate = self._rates()
        self.capacity = self.rate @ whole.units
        served = np.zeros(len(self.apps))
        total = np.zeros(len(self.apps))
        weight = program.weight[program.serve_demand] * whole.shares
        app_of_serve = self.app_of_demand[program.serve_demand]
        np.add.at(served, app_of_serve, weight * program.accuracy)
        np.add.at(total, app_of_serve, weight)
        idle = np.where(self.wanted > 0, 0.0, np.inf)
        self.accuracy = np.where(total > 0, served / np.maximum(total, 1e-300), idle)

    def _rates(self) -> Floats:
        """Queries/s of each app by unit of each host: (apps, hosts). Units that several apps share count in parts."""
        program = self.program
        by_lane = np.zeros((len(self.apps), len(program.lane_host)))
        for serve, lane in zip(program.serves, program.serve_lane.tolist(), strict=True):
            app, host = self.app_of_demand[serve.demand], program.hosts[serve.host]
            part = serve.qps / (1 if host.ranked else len(host.variants))
            by_lane[app, lane] = max(by_lane[app, lane], part)
        rate = np.zeros((len(self.apps), len(program.hosts)))
        np.add.at(rate.T, program.lane_host, by_lane.T)
        return rate

    def order(self) -> list[int]:
        """Apps, least spare capacity first."""
        ratio = np.where(self.wanted > 0, self.capacity / np.maximum(self.wanted, 1e-300), np.inf)
        return sorted(range(len(self.apps)), key=lambda a: (self.capacity[a] > 0, ratio[a], self.apps[a]))

    def add(self, units: Ints, left: Ints, host: int, count: int) -> None:
        units[host] += count
        left[self.program.host_pool[host]] -= count
        self.capacity += self.rate[:, host] * count

    def best_host(self, app: int, pool: int) -> int | None:
        """Fastest that loses no accuracy, else the most accurate; None where the pool has none."""
        program = self.program
        hosts = [h for h in np.flatnonzero((program.host_pool == pool) & (self.rate[app] > 0)) if self._alone(int(h))]
        if not hosts:
            return None
        accuracy = {h: max(program.serves[i].accuracy for i in program.serves_of_host[h]) for h in hosts}
        lossless = [h for h in hosts if accuracy[h] >= self.accuracy[app] - 1e-9]
        if lossless:
            return int(max(lossless, key=lambda h: (self.rate[app, h], -h)))
        return int(max(hosts, key=lambda h: (accuracy[h], -h)))

    def _alone(self, host: int) -> bool:
        return len(self.program.hosts[host].variants) == 1 or bool(self.program.hosts[host].ranked)


def _may_be_loaded(program: Program, units: Ints, pool: int) -> float:
    """Units of ``pool`` that may still be loaded anew."""
    if program.max_loads is None:
        return np.inf
    beyond = program.loads_beyond_empty(units)
    return float(program.max_loads - np.maximum(0, beyond).sum() + max(0, -beyond[pool]))


def _hostless(program: Program, spare: _Spare, units: Ints, left: Ints) -> None:
    for app in spare.order():
        if spare.capacity[app] > 0:
            return
        pools = [p for p in range(len(program.pools)) if left[p] > 0 and _may_be_loaded(program, units, p) >= 1]
        options = [(p, spare.best_host(app, p)) for p in pools]
        hosts = [h for _, h in options if h is not None]
        if hosts:
            spare.add(units, left, max(hosts, key=lambda h: (spare.rate[app, h], -h)), 1)


def _keep(program: Program, spare: _Spare, units: Ints, left: Ints) -> None:
    surplus = np.maximum(0, program.loaded - units)
    for app in spare.order():
        for host in np.flatnonzero((surplus > 0) & (spare.rate[app] > 0)):
            keep = int(min(surplus[host], left[program.host_pool[host]]))
            if keep > 0:
                spare.add(units, left, int(host), keep)
                surplus[host] -= keep


def _give(program: Program, spare: _Spare, units: Ints, left: Ints) -> None:
    for pool in range(len(program.pools)):
        chunk = max(1, int(left[pool]) // _CHUNKS)
        while left[pool] > 0:
            choice = next((h for a in spare.order() if (h := spare.best_host(a, pool)) is not None), None)
            if choice is None:
                break
            kept = max(0, int(program.loaded[choice] - units[choice]))
            count = int(min(chunk, left[pool], kept + _may_be_loaded(program, units, pool)))
            if count < 1:
                break
            spare.add(units, left, choice, count)

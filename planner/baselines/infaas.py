"""INFaaS-Accuracy: INFaaS's greedy scaling with accuracy in the place of cost (Proteus, section 6.1).

Rules:
- Apps are looked at one after the other, in the order of their names, each with what it holds now; nobody gives
  anything up for another. The cluster's size is the constraint.
- Where capacity is short of demand with headroom: of all single steps (replicate a variant it holds, load any variant
  on an idle device, swap one of its devices to a faster variant) the one that costs least mean accuracy, then the one
  that adds most capacity; until it is enough or no step is left.
- Where capacity is ample: swap a device to a more accurate variant as long as what is left is enough, the largest gain
  first.
- Shares follow capacity. Throughput is read as throughput (the artifact reads latency in its place).
"""

from dataclasses import dataclass

import numpy as np

from planner.allocation.answer import allocation
from planner.allocation.assignment import assign
from planner.allocation.columns import build
from planner.allocation.program import Ints, Program
from planner.allocation.rounding import Whole, evaluate
from planner.allocation.units import count_loaded, group_units
from planner.problem import Allocation, Problem
from planner.validation import check

_STEPS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class InfaasAccuracyPlanner:
    """Greedy on what is there."""

    name: str = "infaas-accuracy"

    def allocate(self, problem: Problem) -> Allocation:
        """One greedy pass over the apps."""
        check(problem)
        pools = group_units(problem.devices, problem.previous)
        program = build(problem, {k: len(u) for k, u in pools.items()}, count_loaded(pools), pruned=False)
        whole = evaluate(program, _Greedy(program).run())
        placements, loads = assign(program, whole, pools)
        best = np.zeros(len(program.demands))
        np.maximum.at(best, program.serve_demand, program.accuracy)
        gap = float(program.weight @ (whole.served * best)) - whole.accuracy
        return allocation(program, whole, max(0.0, gap), placements, loads=loads, steps=(_line(whole),))


def _line(whole: Whole) -> str:
    return f"greedy: accuracy {whole.accuracy:.6f} over all demand"


class _Greedy:
    """Counts as they change."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.units = (
            np.minimum(program.loaded, program.pool_count[program.host_pool]) if program.hosts else program.loaded
        )
        self.qps = np.array([max(program.serves[i].qps for i in s) for s in program.serves_of_host])
        self.accuracy = np.array([program.serves[s[0]].accuracy for s in program.serves_of_host])
        self.app = [program.demands[program.serves[s[0]].demand].app for s in program.serves_of_host]

    def run(self) -> Ints:
        """Units by host."""
        wanted: dict[str, float] = {}
        for d in self.program.demands:
            wanted[d.app] = wanted.get(d.app, 0.0) + d.headroom * d.qps
        for app in sorted(wanted):
            hosts = np.array([h for h, a in enumerate(self.app) if a == app], dtype=np.int64)
            if not len(hosts):
                continue
            for _ in range(_STEPS):
                short = float(self.qps[hosts] @ self.units[hosts]) < wanted[app]
                step = self._grow(hosts) if short else self._improve(hosts, wanted[app])
                if step is None:
                    break
                source, target = step
                if source is not None:
                    self.units[source] -= 1
                self.units[target] += 1
        return np.asarray(self.units, dtype=np.int64)

    def _idle(self, pool: int) -> int:
        used = self.units[self.program.host_pool == pool].sum()
        return int(self.program.counts[pool] - used)

    def _steps(self, hosts: Ints) -> list[tuple[int | None, int]]:
        """(host that gives a unit up or None for an idle one, host that gets it)."""
        steps: list[tuple[int | None, int]] = []
        for target in hosts.tolist():
            pool = int(self.program.host_pool[target])
            if self._idle(pool) > 0:
                steps.append((None, target))
            steps.extend(
                (source, target)
                for source in hosts.tolist()
                if source != target and self.program.host_pool[source] == pool and self.units[source] > 0
            )
        return steps

    def _mean(self, hosts: Ints, step: tuple[int | None, int] | None) -> tuple[float, float]:
        """(accuracy weighted by capacity, capacity) after a step."""
        units = self.units[hosts].astype(np.float64)
        if step is not None:
            source, target = step
            units[hosts == target] += 1
            if source is not None:
                units[hosts == source] -= 1
        capacity = float(self.qps[hosts] @ units)
        return (float((self.qps * self.accuracy)[hosts] @ units) / capacity if capacity else 0.0), capacity

    def _grow(self, hosts: Ints) -> tuple[int | None, int] | None:
        _, now = self._mean(hosts, None)
        options = []
        for step in self._steps(hosts):
            mean, capacity = self._mean(hosts, step)
            if capacity > now + 1e-9:
                options.append((mean, capacity, step))
        return max(options, key=lambda o: (round(o[0], 9), o[1], -o[2][1]))[2] if options else None

    def _improve(self, hosts: Ints, wanted: float) -> tuple[int | None, int] | None:
        now, _ = self._mean(hosts, None)
        options = []
        for step in self._steps(hosts):
            if step[0] is None:
                continue
            mean, capacity = self._mean(hosts, step)
            if capacity >= wanted and mean > now + 1e-9:
                options.append((mean, capacity, step))
        return max(options, key=lambda o: (round(o[0], 9), o[1], -o[2][1]))[2] if options else None

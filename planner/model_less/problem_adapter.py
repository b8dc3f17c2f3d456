"""Scaling as a planner: a problem's units as hardware, what they may hold as variants, counts as placements.

An instance is a unit (a device or slice) that holds one variant; its resources are that unit, its cost the unit's price
an hour (1 where nothing has a price), its capacity the throughput within the app's SLO. Load is demand with headroom.
"""

from dataclasses import replace

import numpy as np

from sluicegate.planner.allocation.assignment import allocation, assign
from sluicegate.planner.allocation.columns import build
from sluicegate.planner.allocation.program import Ints, PoolKey, Program, Unit
from sluicegate.planner.allocation.rounding import evaluate
from sluicegate.planner.allocation.units import count_loaded, group_units
from sluicegate.planner.model_less.scaling_problem import Asked, Fleet, ScalingVariant
from sluicegate.planner.problems.problem import Allocation, Problem

_FEASIBLE = 1.0
"""SLO and latency of every instance here: a program holds none that breaks its app's."""

Pools = dict[PoolKey, list[Unit]]


class Scale:
    """One problem, ready to be scaled. ``by_price``: units that differ in price are told apart."""

    def __init__(self, problem: Problem, *, by_price: bool = True) -> None:
        single = replace(problem, variants_per_device=1, loads="free", max_loads=None, money_weight=0.0, tables=None)
        self._pools: Pools = group_units(problem.devices, problem.previous, by_price=by_price)
        counts = {key: len(units) for key, units in self._pools.items()}
        self.program: Program = build(single, counts, count_loaded(self._pools), pruned=False)
        self.fleet = self._fleet(problem)

    def placed(self, fleet: Fleet, line: str) -> Allocation:
        """The placements of ``fleet``, keeping what is loaded where it is."""
        program = self.program
        units: Ints = np.array([fleet.count(_name(h)) for h in range(len(program.hosts))], dtype=np.int64)
        whole = evaluate(program, units)
        placements, loads = assign(program, whole, self._pools)
        best = np.zeros(len(program.demands))
        np.maximum.at(best, program.serve_demand, program.accuracy)
        gap = max(0.0, float(program.weight @ (whole.served * best)) - whole.accuracy)
        step = f"{line}: accuracy {whole.accuracy:.6f} over all demand, {fleet.cost():g} an hour"
        return allocation(program, whole, gap, placements, loads=loads, steps=(step,))

    def variant(self, name: str) -> str:
        """What an instance called ``name`` in the fleet holds."""
        return self.program.hosts[int(name)].variants[0]

    def _fleet(self, problem: Problem) -> Fleet:
        program = self.program
        priced = any(key.price > 0.0 for key in program.pools)
        variants = []
        for h, host in enumerate(program.hosts):
            serves = [program.serves[i] for i in program.serves_of_host[h]]
            app = program.demands[serves[0].demand].app
            variants.append(
                ScalingVariant(
                    name=_name(h),
                    app=app,
                    latency=_FEASIBLE,
                    capacity=max(s.qps for s in serves),
                    cost=program.pools[host.pool].price if priced else 1.0,
                    load=host.load_s,
                    architecture=problem.catalogue.variants[host.variants[0]].family,
                    hardware=str(host.pool),
                    accuracy=serves[0].accuracy,
                )
            )
        asked: dict[str, Asked] = {}
        for d in program.demands:
            before = asked[d.app].load if d.app in asked else 0.0
            asked[d.app] = Asked(load=before + d.headroom * d.qps, slo=_FEASIBLE)
        running = {
            _name(h): min(n, program.counts[program.hosts[h].pool]) for h, n in enumerate(program.loaded.tolist())
        }
        resources = {str(p): float(count) for p, count in enumerate(program.counts)}
        return Fleet(variants=tuple(variants), asked=asked, running=running, resources=resources)


def _name(host: int) -> str:
    """In the order of hosts, so that ties are broken by their numbers."""
    return f"{host:06d}"

"""The program as Proteus states it: a variable for each device and variant, solved as it stands.

Rules: each device is a pool of its own, nothing is pruned, and demand is hard. While that is infeasible demand is
lowered by 5 % and the program solved again (the paper's "decrease s slightly"), which does not end where one app has no
feasible variant; such apps are left out here. The objective is the corrected one (shares, divided by the total).
"""

from dataclasses import dataclass, field, replace

import numpy as np

from sluicegate.planner.allocation import goal_chain
from sluicegate.planner.allocation.assignment import allocation, assign
from sluicegate.planner.allocation.columns import build
from sluicegate.planner.allocation.linear import Matrix, MipSolver
from sluicegate.planner.allocation.program import Program
from sluicegate.planner.allocation.rounding import evaluate
from sluicegate.planner.allocation.solver_types import Limits, Solved, SolverError
from sluicegate.planner.allocation.units import count_loaded, group_units
from sluicegate.planner.problems.problem import Allocation, Problem
from sluicegate.planner.problems.problem_checks import check

_LOWERINGS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class PerDevicePlanner:
    """Proteus's program, device by device. ``limits``: gap, nodes and seconds of one solve. The published artifact uses
    a gap of 0.5 relative."""

    name: str = "proteus-per-device"
    limits: Limits = field(default_factory=lambda: Limits(gap=5e-4, nodes=1_000_000, seconds=60.0))
    solver: MipSolver = "scip"

    def allocate(self, problem: Problem) -> Allocation:
        """Solve, lowering demand until it can be served."""
        check(problem)
        pools = group_units(problem.devices, problem.previous, by_device=True)
        counts = {k: len(u) for k, u in pools.items()}
        factor = 1.0
        steps: list[str] = []
        for _ in range(_LOWERINGS):
            demands = tuple(replace(d, qps=factor * d.qps) for d in problem.demands)
            lowered = replace(problem, demands=demands, loads="free", max_loads=None, money_weight=0.0, tables=None)
            program = build(lowered, counts, count_loaded(pools), pruned=False)
            solved, timed_out = self._solve(program, steps)
            if solved is not None:
                asked = build(replace(lowered, demands=problem.demands), counts, count_loaded(pools), pruned=False)
                whole = evaluate(asked, np.rint(solved.units).astype(np.int64))
                placements, loads = assign(asked, whole, pools)
                gap = max(0.0, solved.bound - solved.value)
                return allocation(
                    asked, whole, gap, placements, loads=loads, steps=tuple(steps), nondeterministic=timed_out
                )
            factor *= 0.95
        steps.append("nothing found")
        empty = evaluate(program, np.zeros(len(program.hosts), dtype=np.int64))
        return allocation(program, empty, 1.0, (), loads=0, steps=tuple(steps))

    def _solve(self, program: Program, steps: list[str]) -> tuple[Solved | None, bool]:
        high = goal_chain.servable(program)
        matrix = Matrix(program, integer=True, cover=False)
        try:
            solved = matrix.solve(
                goal_chain.accuracy_goal(program),
                served_low=high,
                served_high=high,
                limits=self.limits,
                solver=self.solver,
            )
        except SolverError as error:
            steps.append(f"undecided: {error}")
            return None, matrix.timed_out
        steps.append("infeasible" if solved is None else f"accuracy {solved.value:.6f}, {solved.nodes} nodes")
        return solved, matrix.timed_out

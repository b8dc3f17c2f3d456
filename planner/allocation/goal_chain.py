"""The chain of goals: all demand if that is possible, else fair, then most served, then accuracy with service fixed.

Rules:
- Never "most served" alone: it starves apps. Never penalties instead of steps: they ruin the gap.
- First every demand is hard and accuracy is maximised. Where that is infeasible, for strict and then for best-effort
  demands: the largest phi such that each gets at least phi of its demand (those that no host can answer are left
  out), then the most served in all with at least (1 - eps) phi for each. Service is then fixed and accuracy maximised.
- The integer chain is given what is known already (an incumbent, the relaxed chain) and skips steps that cannot gain.
"""

from dataclasses import dataclass

import numpy as np

from sluicegate.planner.allocation.linear import Matrix, MipSolver
from sluicegate.planner.allocation.program import Floats, Ints, Program
from sluicegate.planner.allocation.solver_types import Goal, Limits, Solved, SolverError

_EPS = 1e-6
_SERVICE_GAP = 1e-3
"""Service (share of all demand, 0..1) that an integer step may leave on the table."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where a chain ended. ``full``: all demand that any host can answer is served. ``log``: one line a step."""

    solved: Solved
    full: bool
    log: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Known:
    """What an integer chain may start from: a feasible answer, and upper limits by the relaxed chain."""

    incumbent: Solved
    relaxed: Outcome
    limits: Limits
    solver: MipSolver


def accuracy_goal(program: Program) -> Goal:
    """Mean accuracy over all demand, each app's best variant being 1, less the price of loads and of money."""
    return Goal(shares=program.accuracy * program.weight[program.serve_demand], prices=True)


def servable(program: Program) -> Floats:
    """Largest share of each demand that may be asked for: 1, or 0 where no host answers it or nothing is demanded."""
    return np.asarray(program.served_somewhere & (program.weight > 0), dtype=np.float64)


def run(matrix: Matrix, program: Program, known: Known | None = None, *, duals: bool = False) -> Outcome:
    """All steps. Raises SolverError where even serving nothing fails."""
    high = servable(program)
    log: list[str] = []
    if known is None or known.relaxed.full:
        hard = _hard(matrix, program, high, known, duals, log)
        if hard is not None:
            return Outcome(hard, True, tuple(log))
    low = np.zeros(len(high))
    for strict in (True, False):
        members = np.flatnonzero((program.strict == strict) & (high > 0))
        if len(members):
            low, high = _serve_most(matrix, program, members, low, high, known, log)
    solved = _fixed(matrix, program, low, high, known, duals)
    log.append(f"accuracy with service fixed: {solved.value:.6f}")
    return Outcome(solved, False, tuple(log))


def at_service(matrix: Matrix, program: Program, served: Floats, *, duals: bool = False) -> Solved:
    """Best accuracy with these served shares; they must be feasible."""
    return _fixed(matrix, program, served * (1 - _EPS), served, None, duals)


def _hard(
    matrix: Matrix, program: Program, high: Floats, known: Known | None, duals: bool, log: list[str]
) -> Solved | None:
    try:
        solved = matrix.solve(
            accuracy_goal(program),
            served_low=high,
            served_high=high,
            limits=known.limits if known else None,
            hint=known.incumbent if known else None,
            solver=known.solver if known else "highs",
            duals=duals,
        )
    except SolverError as error:
        if known is None:
            raise
        log.append(f"all demand: undecided ({error})")
        return None
    log.append("all demand: infeasible" if solved is None else f"all demand: accuracy {solved.value:.6f}")
    return solved


def _serve_most(
    matrix: Matrix,
    program: Program,
    members: Ints,
    low: Floats,
    high: Floats,
    known: Known | None,
    log: list[str],
) -> tuple[Floats, Floats]:
    """Bounds on service that this class of demands is left with."""
    share = np.zeros(len(low))
    share[members] = program.weight[members] / program.weight[members].sum()
    low, high = low.copy(), high.copy()
    fair = _phi(matrix, members, low, high, known)
    low[members] = np.maximum(low[members], (1 - _EPS) * fair)
    log.append(f"fair share {fair:.6f} of {len(members)} demands")
    if fair >= 1 - _EPS:
        return low, high
    served = _most(matrix, share, low, high, known)
    low[members] = np.minimum(served[members], 1.0) * (1 - _EPS)
    high[members] = np.minimum(served[members], 1.0)
    log.append(f"served {float(share @ served):.6f} of their queries")
    return low, high


def _phi(matrix: Matrix, members: Ints, low: Floats, high: Floats, known: Known | None) -> float:
    if known is None:
        solved = matrix.solve(Goal(phi=1.0), served_low=low, served_high=high, fair=members.tolist())
        if solved is None:
            raise SolverError("serving the fair share came out infeasible")
        return solved.phi
    have = float(known.incumbent.served[members].min())
    upper = float(known.relaxed.solved.served[members].min())
    if upper - have <= _SERVICE_GAP:
        return have
    limits = Limits(gap=_SERVICE_GAP / 2, nodes=known.limits.nodes, seconds=known.limits.seconds)
    try:
        solved = matrix.solve(
            Goal(phi=1.0),
            served_low=low,
            served_high=high,
            fair=members.tolist(),
            limits=limits,
            hint=known.incumbent,
            solver=known.solver,
        )
    except SolverError:
        return have
    return have if solved is None else max(have, solved.phi)


def _most(
    matrix: Matrix,
    share: Floats,
    low: Floats,
    high: Floats,
    known: Known | None,
) -> Floats:
    if known is None:
        solved = matrix.solve(Goal(served=share), served_low=low, served_high=high)
        if solved is None:
            raise SolverError("serving the fair share came out infeasible")
        return solved.served
    have = known.incumbent.served
    suits = bool((have >= low - 2 * _EPS).all())
    if suits and float(share @ (known.relaxed.solved.served - have)) <= _SERVICE_GAP:
        return have
    limits = Limits(gap=_SERVICE_GAP / 2, nodes=known.limits.nodes, seconds=known.limits.seconds)
    solved = matrix.solve(
        Goal(served=share),
        served_low=low,
        served_high=high,
        limits=limits,
        hint=known.incumbent if suits else None,
        solver=known.solver,
    )
    if solved is None:
        raise SolverError("serving what was found to be servable came out infeasible")
    return solved.served


def _fixed(matrix: Matrix, program: Program, low: Floats, high: Floats, known: Known | None, duals: bool) -> Solved:
    solved = matrix.solve(
        accuracy_goal(program),
        served_low=low,
        served_high=high,
        limits=known.limits if known else None,
        hint=known.incumbent if known else None,
        solver=known.solver if known else "highs",
        duals=duals,
    )
    if solved is None:
        raise SolverError("accuracy with service fixed came out infeasible")
    return solved

"""An answer whatever happens: the planner asked, else the heuristic, else what is in force.

Rules: an error of the planner, its solver or its input never leaves a system without a plan. The heuristic answers in
its place; where it cannot either, the placements in force on devices that are still there stay. ``steps`` says what
went wrong first.
"""

import math
from dataclasses import replace

from sluicegate.planner.greedy_fill import GreedyFill
from sluicegate.planner.problems.problem import Allocation, Planner, Problem


def answered(planner: Planner, problem: Problem) -> Allocation:
    """What ``planner`` allocates, or the best stand-in. Never raises.

    By class it is not told apart: that is for reports on plans, which ask planners themselves.
    """
    try:
        return replace(planner.allocate(problem), served_by_class={})
    except Exception as error:
        # Planners call libraries that raise what they like, and an operator's own planner may do so too.
        said = f"{planner.name}: {type(error).__name__}: {error}"
    try:
        stand_in = GreedyFill().allocate(problem.merged())
    except Exception as error:
        return _in_force(problem, (said, f"greedy-fill: {error}; placements in force kept"))
    return replace(stand_in, served_by_class={}, steps=(f"{said}; greedy-fill instead", *stand_in.steps))


def _in_force(problem: Problem, steps: tuple[str, ...]) -> Allocation:
    alive = {d.name for d in problem.devices}
    placements = tuple(p for p in problem.previous if p.device in alive)
    shares: dict[str, float] = {d.app: 0.0 for d in problem.demands}
    for p in placements:
        share = p.share if math.isfinite(p.share) else 0.0
        shares[p.app] = min(1.0, shares.get(p.app, 0.0) + share)
    return Allocation(placements=placements, served=dict(sorted(shares.items())), objective=0.0, bound=1.0, steps=steps)

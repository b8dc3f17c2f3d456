"""INFaaS-Accuracy: INFaaS's greedy scaling with accuracy in the place of cost (Proteus, section 6.1).

The rules are those of ``sluicegate.planner.model_less``, with ``MostAccurate`` as the aim. Shares follow capacity.
Throughput is read as throughput (the artifact reads latency in its place).
"""

from dataclasses import dataclass

from sluicegate.planner.model_less.greedy_scaling import GreedyScaling
from sluicegate.planner.model_less.objectives import MostAccurate
from sluicegate.planner.model_less.problem_adapter import Scale
from sluicegate.planner.problems.problem import Allocation, Problem
from sluicegate.planner.problems.problem_checks import check


@dataclass(frozen=True, slots=True, kw_only=True)
class InfaasAccuracyPlanner:
    """Greedy on what is there."""

    name: str = "infaas-accuracy"

    def allocate(self, problem: Problem) -> Allocation:
        """One greedy pass over the apps."""
        check(problem)
        scale = Scale(problem, by_price=False)
        greedy = GreedyScaling(slack=1.0, aim=MostAccurate())
        return scale.placed(scale.fleet.after(greedy.step(scale.fleet)), "greedy")

"""INFaaS-Accuracy: INFaaS's greedy scaling with accuracy in the place of cost (Proteus, section 6.1).

The rules are those of ``planner.scaling``, with ``MostAccurate`` as the aim. Shares follow capacity. Throughput is read
as throughput (the artifact reads latency in its place).
"""

from dataclasses import dataclass

from planner.problem import Allocation, Problem
from planner.scaling.aims import MostAccurate
from planner.scaling.greedy import GreedyScaling
from planner.scaling.placing import Scale
from planner.validation import check


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

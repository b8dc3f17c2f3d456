"""Baselines exactly as published, beside the mended ones: how much capacity they count on, and how much they add.

Rules: the published systems take the largest batch whose latency is below half the SLO, whether or not it is the best
one, plan for the estimate plus 5 %, and take loads for free (Proteus, sections 4 and 5, and its artifact). The mended
ones, under their plain names, take the best batch, and the headroom and price of loads that they are asked for.
Proteus's artifact also stops its solver at a gap of 0.5, where almost any feasible plan counts as optimal.
"""

from dataclasses import dataclass, replace

from sluicegate.planner.allocation.solver_types import Limits
from sluicegate.planner.baselines.per_device import PerDevicePlanner
from sluicegate.planner.problems.problem import Allocation, Planner, Problem

HEADROOM = 1.05
ARTIFACT_GAP = Limits(gap=0.5, nodes=1_000_000, seconds=60.0)


@dataclass(frozen=True, slots=True)
class AtItsWord:
    """A baseline exactly as its paper states it. ``base``: the mended planner. Its name with "-published" added."""

    base: Planner

    @property
    def name(self) -> str:
        """Such as ``clipper-ht-published``."""
        return f"{self.base.name}-published"

    def allocate(self, problem: Problem) -> Allocation:
        """What ``base`` answers to the problem as the paper would put it; raises InvalidInputError as it does."""
        demands = tuple(replace(d, headroom=HEADROOM) if d.headroom >= 1.0 else d for d in problem.demands)
        asked = replace(problem, demands=demands, capacity="largest-batch", loads="free")
        return self.base.allocate(asked)


def proteus() -> AtItsWord:
    """``proteus-published``: the per-device program at the artifact's gap."""
    return AtItsWord(PerDevicePlanner(name="proteus", limits=ARTIFACT_GAP))

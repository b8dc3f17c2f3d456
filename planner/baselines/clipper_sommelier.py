"""Clipper-HT, Clipper-HA and Sommelier, as Proteus (ASPLOS 2024, section 6.1) compares against them.

Rules:
- Clipper does not choose variants: an operator picks the least (HT) or most (HA) accurate one, and the program places
  them once, at the start. Later plans only lose what was on devices that are gone.
- Sommelier swaps variants but does not place: the first plan is the program's, after which a device serves the app it
  serves, by any of its variants.
- The start lasts until half of the devices hold something: they join one by one.
- The start's demand is what the first problem says, or ``expected`` where an experiment knows better.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.baselines.subproblems import extreme_variants, keeping_apps, kept_placements, with_variants
from sluicegate.planner.problems.problem import Allocation, Problem
from sluicegate.planner.problems.problem_checks import check


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipperPlanner:
    """Clipper's static placement. ``accurate``: HA, else HT. ``expected``: queries/s of each app that the static
    placement is made for."""

    accurate: bool
    expected: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``clipper-ha`` or ``clipper-ht``."""
        return "clipper-ha" if self.accurate else "clipper-ht"

    def allocate(self, problem: Problem) -> Allocation:
        """Place once, then keep."""
        check(problem)
        if not _starting(problem):
            return keep(problem)
        restricted = with_variants(problem, extreme_variants(problem, accurate=self.accurate))
        return AllocationPlanner().allocate(_expecting(restricted, self.expected))


@dataclass(frozen=True, slots=True, kw_only=True)
class SommelierPlanner:
    """Variant swaps on the devices of an app. As an ablation of ours it is the program without placement."""

    name: str = "sommelier"
    expected: Mapping[str, float] = field(default_factory=dict)

    def allocate(self, problem: Problem) -> Allocation:
        """Place once, then swap."""
        check(problem)
        if _starting(problem):
            return AllocationPlanner().allocate(_expecting(problem, self.expected))
        return AllocationPlanner().allocate(keeping_apps(problem))


def keep(problem: Problem) -> Allocation:
    """The placements in force, with what they serve of today's demand where shares stay as they are."""
    placements = kept_placements(problem)
    shares: dict[str, float] = {}
    for p in placements:
        shares[p.app] = shares.get(p.app, 0.0) + p.share
    qps = {d.app: d.qps * d.weight for d in problem.demands}
    served = {app: min(1.0, shares.get(app, 0.0)) for app in sorted(qps)}
    answered = sum(qps[p.app] * p.share for p in placements if p.app in qps)
    accuracy = problem.catalogue.relative_accuracy
    right = sum(qps[p.app] * p.share * accuracy(p.variants[0]) for p in placements if p.app in qps)
    objective = right / answered if answered else 0.0
    return Allocation(
        placements=placements,
        served=served,
        objective=objective,
        bound=1.0,
        steps=("kept the placements in force",),
    )


def _starting(problem: Problem) -> bool:
    holding = {p.device for p in problem.previous}
    return 2 * sum(d.name in holding for d in problem.devices) < len(problem.devices)


def _expecting(problem: Problem, expected: Mapping[str, float]) -> Problem:
    demands = tuple(replace(d, qps=expected.get(d.app, d.qps)) for d in problem.demands)
    return replace(problem, demands=demands)

"""The allocation with one of its parts taken away (Proteus, section 6.5).

Rules: without selection each app has its most accurate variant only; without assignment queries are spread evenly over
an app's hosts, whatever they can carry; without batching every batch holds one query. Without placement is Sommelier.
"""

from dataclasses import dataclass, field, replace

from sluicegate.domain.plan import Placement
from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.baselines.subproblems import extreme_variants, single_batches, with_variants
from sluicegate.planner.problems.problem import Allocation, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutSelection:
    """Most accurate variants only, placed anew with each plan."""

    name: str = "allocation-without-selection"
    base: AllocationPlanner = field(default_factory=AllocationPlanner)

    def allocate(self, problem: Problem) -> Allocation:
        """The program over one variant an app."""
        return self.base.allocate(with_variants(problem, extreme_variants(problem, accurate=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutBatching:
    """Batches of one, in the program and on the devices."""

    name: str = "allocation-without-batching"
    base: AllocationPlanner = field(default_factory=AllocationPlanner)

    def allocate(self, problem: Problem) -> Allocation:
        """The program with profiles that end at one."""
        return self.base.allocate(single_batches(problem))


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutAssignment:
    """The program's hosts, with equal shares."""

    name: str = "allocation-without-assignment"
    base: AllocationPlanner = field(default_factory=AllocationPlanner)

    def allocate(self, problem: Problem) -> Allocation:
        """Shares evened out after the program chose its hosts; the objective follows the shares."""
        answer = self.base.allocate(problem)
        hosts: dict[str, int] = {}
        for p in answer.placements:
            if p.share > 0:
                hosts[p.app] = hosts.get(p.app, 0) + 1
        placements = tuple(
            replace(p, share=answer.served[p.app] / hosts[p.app]) if p.share > 0 else p for p in answer.placements
        )
        return replace(answer, placements=placements, objective=_mean_accuracy(problem, placements))


def _mean_accuracy(problem: Problem, placements: tuple[Placement, ...]) -> float:
    qps: dict[str, float] = {}
    for d in problem.demands:
        qps[d.app] = qps.get(d.app, 0.0) + d.qps * d.weight
    answered = sum(qps[p.app] * p.share for p in placements)
    accuracy = {p.variants: problem.catalogue.relative_accuracy(p.variants[0]) for p in placements}
    return sum(qps[p.app] * p.share * accuracy[p.variants] for p in placements) / answered if answered else 0.0

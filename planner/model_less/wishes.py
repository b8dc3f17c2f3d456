"""What a planner is told by model-less scaling between its answers."""

from abc import abstractmethod

from typing_extensions import override

from sluicegate.domain.plan import Placement
from sluicegate.planner.capacity.events import Wishes
from sluicegate.planner.problems.problem import Allocation, Planner, Problem


class FollowsWishes(Planner):
    """A planner that follows ``wishes``, which may be set between calls."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.wishes = Wishes((), (), {})

    @property
    @override
    def name(self) -> str:
        """As settings and reports name it."""
        return self._name

    @abstractmethod
    @override
    def allocate(self, problem: Problem) -> Allocation:
        """The next plan."""


def restored(problem: Problem, wishes: Wishes) -> list[Placement]:
    """Placements that make what a dead worker held count as loaded on the one in its place."""
    held = {p.device for p in problem.previous}
    known = problem.catalogue.variants
    return [
        Placement(device.name, known[name].app, (name,), 0.0, 1)
        for device in problem.devices
        if device.name not in held
        for name in wishes.restored.get(device.name, ())[:1]
        if name in known
    ]

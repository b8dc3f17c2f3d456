"""Planners by name. Each is the same interface, live and in simulation."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from domain.errors import ConfigurationError
from planner.allocation.pipeline import AllocationPlanner
from planner.greedy import GreedyFill
from planner.problem import Planner

PLANNERS: Mapping[str, Callable[[], Planner]] = MappingProxyType(
    {
        "allocation": AllocationPlanner,
        "allocation-rounded": lambda: AllocationPlanner(name="allocation-rounded", polish=False),
        "greedy-fill": GreedyFill,
    }
)


def planner(name: str) -> Planner:
    """The planner called ``name``; ConfigurationError lists the names there are."""
    if name not in PLANNERS:
        raise ConfigurationError(f"planner {name!r} is unknown; choose one of {', '.join(sorted(PLANNERS))}")
    return PLANNERS[name]()

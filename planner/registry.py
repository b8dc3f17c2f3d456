"""Planners by name. Each is the same interface, live and in simulation."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from domain.errors import ConfigurationError
from planner.allocation.pipeline import AllocationPlanner
from planner.baselines.ablations import WithoutAssignment, WithoutBatching, WithoutSelection
from planner.baselines.infaas import InfaasAccuracyPlanner
from planner.baselines.per_device import PerDevicePlanner
from planner.baselines.published import ClipperPlanner, SommelierPlanner
from planner.baselines.word import AtItsWord, proteus
from planner.greedy import GreedyFill
from planner.headroom import PricedHeadroom
from planner.problem import Planner
from planner.scaling.planners import ScalingPlanner
from planner.selection.placing import CoResident

PLANNERS: Mapping[str, Callable[[], Planner]] = MappingProxyType(
    {
        "allocation": AllocationPlanner,
        "allocation-rounded": lambda: AllocationPlanner(name="allocation-rounded", polish=False),
        "allocation-priced": PricedHeadroom,
        "greedy-fill": GreedyFill,
        "clipper-ht": lambda: ClipperPlanner(accurate=False),
        "clipper-ha": lambda: ClipperPlanner(accurate=True),
        "sommelier": SommelierPlanner,
        "infaas-accuracy": InfaasAccuracyPlanner,
        "proteus-per-device": PerDevicePlanner,
        "clipper-ht-published": lambda: AtItsWord(ClipperPlanner(accurate=False)),
        "clipper-ha-published": lambda: AtItsWord(ClipperPlanner(accurate=True)),
        "sommelier-published": lambda: AtItsWord(SommelierPlanner()),
        "infaas-accuracy-published": lambda: AtItsWord(InfaasAccuracyPlanner()),
        "proteus-published": proteus,
        "allocation-without-selection": WithoutSelection,
        "allocation-without-placement": lambda: SommelierPlanner(name="allocation-without-placement"),
        "allocation-without-assignment": WithoutAssignment,
        "allocation-without-batching": WithoutBatching,
        "co-resident": CoResident,
        "scaling-greedy": lambda: ScalingPlanner(exact=False),
        "scaling-ilp": lambda: ScalingPlanner(exact=True),
    }
)


def planner(name: str) -> Planner:
    """The planner called ``name``; ConfigurationError lists the names there are."""
    if name not in PLANNERS:
        raise ConfigurationError(f"planner {name!r} is unknown; choose one of {', '.join(sorted(PLANNERS))}")
    return PLANNERS[name]()

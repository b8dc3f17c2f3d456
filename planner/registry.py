"""Planners by name. Each is the same interface, live and in simulation."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from sluicegate.domain.errors import ConfigurationError
from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.baselines.ablations import WithoutAssignment, WithoutBatching, WithoutSelection
from sluicegate.planner.baselines.as_published import AtItsWord, proteus
from sluicegate.planner.baselines.clipper_sommelier import ClipperPlanner, SommelierPlanner
from sluicegate.planner.baselines.infaas_accuracy import InfaasAccuracyPlanner
from sluicegate.planner.baselines.per_device import PerDevicePlanner
from sluicegate.planner.geometry.geometry_search import GeometrySettings
from sluicegate.planner.geometry.joint_planner import JointGeometry
from sluicegate.planner.greedy_fill import GreedyFill
from sluicegate.planner.model_less.planner_choice import PlannerChoice
from sluicegate.planner.model_less.scaled_plan import ScaledPlan
from sluicegate.planner.model_less.scaling_planners import ScalingPlanner
from sluicegate.planner.priced_headroom import PricedHeadroom
from sluicegate.planner.problems.problem import Planner
from sluicegate.profiles.formats.field_errors import meant

PLANNERS: Mapping[str, Callable[[], Planner]] = MappingProxyType(
    {
        "allocation": PricedHeadroom,
        "allocation-rounded": lambda: AllocationPlanner(name="allocation-rounded", polish=False),
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
        "scaling-greedy": lambda: ScalingPlanner(exact=False),
        "scaling-ilp": lambda: ScalingPlanner(exact=True),
    }
)


def planner(name: str) -> Planner:
    """The planner called ``name``; ConfigurationError lists the names there are."""
    if name not in PLANNERS:
        known = sorted(PLANNERS)
        raise ConfigurationError(f"planner {name!r} is unknown; choose one of {', '.join(known)}{meant(name, known)}")
    return PLANNERS[name]()


def planner_of(choice: PlannerChoice, *, geometries: GeometrySettings | None = None) -> Planner:
    """The planner that settings or a scenario choose. ``geometries``: how the joint ones are searched for.
    Raises ConfigurationError."""
    if choice.takes_its_place:
        return ScalingPlanner(exact=choice.scaling == "ilp")
    chosen = planner(choice.name)
    if choice.geometry == "joint":
        chosen = JointGeometry(chosen, settings=geometries)
    return ScaledPlan(chosen) if choice.scales else chosen

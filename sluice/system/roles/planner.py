"""The roles ``planner`` and ``demand``: plans, the tables made for them, and the windows of demand they rest on."""

from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from sluicegate.domain.errors import ConfigurationError
from sluicegate.policies.batching.registry import takes
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime.supervisor import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate.planner.policy_tables.table_requests import TableRules
    from sluicegate.planner.problems.problem import Planner
    from sluicegate.sluice.settings.settings import Settings
    from sluicegate.stages.planner.solver import Solver


def planner_stages(system: System, apps: "Sequence[str]") -> list[Stage]:
    """The stage ``planner``, and ``scaling`` beside it where planners scale."""
    from sluicegate.planner.control.controller_settings import ControllerSettings
    from sluicegate.planner.control.core import CoreSettings, PlannerCore
    from sluicegate.planner.estimates.demand_estimate import demand_settings
    from sluicegate.planner.geometry.recut_tracker import ChangeSettings
    from sluicegate.planner.model_less.scaling_planners import TICK, UNHURRIED
    from sluicegate.planner.model_less.wishes import FollowsWishes
    from sluicegate.planner.problems.plan_limits import limits_of
    from sluicegate.planner.registry import planner_of
    from sluicegate.sluice.system.model_less_scaling import scaling
    from sluicegate.stages.planner.stage import PlannerStage

    settings = system.settings.planner
    windows = settings.demand == "faust"
    if windows:
        _kafka_for(system, "planner.demand: faust")
    scales = settings.scales
    shares = settings.name.startswith("allocation") and settings.geometry != "protean" and not settings.takes_its_place
    chosen = planner_of(settings)
    rules = system.rules or ControllerSettings(
        plan_period=min(settings.period_s, TICK) if scales else settings.period_s,
        device_timeout=settings.device_timeout_s,
        quantile=settings.quantile,
        headroom=settings.headroom,
        variants_per_device=settings.variants_per_device or (None if shares else 1),
        **limits_of(settings),
        geometry=settings.geometry,
        demand=demand_settings(settings.estimate, "planner.estimate"),
        changes=ChangeSettings(patience=settings.geometry_patience_s, rest=settings.geometry_rest_s),
        tables=_tables(system) if system.chooses else None,
    )
    tables = _tables(system) if takes(system.settings.worker.batching, "tables") else None
    core = PlannerCore(
        system.catalogue,
        holder=uuid4().hex[:12],
        settings=CoreSettings(
            rules=rules,
            lease=settings.lease_s,
            patience=UNHURRIED if scales or rules.tables is not None else 1.0,
            tables=tables,
            noting=_noting(system.settings, scales=scales),
        ),
        devices=system.devices,
    )
    stage = PlannerStage(
        system.connections,
        core,
        system.recording(core.handle, "planner"),
        solver=_solver(system, chosen),
        apps=apps,
        exactly_once=system.settings.delivery == "exactly_once",
        library=tables.library if tables is not None else None,
        demand_windows=windows,
    )
    return [stage, scaling(system, stage, chosen)] if isinstance(chosen, FollowsWishes) else [stage]


def _solver(system: System, chosen: "Planner") -> "Solver":
    """A model-less planner goes on from its last answer and is told wishes meanwhile: it stays in this process."""
    from sluicegate.planner.model_less.wishes import FollowsWishes
    from sluicegate.stages.planner.solver import SolvesApart, SolvesHere

    settings = system.settings.planner
    if system.solves_apart and not isinstance(chosen, FollowsWishes):
        say = partial(system.notices.say, "solver")
        return SolvesApart(settings.name, system.telemetry.meters, say, joint=settings.geometry == "joint")
    return SolvesHere(chosen)


def _noting(settings: "Settings", *, scales: bool) -> frozenset[str]:
    """Stages of this system that may take devices out of plans."""
    runs = {"scaler": settings.scaling is not None, "procurement": settings.procurement is not None, "scaling": scales}
    return frozenset(name for name, is_run in runs.items() if is_run)


def demand_stage(system: System) -> Stage:
    """The stage ``demand``, on Faust. Raises ConfigurationError on a broker that is not Apache Kafka."""
    from sluicegate.stages.planner.faust_demand import DemandStage

    return DemandStage(
        broker=system.broker,
        servers=_kafka_for(system, "stage demand"),
        kafka=system.settings.kafka.settings(),
        topics=system.topics,
        clock=system.clock,
        port=system.settings.faust.port,
    )


def _kafka_for(system: System, what: str) -> str:
    """Servers of Apache Kafka. Raises ConfigurationError on any other broker."""
    url = system.broker.url
    if not url.startswith("kafka://"):
        raise ConfigurationError(
            f"{what}: windows of demand are made by Faust, which needs Apache Kafka, not {url}; give "
            "--broker kafka://host:port, or leave planner.demand at plain, which counts the same on any broker"
        )
    return url.removeprefix("kafka://")


def _tables(system: System) -> "TableRules":
    """How selection tables are made for every plan."""
    from sluicegate.planner.policy_tables.table_requests import rules_of

    options = system.settings.worker.batching_options
    guard_s = float(options.get("guard_s", system.settings.worker.guard_s))
    return rules_of(system.settings.tables, guard_s=guard_s, margin=options.get("margin"))

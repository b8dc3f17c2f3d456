"""The roles ``planner`` and ``demand``: plans, the tables made for them, and the windows of demand they rest on."""

from typing import TYPE_CHECKING

from domain.errors import ConfigurationError
from policies.batching.registry import takes
from stages.run import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.wiring import System
    from stages.outbox import Outbox
    from stages.table_publishing import TablePublisher

_UNHURRIED = 20.0


def planner_stages(system: "System", apps: "Sequence[str]") -> list[Stage]:
    """The stage ``planner``, and ``scaling`` beside it where planners scale."""
    from planner.controller import Controller
    from planner.controller_settings import ControllerSettings
    from planner.geometry.changes import ChangeSettings
    from planner.geometry.planning import JointGeometry
    from planner.registry import planner
    from planner.scaling.planners import TICK, ScalingPlanner
    from sluice.scaling import scaling
    from stages.planner import PlannerStage

    settings = system.settings.planner
    windows = settings.demand == "faust"
    if windows:
        _kafka_for(system, "planner.demand: faust")
    scales = settings.scaling != "off"
    shares = settings.name.startswith("allocation") and settings.geometry == "off" and not scales
    chosen = ScalingPlanner(exact=settings.scaling == "ilp") if scales else planner(settings.name)
    rules = system.rules or ControllerSettings(
        plan_period=min(settings.period_s, TICK) if scales else settings.period_s,
        device_timeout=settings.device_timeout_s,
        quantile=settings.quantile,
        headroom=settings.headroom,
        variants_per_device=settings.variants_per_device or (None if shares else 1),
        switching_weight=settings.switching_weight,
        max_loads=settings.max_loads,
        money_weight=settings.money_weight,
        budget=settings.budget_per_hour,
        strict_on_demand=settings.strict_on_demand,
        geometry=settings.geometry,
        changes=ChangeSettings(patience=settings.geometry_patience_s, rest=settings.geometry_rest_s),
    )
    stage = PlannerStage(
        broker=system.broker,
        producer=system.producer,
        topics=system.topics,
        clock=system.clock,
        planner=JointGeometry(chosen) if settings.geometry == "joint" else chosen,
        apps=apps,
        promised=system.promised,
        exactly_once=system.settings.delivery == "exactly_once",
        telemetry=system.telemetry,
        make_controller=lambda term, previous: Controller(
            system.catalogue, settings=rules, term=term, devices=system.devices, previous=previous
        ),
        lease=settings.lease_s,
        make_tables=(lambda outbox: _tables(system, outbox))
        if takes(system.settings.worker.batching, "tables")
        else None,
        demand_windows=windows,
        # No solver can be late there, and a stand-in would load variants only to forget them.
        patience=_UNHURRIED if scales or settings.name == "co-resident" else 1.0,
    )
    return [stage, scaling(system, stage, chosen)] if isinstance(chosen, ScalingPlanner) else [stage]


def demand_stage(system: "System") -> Stage:
    """The stage ``demand``, on Faust. Raises ConfigurationError on a broker that is not Apache Kafka."""
    from stages.demand import DemandStage

    return DemandStage(
        broker=system.broker,
        servers=_kafka_for(system, "stage demand"),
        kafka=system.settings.kafka.settings(),
        topics=system.topics,
        clock=system.clock,
        port=system.settings.faust.port,
    )


def _kafka_for(system: "System", what: str) -> str:
    """Servers of Apache Kafka. Raises ConfigurationError on any other broker."""
    url = system.broker.url
    if not url.startswith("kafka://"):
        raise ConfigurationError(
            f"{what}: windows of demand are made by Faust, which needs Apache Kafka, not {url}; give "
            "--broker kafka://host:port, or leave planner.demand at plain, which counts the same on any broker"
        )
    return url.removeprefix("kafka://")


def _tables(system: "System", outbox: "Outbox") -> "TablePublisher":
    """What makes and publishes selection tables for every plan."""
    from planner.selection.library import LibraryRules
    from planner.tables.questions import TableRules
    from stages.table_publishing import TablePublisher

    settings = system.settings.tables
    options = system.settings.worker.batching_options
    rules = TableRules(
        hop_s=settings.hop_s,
        guard_s=float(options.get("guard_s", system.settings.worker.guard_s)),
        margin=float(options.get("margin", settings.margin)),
        criterion=settings.criterion,
        violation_price=settings.violation_price,
        grid=settings.grid,
        arrival_shape=settings.arrival_shape,
        batching=settings.batching,
        late=settings.late,
        phases=settings.phases,
        watch_s=settings.watch_s,
        library=LibraryRules(spacing=settings.spacing, max_violation=settings.max_violation),
    )
    return TablePublisher(
        broker=system.broker,
        topics=system.topics,
        clock=system.clock,
        catalogue=system.known,
        rules=rules,
        outbox=outbox,
    )

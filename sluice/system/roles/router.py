"""The role ``router``: one an app, which puts its queries on devices as the plan in force says."""

from sluicegate.policies.batching.registry import takes
from sluicegate.policies.routing.packing import Packing
from sluicegate.policies.routing.registry import routing
from sluicegate.policies.serving.router import RouterCore, RouterRules
from sluicegate.sluice.system.system import System
from sluicegate.stages.router import RouterStage
from sluicegate.stages.runtime.consumer_loop import Reading


def router_stage(system: System, app: str) -> RouterStage:
    """The stage ``router`` of ``app``."""
    core = RouterCore(system.apps[app], catalogue=system.catalogue, devices=system.devices, rules=router_rules(system))
    stage = RouterStage(
        core,
        system.recording(core.handle, f"router-{app}"),
        broker=system.broker,
        producer=system.producer,
        topics=system.topics,
        clock=system.clock,
        reading=Reading(
            member=system.settings.member,
            exactly_once=system.exactly_once,
            exclusive=takes(system.settings.worker.batching, "tables"),
            chained=system.chained,
        ),
        telemetry=system.telemetry,
    )
    if system.chained:
        system.routers[app] = stage
    return stage


def router_rules(system: System) -> RouterRules:
    """How the settings have apps routed."""
    settings = system.settings
    counted = {"turns_s": settings.tables.turns_s} if system.turns_told else {}
    return RouterRules(
        make_policy=routing(settings.routes_by, **counted),
        quantile=settings.worker.quantile,
        packing=settings.routes_by == Packing.name,
        on_demand=settings.planner.scales,
    )

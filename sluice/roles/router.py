"""The role ``router``: one an app, which puts its queries on devices as the plan in force says."""

from functools import partial
from typing import TYPE_CHECKING

from domain.events import PlanActivated
from domain.plan import Plan
from policies.batching.registry import takes
from policies.routing.activation import Activation
from policies.routing.goals import GoalRouting
from policies.routing.packing import Packing
from policies.routing.registry import routing
from policies.routing.streams import StreamRouting
from stages.router import RouterStage, Routes

if TYPE_CHECKING:
    from sluice.wiring import System


def router_stage(system: "System", app: str) -> RouterStage:
    """The stage ``router`` of ``app``."""
    return RouterStage(
        app,
        broker=system.broker,
        producer=system.producer,
        topics=system.topics,
        clock=system.clock,
        routes=partial(_routes, system, app),
        exactly_once=system.exactly_once,
        activation=Activation(app),
        exclusive=takes(system.settings.worker.batching, "tables"),
        member=system.settings.member,
        activated=partial(_activated, system, app),
        recut=system.recut,
        telemetry=system.telemetry,
    )


def _routes(system: "System", app: str) -> Routes:
    log = f"router-{app}"
    if app in system.promised:
        return Routes(system.recorded(StreamRouting(app), log), promised=True)
    settings = system.settings
    counted = {"turns_s": settings.tables.turns_s} if system.turns_told else {}
    policy = GoalRouting(
        routing(settings.routing, **counted)(app),
        system.costs,
        system.goal_variants,
        packing=settings.routing == Packing.name,
    )
    on_demand = settings.planner.scaling != "off"
    return Routes(system.recorded(policy, log), wanted=policy.wanted if on_demand else None)


def _activated(system: "System", app: str, plan: Plan) -> PlanActivated:
    """The event a router gets: the plan, and what its slices can run."""
    return PlanActivated(plan, system.hosted(app, plan))

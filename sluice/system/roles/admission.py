"""The role ``admission``: which queries are taken in, and how many of an app a plan sustains."""

import uuid
from functools import partial
from typing import TYPE_CHECKING

from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.plan import Plan
from sluicegate.policies.admission.known_goals import GoalAdmission
from sluicegate.policies.admission.registry import admission
from sluicegate.policies.admission.sustainable import SustainableAdmission
from sluicegate.policies.admission.sustained_rates import Turn, sustained
from sluicegate.policies.protocols import AdmissionPolicy
from sluicegate.policies.serving.duty_cycle import turn_of
from sluicegate.sluice.system.system import System
from sluicegate.stages.admission import AdmissionStage
from sluicegate.stages.following.routed_apps import RoutedApps
from sluicegate.stages.runtime.dedupe import DedupeWindow
from sluicegate.streams.records import codec

if TYPE_CHECKING:
    from collections.abc import Sequence


def admission_stage(system: System, apps: "Sequence[str]") -> AdmissionStage:
    """The stage ``admission`` of ``apps``."""
    limits = system.settings.admission
    horizon = limits.max_latency_s + limits.max_skew_s
    policy: AdmissionPolicy
    activated = None
    if limits.policy == "sustainable":
        policy = sustainable = SustainableAdmission(bound=None, mode=limits.mode, max_horizon_s=horizon)
        activated = partial(_resized, system, sustainable)
    else:
        policy = admission(limits.policy, max_horizon_s=horizon)()
    return AdmissionStage(
        {name: system.apps[name] for name in apps},
        broker=system.broker,
        producer=system.producer,
        topics=system.topics,
        clock=system.clock,
        policy=system.following_goals(GoalAdmission(policy, system.goal_variants, system.promised)),
        activated=activated,
        exactly_once=system.exactly_once,
        limits=codec.Limits(
            max_body_bytes=limits.max_body_bytes,
            max_skew_s=limits.max_skew_s,
            max_latency_s=limits.max_latency_s,
        ),
        dedupe=DedupeWindow(limits.dedupe_window_s, limits.dedupe_entries),
        routed=RoutedApps(apps, system.clock.monotonic()),
        source=f"admission-{uuid.uuid4().hex[:12]}",
        member=system.settings.member,
        telemetry=system.telemetry,
    )


def _resized(system: System, policy: SustainableAdmission, app: str, plan: Plan) -> None:
    """Admission keeps to what ``plan`` sustains from now on."""
    known = system.known.apps[app]
    cycles = _cycles(system, app, plan) if system.settings.worker.turns == "duty-cycle" else {}
    bounds = sustained(system.hosted(app, plan, burst=True), known.slo, known.promise, cycles)
    if bounds is not None:
        policy.resize(app, bounds.bound, bounds.window_s, bounds.degraded)


def _cycles(system: System, app: str, plan: Plan) -> dict[tuple[str, str], Turn]:
    """The turns of ``app`` on slices that serve others as well."""
    curves: dict[tuple[str, str], dict[str, LatencyCurve]] = {}
    for served in sorted({p.app for p in plan.placements}):
        for part in system.hosted(served, plan, burst=True):
            if part.hosted:
                curves.setdefault((part.device, part.slice), {})[served] = part.hosted[0].curve
    slos = {name: known.slo for name, known in system.known.apps.items()}
    return {
        place: turn_of(app, shared, {a: slos[a] for a in shared})
        for place, shared in curves.items()
        if app in shared and len(shared) > 1
    }

"""The role ``admission``: which queries are taken in, and how many of an app a plan sustains."""

import uuid
from functools import partial
from typing import TYPE_CHECKING

from sluicegate.policies.admission.registry import admission
from sluicegate.policies.admission.sustainable import SustainableAdmission
from sluicegate.policies.serving.admission import AdmissionCore, AdmissionRules
from sluicegate.sluice.system.system import System
from sluicegate.stages.admission import AdmissionStage, Door
from sluicegate.stages.runtime.consumer_loop import Reading
from sluicegate.streams.records import codec

if TYPE_CHECKING:
    from collections.abc import Sequence


def admission_stage(system: System, apps: "Sequence[str]") -> AdmissionStage:
    """The stage ``admission`` of ``apps``."""
    limits = system.settings.admission
    core = AdmissionCore(system.devices, admission_rules(system, apps))
    return AdmissionStage(
        system.connections,
        core,
        system.recording(core.handle, "admission"),
        served=system.catalogue,
        door=Door(
            limits=codec.Limits(
                max_body_bytes=limits.max_body_bytes,
                max_element_bytes=limits.max_element_bytes,
                max_skew_s=limits.max_skew_s,
                max_latency_s=limits.max_latency_s,
                objects=system.settings.objects.rules(limits.max_element_bytes),
                priorities=limits.priorities,
            ),
            reading=Reading(member=system.settings.member, exactly_once=system.exactly_once),
            source=f"admission-{uuid.uuid4().hex[:12]}",
            sources=limits.source_keys(),
        ),
        routers=system.routers,
    )


def admission_rules(system: System, apps: "Sequence[str]") -> AdmissionRules:
    """How the settings have queries of ``apps`` let in."""
    limits = system.settings.admission
    horizon = limits.max_latency_s + limits.max_skew_s
    by_plan = limits.policy == SustainableAdmission.name
    sustainable = partial(SustainableAdmission, bound=None, mode=limits.mode, weights=limits.weights)
    return AdmissionRules(
        make_policy=partial(sustainable, max_horizon_s=horizon)
        if by_plan
        else admission(limits.policy, max_horizon_s=horizon),
        by_plan=by_plan,
        hops=system.settings.admission.hops(),
        quantile=system.settings.worker.quantile,
        dedupe_s=limits.dedupe_window_s,
        dedupe_entries=limits.dedupe_entries,
        shares=limits.weights if limits.shares else None,
        only=frozenset(apps) if set(apps) < set(system.apps) else frozenset(system.settings.apps),
    )

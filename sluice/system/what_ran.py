"""What a system runs, read from its running stages: names and settings of policies, planner, devices and executors.

Read from the objects that decide, never from what was asked of them: a setting that does not arrive is seen here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from inspect import signature
from typing import Any

from sluicegate.domain.models.app import App
from sluicegate.executors.emulated import EmulatedExecutor
from sluicegate.policies.batching.registry import STATIONS
from sluicegate.policies.placement.model_staging import Staging
from sluicegate.policies.serving.slice import SliceCore
from sluicegate.policies.serving.slice_scheduler import Station
from sluicegate.stages.admission import AdmissionStage
from sluicegate.stages.planner.stage import PlannerStage
from sluicegate.stages.router import RouterStage
from sluicegate.stages.runtime.supervisor import Stage
from sluicegate.stages.worker.slice_runner import SliceRunner
from sluicegate.stages.worker.stage import WorkerStage


def what_ran(stages: Sequence[Stage], apps: Mapping[str, App]) -> dict[str, Any]:
    """By the names that a scenario has for it, ready for JSON. Times in seconds; ``loads_s``: by variant, as taken.

    ``quantile``: those of latencies that deadlines count on, one where all parts count alike.
    """
    found: dict[str, Any] = {"planner": {}, "admission": None, "routing": {}, "batching": [], "devices": {}}
    named: set[str] = set()
    counted: set[str] = set()
    for stage in stages:
        match stage:
            case PlannerStage():
                found["planner"] = _planner(stage)
            case AdmissionStage():
                found["admission"] = stage.core.policy.name if stage.core.policy is not None else None
                counted.add(stage.core.rules.quantile)
            case RouterStage():
                found["routing"][stage.app] = stage.core.policy.name
                counted.add(stage.core.rules.quantile)
            case WorkerStage():
                device = stage.device
                parts = {name: _slice(core, stage.runners[name]) for name, core in stage.core.slices.items()}
                counted |= {_staging(core).quantile for core in stage.core.slices.values()}
                named |= {one["name"] for part in parts.values() for one in part["batching"].values()}
                found["devices"][device.name] = {
                    "type": device.type,
                    "memory_bytes": device.memory_bytes,
                    "price": device.price,
                    "spot": device.spot,
                    "heartbeat_s": stage.options.heartbeat,
                    "slices": parts,
                }
            case _:
                pass
    found["batching"] = sorted(named)
    found["quantile"] = sorted(counted)
    found["apps"] = {
        name: {"slo_s": app.slo, "class": app.query_class.value, "min_accuracy": app.min_accuracy}
        for name, app in apps.items()
    }
    return found


def _planner(stage: PlannerStage) -> dict[str, Any]:
    settings = stage.core.settings.rules
    return {
        "name": stage.planner.name,
        "period_s": settings.plan_period,
        "burst_interval_s": settings.burst_interval,
        "device_timeout_s": settings.device_timeout,
        "headroom": settings.headroom,
        "capacity": settings.capacity,
        "quantile": settings.quantile,
        "variants_per_device": settings.variants_per_device,
        "price": settings.price,
        "loads": settings.loads,
        "money_weight": settings.money_weight,
        "budget": settings.budget,
        "strict_on_demand": settings.strict_on_demand,
        "max_loads": settings.max_loads,
        "geometry": settings.geometry,
        "geometry_patience_s": settings.changes.patience,
        "geometry_rest_s": settings.changes.rest,
        "demand": asdict(settings.demand),
    }


def _staging(core: SliceCore) -> Staging:
    assert isinstance(core.staging, Staging)
    return core.staging


def _slice(core: SliceCore, runner: SliceRunner) -> dict[str, Any]:
    turns = {kind: name for name, kind in STATIONS.items()}
    station = core.station
    assert isinstance(station, Station)
    found = {
        "profile": core.times.kind,
        "executors": len(runner.executors),
        "turns": turns[type(station)],
        "batching": {
            app if of_class == "strict" else f"{app}/{of_class}": {"name": policy.name, **_options(policy)}
            for (app, of_class), policy in station.policies.items()
        },
    }
    executor = runner.executors[0]
    if isinstance(executor, EmulatedExecutor):
        found |= {"profiled_as": executor.profiled_as, "service": executor.service, "loads_s": executor.loads}
    return found


def _options(policy: Any) -> dict[str, Any]:
    """What a policy was made with, as far as it keeps that under the option's name."""
    return {
        name: value
        for name in signature(type(policy)).parameters
        if isinstance(value := getattr(policy, name, None), int | float | str)
    }

"""The stages of one process: roles in, stages out.

Each role imports what it needs when it is built: a stage in a process of its own starts without solvers or servers.
"""

from collections.abc import Callable, Sequence

from sluicegate.domain.errors import ConfigurationError
from sluicegate.profiles.formats.field_errors import meant
from sluicegate.sluice.settings.settings import Settings
from sluicegate.sluice.system.elastic_capacity import procurement, scaler
from sluicegate.sluice.system.live_registry import LiveRegistry
from sluicegate.sluice.system.roles.admission import admission_stage
from sluicegate.sluice.system.roles.fronts import grpc_stage, http_stage, metrics_stage, sink_stage, web_stage
from sluicegate.sluice.system.roles.planner import demand_stage, planner_stages
from sluicegate.sluice.system.roles.router import router_stage
from sluicegate.sluice.system.roles.worker import worker_stage
from sluicegate.sluice.system.system import System, check_has
from sluicegate.stages.runtime.supervisor import Stage

ROLES = ("http", "grpc", "admission", "router", "worker", "demand", "planner", "scaler", "procurement", "sink", "web")
"""Process roles, upstream first: what a front still takes while admission ends would be read by nobody. Those that the
settings do not ask for are not part of "all"."""


def stages_of(
    system: System, roles: Sequence[str], *, apps: Sequence[str] = (), devices: Sequence[str] = ()
) -> list[Stage]:
    """Stages of ``roles`` (all that are asked for where empty), of some apps and devices only where named.

    Raises ConfigurationError where there is no such stage, app or device, or nothing here has devices.
    """
    check_roles(roles)
    check_has(system.apps, apps)
    chosen = [role for role in ROLES if role in roles or (not roles and asked_for(system.settings, role))]
    if devices and "worker" not in chosen:
        told = f"means nothing to {', '.join(chosen)}; name worker too, or leave it out"
        raise ConfigurationError(f"devices: {', '.join(devices)} {told}")
    system.chained = system.settings.chained and {"admission", "router"} <= set(chosen)
    live = LiveRegistry(system, roles=chosen, only=apps)
    system.registry = live.stage() if live.needed else None  # fronts ask it for what was registered just now
    stages: list[Stage] = []
    for role in ROLES:
        if role in chosen:
            stages += _built(system, role, apps or tuple(system.apps), devices)
        if role == "router" and system.registry is not None:  # stopped with the routers it started: before workers
            stages.append(system.registry)
    live.tell(stages)
    if system.settings.metrics.port is not None:
        stages.append(metrics_stage(system, ",".join(roles) or "all"))
    return stages


def check_roles(roles: Sequence[str]) -> None:
    """Raise ConfigurationError where there is no such stage."""
    for role in roles:
        if role not in ROLES:
            raise ConfigurationError(f"stage {role!r} is unknown; choose of {', '.join(ROLES)}{meant(role, ROLES)}")


def asked_for(settings: Settings, role: str) -> bool:
    """Whether the settings ask for ``role`` where all stages run."""
    asked = {
        "demand": settings.planner.demand == "faust",
        "scaler": settings.scaling is not None,
        "procurement": settings.procurement is not None,
        "grpc": settings.grpc.port is not None,
    }
    return asked.get(role, True)


def _built(system: System, role: str, apps: Sequence[str], devices: Sequence[str]) -> list[Stage]:
    builders: dict[str, Callable[[], Sequence[Stage]]] = {
        "admission": lambda: [admission_stage(system, apps)],
        "router": lambda: [router_stage(system, app) for app in apps],
        "worker": lambda: [worker_stage(system, system.device(name)) for name in _served(system, devices)],
        "demand": lambda: [demand_stage(system)],
        "planner": lambda: planner_stages(system, apps),
        "scaler": lambda: [scaler(system)],
        "procurement": lambda: [procurement(system)],
        "sink": lambda: [sink_stage(system, apps)],
        "http": lambda: [http_stage(system, apps)],
        "grpc": lambda: [grpc_stage(system, apps)],
        "web": lambda: [web_stage(system, apps)],
    }
    return list(builders[role]())


def _served(system: System, devices: Sequence[str]) -> list[str]:
    """Names of the devices that get a worker here: those asked for, or all that nothing else starts workers of."""
    return [system.device(name).name for name in devices] or [
        d.name for d in system.devices if d.name not in system.driven
    ]

"""The roles that people and programs look at: ``sink``, ``http``, ``grpc``, ``web``, and every process's metrics."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.system.system import System
from sluicegate.stages.sink import OutcomeStore, SinkStage
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.signing import unsigned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate.stages.fronts.front_desk import FrontDesk
    from sluicegate.stages.fronts.grpc_front import GrpcStage
    from sluicegate.stages.fronts.http_front import HttpStage
    from sluicegate.stages.fronts.live.live_page import WebStage
    from sluicegate.stages.telemetry.metrics_http import MetricsStage


def sink_stage(system: System, apps: "Sequence[str]") -> SinkStage:
    """The stage ``sink``: outcomes of ``apps`` into the run's folder."""
    return SinkStage(
        system.connections,
        apps,
        store=OutcomeStore(system.run_folder, most_bytes=system.settings.outcomes_mb << 20),
        member=system.settings.member,
    )


def http_stage(system: System, apps: "Sequence[str]") -> "HttpStage":
    """The front of Open Inference Protocol."""
    from sluicegate.stages.fronts.http_front import HttpStage
    from sluicegate.streams.remote.server import routes

    log = unsigned(system.broker)
    return HttpStage(
        system.connections,
        _desk("http", system, apps),
        access=system.settings.http.access("http"),
        routes=routes(log, home=system.settings.home) if isinstance(log, MemoryBroker) else (),
    )


def grpc_stage(system: System, apps: "Sequence[str]") -> "GrpcStage":
    """The same by gRPC. Raises ConfigurationError where gRPC is not installed."""
    if find_spec("grpc") is None or find_spec("google.protobuf") is None:
        raise ConfigurationError("grpc: gRPC is not installed; pip install 'sluicegate[grpc]'")
    from sluicegate.stages.fronts.grpc_front import GrpcStage

    return GrpcStage(system.connections, _desk("grpc", system, apps), access=system.settings.grpc.access("grpc"))


def _desk(name: str, system: System, apps: "Sequence[str]") -> "FrontDesk":
    from sluicegate.stages.fronts.front_desk import FrontDesk

    return FrontDesk(
        name,
        system.connections,
        {app: system.apps[app] for app in apps},
        registry=system.registry.catch_up if system.registry is not None else None,
        versions={app: [v.name for v in system.catalogue.of_app(app)] for app in apps},
        max_body_bytes=system.settings.admission.max_body_bytes,
        sources=system.settings.admission.source_keys(),
    )


def web_stage(system: System, apps: "Sequence[str]") -> "WebStage":
    """The live page."""
    from sluicegate.stages.fronts.live.live_page import WebStage

    return WebStage(
        system.connections,
        {name: system.apps[name] for name in apps},
        served=system.catalogue,
        devices=system.devices,
        access=system.settings.web.access("web"),
    )


def metrics_stage(system: System, roles: str) -> "MetricsStage":
    """``/metrics`` and ``/healthz`` of a process that runs ``roles``."""
    from sluicegate.stages.telemetry.metrics_http import MetricsStage

    access = system.settings.metrics.access("metrics")
    return MetricsStage(system.telemetry, access=access, clock=system.clock, roles=roles)

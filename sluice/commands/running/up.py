"""``sluice up``: run stages, all of them or the ones named, until told to stop."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from sluicegate.domain.errors import InvalidInputError
from sluicegate.sluice.catalogue.open_catalogue import open_catalogue
from sluicegate.sluice.catalogue.run_folders import new_run_folder
from sluicegate.sluice.commands.models.variants import nothing_to_scale_with
from sluicegate.sluice.console import err, one_line_errors
from sluicegate.sluice.registration.registry_topic import check_served
from sluicegate.sluice.settings.settings import Settings, load
from sluicegate.sluice.system.forced_exit import Ending, bounded_end
from sluicegate.sluice.system.logs import show_logs
from sluicegate.sluice.system.process import check_descriptors, serve, system, use_descriptors
from sluicegate.sluice.system.process_stages import ROLES, check_roles, stages_of
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime.background_tasks import beside
from sluicegate.stages.runtime.supervisor import Stage
from sluicegate.streams.memory.archive import MANIFEST

if TYPE_CHECKING:
    from sluicegate.stages.telemetry.tracing import Tracing

log = logging.getLogger(__name__)

_TOLD = {
    "http": "Open Inference Protocol on {}/v2/models/…/infer",
    "grpc": "the same by gRPC on {}",
    "web": "what happens, live: {}/",
    "metrics": "metrics on {}/metrics",
    "demand": "demand by windows on {0}/demand, the plan on {0}/plan",
}
_NEEDED = ("admission", "router", "worker", "planner")
"""For queries to be answered."""
_LOOK_EVERY = 2.0
_LOOKS = 150
"""Seconds between looks at the registry, and how many: the planner may be started later than this process."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up")(up)


def up(
    stages: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(ROLES)}; none means all.")] = None,
    app: Annotated[list[str] | None, typer.Option("--app", help="Only for this app; may be given again.")] = None,
    device: Annotated[list[str] | None, typer.Option("--device", help="Only this device; may be given again.")] = None,
    broker: Annotated[str | None, typer.Option(help="memory:// or kafka://host:port")] = None,
    prefix: Annotated[str | None, typer.Option(help="Topic prefix.")] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    fake_gpu: Annotated[
        str | None, typer.Option("--fake-gpu", metavar="TYPExN", help="Serve on emulated GPUs: a100x8 is eight A100.")
    ] = None,
    member: Annotated[
        str | None,
        typer.Option(help="This process's name in Kafka's groups: back under it in time, it reads on at once."),
    ] = None,
    record: Annotated[bool, typer.Option(help="Write every decision under the run's folder.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.")] = False,
) -> None:
    """Run stages until Ctrl-C or SIGTERM. In one process on the embedded broker, or each alone on Kafka."""
    show_logs(verbose=verbose)
    with one_line_errors():
        chosen = load(settings, broker=broker, prefix=prefix, fake_gpu=fake_gpu, member=member, record=record or None)
        show_logs(verbose=verbose, level=chosen.log.level, as_json=chosen.log.format == "json")
        use_descriptors()
        with bounded_end() as ending:
            asyncio.run(_in_order(_up(chosen, stages or [], app or [], device or [], ending.told), ending))


async def _in_order(serving: Coroutine[Any, Any, None], ending: Ending) -> None:
    try:
        await serving
    finally:
        ending.parted()


async def _up(
    settings: Settings, roles: list[str], apps: list[str], devices: list[str], told: Callable[[], None]
) -> None:
    if apps and (not roles or "planner" in roles):  # what is planned is what the system serves: the registry says so
        settings = settings.model_copy(update={"apps": tuple(apps)})
    check_roles(roles)
    catalogue, models = open_catalogue(settings, apps)
    folder = new_run_folder(settings)
    try:
        async with system(
            settings, catalogue, models, folder, traced=_tracing(settings, roles), connect=False
        ) as built:
            stages = stages_of(built, roles, apps=apps, devices=devices)
            check_descriptors(stages, kafka=settings.broker.startswith("kafka:"))
            started = asyncio.Event()
            telling = [_tell(built, stages, roles, started), _tell_strangers(built, roles, apps, started)]
            async with beside(telling):
                await serve(built, stages, started.set, told)
    finally:
        if settings.broker == "memory://" and not settings.record and not (folder / MANIFEST).exists():
            rmtree(folder, ignore_errors=True)  # nothing was asked: the sink's empty files are all there is
    if folder.exists():
        err.print(f"kept in {folder}", soft_wrap=True)


def _tracing(settings: Settings, roles: list[str]) -> "Tracing | None":
    if settings.tracing.endpoint is None:
        return None
    from sluicegate.stages.telemetry.tracing import tracing_to

    service = f"sluicegate-{'-'.join(roles) or 'all'}"
    return tracing_to(settings.tracing.endpoint, sample=settings.tracing.sample, service=service)


async def _tell(built: System, stages: Sequence[Stage], roles: Sequence[str], started: asyncio.Event) -> None:
    """Say what runs once everything that listens has its port: until then the start may fail."""
    await started.wait()
    fronts: list[Any] = [stage for stage in stages if stage.name in _TOLD]
    for front in fronts:
        await front.bound.wait()
    names = ", ".join(stage.name for stage in stages)
    err.print(f"[bold]sluice[/] {names} on {built.broker.url}; Ctrl-C stops", soft_wrap=True)
    if built.settings.apps:
        err.print(f"only the apps that are named: {', '.join(built.settings.apps)}", highlight=False, soft_wrap=True)
    for told in filter(None, (lacking(built.settings.broker, roles), *portless(built.settings, roles))):
        err.print(f"[yellow]{told}[/]", highlight=False, soft_wrap=True)
    for app in () if roles else built.apps:
        if told := nothing_to_scale_with(app, built.catalogue.of_app(app)):
            err.print(f"[yellow]{told}[/]", highlight=False, soft_wrap=True)
    for front in fronts:
        err.print(_TOLD[front.name].format(front.address), soft_wrap=True)


def lacking(broker: str, roles: Sequence[str]) -> str:
    """What a process of ``roles`` needs to serve anybody and nobody brings it; empty where there is nothing."""
    missing = ", ".join(role for role in _NEEDED if role not in roles)
    if not roles or not missing or broker != "memory://":
        return ""
    return f"memory:// is of this process alone, and it has no {missing}: name them too, or give --broker kafka://…"


def portless(settings: Settings, roles: Sequence[str]) -> list[str]:
    """What is set of endpoints that do not run for want of a port."""
    sections = {"metrics": settings.metrics} if roles else {"grpc": settings.grpc, "metrics": settings.metrics}
    return [
        f"{name}.{min(given)} does nothing without {name}.port: set SLUICE_{name.upper()}__PORT"
        for name, section in sections.items()
        if section.port is None and (given := section.model_fields_set - {"port"})
    ]


async def _tell_strangers(built: System, roles: Sequence[str], apps: Sequence[str], started: asyncio.Event) -> None:
    """Warn where this process is for apps that the system, as its planner says, does not serve."""
    await started.wait()
    if not roles or "planner" in roles:
        return
    try:
        for _ in range(_LOOKS):
            await asyncio.sleep(_LOOK_EVERY)
            if await check_served(built.broker, built.topics, apps or tuple(built.apps)):
                return
    except InvalidInputError as error:
        err.print(f"[yellow]{escape(error.problem)}[/]", highlight=False, soft_wrap=True)
    except Exception as error:  # a broker that is away: a word of advice is not worth a stage
        log.debug("the registry cannot be looked at (%s)", error)

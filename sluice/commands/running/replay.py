"""``sluice replay TRACE``: produce queries as a trace says, into a running system."""

import asyncio
import signal
import uuid
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from pydantic import ValidationError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sluicegate.domain.errors import ConfigurationError
from sluicegate.profiles.formats.field_errors import field_errors, meant
from sluicegate.simulator.arrivals.trace_fields import TraceSpec
from sluicegate.sluice.catalogue.open_catalogue import open_catalogue
from sluicegate.sluice.catalogue.run_folders import PATIENCE, awaited_url, connected
from sluicegate.sluice.console import (
    EXIT_FAILED,
    MAX_SEED,
    JsonOption,
    check_latency_ms,
    err,
    one_line_errors,
    out,
    print_json,
)
from sluicegate.sluice.load.open_loop_client import Sender, Sent
from sluicegate.sluice.load.sample_inputs import app_samples
from sluicegate.sluice.registration.publish_registration import await_loaded
from sluicegate.sluice.registration.registry_topic import await_served
from sluicegate.sluice.settings.settings import Settings, load
from sluicegate.stages.runtime.system_clock import SystemClock
from sluicegate.streams.topics import Topics


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay")(replay)


def replay(
    trace: Annotated[str, typer.Argument(help="A file, a folder of arrival lists, or 'generator'.")],
    into: Annotated[str | None, typer.Option(help="Broker (default: the settings' or a running `sluice up`).")] = None,
    kind: Annotated[
        str | None, typer.Option("--format", help="arrivals, counts, twitter or generator (default: by the trace).")
    ] = None,
    app: Annotated[list[str] | None, typer.Option("--app", help="Only this app; may be given again.")] = None,
    speed: Annotated[float, typer.Option(help="Speed-up.")] = 1.0,
    qps: Annotated[str | None, typer.Option(help="Rescale to LOW:HIGH queries/s.")] = None,
    scale: Annotated[float, typer.Option(help="Arrivals times this.")] = 1.0,
    process: Annotated[str, typer.Option(help="poisson, gamma or uniform within the second.")] = "poisson",
    shape: Annotated[float, typer.Option(help="Shape of gamma gaps.")] = 1.0,
    zipf: Annotated[float, typer.Option(help="Zipf exponent of the apps' shares; 0 is equal.")] = 0.0,
    duration: Annotated[float | None, typer.Option(help="Seconds.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows a query carries.")] = 1,
    latency_ms: Annotated[float | None, typer.Option(help="Ask for this latency instead of the app's SLO.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the arrivals.")] = 0,
    prefix: Annotated[str | None, typer.Option(help="Topic prefix.")] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a trace: open loop, each query at its time. Exit 1 where the broker did not acknowledge all of them."""
    with one_line_errors():
        check_latency_ms(latency_ms)
        chosen = load(settings, prefix=prefix)
        spec = trace_spec(trace, kind, speed=speed, qps=qps, scale=scale, process=process, shape=shape, zipf=zipf)
        if spec.path is not None and not spec.path.exists():  # before a system is waited for
            near = meant(trace, ["generator"])
            raise ConfigurationError(f"TRACE {trace}: is not there; give a file, a folder or 'generator'{near}")
        if kind is None and spec.format == "counts":
            _say(f"TRACE {trace}: read as counts per second; --format arrivals reads lines as times of arrival, in ms")
        sent = asyncio.run(_replay(chosen, spec, into, tuple(app or ()), duration, latency_ms, rows, seed))
    if as_json:
        counted = {"queries": sent.queries, "acknowledged": sent.acknowledged, "lost": sent.lost}
        print_json({**counted, "behind_s": sent.behind})
    else:
        out.print(f"{sent.queries} queries sent, {sent.acknowledged} acknowledged, at most {sent.behind:.3f} s behind")
    if sent.lost:
        err.print(
            f"[bold red]lost[/] {sent.lost} of {sent.queries} queries: the broker did not acknowledge them, nobody "
            "answers them; is it up? `sluice audit` tells what became of the others",
            soft_wrap=True,
        )
        raise typer.Exit(EXIT_FAILED)


def trace_spec(trace: str, kind: str | None, *, qps: str | None, **options: Any) -> TraceSpec:
    """The trace that the command line means. Raises ConfigurationError naming what is wrong."""
    values: dict[str, Any] = dict(options)
    values["format"] = kind or guess(trace)
    if values["format"] == "generator" != trace:
        raise ConfigurationError(
            f"TRACE {trace}: means nothing with --format generator; leave out --format, or give 'generator' for TRACE"
        )
    if values["format"] != "generator":
        values["path"] = Path(trace)
    if qps is not None:
        low, _, high = qps.partition(":")
        try:
            values["qps"] = (float(low), float(high or low))
        except ValueError as error:
            raise ConfigurationError(f"--qps {qps!r}: give LOW:HIGH in queries/s") from error
    elif values["format"] == "generator":
        values["qps"] = (20.0, 200.0)
    try:
        return TraceSpec(**values)
    except ValidationError as error:
        raise ConfigurationError(f"trace {trace}: {field_errors(error, TraceSpec)}") from error


def guess(trace: str) -> str:
    """The format of a trace by its name."""
    if trace == "generator":
        return "generator"
    path = Path(trace)
    name = path.name.removesuffix(".gz").removesuffix(".bz2")
    if name.endswith((".json", ".jsonl")) or (path.is_dir() and any(path.rglob("*.json*"))):
        return "twitter"
    return "arrivals" if path.is_dir() else "counts"


async def _replay(
    settings: Settings,
    spec: TraceSpec,
    into: str | None,
    only: tuple[str, ...],
    duration: float | None,
    latency_ms: float | None,
    rows: int,
    seed: int,
) -> Sent:
    missing = "nothing to replay into: start `sluice up`, or give --into kafka://host:port"
    url = await asyncio.to_thread(awaited_url, settings, into, missing, within=PATIENCE, say=_say)
    broker = connected(settings, url)
    producer = broker.producer()
    try:
        topics = Topics(settings.prefix)
        told = await await_served(broker, topics, only or settings.apps, within=PATIENCE, say=_say)
        catalogue = told or (await asyncio.to_thread(open_catalogue, settings, only))[0]
        apps = sorted(only or settings.apps or catalogue.apps)
        if unknown := sorted(set(apps) - set(catalogue.apps)):
            known = ", ".join(catalogue.apps)
            raise ConfigurationError(f"--app {unknown[0]}: not in the catalogue; it has {known}")
        if told is not None:
            await await_loaded(broker, topics, apps, within=PATIENCE, say=_say)
        arrivals = spec.open(apps, np.random.default_rng(seed), duration)
        await producer.start()
        columns = (TextColumn("replay"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
            task = progress.add_task("replay", total=None)
            sender = Sender(
                producer,
                topics,
                SystemClock(),
                [app_samples(catalogue.apps[name], settings.home, rows=rows) for name in apps],
                run=uuid.uuid4().hex[:8],
                latency_ms=latency_ms,
                on_sent=lambda _, count: progress.advance(task, count),
            )
            stop = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            return await sender.replay(arrivals, stop=stop)
    finally:
        await producer.stop()
        await broker.close()


def _say(what: str) -> None:
    err.print(what, highlight=False, markup=False, soft_wrap=True)

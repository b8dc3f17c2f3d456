"""The demo: a trace whose peak overloads the most accurate variants, served end to end, watched and reported.

The load is set from what was measured on this machine. At the foot of the wave the first app's most accurate variant is
enough; at its peak the two most accurate ones that are worth having (no other is as accurate and faster) are not, so
accuracy must give way in steps.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sluicegate.domain.errors import ConfigurationError
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.simulator.arrivals.sampling import ArrivalSource
from sluicegate.simulator.arrivals.trace_fields import TraceSpec
from sluicegate.sluice.audit.topic_audit import AuditReport, read_topics
from sluicegate.sluice.load.open_loop_client import Sender
from sluicegate.sluice.load.run_observer import Observer
from sluicegate.sluice.load.sample_inputs import demo_samples
from sluicegate.sluice.settings.handed_down import child_environment, write_down
from sluicegate.sluice.settings.settings import Settings
from sluicegate.sluice.system.process import system
from sluicegate.sluice.system.process_stages import stages_of
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime.background_tasks import beside
from sluicegate.stages.runtime.supervisor import Stage, run_stages
from sluicegate.stages.runtime.system_clock import SystemClock
from sluicegate.streams.ports import Broker
from sluicegate.streams.topics import Topics

OVERLOAD = 1.5
"""Demand at the peak, headroom included, over what the first app's second best variant can carry."""
HEADROOM = 1.2
"""Least headroom that the planner adds."""
MAX_QPS = 450.0
"""Cap on the peak, so that a slow machine is not busy with anything but models."""
CORES_ON_KAFKA = 6
"""Cores that broker, stages and executors of the demo keep busy on Kafka; with fewer the load is cut in proportion."""
EXACTLY_ONCE_COSTS = 3
"""Times as many are kept busy where every hop is a transaction."""
ROWS = 32
"""Rows a query carries: images are asked about by the handful."""
DEVICES = 2
"""Devices the demo takes of those there are, unless the settings name them."""
SHARES = (0.75, 0.25)
FOOT = 0.05
"""Rate at the foot of the wave over that at its peak."""
LOG = "processes.log"
"""What stages say that run in processes of their own, in the run's folder."""
_SETTLE = 10.0
_START = 120.0
"""Seconds that processes may take to start on a busy machine."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Everything the report is made of."""

    summary: dict[str, Any]
    observer: Observer
    audit: AuditReport
    started: float


Show = Callable[[Observer, float], None]
"""Called a few times a second with (observer, seconds since the start)."""


def capacities(catalogue: Catalogue, app: str, device_type: str) -> list[float]:
    """Rows/s of one device with each variant worth having (none other is as accurate and faster), best first."""
    worth: list[float] = []
    for variant in catalogue.of_app(app):
        profile = catalogue.profiles.get((variant.name, device_type))
        if profile is None:
            continue
        curve = profile.curve("median")
        top = curve.largest_within(catalogue.apps[app].slo / 2)
        rate = max((b / curve(b) for b in range(1, top + 1)), default=0.0)
        if rate > max(worth, default=0.0):
            worth.append(rate)
    if not worth:
        raise ConfigurationError(f"{app} is not profiled on {device_type}; run `sluice profile --app {app}`")
    return worth


def peak_qps(catalogue: Catalogue, apps: Sequence[str], settings: Settings) -> float:
    """Total queries/s at the peak."""
    devices = settings.all_devices()
    own = max(1, len(devices) - len(apps) + 1)
    rates = capacities(catalogue, apps[0], devices[0].type)
    second = rates[min(1, len(rates) - 1)]
    cores = len(os.sched_getaffinity(0))
    busy = CORES_ON_KAFKA * (EXACTLY_ONCE_COSTS if settings.delivery == "exactly_once" else 1)
    room = 1.0 if settings.broker == "memory://" else min(1.0, cores / busy)
    return room * min(MAX_QPS, OVERLOAD * own * second / HEADROOM / ROWS / shares_of(apps)[apps[0]])


def shares_of(apps: Sequence[str]) -> dict[str, float]:
    """Share of each app: the first asks most."""
    weights = [SHARES[min(i, len(SHARES) - 1)] for i in range(len(apps))]
    return {app: weight / sum(weights) for app, weight in zip(apps, weights, strict=True)}


def demo_trace(
    catalogue: Catalogue, apps: Sequence[str], settings: Settings, duration: float, seed: int
) -> ArrivalSource:
    """A wave of one period, with noise and a spike, scaled to this machine."""
    high = peak_qps(catalogue, apps, settings)
    spec = TraceSpec.model_validate(
        {
            "format": "generator",
            "qps": (FOOT * high, high),
            "shares": shares_of(apps),
            "generator": {"noise": 0.05, "spikes": 1, "spike_factor": 1.2, "spike_s": 3.0},
        }
    )
    return spec.open(list(apps), np.random.default_rng(seed), duration)


async def run_demo(
    settings: Settings,
    catalogue: Catalogue,
    models: Path,
    folder: Path,
    *,
    arrivals: ArrivalSource,
    show: Show,
    warm_s: float = 3.0,
) -> DemoResult:
    """Serve ``arrivals`` and account for every query of them."""
    began = time.monotonic()
    async with _running(settings, catalogue, models, folder) as (broker, topics), AsyncExitStack() as leaving:
        clock = SystemClock()
        producer = broker.producer()
        await producer.start()
        leaving.push_async_callback(producer.stop)
        apps = arrivals.apps
        samples = [demo_samples(catalogue.apps[app], rows=ROWS) for app in apps]
        observer = Observer(broker, topics)
        sender = Sender(producer, topics, clock, samples, run=uuid.uuid4().hex[:8], on_sent=observer.asked)
        observer.labels_of = sender.labels_of
        stop = asyncio.Event()
        watching = asyncio.create_task(observer.run(stop))
        await observer.ready.wait()
        await _first_plan(observer, within=_START)
        await asyncio.sleep(warm_s)
        started = clock.wall()
        showing = asyncio.create_task(_show(observer, show, clock, started))
        try:
            sent = await sender.replay(arrivals)
            await _settle(observer, sent.queries)
        finally:
            stop.set()
            showing.cancel()
            await asyncio.gather(watching, showing, return_exceptions=True)
        show(observer, clock.wall() - started)
        audit = (await read_topics(broker, topics)).report()
    rows = {s.app: s.labels.size for s in samples if s.labels is not None}
    summary = summarise(observer, audit, catalogue, rows, wall_s=time.monotonic() - began)
    return DemoResult(summary, observer, audit, started)


def summarise(
    observer: Observer, audit: AuditReport, catalogue: Catalogue, rows: Mapping[str, int], *, wall_s: float
) -> dict[str, Any]:
    """The demo's summary.json: counts and metrics by the audit's reading of the topics, so that what is lost counts.

    ``rows``: unlike ones that were asked about, by app; the same again says nothing new of a variant's accuracy.
    """
    fold = audit.summary
    checks = {}
    for name, checked in sorted(observer.checked.items()):
        variant = catalogue.variants[name.partition("/")[2]]
        observed = checked.right / checked.answers
        unlike = min(checked.answers, rows[variant.app])
        noise = np.sqrt(variant.accuracy_se**2 + variant.accuracy * (1 - variant.accuracy) / unlike)
        checks[name] = {
            "answers": checked.answers,
            "rows": unlike,
            "accuracy_observed": observed,
            "accuracy_profiled": variant.accuracy,
            "standard_errors_apart": abs(observed - variant.accuracy) / noise if noise else 0.0,
        }
    return {
        "queries": audit.queries,
        "answered_on_time": fold.answered_on_time,
        "late": fold.late,
        "expired": fold.expired,
        "dropped": fold.dropped,
        "rejected": fold.rejected,
        "failed": fold.failed,
        "lost": audit.lost,
        "duplicates": audit.duplicates,
        "right_in_time": fold.right_in_time,
        "effective_accuracy": fold.effective_accuracy,
        "max_accuracy_drop": fold.max_accuracy_drop,
        "slo_attainment": fold.slo_attainment,
        "goodput_qps": fold.goodput_qps,
        "p50_ms": fold.p50_ms,
        "p99_ms": fold.p99_ms,
        "variants_used": {app: sorted(mix) for app, mix in fold.variants_used.items()},
        "plan_epochs": len({p.epoch for p in observer.plans}),
        "accuracy_check": checks,
        "per_app": fold.per_app,
        "audit": {k: v for k, v in asdict(audit).items() if k != "summary"},
        "wall_s": wall_s,
    }


async def _first_plan(observer: Observer, *, within: float) -> None:
    try:
        async with asyncio.timeout(within):
            while not observer.plans:
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        raise ConfigurationError(f"no plan within {within:.0f} s; run `sluice up --verbose` to see why") from error


async def _settle(observer: Observer, queries: int) -> None:
    """Wait until every query sent has ended, within a bound: the audit tells what did not."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SETTLE):
            while observer.outcomes + observer.dead_letters < queries:
                await asyncio.sleep(0.05)


async def _show(observer: Observer, show: Show, clock: SystemClock, started: float) -> None:
    while True:
        show(observer, clock.wall() - started)
        await asyncio.sleep(0.25)


@asynccontextmanager
async def _running(
    settings: Settings, catalogue: Catalogue, models: Path, folder: Path
) -> AsyncIterator[tuple[Broker, Topics]]:
    """The stages, in this process on the embedded broker, in one process each on Kafka. One that ends ends the body."""
    async with system(settings, catalogue, models, folder) as built:
        if settings.broker == "memory://":
            async with _serving(stages_of(built, ("admission", "router", "worker", "planner", "sink"))):
                yield built.broker, built.topics
            return
        processes = await start_processes(built)
        try:
            async with beside([_watched(processes, built.run_folder / LOG)]):
                yield built.broker, built.topics
        finally:
            await stop_processes(processes)


@asynccontextmanager
async def _serving(stages: Sequence[Stage]) -> AsyncIterator[None]:
    """These stages run while the body does, and are stopped in order after it. What one raises ends the body."""
    stop = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(run_stages(stages, stop))
            try:
                yield
            finally:
                stop.set()
                await asyncio.wait([running])
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _watched(processes: Mapping[str, asyncio.subprocess.Process], log: Path) -> None:
    """Raises ConfigurationError once one of them has ended, with what it said last."""
    while not (over := [name for name, process in processes.items() if process.returncode is not None]):
        await asyncio.sleep(0.2)
    said = (await asyncio.to_thread(log.read_text, encoding="utf-8", errors="replace")).strip().splitlines()
    last = said[-1] if said else "it said nothing"
    raise ConfigurationError(f"the process of {over[0]} ended: {last.removeprefix('error ')} (log: {log})")


async def start_processes(built: System) -> dict[str, asyncio.subprocess.Process]:
    """One process a stage: admission, a router an app, a worker a device, planner, sink."""
    settings = built.settings
    roles = ["admission", "planner", "sink"]
    commands = {role: [role] for role in roles}
    commands |= {f"router {app}": ["router", "--app", app] for app in built.apps}
    commands |= {f"worker {d.name}": ["worker", "--device", d.name] for d in built.devices}
    file = built.run_folder / "settings.yaml"
    write_down(settings.model_copy(update={"catalogue": built.models.resolve()}), file)
    with (built.run_folder / LOG).open("ab") as log:
        return {
            name: await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sluicegate.sluice.main", "up", *arguments, "--settings", str(file)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=child_environment(settings),
            )
            for name, arguments in commands.items()
        }


async def stop_processes(processes: dict[str, asyncio.subprocess.Process]) -> None:
    """Ask all to stop, and insist after a while."""
    for process in processes.values():
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
    for process in processes.values():
        try:
            async with asyncio.timeout(15.0):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

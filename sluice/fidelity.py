"""A scenario run live, in real time, on emulated devices: what its simulation is measured against.

Every stage of the live system runs in this process on the embedded broker; only the executors are emulated, from the
scenario's profiles. Arrivals are those of the simulation with the same seed, to the microsecond.
"""

import asyncio
import contextlib
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from domain.device import Device, Slice
from domain.errors import ConfigurationError
from domain.executor import Executor
from domain.tensor import TensorSpec
from executors.devices.gpu import Gpu
from executors.emulated import EmulatedExecutor
from planner.controller import Controller
from planner.registry import planner
from policies.batching.registry import STATIONS, batching
from policies.placement.staging import Staging
from profiles.catalogue import Catalogue
from simulator.arrivals.sampling import ArrivalSource
from simulator.experiment import arrivals_of, figures_of, run_once
from simulator.fidelity import Difference, difference
from simulator.scenario import Scenario, catalogue_of, controller_settings, devices_of, overridden, scenario_of
from sluice.console import err, out, print_json
from sluice.observer import Observer
from sluice.sending import Sender, samples_of
from sluice.settings import Settings, load
from sluice.wiring import System
from stages.clock import SystemClock
from stages.planner import PlannerStage
from stages.run import Stage, run_stages
from stages.slice import SliceRunner
from stages.worker import WorkerStage
from streams import connect

ROLES = ("admission", "router", "worker", "planner")
_NUMBER = (TensorSpec("x", "FP32", (1,)),)
_SETTLE = 10.0

Runner = Callable[[Scenario, int], Awaitable[dict[str, Any]]]
"""Runs a scenario live with a seed and returns its figures."""


@dataclass
class EmulatedSystem(System):
    """The live system with a scenario's devices, policies and planner, and emulated executors."""

    scenario: Scenario | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.scenario is not None
        self._spec = self.scenario
        self.devices = devices_of(self._spec)

    def _slice(self, stage: WorkerStage, device: Device, part: Slice, gpu: Gpu | None = None) -> SliceRunner:
        del gpu  # what is emulated here is no GPU of this machine
        policy = self._spec.policies.batching
        return SliceRunner(
            device=device,
            part=part,
            station=STATIONS[self._spec.policies.turns](batching(policy.name, **policy.options)),
            staging=Staging(device, part, self.catalogue, quantile=self._spec.planner.quantile),
            policy=policy.name,
            executor=self._executor(device),
            catalogue=self.catalogue,
            clock=self.clock,
            ends=stage.ends,
            acknowledge=stage.acknowledge,
            fails=stage.failed,
            announce=stage.announce,
        )

    def _executor(self, device: Device) -> Executor:
        service = self._spec.simulation.service
        return EmulatedExecutor(
            self.catalogue,
            device.type,
            quantile="p95" if service == "p95" else "median",
            jitter=service == "sampled",
            seed=self._spec.seed + sum(device.name.encode()),
        )

    def _planner(self, apps: Sequence[str], devices: Sequence[str]) -> list[Stage]:
        del devices
        spec = self._spec.planner
        return [
            PlannerStage(
                broker=self.broker,
                producer=self.producer,
                topics=self.topics,
                clock=self.clock,
                planner=planner(spec.name),
                apps=apps,
                make_controller=lambda term, previous: Controller(
                    self.catalogue,
                    settings=controller_settings(spec),
                    term=term,
                    devices=self.devices,
                    previous=previous,
                ),
            )
        ]


async def run_live(scenario: Scenario, seed: int) -> dict[str, Any]:
    """The figures of a live run. Takes as long as the trace lasts. Raises ConfigurationError for what is not live."""
    check(scenario)
    began = time.monotonic()
    catalogue = _with_tensors(catalogue_of(scenario))
    arrivals = arrivals_of(scenario, catalogue, seed)
    async with _running(scenario, catalogue) as built:
        observer = Observer(built.broker, built.topics)
        sent = await _replay(built, observer, arrivals, scenario.simulation.warm_up_s)
    summary = observer.fold.summary(arrivals.duration)
    if summary.queries != sent:
        raise ConfigurationError(
            f"{sent} queries were sent and {summary.queries} outcomes came; the run does not count"
        )
    return figures_of(summary, [plan.solve_s for plan in observer.plans], time.monotonic() - began, seed)


def check(scenario: Scenario) -> None:
    """Raises ConfigurationError where the live system cannot do what the scenario asks."""
    simulation, policies = scenario.simulation, scenario.policies
    unknown = {
        "simulation.service: exponential": simulation.service == "exponential",
        "simulation.slow_batches": simulation.slow_batches.probability > 0.0,
        "simulation.shared": bool(simulation.shared),
        "simulation.failures": bool(simulation.failures),
        "simulation.stragglers": bool(simulation.stragglers),
        "simulation.loads: exclusive": simulation.loads == "exclusive",
        "policies.routing options": bool(policies.routing.options),
        "policies.admission": policies.admission is not None,
        "planner.latency_s": scenario.planner.latency_s != 0.0,
    }
    for name, asked in unknown.items():
        if asked:
            raise ConfigurationError(f"{name}: emulated devices cannot do that live; leave it out with --live")


async def _replay(built: System, observer: Observer, arrivals: ArrivalSource, warm_up: float) -> int:
    samples = [samples_of(built.apps[app], None, None) for app in arrivals.apps]
    sender = Sender(built.producer, built.topics, SystemClock(), samples, run=uuid.uuid4().hex[:8])
    stop = asyncio.Event()
    watching = asyncio.create_task(observer.run(stop))
    try:
        await observer.ready.wait()
        await _until(lambda: bool(observer.plans), 30.0, "no plan was published within 30 s")
        await asyncio.sleep(warm_up)
        sent = await sender.replay(arrivals)
        with contextlib.suppress(ConfigurationError):
            await _until(lambda: observer.outcomes >= sent.queries, _SETTLE, "")
        return sent.queries
    finally:
        stop.set()
        await watching


async def _until(condition: Callable[[], bool], within: float, problem: str) -> None:
    end = time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            raise ConfigurationError(problem)
        await asyncio.sleep(0.05)


@asynccontextmanager
async def _running(scenario: Scenario, catalogue: Catalogue) -> AsyncIterator[EmulatedSystem]:
    settings: Settings = load(
        None, broker="memory://", routing=scenario.policies.routing.name, worker={"executor": "emulated"}, record=False
    )
    broker = connect(settings.broker)
    producer = broker.producer()
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        path = Path(folder)
        built = EmulatedSystem(settings, catalogue, path, broker, producer, path, scenario=scenario)
        await producer.start()
        await built.create_topics()
        stop = asyncio.Event()
        running = asyncio.create_task(run_stages(built.stages(ROLES), stop))
        try:
            yield built
        finally:
            stop.set()
            await running
            await producer.stop()
            await broker.close()


def _with_tensors(catalogue: Catalogue) -> Catalogue:
    """Apps that a profile alone describes take and give one number."""
    apps = {
        name: replace(app, inputs=app.inputs or _NUMBER, outputs=app.outputs or _NUMBER)
        for name, app in catalogue.apps.items()
    }
    return replace(catalogue, apps=apps)


def at_load(document: Mapping[str, Any], load_: float) -> Scenario:
    """The scenario with its arrivals times ``load_``."""
    scale = scenario_of(document).traces.scale * load_
    return scenario_of(overridden(document, {"traces.scale": scale}))


async def fidelity(
    document: Mapping[str, Any], loads: Sequence[float], seed: int, runner: Runner = run_live
) -> dict[str, dict[str, Any]]:
    """For each load: the figures live and simulated, and how far apart they are."""
    result: dict[str, dict[str, Any]] = {}
    for load_ in loads:
        scenario = at_load(document, load_)
        live = await runner(scenario, seed)
        simulated = run_once(scenario, seed, time.perf_counter).figures()
        apart = difference(live, simulated)
        result[f"x{load_:g}"] = {"live": live, "simulated": simulated, "difference": asdict(apart)}
    return result


def compare_live(document: Mapping[str, Any], loads: Sequence[float], *, as_json: bool) -> bool:
    """Run, print; whether all differences are small. Raises ConfigurationError."""
    base = scenario_of(document)
    for load_ in loads:
        check(at_load(document, load_))
    seconds = (base.duration_s or 0.0) * len(loads)
    err.print(f"running live in real time{f', {seconds:.0f} s' if seconds else ''}", style="dim")
    found = asyncio.run(fidelity(document, loads, base.seed))
    small = all(Difference(**one["difference"]).small for one in found.values())
    if as_json:
        print_json(found)
        return small
    table = Table(title=f"{base.name}: live against simulated, seed {base.seed}")
    for column in ("load", "", "queries", "missed", "accuracy", "goodput", "p50", "p99"):
        table.add_column(column, justify="left" if column in {"load", ""} else "right")
    for name, one in found.items():
        for which in ("live", "simulated"):
            table.add_row(name if which == "live" else "", which, *_cells(one[which]))
        d = one["difference"]
        accuracy, violations = f"{d['accuracy_points']:+.2f} pt", f"{d['violation_points']:+.2f} pt"
        table.add_row("", "apart", "", violations, accuracy, f"{d['throughput_percent']:+.2f} %", "", "")
        table.add_section()
    out.print(table)
    return small


def _cells(figures: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{figures['queries']}",
        f"{100 * figures['violation_ratio']:.2f} %",
        f"{100 * figures['effective_accuracy']:.2f} %",
        f"{figures['goodput_qps']:.1f}/s",
        f"{figures['p50_ms']:.0f} ms",
        f"{figures['p99_ms']:.0f} ms",
    )

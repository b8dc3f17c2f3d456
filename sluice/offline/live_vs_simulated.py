"""A scenario run live, in real time, on emulated devices: what its simulation is measured against.

Every stage of the live system runs in this process on the embedded broker; only the executors are emulated, from the
scenario's profiles. Arrivals are those of the simulation with the same seed, to the microsecond.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from rich.table import Table

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.domain.plan import STANDS_IN
from sluicegate.executors.devices.fake_gpus import FakeLibrary
from sluicegate.executors.emulated import EmulatedExecutor
from sluicegate.policies.mdp_serving.jellyfish_model_switching import ModelSwitching, PublishedModelSwitching
from sluicegate.policies.mdp_serving.table_policy import TableSelection
from sluicegate.policies.placement.hosted_variants import profiled_as
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.leftovers import folder_for_a_while
from sluicegate.simulator.arrivals.sampling import ArrivalSource
from sluicegate.simulator.figure_differences import Difference, difference
from sluicegate.simulator.scenario import (
    Scenario,
    build,
    catalogue_of,
    controller_settings,
    devices_of,
    overridden,
    scenario_of,
    warm_up_of,
)
from sluicegate.simulator.scenario.experiment import arrivals_of, figures_of, run_once
from sluicegate.simulator.scenario.mdp_scenario import rated_by
from sluicegate.simulator.scenario.sliced_devices import sharing_of
from sluicegate.sluice.console import err, out, print_json
from sluicegate.sluice.load.open_loop_client import Sender, samples_of
from sluicegate.sluice.load.run_observer import Observer
from sluicegate.sluice.settings.settings import Settings, settings_of
from sluicegate.sluice.system.deployed_gpus import Gpus
from sluicegate.sluice.system.process_stages import stages_of
from sluicegate.sluice.system.system import System
from sluicegate.sluice.system.what_ran import what_ran
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.runtime.frozen_heap import frozen_heap
from sluicegate.stages.runtime.supervisor import Stage, run_stages
from sluicegate.stages.runtime.system_clock import SystemClock
from sluicegate.streams import connect

ROLES = ("admission", "router", "worker", "planner")
_NUMBER = (TensorSpec("x", "FP32", (1,)),)
_SETTLE = 10.0
_BY_TABLES = frozenset({TableSelection.name, ModelSwitching.name, PublishedModelSwitching.name})
"""Batching rules that get their tables in another way live, unless planners publish them."""


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A scenario's live run. ``figures``: as of a simulated run; ``ran``: what ran, as ``what_ran`` reads it, and what
    became of plans."""

    figures: dict[str, Any]
    ran: dict[str, Any]


Runner = Callable[[Scenario, int], Awaitable[LiveRun]]
"""Runs a scenario live with a seed."""


async def run_live(scenario: Scenario, seed: int) -> LiveRun:
    """A live run. Takes as long as the trace lasts. Raises ConfigurationError for what is not live."""
    check(scenario)
    began = time.monotonic()
    catalogue = _with_tensors(catalogue_of(scenario))
    arrivals = arrivals_of(scenario, catalogue, seed)
    async with _running(scenario, catalogue) as (built, stages):
        observer = Observer(built.broker, built.topics)
        sent, behind = await _replay(built, observer, arrivals, warm_up_of(scenario.simulation, catalogue))
        ran = what_ran(stages, built.apps)
    summary = observer.fold.summary(arrivals.duration)
    if summary.queries != sent:
        raise ConfigurationError(
            f"{sent} queries were sent and {summary.queries} outcomes came; the run does not count"
        )
    plans = observer.plans
    ran["plans"] = {
        "published": len(plans),
        "stand_ins": sum(STANDS_IN in plan.reason for plan in plans),
        "recuts": sum(
            any(before.geometries.get(gpu, cut) != cut for gpu, cut in plan.geometries.items())
            for before, plan in pairwise(plans)
        ),
    }
    ran["sent_late_s"] = behind
    figures = figures_of(summary, [plan.solve_s for plan in plans], time.monotonic() - began, seed)
    return LiveRun(figures, ran)


def check(scenario: Scenario) -> None:
    """Raises ConfigurationError where it cannot be simulated, or not be done live: before minutes were spent on it."""
    build(scenario, time.perf_counter)
    controller_settings(scenario.planner)
    simulation, policies = scenario.simulation, scenario.policies
    door = policies.admission
    apps = [app for app in (scenario.apps or {}).values() if app is not None]
    unknown = {
        "simulation.service: exponential": simulation.service == "exponential",
        "simulation.slow_batches": simulation.slow_batches.probability > 0.0,
        "simulation.shared": bool(simulation.shared),
        "slices.executors": bool(scenario.slices.executors),
        "devices.*.slices.*.instance": any(part.instance for spec in scenario.devices for part in spec.slices),
        "simulation.failures": bool(simulation.failures),
        "simulation.stragglers": bool(simulation.stragglers),
        "simulation.starved_hosts": bool(simulation.starved_hosts),
        "simulation.executor_failures": bool(simulation.executor_failures),
        "simulation.loads: exclusive": simulation.loads == "exclusive",
        "policies.routing options": bool(scenario.routes_by.options),
        "policies.admission: other than deadline": door is None or door.name != "deadline" or bool(door.options),
        f"policies.batching: {policies.batching.name}": policies.batching.name in _BY_TABLES
        and scenario.tables is None,
        f"planner.name: {scenario.planner.name}": scenario.planner.name.startswith("scaling-"),
        "apps.*.lengths": any(app.lengths for app in apps),
        "apps.*.queries": any(app.queries for app in apps),
        "apps.*.variants": any(app.variants is not None for app in apps),
        "registrations": bool(scenario.registrations),
        "planner.latency_s": scenario.planner.latency_s != 0.0,
        "planner.planners": scenario.planner.planners > 1 or bool(scenario.planner.failures),
        "planner.scaling": scenario.planner.scales,
        "scaling": scenario.scaling is not None,
        "procurement": scenario.procurement is not None,
    }
    cut = {(spec.type, spec.geometry) for spec in scenario.devices if spec.geometry is not None}
    if len(cut) > 1:
        raise ConfigurationError("devices.*.geometry: with --live all GPUs are of one type, and are cut alike at first")
    for name, asked in unknown.items():
        if asked:
            raise ConfigurationError(f"{name}: what is run for a comparison cannot do that; leave it out with --live")


async def _replay(built: System, observer: Observer, arrivals: ArrivalSource, warm_up: float) -> tuple[int, float]:
    """Queries sent, and seconds by which one of them was sent late at most."""
    samples = [samples_of(built.apps[app], None, None) for app in arrivals.apps]
    sender = Sender(built.producer, built.topics, SystemClock(), samples, run=uuid.uuid4().hex[:8])
    stop = asyncio.Event()
    watching = asyncio.create_task(observer.run(stop))
    try:
        await observer.ready.wait()
        await _until(lambda: bool(observer.plans), 30.0, "no plan was published within 30 s")
        await asyncio.sleep(warm_up)
        await _counted(built)
        sent = await sender.replay(arrivals)
        with contextlib.suppress(ConfigurationError):
            await _until(lambda: observer.outcomes >= sent.queries, _SETTLE, "")
        return sent.queries, sent.behind
    finally:
        stop.set()
        await watching


async def _counted(built: System) -> None:
    """Return when demand has just been counted, as the simulator's trace begins: where in a count it begins matters."""
    counted = asyncio.Event()
    follower = Follower(built.broker, built.topics.demand, lambda _record: counted.set(), start_at="end")
    stop = asyncio.Event()
    watching = asyncio.create_task(follower.run(stop))
    try:
        await asyncio.wait_for(counted.wait(), 30.0)
    except TimeoutError as error:
        raise ConfigurationError("no count of demand came within 30 s") from error
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
async def _running(scenario: Scenario, catalogue: Catalogue) -> AsyncIterator[tuple[System, list[Stage]]]:
    """The live system with what the scenario sets, and its stages."""
    settings = live_settings(scenario)
    broker = connect(settings.broker)
    producer = broker.producer()
    with folder_for_a_while("compared") as path:
        built = System(
            settings,
            catalogue,
            path,
            broker,
            producer,
            path,
            hardware=devices_of(scenario),
            rules=controller_settings(scenario.planner, tables=rated_by(scenario.tables, scenario.policies)),
        )
        built.make_executor = partial(executor_of, scenario, built.catalogue)
        gpus = [device for device in settings.devices if device.gpu is not None]
        if gpus:
            step_s = settings.worker.slices.fake_step_s
            built.gpus = Gpus(settings, FakeLibrary(gpus[0].type, len(gpus), step_s=step_s))
        await producer.start()
        await built.create_topics()
        stages = stages_of(built, ROLES)
        stop = asyncio.Event()
        running = asyncio.create_task(run_stages(stages, stop))
        try:
            with frozen_heap():
                yield built, stages
        finally:
            stop.set()
            await running
            await producer.stop()
            await broker.close()


def live_settings(scenario: Scenario) -> Settings:
    """Settings of the live system under ``scenario``; its devices and planner's rules are handed over as they are."""
    spec, policies, slices = scenario.planner, scenario.policies, scenario.slices
    cuttable = sharing_of(scenario, catalogue_of(scenario)).cuttable
    devices = [d for d in devices_of(scenario) if d.name in cuttable]
    return settings_of(
        f"scenario {scenario.name}",
        {
            "broker": "memory://",
            "routing": scenario.routes_by.name,
            "worker": {
                "executor": "emulated",
                "batching": policies.batching.name,
                # A guard is what the scenario says it is: the live system's own is not what is simulated.
                "guard_s": 0.0,
                "batching_options": policies.batching.options,
                "quantile": policies.quantile,
                "turns": policies.turns,
                "heartbeat_s": scenario.simulation.heartbeat_s,
                "slices": {
                    "choice": slices.choice,
                    "geometry": next((s.geometry for s in scenario.devices if s.geometry is not None), None),
                    "drain_s": slices.drain_s,
                    "rdf": slices.rdf,
                    "fake_step_s": slices.step_s,
                },
            },
            "devices": [{"name": d.name, "type": d.type, "gpu": number} for number, d in enumerate(devices)],
            "planner": {"name": spec.name, "quantile": spec.quantile, "geometry": spec.geometry},
            "tables": scenario.tables.model_dump(exclude={"make_s"}) if scenario.tables is not None else {},
        },
    )


def executor_of(scenario: Scenario, catalogue: Catalogue, device: Device, part: Slice) -> EmulatedExecutor:
    """Emulates a slice as the scenario has it; what is sampled there is its own in each run."""
    service = scenario.simulation.service
    return EmulatedExecutor(
        catalogue,
        profiled_as(catalogue, device, part),
        memory_bytes=part.memory_bytes,
        quantile="p95" if service == "p95" else "median",
        jitter=service == "sampled",
        seed=f"{scenario.seed}/{device.name}/{part.name}",
    )


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
    """For each load: the figures live and simulated, how far apart they are, and what ran live."""
    result: dict[str, dict[str, Any]] = {}
    for load_ in loads:
        scenario = at_load(document, load_)
        live = await runner(scenario, seed)
        simulated = run_once(scenario, seed, time.perf_counter).figures()
        result[f"x{load_:g}"] = {
            "live": live.figures,
            "simulated": simulated,
            "difference": asdict(difference(live.figures, simulated)),
            "ran_live": live.ran,
        }
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
    for name, one in found.items():
        out.print(f"{name} ran live: {_told(one['ran_live'])}", style="dim", markup=False, highlight=False)
    return small


def _told(ran: Mapping[str, Any]) -> str:
    planner, plans = ran["planner"], ran["plans"]
    routing = ", ".join(sorted(set(ran["routing"].values())))
    return (
        f"planner {planner['name']} every {planner['period_s']:g} s ({plans['published']} plans, "
        f"{plans['stand_ins']} of them stand-ins, {plans['recuts']} cut GPUs otherwise), "
        f"batching {', '.join(ran['batching'])}, routing {routing}, admission {ran['admission']}; "
        f"queries were sent {1e3 * ran['sent_late_s']:.0f} ms late at most"
    )


def _cells(figures: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{figures['queries']}",
        f"{100 * figures['violation_ratio']:.2f} %",
        f"{100 * figures['effective_accuracy']:.2f} %",
        f"{figures['goodput_qps']:.1f}/s",
        f"{figures['p50_ms']:.0f} ms",
        f"{figures['p99_ms']:.0f} ms",
    )

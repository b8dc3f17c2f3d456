"""Several executors on one CPU worker: what they end together and how long it takes, beside what the model says.

One device over all cores that this process may use, BERT-mini with random weights on ONNX Runtime, one thread an
executor. First what share of the cores a batch takes: two to four copies at a time, the estimate held against three and
against four (``sluice devices bandwidth`` does the same for any variants). Then, for each number of executors, the
running system (broker, stages and executors of one machine) and the simulator get the same Poisson arrivals: at twice
what one executor ends, and at 60 % of what the model says that all of them end.

    python bench/planning/shared_slices.py                      # two minutes; reports/bench/shared_slices.json
    python bench/planning/shared_slices.py --executors 1,2 --seconds 20 --cores 0

What else runs on the machine is in the measurements and not in the model: ``load`` is its load average before and
after.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sluicegate.domain.models.variant import Variant
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.executors.colocation import measure_colocations
from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
from sluicegate.executors.onnx.runtime_options import Runtime
from sluicegate.executors.profile_runner import ProfileOptions, profile_variants
from sluicegate.planner.problems.throughput import throughput
from sluicegate.policies.placement.bandwidth import estimate_fbr, predicted
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import digest_of, load_catalogue, model_path, save_catalogue
from sluicegate.profiles.catalogue.profiler import Effort
from sluicegate.profiles.catalogue.slice_profiles import crowd
from sluicegate.profiles.demo.synthetic_graphs import MODELS, TEXT, HeavyFamily
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.scenario import build, scenario_of
from sluicegate.simulator.scenario.experiment import arrivals_of
from sluicegate.sluice.audit.result_log import read_results, result_topics
from sluicegate.sluice.load.open_loop_client import Sender, samples_of
from sluicegate.sluice.load.run_observer import Observer
from sluicegate.sluice.settings.settings import load
from sluicegate.sluice.system.process_stages import stages_of
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime.frozen_heap import frozen_heap
from sluicegate.stages.runtime.supervisor import run_stages
from sluicegate.stages.runtime.system_clock import SystemClock
from sluicegate.streams import connect
from sluicegate.streams.records import codec

ROLES = ("admission", "router", "worker", "planner", "sink")
MODEL, APP = "bert-mini", TEXT.name
TARGET = Path("reports/bench/shared_slices.json")
SEED = 4
"""Of arrivals."""
BATCHES = (1, 2, 4, 8)
COPIES = (2, 3, 4)
OVER, USUAL = 2.0, 0.6
"""Offered: of what one executor ends alone; of what all of them should end."""


class Gathered:
    """An observer of a run: (seconds from arrival to answer, when) of what was answered."""

    def __init__(self) -> None:
        self.answered: list[tuple[float, float]] = []
        self.queries = 0

    def add(self, outcome: Outcome) -> None:
        """One query ended."""
        self.queries += 1
        if outcome.kind is OutcomeKind.ANSWERED:
            self.answered.append((outcome.at - outcome.arrival, outcome.at))

    def figures(self, seconds: float) -> dict[str, float]:
        """Answers a second, and how long 19 in 20 of them took at most."""
        took = [one for one, _ in self.answered]
        p95 = 1e3 * float(np.percentile(took, 95)) if took else float("nan")
        return {"queries": self.queries, "answers_per_s": len(took) / seconds, "p95_ms": p95}


async def measured(folder: Path, cores: tuple[int, ...], seconds: float) -> tuple[Catalogue, list[dict[str, float]]]:
    """A catalogue of the model with its profile and the share of the cores that it takes; how co-locations fared."""
    fitted = HeavyFamily(TEXT).fit(MODELS[MODEL])
    digest = digest_of(fitted.model)
    variant = Variant(
        name=MODEL, app=APP, accuracy=fitted.accuracy, nominal=True, model=model_path(digest), digest=digest,
        size_bytes=len(fitted.model),
    )  # fmt: skip
    apps = {APP: TEXT}
    bare = Catalogue.of([TEXT], [variant], [])
    save_catalogue(folder, bare, {digest: fitted.model})
    executor = OnnxExecutor(folder, apps, Runtime(cores=cores))
    await executor.start()
    try:
        options = ProfileOptions(batches=BATCHES, effort=Effort(least=10, enough=40))
        (profile,) = await profile_variants(executor, apps, [variant], options)
    finally:
        await executor.close()
    together = await measure_colocations(
        lambda: OnnxExecutor(folder, apps, Runtime(cores=cores)), apps, [variant],
        batch=BATCHES[-1], wanted=[(MODEL,) * n for n in COPIES], seconds=seconds,
    )  # fmt: skip
    told = []
    for held in range(len(COPIES)):
        fitted_on = [one for i, one in enumerate(together) if i != held]
        said = predicted(estimate_fbr(fitted_on, saturation=0.05).fbr, together[held].variants)
        told.append({"copies": COPIES[held], "slower": together[held].slowdown, "model": said})
    fbr = estimate_fbr(together, saturation=0.05).fbr[MODEL]
    known = Catalogue.of([TEXT], [variant], [replace(profile, fbr=fbr)])
    save_catalogue(folder, known, {})
    return load_catalogue(folder), told


def scenario(folder: Path, executors: int, qps: float, seconds: float) -> Any:
    """The same as the live system: one CPU worker with so many executors."""
    return scenario_of(
        {
            "name": "shared-slices",
            "duration_s": seconds,
            "seed": SEED,
            "catalogue": {"format": "sluice", "path": str(folder)},
            "devices": [{"type": "cpu", "name": "cpu"}],
            "traces": {"format": "generator", "qps": [qps, qps]},
            "policies": {"batching": {"name": "adaptive", "guard_s": 0.005}},
            "slices": {"executors": {"cpu": executors}},
            "simulation": {"service": "sampled"},
        }
    )


def simulated(asked: Any) -> dict[str, float]:
    """What the model says."""
    seen = Gathered()
    system = build(asked, time.perf_counter)
    source = arrivals_of(asked, system.catalogue, SEED)
    Engine(system, np.random.default_rng([SEED, 1]), [seen]).run(source)
    return seen.figures(asked.duration_s)


async def live(folder: Path, executors: int, cores: tuple[int, ...], asked: Any) -> dict[str, float]:
    """What the running system does with the same arrivals."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as runs:
        settings = load(
            catalogue=folder,
            devices=[{"name": "cpu0", "type": "cpu", "cores": list(cores)}],
            worker={"slices": {"executors": {"cpu": executors}}},
            runs=Path(runs),
        )
        broker = connect("memory://")
        producer = broker.producer()
        await producer.start()
        system = System(settings, load_catalogue(folder), folder, broker, producer, Path(runs))
        await system.create_topics()
        stop, seen = asyncio.Event(), Gathered()
        serving = asyncio.create_task(run_stages(stages_of(system, ROLES), stop))
        observer = Observer(broker, system.topics)
        watching = asyncio.create_task(observer.run(stop))
        try:
            await observer.ready.wait()
            while not any(p.placements for p in observer.plans):
                await asyncio.sleep(0.1)
            await asyncio.sleep(3.0)
            samples = [samples_of(system.apps[APP], None, None)]
            sender = Sender(producer, system.topics, SystemClock(), samples, run="bench")
            with frozen_heap():
                await sender.replay(arrivals_of(asked, system.catalogue, SEED))
                await asyncio.sleep(2.0 + TEXT.slo)
            results = read_results(broker, await result_topics(broker, system.topics), follow=False)
            async for record in results:
                seen.add(codec.decode_outcome(record).outcome)
            return seen.figures(asked.duration_s)
        finally:
            stop.set()
            await asyncio.gather(serving, watching)
            system.close()
            await producer.stop()
            await broker.close()


def table(rows: Sequence[dict[str, Any]]) -> str:
    """As Markdown."""
    lines = ["| executors | offered/s | answers/s | model | p95 ms | model |", "|---|---|---|---|---|---|"]
    for row in rows:
        one, said = row["live"], row["model"]
        numbers = (one["answers_per_s"], said["answers_per_s"], one["p95_ms"], said["p95_ms"])
        lines.append(f"| {row['executors']} | {row['offered']:.0f} | " + " | ".join(f"{n:.0f}" for n in numbers) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, simulate, print both."""
    asking = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asking.add_argument("--executors", default="1,2,4")
    asking.add_argument("--seconds", type=float, default=10.0)
    asking.add_argument("--cores", default="", help="pin executors to these, such as 0,1")
    asked = asking.parse_args()
    cores = tuple(int(core) for core in asked.cores.split(",") if core)
    before, rows = os.getloadavg()[0], []
    with tempfile.TemporaryDirectory(prefix="sluice-") as name:
        folder = Path(name)
        catalogue, together = asyncio.run(measured(folder, cores, asked.seconds / 4.0))
        profile = catalogue.profiles[MODEL, "cpu"]
        alone = throughput(profile, TEXT.slo / 2.0).qps
        print(f"{profile.points[0].median * 1e3:.1f} ms alone, {alone:.0f}/s, {profile.fbr:.2f} of the cores")
        for one in together:
            print(f"{one['copies']} copies: {one['slower']:.2f} times as long, by what others say {one['model']:.2f}")
        for executors in map(int, asked.executors.split(",")):
            able = throughput(crowd(profile, executors), TEXT.slo / 2.0).qps
            for offered in (OVER * alone, USUAL * able):
                wanted = scenario(folder, executors, offered, asked.seconds)
                found = asyncio.run(live(folder, executors, cores, wanted))
                rows.append({"executors": executors, "offered": offered, "live": found, "model": simulated(wanted)})
    print(table(rows))
    machine = f"{platform.system()} {platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    told = {"machine": machine, "load": [before, os.getloadavg()[0]], "cores": cores, "fbr": profile.fbr}
    print(told)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(json.dumps({**told, "together": together, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

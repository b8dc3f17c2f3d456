"""GPUs cut otherwise in a running system: what strict queries notice of it.

Eight A100 that are not there, a worker each with an emulated executor a slice, the planner with the joint geometry; one
process holds broker and stages. Demand of the strict app rises and falls; what is cut meanwhile, and what became of
the queries, is read from the topics.

    python bench/live_slices.py                        # a minute and a half; reports/bench/live_slices.{json,png}
    python bench/live_slices.py --choice strict-first  # the worker chooses slices, not the plan's shares
    python bench/live_slices.py --geometry protean     # PROTEAN's rule cuts

The last two write live_slices_strict-first and live_slices_protean.

Exits with 1 where a query is lost or answered twice.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import Outcome
from sluicegate.domain.plan import Plan
from sluicegate.profiles.catalogue.catalogue_folder import load_catalogue
from sluicegate.sluice.audit.result_log import read_results, result_topics
from sluicegate.sluice.audit.topic_audit import read_topics
from sluicegate.sluice.settings.settings import Settings, load
from sluicegate.sluice.system.process_stages import stages_of
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime.supervisor import run_stages
from sluicegate.streams import connect
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import codec, control

ROLES = ("admission", "router", "worker", "planner", "sink")
CATALOGUE = Path(__file__).resolve().parents[1] / "examples" / "gpus"
TARGET = Path("reports/bench/live_slices")
STRICT, LOOSE = "vision", "bulk"
WARM = 3.0
"""Seconds until all GPUs have joined and loaded."""


def demand(seconds: float, low: float, high: float, length: float) -> float:
    """Queries/s of the strict app: low, a rise over a sixth of the run, high for half of it, and back."""
    rise, fall = length / 6.0, length * 5.0 / 6.0
    up = min(1.0, max(0.0, (seconds - rise) / rise))
    down = min(1.0, max(0.0, (seconds - fall) / (length / 12.0)))
    return low + (high - low) * (up - down)


async def offer(system: System, app: str, rates: Sequence[float], began: float) -> int:
    """Poisson arrivals, ``rates`` by second; returns how many."""
    loop, rng, sent = asyncio.get_running_loop(), random.Random(app), 0
    due = loop.time()
    while (second := int(system.clock.wall() - began)) < len(rates):
        due += rng.expovariate(rates[max(0, second)])
        await asyncio.sleep(max(0.0, due - loop.time()))
        tensors = (Tensor("x", "FP32", (1, 4), bytes(16)),)
        message = codec.encode_query(uuid.uuid4().hex, tensors, app=app, now=system.clock.wall())
        await system.producer.send(system.topics.queries(app), message.value, key=message.key, headers=message.headers)
        sent += 1
    return sent


async def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One run."""
    settings = settings_of(arguments, folder)
    broker = connect("memory://")
    producer = broker.producer()
    await producer.start()
    system = System(settings, load_catalogue(CATALOGUE), CATALOGUE, broker, producer, folder)
    await system.create_topics()
    stop = asyncio.Event()
    serving = asyncio.create_task(run_stages(stages_of(system, ROLES), stop))
    try:
        await asyncio.sleep(WARM)
        began = system.clock.wall()
        rates = [demand(s + 0.5, arguments.low, arguments.high, arguments.seconds) for s in range(arguments.seconds)]
        loose = [arguments.bulk] * len(rates)
        sent = sum(await asyncio.gather(offer(system, STRICT, rates, began), offer(system, LOOSE, loose, began)))
        await asyncio.sleep(2.0 + max(app.slo for app in system.apps.values()))
        return {"sent": sent, "rates": rates, **await read(system, began)}
    finally:
        stop.set()
        await serving
        system.close()
        await producer.stop()
        await broker.close()


def settings_of(arguments: argparse.Namespace, folder: Path) -> Settings:
    """Of the system."""
    return load(
        fake_gpu=f"a100x{arguments.gpus}",
        planner={
            "geometry": arguments.geometry,
            "period_s": 3.0,
            "geometry_rest_s": 20.0,
            "headroom": arguments.headroom,
        },
        worker={"slices": {"choice": arguments.choice}},
        runs=folder,
    )


async def read(system: System, began: float) -> dict[str, Any]:
    """What the topics tell."""
    report = (await read_topics(system.broker, system.topics)).report()
    results = read_results(system.broker, await result_topics(system.broker, system.topics), follow=False)
    outcomes = [codec.decode_outcome(record).outcome async for record in results]
    published = read_results(system.broker, [TopicPartition(system.topics.plan, 0)], follow=False)
    plans = [control.decode_plan(record.value or b"") async for record in published]
    cuts = await told(system, began)
    return {
        "queries": report.queries,
        "lost": report.lost,
        "duplicates": report.duplicates,
        "balanced": report.balanced,
        "strict": figures([o for o in outcomes if o.app == STRICT], began, cuts),
        "best_effort": figures([o for o in outcomes if o.app == LOOSE], began, cuts),
        "cuts": cuts,
        "corrections": await corrections(system, began),
        "plans": len(plans),
        "slowest_plan_s": max(plan.solve_s for plan in plans),
        "geometries": geometries(plans, began),
        "seconds": by_second([o for o in outcomes if o.app == STRICT], began),
    }


async def told(system: System, began: float) -> list[dict[str, Any]]:
    """Each change of a GPU: when it drained, was cut, served again, seconds since ``began``."""
    open_: dict[str, dict[str, Any]] = {}
    found = []
    async for record in read_results(system.broker, [TopicPartition(system.topics.status, 0)], follow=False):
        said = control.decode_announce(record.value or b"")
        at = round(record.timestamp - began, 3)
        if said.state == "draining":
            open_[said.subject] = {"gpu": said.subject.removeprefix("device:"), "draining": at}
        elif said.state == "cutting" and said.subject in open_:
            open_[said.subject] |= {"cutting": at, "into": said.detail}
        elif said.state in {"serving", "cut_failed"} and said.subject in open_:
            found.append({**open_.pop(said.subject), "serving": at, "ended": said.state})
    return found


async def corrections(system: System, began: float) -> list[dict[str, Any]]:
    """Profiles that measured latencies contradicted, and the factor planned with from then on."""
    found = []
    async for record in read_results(system.broker, [TopicPartition(system.topics.status, 0)], follow=False):
        said = control.decode_announce(record.value or b"")
        if said.subject.startswith("profile:"):
            found.append({"at": round(record.timestamp - began, 1), "profile": said.subject, "said": said.detail})
    return found


def geometries(plans: Sequence[Plan], began: float) -> list[dict[str, Any]]:
    """How the GPUs are cut, whenever that changes: GPUs by geometry."""
    found: list[dict[str, Any]] = []
    for plan in plans:
        cut: dict[str, int] = {}
        for parts in plan.geometries.values():
            name = "+".join(sorted((p.profile for p in parts), reverse=True))
            cut[name] = cut.get(name, 0) + 1
        if not found or found[-1]["gpus"] != cut:
            found.append({"at": round(plan.created - began, 2), "gpus": cut})
    return found


def figures(outcomes: Sequence[Outcome], began: float, cuts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over the run, and over the queries that came while a GPU drained or was cut."""
    during = [o for o in outcomes if any(c["draining"] <= o.arrival - began <= c["serving"] for c in cuts)]
    return {
        "queries": len(outcomes),
        "on_time": share(outcomes),
        "missed": Counter(
            f"{o.kind}{':' if o.reason else ''}{o.reason or ''} on {o.slice}" for o in outcomes if not o.on_time
        ),
        "p99_ms": p99(outcomes),
        "accuracy": float(np.mean([o.accuracy for o in outcomes if o.on_time] or [0.0])),
        "queries_during_changes": len(during),
        "on_time_during_changes": share(during),
        "p99_ms_during_changes": p99(during),
    }


def by_second(outcomes: Sequence[Outcome], began: float) -> list[dict[str, float]]:
    """Of the queries that came in each second."""
    groups: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(int(outcome.arrival - began), []).append(outcome)
    return [
        {
            "second": second,
            "queries": len(group),
            "on_time": share(group),
            "p99_ms": p99(group),
            "accuracy": float(np.mean([o.accuracy for o in group if o.on_time] or [0.0])),
        }
        for second, group in sorted(groups.items())
    ]


def share(outcomes: Sequence[Outcome]) -> float:
    """Answered within their SLO."""
    return sum(o.on_time for o in outcomes) / len(outcomes) if outcomes else float("nan")


def p99(outcomes: Sequence[Outcome]) -> float:
    """Of answered ones, milliseconds from arrival."""
    taken = [1e3 * (o.at - o.arrival) for o in outcomes if o.accuracy > 0.0]
    return float(np.quantile(taken, 0.99)) if taken else float("nan")


def draw(result: dict[str, Any], slo_ms: float, path: Path) -> None:
    """Demand, attainment, P99 and accuracy over time, the changes marked."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    seconds = result["seconds"]
    at = [s["second"] + 0.5 for s in seconds]
    figure, (top, middle, low) = plt.subplots(3, 1, figsize=(9, 7), sharex=True, layout="constrained")
    top.plot(at, [s["queries"] for s in seconds], color="#3b6ea5", label="strict queries/s")
    top.set_ylabel("queries/s")
    accuracy = top.twinx()
    accuracy.plot(at, [100 * s["accuracy"] for s in seconds], color="#b5651d", label="accuracy of answers, %")
    accuracy.set_ylabel("accuracy, %")
    lines = [*top.get_lines(), *accuracy.get_lines()]
    top.legend(lines, [str(line.get_label()) for line in lines], loc="lower center", fontsize=8)
    middle.plot(at, [100 * s["on_time"] for s in seconds], color="#2e7d4f")
    middle.set_ylabel("strict on time, %")
    middle.set_ylim(min(80.0, *(100 * s["on_time"] for s in seconds)) - 1, 101)
    low.plot(at, [s["p99_ms"] for s in seconds], color="#7a3e9d", label="P99")
    low.axhline(slo_ms, color="black", linewidth=0.8, linestyle="--", label="SLO")
    low.set_ylabel("strict P99, ms")
    low.set_ylim(0)
    low.set_xlabel("seconds")
    for n, cut in enumerate(result["cuts"]):
        for axes in (top, middle, low):
            last = axes is low and n == 0
            axes.axvspan(
                cut["draining"],
                cut["cutting"],
                color="#f2c14e",
                alpha=0.25,
                lw=0,
                label="a GPU drains" if last else None,
            )
            axes.axvspan(
                cut["cutting"], cut["serving"], color="#c0392b", alpha=0.25, lw=0, label="is cut" if last else None
            )
    low.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=8, ncols=4)
    figure.suptitle(f"{len(result['cuts'])} changes of {result['gpus']} emulated A100 while serving")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Measure, draw, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=90)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--low", type=float, default=50.0, help="strict queries/s at first and at last")
    parser.add_argument("--high", type=float, default=170.0)
    parser.add_argument("--bulk", type=float, default=20.0, help="best-effort queries/s")
    parser.add_argument("--headroom", type=float, help="one for all apps; by default each app's own")
    parser.add_argument("--geometry", choices=["joint", "protean"], default="joint")
    parser.add_argument("--choice", choices=["plan", "strict-first", "strict-room"], default="plan")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(arguments, Path(folder)))
    result["gpus"] = arguments.gpus
    result["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    chosen = [name for name in (arguments.geometry, arguments.choice) if name not in ("joint", "plan")]
    target = TARGET.with_name("_".join([TARGET.name, *chosen]))
    draw(result, 1e3 * load_catalogue(CATALOGUE).apps[STRICT].slo, target.with_suffix(".png"))
    target.with_suffix(".json").write_text(json.dumps(result, indent=1))
    print(json.dumps({k: v for k, v in result.items() if k not in {"seconds", "rates"}}, indent=1))
    sys.exit(0 if result["balanced"] and not result["lost"] and not result["duplicates"] else 1)


if __name__ == "__main__":
    main()

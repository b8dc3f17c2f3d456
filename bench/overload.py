"""Three times what the devices can do, for a minute, on the live system: goodput, queues, and the way back.

Capacity is reckoned from the profiles: rows a second of the fastest variant at its best batch among those that two fit
into the SLO, on all devices. The load is half of it, then three times it, then half again, Poisson throughout. The
executors are emulated and everything else is the real thing, in one process. Looked at afterwards, from the topics:

- goodput over the minute as a share of capacity, which must be at least 0.9;
- queries that were asked and not ended, whose peak must not grow over the minute;
- after it: in half-second bins of arrival time, the first one from which 99 in 100 are answered on time and the 95th
  percentile of latency is at most 1.5 times (or 50 ms more than) what it was before; at most 2 s.

`python bench/overload.py [--broker memory://] [--seconds 60]`; writes reports/bench/overload.json and overload.png.
`--http`: as a client over HTTP sees it instead, with a real model (see ``bench/over_http/http_overload.py``).
"""

import argparse
import asyncio
import json
import os
import platform
import struct
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.tensor import Tensor, TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.outcome import Outcome
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.audit.result_log import read_results, result_topics
from sluicegate.sluice.audit.topic_audit import AuditReport, read_topics
from sluicegate.sluice.settings.settings import DeviceSettings, Settings, WorkerSettings
from sluicegate.sluice.system.process_stages import stages_of
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.runtime.supervisor import run_stages
from sluicegate.streams import connect
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import codec, control

OUT = Path("reports/bench")
ROLES = ("admission", "router", "worker", "planner")
SLO = 0.5
PIXELS = 4
BIN = 0.5
GOODPUT, RECOVERY_S, STEADY = 0.9, 2.0, 0.99
_TICK = 0.005


def catalogue() -> Catalogue:
    """Three variants: the more accurate, the slower."""
    inputs = (TensorSpec("x", "FP32", (PIXELS,)),)
    app = App(name="toy", slo=SLO, inputs=inputs, outputs=(TensorSpec("label", "INT64", ()),))
    variants, profiles = [], []
    for level, (first, more) in enumerate(((0.012, 0.008), (0.020, 0.016), (0.040, 0.030))):
        points = tuple(BatchLatency(b, s := first + more * (b - 1), s) for b in (1, 2, 4, 8, 16, 32))
        variants.append(Variant(name=f"toy-v{level}", app="toy", accuracy=0.7 + 0.1 * level))
        profiles.append(Profile(variant=f"toy-v{level}", device_type="cpu", points=points, load=0.1))
    return Catalogue.of([app], variants, profiles)


def capacity(served: Catalogue, devices: int) -> float:
    """Rows a second: see the module."""
    return devices * max(
        point.batch / point.p95
        for profile in served.profiles.values()
        for point in profile.points
        if 2 * point.p95 <= SLO
    )


@dataclass
class Phases:
    """Wall clock at which calm, overload and recovery began, and the end."""

    calm: float
    overload: float
    recovery: float
    end: float


async def load(system: System, rates: Sequence[tuple[float, float]]) -> tuple[int, list[float]]:
    """Queries at (rate, seconds) one after the other; how many, and when each phase began and the last one ended."""
    outbox = Outbox(system.producer)
    await outbox.start()
    rng = np.random.default_rng(3)
    tensor = (Tensor("x", "FP32", (1, PIXELS), struct.pack(f"<{PIXELS}f", *(0.0,) * PIXELS)),)
    topic, sent, marks = system.topics.queries("toy"), 0, [time.time()]
    for rate, seconds in rates:
        until, before = marks[-1] + seconds, marks[-1]
        while (now := time.time()) < until:
            for _ in range(int(rng.poisson(rate * (now - before)))):
                message = codec.encode_query(f"q{sent}", tensor, app="toy", now=now)
                outbox.post(topic, message.value, key=message.key, headers=message.headers, timestamp=now)
                sent += 1
            before = now
            await asyncio.sleep(_TICK)
        marks.append(time.time())
    await outbox.flush()
    await outbox.stop()
    return sent, marks


async def planned(system: System, devices: int) -> None:
    """Every device has staged the newest plan."""
    async with asyncio.timeout(60.0):
        while True:
            acks = TopicPartition(system.topics.acks, 0)
            said = [r.value async for r in read_results(system.broker, [acks], follow=False) if r.value]
            if len({control.decode_acknowledged(value).device for value in said}) == devices:
                return
            await asyncio.sleep(0.1)


async def measure(url: str, folder: Path, devices: int, seconds: float) -> dict[str, Any]:
    """The run, read from the topics."""
    began = time.process_time()
    served = catalogue()
    full = capacity(served, devices)
    chosen = Settings(
        broker=url,
        prefix=f"over{uuid.uuid4().hex[:8]}",
        home=folder,
        runs=folder / "runs",
        devices=tuple(DeviceSettings(name=f"d{i}") for i in range(devices)),
        worker=WorkerSettings(executor="emulated"),
    )
    broker = connect(url)
    producer = broker.producer()
    await producer.start()
    system = System(chosen, served, folder, broker, producer, folder)
    await system.create_topics()
    stop = asyncio.Event()
    running = asyncio.create_task(run_stages(stages_of(system, ROLES), stop))
    try:
        await planned(system, devices)
        calm = max(10.0, seconds / 4)
        sent, marks = await load(system, ((0.5 * full, calm), (3 * full, seconds), (0.5 * full, calm)))
        report, outcomes = await settled(system, sent)
    finally:
        stop.set()
        await running
        await producer.stop()
        await broker.close()
    row = judged(url.split("://")[0], full, Phases(*marks), outcomes, report)
    return {**row, "cpu_s": round(time.process_time() - began, 1)}


async def settled(system: System, sent: int) -> tuple[AuditReport, list[Outcome]]:
    """The audit and all outcomes, once every query has its own or ten seconds have passed."""
    for _ in range(10):
        report = (await read_topics(system.broker, system.topics)).report()
        if report.queries >= sent and not report.lost:
            break
        await asyncio.sleep(1.0)
    partitions = await result_topics(system.broker, system.topics)
    return report, [
        codec.decode_outcome(r).outcome async for r in read_results(system.broker, partitions, follow=False)
    ]


def judged(broker: str, full: float, phases: Phases, outcomes: list[Outcome], report: AuditReport) -> dict[str, Any]:
    """What the module says is looked at."""
    asked = np.array([o.arrival for o in outcomes])
    ended = np.array([o.at for o in outcomes])
    good = np.array([o.on_time for o in outcomes])
    in_overload = (ended >= phases.overload + SLO) & (ended < phases.recovery)
    goodput = float(good[in_overload].sum() / (phases.recovery - phases.overload - SLO))
    edges = np.arange(phases.calm, phases.end, BIN)
    waiting = np.array([int(((asked <= at) & (ended > at)).sum()) for at in edges])
    during = waiting[(edges >= phases.overload + 1) & (edges < phases.recovery)]
    normal = latency(asked, ended, good, phases.calm + 3.0, phases.overload)
    accuracy = [o.accuracy for o in outcomes if o.on_time and phases.overload < o.at < phases.recovery]
    return {
        "broker": broker,
        "capacity_qps": round(full, 1),
        "asked_qps": round(
            float(((asked >= phases.overload) & (asked < phases.recovery)).sum() / (phases.recovery - phases.overload)),
            1,
        ),
        "goodput_qps": round(goodput, 1),
        "goodput_of_capacity": round(goodput / full, 4),
        "waiting_most_calm": int(waiting[edges < phases.overload].max(initial=0)),
        "waiting_most_first_half": int(during[: during.size // 2].max(initial=0)),
        "waiting_most_second_half": int(during[during.size // 2 :].max(initial=0)),
        "normal_p95_ms": round(1e3 * normal, 1),
        "overload_p95_ms": round(1e3 * latency(asked, ended, good, phases.overload + 1, phases.recovery), 1),
        "recovered_s": recovered(asked, ended, good, phases, normal),
        "accuracy_in_overload": round(float(np.mean(accuracy)), 4) if accuracy else None,
        "ends_in_overload": ends(outcomes, phases),
        "queries": report.queries,
        "lost": report.lost,
        "duplicates": report.duplicates,
        "load_average": os.getloadavg()[0],
        "series": {
            "at_s": [round(float(e - phases.overload), 2) for e in edges],
            "asked_qps": [float(((asked >= e) & (asked < e + BIN)).sum() / BIN) for e in edges],
            "goodput_qps": [float((good & (ended >= e) & (ended < e + BIN)).sum() / BIN) for e in edges],
            "waiting": [int(n) for n in waiting],
        },
    }


def ends(outcomes: Sequence[Outcome], phases: Phases) -> dict[str, int]:
    """How those that were asked in the overload ended."""
    asked = [o for o in outcomes if phases.overload <= o.arrival < phases.recovery]
    late = {True: " late", False: ""}
    return dict(Counter(f"{o.kind}{late[o.late]} {o.reason or ''}".strip() for o in asked).most_common())


def latency(asked: Any, ended: Any, good: Any, began: float, until: float) -> float:
    """95th percentile of seconds from arrival to answer, of those answered on time."""
    chosen = good & (asked >= began) & (asked < until)
    return float(np.percentile((ended - asked)[chosen], 95)) if chosen.any() else float("nan")


def recovered(asked: Any, ended: Any, good: Any, phases: Phases, normal: float) -> float | None:
    """Seconds after the overload; None where it did not happen."""
    allowed = max(1.5 * normal, normal + 0.05)
    for begin in np.arange(phases.recovery, phases.end - 2 * BIN, BIN):
        chosen = (asked >= begin) & (asked < begin + 2 * BIN)
        served = good[chosen].mean() if chosen.any() else 0.0
        if served >= STEADY and latency(asked, ended, good, begin, begin + 2 * BIN) <= allowed:
            return round(float(begin - phases.recovery), 1)
    return None


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    """Asked, answered on time and waiting over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(rows), figsize=(6 * len(rows), 5), sharex=True, squeeze=False)
    for column, row in enumerate(rows):
        series = row["series"]
        rates, queue = axes[0][column], axes[1][column]
        rates.plot(series["at_s"], series["asked_qps"], label="asked", color="#8a8f98")
        rates.plot(series["at_s"], series["goodput_qps"], label="answered on time", color="#1f6feb")
        rates.axhline(row["capacity_qps"], linestyle="--", color="#d1242f", label="capacity")
        rates.set(title=row["broker"], ylabel="queries a second", ylim=(0, None))
        rates.legend(fontsize=8)
        queue.plot(series["at_s"], series["waiting"], color="#1f6feb")
        queue.set(xlabel="seconds since the overload began", ylabel="asked and not ended", ylim=(0, None))
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def faults(row: dict[str, Any]) -> list[str]:
    """What does not hold."""
    grew = row["waiting_most_second_half"] > 1.5 * row["waiting_most_first_half"]
    late = row["recovered_s"] is None or row["recovered_s"] > RECOVERY_S
    checks = {
        "goodput": row["goodput_of_capacity"] < GOODPUT,
        "queues": grew,
        "recovery": late,
        "lost": row["lost"] > 0,
        "duplicates": row["duplicates"] > 0,
    }
    return [name for name, bad in checks.items() if bad]


def main() -> None:
    """Run, write, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--broker", action="append", help="memory:// (default) or kafka://host:port; may be given again"
    )
    parser.add_argument("--seconds", type=float, help="of the overload (60)")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--http", action="store_true", help="over HTTP, with an ONNX model; --seconds a phase (10)")
    parser.add_argument("--json", action="store_true", help="with --http: one JSON object on standard output")
    given = parser.parse_args()
    if given.http:
        from bench.over_http.http_overload import measure as measure_http

        figures = asyncio.run(measure_http(10.0 if given.seconds is None else given.seconds))
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / "overload-http.json").write_text(json.dumps(figures, indent=1))
        print(json.dumps(figures) if given.json else "\n".join(f"{name:22} {value}" for name, value in figures.items()))
        return
    rows = []
    for url in given.broker or ["memory://"]:
        with tempfile.TemporaryDirectory() as place:
            row = asyncio.run(measure(url, Path(place), given.devices, given.seconds or 60.0))
        rows.append(row)
        print(json.dumps({name: value for name, value in row.items() if name != "series"}), flush=True)
    OUT.mkdir(parents=True, exist_ok=True)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}"
    (OUT / "overload.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))
    plot(rows, OUT / "overload.png")
    if wrong := [f"{row['broker']}: {name}" for row in rows for name in faults(row)]:
        raise SystemExit(f"does not hold: {', '.join(wrong)}")


if __name__ == "__main__":
    main()

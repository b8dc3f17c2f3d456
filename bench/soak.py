"""A long run in short: an hour's traffic of three apps on Apache Kafka, a process a stage, its memory watched.

An hour of demand (a tide, bursts of 2.5 times the mean, a device that leaves and comes back every six minutes) is
played ``--speed`` times as fast; the period of plans and the window in which ids are remembered shrink by the same
factor, so that both turn over as often as in the hour. The executors are emulated. Nothing else is compressed: every
query is a record of its own through all four hops. At the end the audit reads the topics.

Memory: resident bytes of every process twice a second. Behind ``WARM_UP`` of the run, after which the window of ids is
full, straight lines through all samples, and through the least and the most of every whole ``ROUND`` seconds, in which
the device comes and goes twice. These tell a leak from a process whose solver takes memory and gives it back. The least
and the most of each round are written too.

`python bench/soak.py [--queries 1000000] [--speed 4]`; writes reports/bench/soak.json and soak.png. Exit 1 where a
query was lost, duplicated or marked wrongly, or where the floor of a process of ours rose by more than ``FLAT_MIB`` an
hour, or its ceiling by more than twice that. What the broker holds is told; its heap is its own affair.
"""

import argparse
import asyncio
import json
import math
import os
import platform
import signal
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.pipeline import kafka_at
from sluicegate.domain.models.app import App, Promise, WeaklyHard
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.tensor import Tensor, TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.sluice.audit.topic_audit import AuditReport, read_topics
from sluicegate.sluice.settings.settings import (
    AdmissionSettings,
    DeviceSettings,
    PlannerSettings,
    Settings,
    WorkerSettings,
)
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.streams import connect
from sluicegate.streams.ports import Broker, TopicPartition
from sluicegate.streams.records import codec, control
from sluicegate.streams.topics import Topics

OUT = Path("reports/bench")
HOUR = 3600.0
WARM_UP = 0.25
ROUND = 720.0
FLAT_MIB = 8.0
PIXELS = 4
SHARES = {"images": 0.55, "texts": 0.3, "alarms": 0.15}
DEVICES = ("d0", "d1", "d2")
_TICK = 0.02
_BROKER = "Apache Kafka"
_BURST_EVERY, _BURST_FOR, _BURST_BY = 300.0, 20.0, 2.5
_AWAY_EVERY, _AWAY_FOR = 360.0, 40.0


def catalogue() -> Catalogue:
    """Three variants an app; ``alarms`` is promised at most 10 misses among any 20 queries."""
    apps, variants, profiles = [], [], []
    for name in SHARES:
        promise = Promise(weakly_hard=(WeaklyHard(10, 20),)) if name == "alarms" else Promise()
        inputs = (TensorSpec("x", "FP32", (PIXELS,)),)
        apps.append(
            App(name=name, slo=1.0, promise=promise, inputs=inputs, outputs=(TensorSpec("label", "INT64", ()),))
        )
        for level, first in enumerate((0.001, 0.002, 0.004)):
            variant = f"{name}-v{level}"
            points = tuple(
                BatchLatency(b, first * (1 + 0.1 * (b - 1)), first * (1 + 0.1 * (b - 1))) for b in (1, 8, 32)
            )
            variants.append(Variant(name=variant, app=name, accuracy=0.7 + 0.1 * level))
            profiles.append(Profile(variant=variant, device_type="cpu", points=points, load=0.05))
    return Catalogue.of(apps, variants, profiles)


def demand(second: float) -> float:
    """Of the mean, at this second of the hour: a tide, and bursts."""
    tide = 1.0 + 0.4 * math.sin(2 * math.pi * second / 900.0)
    return tide * (_BURST_BY if second % _BURST_EVERY > _BURST_EVERY - _BURST_FOR else 1.0)


def mean_demand() -> float:
    """Of an hour, sampled at every second."""
    return sum(demand(float(s)) for s in range(int(HOUR))) / HOUR


def settings(url: str, folder: Path, speed: float) -> Settings:
    """Periods of an hour, shrunk."""
    return Settings(
        broker=url,
        prefix="soak",
        home=folder / "home",
        runs=folder / "runs",
        catalogue=folder / "catalogue",
        devices=tuple(DeviceSettings(name=name) for name in DEVICES),
        admission=AdmissionSettings(dedupe_window_s=600.0 / speed),
        worker=WorkerSettings(executor="emulated"),
        planner=PlannerSettings(period_s=10.0 / speed),
    )


@dataclass
class Fleet:
    """The processes, by name."""

    file: Path
    processes: "dict[str, asyncio.subprocess.Process]" = field(default_factory=dict)

    async def start(self, name: str, *arguments: str) -> None:
        """One process of ``sluice up``."""
        with (self.file.parent / f"{name}.log").open("ab") as log:
            self.processes[name] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sluicegate.sluice.main", "up", *arguments, "--settings", str(self.file)),
                cwd=self.file.parent,
                stderr=log,
            )

    async def end(self, name: str) -> None:
        """In good order."""
        process = self.processes.pop(name)
        if process.returncode is not None:
            said = (self.file.parent / f"{name}.log").read_text(errors="replace")[-400:]
            print(f"{name} ended by itself with {process.returncode}: {said}", file=sys.stderr)
            return
        process.send_signal(signal.SIGTERM)
        await process.wait()


@asynccontextmanager
async def fleet(file: Path) -> AsyncIterator[Fleet]:
    """A process a stage, ended at the end."""
    running = Fleet(file)
    for role in ("planner", "admission", "router", "sink"):
        await running.start(role, role)
    for name in DEVICES:
        await running.start(name, "worker", "--device", name)
    try:
        yield running
    finally:
        for name in list(running.processes):
            await running.end(name)


@dataclass
class Memory:
    """Resident bytes over the run. ``samples``: process -> [(second of the hour, MiB)]."""

    samples: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def take(self, second: float, pids: dict[str, int]) -> None:
        """Look at every process once."""
        for name, pid in pids.items():
            if (mib := resident_mib(pid)) is not None:
                self.samples.setdefault(name, []).append((second, mib))

    def slopes(self) -> dict[str, dict[str, Any]]:
        """Of each process that ran through: MiB at the end of the warm-up and of the run, MiB an hour of each line."""
        found = {}
        for name, samples in sorted(self.samples.items()):
            at, mib = np.array([s for s in samples if s[0] >= WARM_UP * HOUR] or samples).T
            held = [(at[own].mean(), mib[own].min(), mib[own].max()) for own in _rounds(at)]
            middle, least, most = np.array(held).T
            found[name] = {
                "warm_mib": round(float(mib[:5].mean()), 1),
                "last_mib": round(float(mib[-5:].mean()), 1),
                "most_mib": round(float(mib.max()), 1),
                "slope_mib_per_hour": _slope(at, mib),
                "floor_mib_per_hour": _slope(middle, least),
                "ceiling_mib_per_hour": _slope(middle, most),
                "rounds_mib": np.round(np.array([least, most]), 1).tolist(),
            }
        return found


def _rounds(at: Any) -> list[Any]:
    """Which samples are of each whole round, counted back from the last sample; all are one where none is whole."""
    back = (at[-1] - at) // ROUND
    whole = max(1.0, back[0])
    return [back == number for number in np.unique(back)[::-1] if number < whole]


def _slope(at: Any, mib: Any) -> float:
    """MiB an hour."""
    return round(float(np.polyfit(at, mib, 1)[0]) * HOUR, 2) if at.size > 2 else 0.0


def resident_mib(pid: int) -> float | None:
    """None where the process is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


async def ask(broker: Broker, topics: Topics, queries: int, clock: "Clock") -> int:
    """Poisson arrivals by ``demand`` until ``queries`` are sent and acknowledged; their number."""
    producer = broker.producer()
    await producer.start()
    outbox = Outbox(producer)
    await outbox.start()
    rng = np.random.default_rng(7)
    names, shares = list(SHARES), np.cumsum(list(SHARES.values()))
    base = queries / HOUR / mean_demand()
    tensor = (Tensor("x", "FP32", (1, PIXELS), struct.pack(f"<{PIXELS}f", *(0.0,) * PIXELS)),)
    sent, told = 0, 0.0
    while sent < queries:
        await asyncio.sleep(_TICK)
        second = clock.second()
        arrivals = min(queries - sent, int(rng.poisson(base * demand(second) * (second - told))))
        told = second
        for app in np.searchsorted(shares, rng.random(arrivals)):
            name, sent = names[min(int(app), len(names) - 1)], sent + 1
            message = codec.encode_query(f"{name}-{sent}", tensor, app=name, now=time.time())
            outbox.post(topics.queries(name), message.value, key=message.key, headers=message.headers)
        while outbox.unacknowledged > 20_000:
            await asyncio.sleep(_TICK)
    await outbox.flush()
    await outbox.stop()
    await producer.stop()
    return sent


@dataclass
class Clock:
    """The second of the hour that is played."""

    speed: float
    began: float = field(default_factory=time.monotonic)

    def second(self) -> float:
        """Since the first query."""
        return (time.monotonic() - self.began) * self.speed


async def come_and_go(running: Fleet, clock: Clock) -> None:
    """The last device leaves every six minutes for forty seconds: plans change."""
    name = DEVICES[-1]
    while True:
        due = (clock.second() // _AWAY_EVERY + 1) * _AWAY_EVERY
        await asyncio.sleep((due - clock.second()) / clock.speed)
        await running.end(name)
        await asyncio.sleep(_AWAY_FOR / clock.speed)
        await running.start(name, "worker", "--device", name)


async def watch(memory: Memory, clock: Clock, running: Fleet, broker_pid: int | None) -> None:
    """Twice a second; the device that comes and goes is another process each time, and is left out."""
    while True:
        pids = {name: p.pid for name, p in running.processes.items() if name != DEVICES[-1]}
        own = {"load generator": os.getpid(), **({_BROKER: broker_pid} if broker_pid else {})}
        memory.take(clock.second(), pids | own)
        await asyncio.sleep(0.5)


async def planned(broker: Broker, topics: Topics) -> int:
    """How many plans were published so far."""
    return len([1 async for r in read_results(broker, [TopicPartition(topics.plan, 0)], follow=False) if r.value])


async def ready(broker: Broker, topics: Topics) -> None:
    """Every device has staged a plan."""
    async with asyncio.timeout(180.0):
        while True:
            names = await broker.admin().topics()
            if topics.acks in names:
                acks = TopicPartition(topics.acks, 0)
                said = [r.value async for r in read_results(broker, [acks], follow=False) if r.value]
                if {control.decode_acknowledged(value).device for value in said} >= set(DEVICES):
                    return
            await asyncio.sleep(0.5)


async def settled(broker: Broker, topics: Topics, sent: int) -> AuditReport:
    """The audit, once every query has its outcome, or a minute has brought no more of them."""
    ended, since = -1, time.monotonic()
    while True:
        report = (await read_topics(broker, topics)).report()
        if report.queries >= sent and not report.lost:
            return report
        if report.queries - report.lost > ended:
            ended, since = report.queries - report.lost, time.monotonic()
        elif time.monotonic() - since > 60.0:
            return report
        await asyncio.sleep(10.0)


async def soak(url: str, folder: Path, queries: int, speed: float, broker_pid: int | None) -> dict[str, Any]:
    """The run and what came of it."""
    chosen = settings(url, folder, speed)
    save_catalogue(folder / "catalogue", catalogue(), {})
    file = folder / "settings.yaml"
    file.write_text(json.dumps(chosen.model_dump(mode="json", exclude={"http"})))
    broker, topics, memory = connect(url), Topics(chosen.prefix), Memory()
    async with fleet(file) as running:
        await ready(broker, topics)
        clock = Clock(speed)
        beside = [
            asyncio.create_task(watch(memory, clock, running, broker_pid)),
            asyncio.create_task(come_and_go(running, clock)),
        ]
        sent = await ask(broker, topics, queries, clock)
        lasted = clock.second()
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        report = await settled(broker, topics, sent)
        epochs = await planned(broker, topics)
    await broker.close()
    plot(memory, OUT / "soak.png")
    found = asdict(report)
    counts = {name: found[name] for name in ("queries", "lost", "duplicates", "late_unmarked", "unknown", "kinds")}
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}",
        "speed": speed,
        "hours": round(lasted / HOUR, 3),
        "sent": sent,
        **counts,
        "promises_broken": report.promises_broken,
        "promises_unannounced": report.promises_unannounced,
        "on_time": report.summary.slo_attainment,
        "plans_on_topic": epochs,
        "load_average": os.getloadavg()[1],
        "memory": memory.slopes(),
    }


def plot(memory: Memory, file: Path) -> None:
    """Resident MiB over the minutes of the hour."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4))
    for name, samples in sorted(memory.samples.items()):
        at, mib = np.array(samples).T
        axes.plot(at / 60.0, mib, label=name, linewidth=1.2)
    axes.set(xlabel="minutes of the hour", ylabel="resident MiB", ylim=(0, None))
    axes.legend(fontsize=8, ncols=3)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def faults(row: dict[str, Any]) -> list[str]:
    """What is not as it should be."""
    wrong = [name for name in ("lost", "duplicates", "late_unmarked", "unknown", "promises_broken") if row[name]]
    ours = {name: m for name, m in row["memory"].items() if name != _BROKER}
    return wrong + [
        f"{name} grew"
        for name, m in ours.items()
        if m["floor_mib_per_hour"] > FLAT_MIB or m["ceiling_mib_per_hour"] > 2 * FLAT_MIB
    ]


def show(row: dict[str, Any]) -> None:
    """The table."""
    print(json.dumps({key: value for key, value in row.items() if key != "memory"}))
    names = f"{'warm MiB':>9} {'last MiB':>9} {'most MiB':>9} {'MiB an hour':>12} {'floor':>9} {'ceiling':>9}"
    print(f"{'process':16} {names}")
    for name, m in row["memory"].items():
        columns = f"{m['warm_mib']:9} {m['last_mib']:9} {m['most_mib']:9} {m['slope_mib_per_hour']:12}"
        print(f"{name:16} {columns} {m['floor_mib_per_hour']:9} {m['ceiling_mib_per_hour']:9}")


def main() -> None:
    """Run, write, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=20_000, help="in the hour; a million for the whole of it")
    parser.add_argument("--speed", type=float, default=60.0, help="seconds of the hour in one")
    parser.add_argument("--kafka", help="kafka://host:port (default: start one)")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: with every process that it started
    given.no_kafka = False
    with tempfile.TemporaryDirectory() as place, kafka_at(given) as url:
        if url is None:
            raise SystemExit("this run needs Apache Kafka: `sluice broker start`, and --kafka kafka://127.0.0.1:9092")
        row = asyncio.run(soak(url, Path(place), given.queries, given.speed, broker_pid_of(url)))
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "soak.json").write_text(json.dumps(row, indent=1))
    show(row)
    if wrong := faults(row):
        raise SystemExit(f"not as it should be: {', '.join(wrong)}")


def broker_pid_of(url: str) -> int | None:
    """The process that listens there, where it is one of this machine."""
    port = int(url.rsplit(":", 1)[1])
    listening = {
        f[9]
        for line in [*Path("/proc/net/tcp").read_text().splitlines()[1:], *_tcp6()]
        if (f := line.split())[3] == "0A" and int(f[1].rsplit(":", 1)[1], 16) == port
    }
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if fd.readlink().name.removeprefix("socket:[").removesuffix("]") in listening:
                return int(fd.parts[2])
        except OSError:
            continue
    return None


def _tcp6() -> list[str]:
    file = Path("/proc/net/tcp6")
    return file.read_text().splitlines()[1:] if file.exists() else []


if __name__ == "__main__":
    main()

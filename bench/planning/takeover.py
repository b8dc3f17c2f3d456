"""How soon a standby plans once the active planner is killed, under load, on Apache Kafka.

Planners are processes of their own, everything else runs here on two emulated devices. Each round kills the leader
(SIGKILL) under 60 queries/s, measures the time to the first plan of a higher term, and starts another standby. What
happened to the queries is read from the topics: by the audit, and ``longest_gap_s`` between one answer and the next.

    python bench/planning/takeover.py [--kafka kafka://host:port] [--rounds 5] [--lease 3]
"""

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
import tempfile
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.pipeline import PIXELS, catalogue
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import OutcomeKind
from sluicegate.domain.plan import Plan
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.sluice.audit.result_log import read_results, result_topics
from sluicegate.sluice.audit.topic_audit import read_topics
from sluicegate.sluice.settings.settings import DeviceSettings, PlannerSettings, Settings, WorkerSettings, load
from sluicegate.sluice.system.process_stages import stages_of
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime.supervisor import run_stages
from sluicegate.streams import connect
from sluicegate.streams.local_kafka.broker import LocalBroker
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import codec, control

QPS = 60.0


async def newest(system: System) -> Plan | None:
    """The plan in force."""
    partition = TopicPartition(system.topics.plan, 0)
    found = [
        control.decode_plan(r.value)
        async for r in read_results(system.broker, [partition], follow=False)
        if r.value is not None
    ]
    return max(found, key=lambda plan: plan.epoch, default=None)


async def planner(folder: Path, number: int) -> tuple[asyncio.subprocess.Process, Path]:
    """One more planner process, up, and its log."""
    file = folder / f"planner{number}.log"
    with file.open("wb") as log:
        command = (
            sys.executable,
            "-m",
            "sluicegate.sluice.main",
            "up",
            "planner",
            "--settings",
            str(folder / "settings.json"),
        )
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    while "Ctrl-C" not in file.read_text():
        await asyncio.sleep(0.1)
    return process, file


async def ask_on(system: System, asked: list[str]) -> None:
    """Queries at a steady rate, from the first plan on."""
    while await newest(system) is None:
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)  # it is loaded
    tensor = Tensor("image", "FP32", (1, PIXELS), bytes(4 * PIXELS))
    while True:
        asked.append(f"q{len(asked)}")
        message = codec.encode_query(asked[-1], (tensor,), app="bench", now=system.clock.wall())
        topic = system.topics.queries("bench")
        await system.producer.send(topic, message.value, key=message.key, headers=message.headers)
        await asyncio.sleep(1.0 / QPS)


async def answers(system: System) -> tuple[float, float]:
    """The share of queries answered on time, and the longest pause between two answers, seconds."""
    outcomes = [
        codec.decode_outcome(record).outcome
        async for record in read_results(system.broker, await result_topics(system.broker, system.topics), follow=False)
    ]
    times = sorted(o.at for o in outcomes if o.kind is OutcomeKind.ANSWERED)
    return sum(o.on_time for o in outcomes) / len(outcomes), max(b - a for a, b in pairwise(times))


async def takeovers(system: System, folder: Path, rounds: int) -> list[float]:
    """Seconds from each kill to the standby's first plan."""
    found: list[float] = []
    running = [await planner(folder, 0)]
    try:
        while await newest(system) is None:
            await asyncio.sleep(0.1)
        for number in range(1, rounds + 1):
            running.append(await planner(folder, number))
            await asyncio.sleep(3.0)  # it hears demand and devices
            before = await newest(system)
            assert before is not None
            leader, _ = running.pop(0)
            began = time.monotonic()
            os.kill(leader.pid, signal.SIGKILL)
            await leader.wait()
            while (plan := await newest(system)) is None or plan.epoch.term <= before.epoch.term:
                await asyncio.sleep(0.02)
            found.append(time.monotonic() - began)
    finally:
        for process, _ in running:
            process.terminate()
            await process.wait()
    return found


async def measured(url: str, rounds: int, lease: float, folder: Path) -> dict[str, object]:
    """All rounds, and what became of the queries."""
    save_catalogue(folder / "catalogue", catalogue(), {})
    settings = Settings(
        broker=url,
        prefix=f"takeover{os.getpid()}",
        home=folder,
        runs=folder / "runs",
        catalogue=folder / "catalogue",
        devices=(DeviceSettings(name="d0"), DeviceSettings(name="d1")),
        worker=WorkerSettings(executor="emulated"),
        planner=PlannerSettings(lease_s=lease),
    )
    (folder / "settings.json").write_text(json.dumps(settings.model_dump(mode="json", exclude={"http"})))
    broker = connect(url)
    producer = broker.producer()
    await producer.start()
    (folder / "run").mkdir()
    system = System(settings, catalogue(), Path(), broker, producer, folder / "run")
    await system.create_topics()
    stop = asyncio.Event()
    serving = asyncio.create_task(run_stages(stages_of(system, ["admission", "router", "worker"]), stop))
    asked: list[str] = []
    asking = asyncio.create_task(ask_on(system, asked))
    try:
        took = await takeovers(system, folder, rounds)
    finally:
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        await producer.flush()
        await asyncio.sleep(3.0)
        report = (await read_topics(broker, system.topics)).report()
        on_time, gap = await answers(system)
        stop.set()
        await serving
        system.close()
        await producer.stop()
        await broker.close()
    took.sort()
    return {
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}",
        "lease_s": lease,
        "rounds": len(took),
        "median_s": round(took[len(took) // 2], 2),
        "worst_s": round(took[-1], 2),
        "within_lease_and_a_second": sum(t <= lease + 1.0 for t in took),
        "queries": report.queries,
        "lost": report.lost,
        "duplicates": report.duplicates,
        "on_time": round(on_time, 4),
        "longest_gap_s": round(gap, 2),
    }


def main() -> None:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", help="a broker that runs; else one is started")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lease", type=float, default=3.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        local = None if arguments.kafka else LocalBroker(folder / "kafka", home=load().home)
        url = str(arguments.kafka if local is None else local.start(within=120.0).url)
        try:
            print(json.dumps(asyncio.run(measured(url, arguments.rounds, arguments.lease, folder)), indent=2))
        finally:
            if local is not None:
                local.stop()


if __name__ == "__main__":
    main()

"""One cell after the other: ``python -m tests.chaos.run --seeds 20 --cells worker-stop,poison --out reports/chaos``."""

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from domain.outcome import Outcome
from sluice.audit import AuditReport, read_topics
from sluice.reading import read_results, result_topics
from streams import codec, control
from streams.ports import TopicPartition
from tests.chaos.cells import CELLS, Cell
from tests.chaos.judge import Verdict, judge
from tests.chaos.stack import DEVICES, SESSION_TIMEOUT, Delivery, Stack, stack

IN_FLIGHT = 500
DEVICE_TIMEOUT = 2.0


async def run_cell(
    cell: Cell,
    folder: Path,
    home: Path,
    *,
    seeds: int,
    rate: float,
    first_seed: int = 0,
    delivery: Delivery = "at_least_once",
    said: Progress | None = None,
) -> Verdict:
    """Start a stack, break it once a seed under load, mend it, let it end in order, and read its topics."""
    task = said.add_task(cell.name, total=seeds) if said is not None else None
    async with stack(folder, home, record=cell.record, delivery=delivery) as running:
        await _start(running, cell)
        stop = asyncio.Event()
        loads = [
            asyncio.create_task(running.load(app, rate * share, stop, random.Random(f"{app}{first_seed}")))
            for app, share in (("toy", 0.75), ("vow", 0.25))
        ]
        await asyncio.sleep(3.0)
        faults = []
        for seed in range(first_seed, first_seed + seeds):
            rng = random.Random(seed)
            began = time.time()
            ends = asyncio.get_running_loop().time() + cell.window
            hit = await cell.inject(running, rng)
            await asyncio.sleep(max(1.0, ends - asyncio.get_running_loop().time()))
            faults.append((hit, began, time.time()))
            if said is not None and task is not None:
                said.advance(task)
        stop.set()
        await asyncio.gather(*loads)
        report, outcomes = await _settled(running)
        for child in running.children.values():
            child.send(signal.SIGTERM)
    allowed = {"device": DEVICE_TIMEOUT + 2.0, "group": SESSION_TIMEOUT + 2.0}.get(cell.resumes)
    return judge(
        cell.name,
        report,
        outcomes,
        faults,
        acknowledged=sum(running.sent.values()),
        kills=running.kills,
        in_flight=IN_FLIGHT if delivery == "at_least_once" else 0,
        resume_s_allowed=allowed,
    )


async def _start(running: Stack, cell: Cell) -> None:
    await running.start("planner", ["planner"], cell.planner_point)
    await running.start("admission", ["admission"])
    for number in range(cell.routers):
        await running.start(f"router{number}", ["router"])
    for name in DEVICES:
        await running.start(name, ["worker", "--device", name], cell.point, CHAOS_SKEW=str(random.uniform(-1.0, 1.0)))
    async with asyncio.timeout(90.0):
        while not await _planned(running):
            await asyncio.sleep(0.25)


async def _planned(running: Stack) -> bool:
    """Whether all devices have staged the newest plan."""
    try:
        acks = [
            control.decode_acknowledged(r.value)
            async for r in read_results(running.broker, [TopicPartition(running.topics.acks, 0)], follow=False)
            if r.value
        ]
    except Exception:  # the topics are not there yet
        return False
    newest = max((a.epoch for a in acks), default=None)
    return {a.device for a in acks if a.epoch == newest} >= set(DEVICES)


async def _settled(running: Stack, *, within: float = 40.0) -> tuple[AuditReport, list[Outcome]]:
    """The audit once every record that was acknowledged has its end."""
    deadline = asyncio.get_running_loop().time() + within
    expected = sum(running.sent.values())
    while True:
        report = (await read_topics(running.broker, running.topics)).report()
        if (report.queries >= expected and not report.lost) or asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(1.0)
    found: dict[str, Outcome] = {}
    async for record in read_results(running.broker, await result_topics(running.broker, running.topics), follow=False):
        outcome = codec.decode_outcome(record).outcome
        found.setdefault(outcome.query_id, outcome)
    return report, list(found.values())


def table(verdicts: Sequence[Verdict]) -> Table:
    """For the terminal."""
    shown = Table(title="Chaos")
    columns = ("cell", "seeds", "queries", "lost", "duplicates", "late unmarked", "resumed in s", "promises", "on time")
    for name in (*columns, "verdict"):
        shown.add_column(name, justify="left" if name in {"cell", "verdict"} else "right")
    for v in verdicts:
        resumed = f"{v.resume_s_max:.1f}" + (f" of {v.resume_s_allowed:.0f}" if v.resume_s_allowed else "")
        shown.add_row(
            *(v.cell, str(v.seeds), str(v.queries), str(v.lost), f"{v.duplicates} of {v.copies_allowed}"),
            *(str(v.late_unmarked), resumed, str(v.promises_broken), f"{100 * v.on_time:.1f} %"),
            ", ".join(v.faults) or "as promised",
            style="red" if v.faults else "",
        )
    return shown


def write(out: Path, verdicts: Sequence[Verdict], seconds: float, delivery: str) -> None:
    """summary.json for machines, report.md for people."""
    out.mkdir(parents=True, exist_ok=True)
    where = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, {datetime.now(UTC):%Y-%m-%d}"
    summary = {
        "machine": where,
        "delivery": delivery,
        "seconds": round(seconds),
        "cells": {v.cell: v.as_json() for v in verdicts},
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1))
    lines = [
        "# Chaos report",
        "",
        f"{where}; {seconds / 60:.0f} minutes. One fault a seed, on Apache Kafka, a process a stage, under load, "
        f"delivery {delivery}.",
        "",
        "| cell | seeds | queries | lost | duplicates (allowed) | late unmarked | resumed in s (allowed) "
        "| promises broken unannounced | on time |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for v in verdicts:
        allowed = f"{v.resume_s_allowed:.0f}" if v.resume_s_allowed else "-"
        lines.append(
            f"| {v.cell} | {v.seeds} | {v.queries} | {v.lost} | {v.duplicates} ({v.copies_allowed}) "
            f"| {v.late_unmarked} | {v.resume_s_max:.1f} ({allowed}) | {v.promises_broken} | {100 * v.on_time:.1f} % |"
        )
    (out / "report.md").write_text("\n".join(lines) + "\n")


async def _run(arguments: argparse.Namespace, console: Console) -> list[Verdict]:
    names = arguments.cells.split(",") if arguments.cells else list(CELLS)
    unknown = [name for name in names if name not in CELLS]
    if unknown:
        raise SystemExit(f"cell {unknown[0]!r} is unknown; choose of {', '.join(CELLS)}")
    room = asyncio.Semaphore(arguments.parallel)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    verdicts: list[Verdict] = []
    began = time.monotonic()
    with Progress(*columns, TimeElapsedColumn(), console=console) as said:

        async def one(name: str) -> None:
            async with room:
                folder = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-"))
                verdict = await run_cell(
                    CELLS[name],
                    folder,
                    arguments.home,
                    seeds=arguments.seeds,
                    rate=arguments.rate,
                    first_seed=arguments.first_seed,
                    delivery=arguments.delivery,
                    said=said,
                )
                verdicts.append(verdict)
                write(arguments.out, verdicts, time.monotonic() - began, arguments.delivery)
                if verdict.faults:
                    console.print(f"[red]{name}: {', '.join(verdict.faults)}; kept in {folder}")
                else:
                    shutil.rmtree(folder, ignore_errors=True)

        await asyncio.gather(*(one(name) for name in names))
    return verdicts


def main() -> None:
    """Run the cells asked for; exit 1 where one is not as promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--cells", default="", help="names joined by commas; all by default")
    parser.add_argument("--rate", type=float, default=500.0, help="queries per second")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=1, help="cells at once, each with a broker of its own")
    parser.add_argument("--delivery", choices=("at_least_once", "exactly_once"), default="at_least_once")
    parser.add_argument("--out", type=Path, default=Path("reports/chaos"))
    parser.add_argument("--home", type=Path, default=Path(os.environ.get("SLUICE_HOME", Path.home() / ".sluicegate")))
    arguments = parser.parse_args()
    console = Console()
    verdicts = asyncio.run(_run(arguments, console))
    console.print(table(verdicts))
    raise SystemExit(any(v.faults for v in verdicts))


if __name__ == "__main__":
    main()

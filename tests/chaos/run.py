"""Cells side by side, each on a broker of its own: ``python -m tests.chaos.run --seeds 20 --cells worker-stop,poison``.

Every cell runs with at-least-once delivery; those whose fault may leave copies also exactly once, at four fifths of the
rate, for that takes the machine more. A cell that runs but once gets twice the rate, and each has its share of it, so
that all of them see as many queries. With ``--keep`` the rows of an earlier run that are not run now stay in the
report.
"""

import argparse
import asyncio
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.outcome import Outcome
from sluicegate.sluice.audit.fault_windows import FaultWindow
from sluicegate.sluice.audit.result_log import read_results, result_topics
from sluicegate.sluice.audit.topic_audit import AuditReport, read_topics
from sluicegate.streams.local_kafka.server_properties import SESSION_S
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import codec, control
from tests.chaos import front_door_faults
from tests.chaos.cells import CELLS, Cell
from tests.chaos.front_door_faults import GREEDY
from tests.chaos.judge import SERVED, Fault, Verdict, judge
from tests.chaos.report import held, table, write
from tests.chaos.stack import DEVICES, SESSION_TIMEOUT, SLO, Delivery, Stack, stack

T = TypeVar("T")
IN_FLIGHT = 500
DEVICE_TIMEOUT = 2.0
_ELECTION = 3.0
"""Seconds until the other controllers miss the one in charge, and have another."""
RESUMES = {
    "device": DEVICE_TIMEOUT + 2.0,
    "door": 5.0,
    "group": SESSION_TIMEOUT + 2.0,
    "broker": SESSION_TIMEOUT + 2.0,
    "node": SESSION_S + 2.0,
    "lead": _ELECTION + SESSION_S + 2.0,
    "roll": 1.0,
}
_WARM = 8.0
_WARM_MOST = 60.0
"""Seconds that a start may take: until queries are answered in time, or as they will be on this machine."""
_CALM = 4.0
_EXACTLY = 0.8
_STILL = 240.0
"""Seconds without a new outcome after which what has none is lost."""
_PATIENCE = 300.0
"""Seconds for a machine that is busy."""
_READY = 10.0
"""Seconds that the devices may take, past a window, until all of them serve the newest plan."""


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
    task = said.add_task(f"{cell.name} {delivery.replace('_', ' ')}", total=seeds) if said is not None else None
    async with stack(
        folder, home, record=cell.record, delivery=delivery, nodes=cell.nodes, linked=cell.linked
    ) as running:
        await _start(running, cell, first_seed)
        stop = asyncio.Event()
        loads = [
            asyncio.create_task(running.load(app, rate * share, stop, random.Random(f"{app}{first_seed}")))
            for app, share in (("toy", 0.75), ("vow", 0.25))
        ]
        await asyncio.sleep(_WARM)
        calm = await _calm(running)
        faults: list[Fault] = []
        for seed in range(first_seed, first_seed + seeds):
            faults.append(await _break(running, cell, random.Random(seed)))
            if said is not None and task is not None:
                said.advance(task)
        stop.set()
        await asyncio.gather(*loads)
        report, outcomes = await _settled(running, faults)
        for child in running.children.values():
            child.send(signal.SIGTERM)
    return judge(
        cell.name,
        delivery,
        report,
        outcomes,
        faults,
        calm=(calm, faults[0].began - SLO),  # what was asked later ends in the first window
        rate=rate,
        slo=SLO,
        acknowledged=sum(running.sent.values()),
        copies_allowed=running.kills * IN_FLIGHT if delivery == "at_least_once" else 0,
        resume_s_allowed=RESUMES.get(cell.resumes),
        steps=cell.steps,
    )


async def _calm(running: Stack) -> float:
    """Let the load run until what is asked is answered in time, as far as this machine does; from when on that was so.

    Plans, loads and the broker's first steps take what they take: nothing is broken yet.
    """
    loop = asyncio.get_running_loop()
    patience = loop.time() + _WARM_MOST
    while True:
        began, before = time.time(), sum(running.sent.values())
        await asyncio.sleep(_CALM - SLO)
        until, asked = time.time(), sum(running.sent.values()) - before
        await asyncio.sleep(SLO)
        on_time = sum(o.on_time for o in await _outcomes(running) if began <= o.arrival < until)
        if on_time >= SERVED * asked > 0 or loop.time() > patience:
            return began


async def _break(running: Stack, cell: Cell, rng: random.Random) -> Fault:
    """One fault and its window, which ends once every device serves again and routers share their partitions: the next
    fault is to hit what serves."""
    loop = asyncio.get_running_loop()
    began, ends = time.time(), loop.time() + cell.window
    running.mended = 0.0
    hit = await cell.inject(running, rng)
    due = running.mended or began
    await asyncio.sleep(max(1.0, ends - loop.time()))
    patience = loop.time() + _READY
    while loop.time() < patience and not (await _planned(running) and running.joined(cell.routers)):
        await asyncio.sleep(0.5)
    return Fault(hit=hit, began=began, due=due, until=time.time())


async def _start(running: Stack, cell: Cell, first_seed: int) -> None:
    skews = random.Random(f"skew{first_seed}")
    await running.start("planner", ["planner"], cell.planner_point)
    await running.start("admission", ["admission", "--member", "door"])
    for number in range(cell.routers):
        await running.start(f"router{number}", ["router"])
    for name in DEVICES:
        skew = str(skews.uniform(-1.0, 1.0))
        await running.start(name, ["worker", "--device", name], cell.point, CHAOS_SKEW=skew)
    async with asyncio.timeout(_PATIENCE):
        while not await _planned(running):
            await asyncio.sleep(0.25)
    if cell.front:
        await front_door_faults.open_front(running, cell.front)


async def _planned(running: Stack) -> bool:
    """Whether all devices have staged the newest plan."""
    if running.topics.acks not in await running.broker.admin().topics():
        return False
    plans = await _read(running, running.topics.plan, control.decode_plan)
    acks = await _read(running, running.topics.acks, control.decode_acknowledged)
    return bool(plans) and {a.device for a in acks if a.epoch == plans[-1].epoch} >= set(DEVICES)


async def _read(running: Stack, topic: str, decode: Callable[[bytes], T]) -> list[T]:
    """What is on a control topic that can be read: not all may be the system's own."""
    found: list[T] = []
    async for record in read_results(running.broker, [TopicPartition(topic, 0)], follow=False):
        with suppress(InvalidInputError):
            found.append(decode(record.value or b""))
    return found


async def _settled(running: Stack, faults: Sequence[Fault]) -> tuple[AuditReport, list[Outcome]]:
    """The audit once every record that was acknowledged has its end, or none has got one for a while."""
    loop = asyncio.get_running_loop()
    least, since = 1 << 62, loop.time()
    expected = sum(running.sent.values())
    windows = [FaultWindow(name=f"{number}: {f.hit}", began=f.began, ended=f.until) for number, f in enumerate(faults)]
    await asyncio.sleep(SLO)  # by then nearly all have
    while True:
        report = (await read_topics(running.broker, running.topics, timed=True)).report(windows)
        missing = report.lost + max(0, expected - report.queries)
        if missing < least:
            least, since = missing, loop.time()
        if not missing or loop.time() > since + _STILL:
            break
        await asyncio.sleep(1.0)
    return report, await _outcomes(running)


async def _outcomes(running: Stack) -> list[Outcome]:
    """The first of each query, of those that innocents asked."""
    found: dict[str, Outcome] = {}
    async for record in read_results(running.broker, await result_topics(running.broker, running.topics), follow=False):
        outcome = codec.decode_outcome(record).outcome
        if outcome.key.source != f"/{GREEDY}":
            found.setdefault(outcome.query_id, outcome)
    return list(found.values())


def jobs(cells: Sequence[Cell], delivery: str) -> list[tuple[Cell, Delivery, float]]:
    """(cell, delivery, factor on the rate), the longest first."""
    both = delivery == "both"
    chosen: list[tuple[Cell, Delivery, float]] = []
    for cell in sorted(cells, key=lambda c: -c.window):
        if delivery != "exactly_once":
            chosen.append((cell, "at_least_once", 1.0 if cell.copies or not both else 2.0))
        if delivery == "exactly_once" or (both and cell.copies):
            chosen.append((cell, "exactly_once", _EXACTLY))
    return chosen


async def _run(arguments: argparse.Namespace, console: Console) -> list[Verdict]:
    names = arguments.cells.split(",") if arguments.cells else list(CELLS)
    unknown = [name for name in names if name not in CELLS]
    if unknown:
        raise SystemExit(f"cell {unknown[0]!r} is unknown; choose of {', '.join(CELLS)}")
    room = asyncio.Semaphore(arguments.parallel)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    before, took = held(arguments.out) if arguments.keep else ([], 0.0)
    chosen = jobs([CELLS[name] for name in names], arguments.delivery)
    ran = {(cell.name, delivery) for cell, delivery, _ in chosen}
    verdicts: list[Verdict] = [v for v in before if (v.cell, v.delivery) not in ran]
    began = time.monotonic() - took
    with Progress(*columns, TimeElapsedColumn(), console=console) as said:

        async def one(cell: Cell, delivery: Delivery, factor: float) -> None:
            async with room:
                folder = Path(tempfile.mkdtemp(prefix=f"chaos-{cell.name}-"))
                verdict = await run_cell(
                    cell,
                    folder,
                    arguments.home,
                    seeds=arguments.seeds,
                    rate=arguments.rate * cell.load * factor,
                    first_seed=arguments.first_seed,
                    delivery=delivery,
                    said=said,
                )
                verdicts.append(verdict)
                write(arguments.out, verdicts, time.monotonic() - began)
                if verdict.faults:
                    console.print(f"[red]{cell.name}, {delivery}: {', '.join(verdict.faults)}; kept in {folder}")
                else:
                    shutil.rmtree(folder, ignore_errors=True)

        await asyncio.gather(*(one(*job) for job in chosen))
    write(arguments.out, verdicts, time.monotonic() - began, arguments.docs)
    return verdicts


def main() -> None:
    """Run the cells asked for; exit 1 where one is not as promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--cells", default="", help="names joined by commas; all by default")
    parser.add_argument("--rate", type=float, default=360.0, help="queries per second, of which a cell has its share")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=2, help="cells at once, each with a broker of its own")
    parser.add_argument("--delivery", choices=("both", "at_least_once", "exactly_once"), default="both")
    parser.add_argument("--keep", action="store_true", help="keep the rows in --out that are not run now")
    parser.add_argument("--out", type=Path, default=Path("reports/chaos"))
    parser.add_argument("--docs", type=Path, default=None, help="write the page here too")
    parser.add_argument("--home", type=Path, default=Path(os.environ.get("SLUICE_HOME", Path.home() / ".sluicegate")))
    arguments = parser.parse_args()
    if min(arguments.seeds, arguments.parallel) < 1:
        parser.error("--seeds and --parallel: give 1 or more")
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: with every process that it started
    verdicts = asyncio.run(_run(arguments, console))
    console.print(table(verdicts))
    raise SystemExit(any(v.faults for v in verdicts))


if __name__ == "__main__":
    main()

"""Explore seeds: the live stages under virtual time, faults at any await, both deliveries.

    python -m tests.explore.run --seeds 1000
    python -m tests.explore.run --seed 17 --delivery exactly_once      # one seed again, with its story

Writes summary.json (``seeds, lost, duplicates, promises_broken_unannounced, failed``, a list that says how to see each
again; ``digests``: of all that was written, a seed) and the story of each seed that failed. A seed always gives the
same log: the interpreter's hashes are fixed for that.
"""

import argparse
import gc
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tests.explore.faults import EVERY, KINDS, drawn
from tests.explore.planted import PLANTED
from tests.explore.shape import Delivery
from tests.explore.world import Fault, Verdict, explore

DELIVERIES: tuple[Delivery, ...] = ("at_least_once", "exactly_once")
_AT_ONCE = 20
"""Seeds that one process plays: what dead processes held is given back with it."""

Job = tuple[int, Delivery, tuple[str, ...], str]
"""Seed, delivery, kinds of fault, what is planted."""


def play(job: Job) -> tuple[Verdict, list[str]]:
    """One seed."""
    seed, delivery, kinds, planted = job

    def faults(rng: Random) -> Sequence[Fault]:
        return drawn(rng, kinds)

    with PLANTED[planted]():
        return explore(seed, delivery, faults)


def _quietly(job: Job) -> tuple[Verdict | str, list[str]]:
    try:
        return play(job)
    except Exception as error:
        return f"{type(error).__name__}: {error}", []


def _hush() -> None:
    # Coroutines of processes that were killed are thrown away where they stood: their cleaning up finds no loop.
    sys.unraisablehook = lambda _: None
    warnings.simplefilter("ignore", RuntimeWarning)
    gc.freeze()
    gc.disable()  # a process plays a few seeds and ends


@cache
def _warm() -> None:
    """Import and build, before processes are forked, what every seed needs."""
    _quietly((0, "exactly_once", tuple(KINDS), "nothing"))


def played(jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, Verdict | str, list[str]]]:
    """Each job's verdict (or what kept it from one) and story, as they come."""
    _warm()
    context = multiprocessing.get_context("fork")
    with context.Pool(processes, initializer=_hush, maxtasksperchild=_AT_ONCE) as pool:
        pending = pool.imap(_quietly, jobs, chunksize=1)
        for job, (verdict, story) in zip(jobs, pending, strict=True):
            yield job, verdict, story


def _kind(said: str) -> str:
    return next((kind for kind in EVERY if said.startswith(kind.replace("-", " "))), said)


def again(job: Job) -> str:
    """The command that plays one seed again."""
    seed, delivery, kinds, planted = job
    command = f"python -m tests.explore.run --seed {seed} --delivery {delivery}"
    command += f" --kinds {','.join(kinds)}" if kinds != tuple(KINDS) else ""
    return command + (f" --planted {planted}" if planted != "nothing" else "")


def summary(verdicts: Sequence[tuple[Job, Verdict | str]], took: float) -> dict[str, Any]:
    """What ``summary.json`` says. ``failed``: seed, delivery, why and which faults."""
    whole = [v for _, v in verdicts if isinstance(v, Verdict)]
    once = [v for v in whole if v.delivery == "exactly_once"]
    failed = [
        {
            "seed": job[0],
            "delivery": job[1],
            "why": [v] if isinstance(v, str) else list(v.why),
            "stories": [] if isinstance(v, str) else list(v.stories),
            "faults": [] if isinstance(v, str) else list(v.faults),
            "digest": "" if isinstance(v, str) else v.digest,
            "again": again(job),
        }
        for job, v in verdicts
        if isinstance(v, str) or v.why
    ]
    return {
        "seeds": len(verdicts),
        "queries": sum(v.queries for v in whole),
        "lost": sum(v.lost for v in whole),
        "duplicates": sum(v.duplicates for v in once),
        "duplicates_at_least_once": sum(v.duplicates for v in whole) - sum(v.duplicates for v in once),
        "promises_broken_unannounced": sum(v.promises_broken_unannounced for v in whole),
        "promises_announced": sum(v.promises_announced for v in whole),
        "virtual_s": sum(v.virtual_s for v in whole),
        "wall_s": round(took, 1),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "faults": dict(Counter(_kind(f) for v in whole for f in v.faults).most_common()),
        "failed": failed,
        "digests": [v.digest for v in whole],
    }


def _table(found: dict[str, Any]) -> Table:
    table = Table("seeds", "queries", "lost", "copies", "broken", "failed", "virtual h", "wall s")
    table.add_row(
        *(str(found[name]) for name in ("seeds", "queries", "lost", "duplicates", "promises_broken_unannounced")),
        str(len(found["failed"])),
        f"{found['virtual_s'] / 3600:.2f}",
        f"{found['wall_s']:.0f}",
    )
    return table


def fixed_hashes(module: str) -> None:
    """Begin ``module`` anew, with the same arguments, where the interpreter's hashes are not fixed yet."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        arguments = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, "PYTHONHASHSEED": "0"})


def main() -> None:
    """Explore; exit 1 where a seed failed."""
    fixed_hashes("tests.explore.run")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="how many, half of them in each delivery")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seed", type=int, help="play this one alone and tell its story")
    parser.add_argument("--delivery", choices=("both", *DELIVERIES), default="both")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of fault, joined by commas")
    parser.add_argument("--planted", choices=tuple(PLANTED), default="nothing", help="put an old fault back")
    parser.add_argument("--until-found", action="store_true", help="end with the first seed that fails")
    parser.add_argument("--parallel", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("reports/explore"))
    chosen = parser.parse_args()
    if min(chosen.seeds, chosen.parallel) < 1:
        parser.error("--seeds and --parallel: give 1 or more")
    kinds = tuple(chosen.kinds.split(","))
    if unknown := sorted(set(kinds) - set(EVERY)):
        parser.error(f"kind {unknown[0]!r} is unknown; choose of {', '.join(EVERY)}")
    deliveries = DELIVERIES if chosen.delivery == "both" else (cast("Delivery", chosen.delivery),)
    console = Console()
    if chosen.seed is not None:
        _hush()
        failed = False
        for delivery in deliveries:
            verdict, story = play((chosen.seed, delivery, kinds, chosen.planted))
            console.print("\n".join(story), highlight=False, markup=False)
            console.print_json(json.dumps(verdict.as_json()))
            failed = failed or bool(verdict.why)
        raise SystemExit(int(failed))
    jobs: list[Job] = [
        (chosen.first_seed + n // len(deliveries), deliveries[n % len(deliveries)], kinds, chosen.planted)
        for n in range(chosen.seeds)
    ]
    found = _explored(jobs, chosen, console)
    console.print(_table(found))
    for one in found["failed"][:20]:
        console.print(
            f"[red]{', '.join(one['why'])}[/red] ({', '.join(one['faults'])}): {one['again']}", soft_wrap=True
        )
    raise SystemExit(bool(found["failed"]))


def _explored(jobs: Sequence[Job], chosen: argparse.Namespace, console: Console) -> dict[str, Any]:
    began = time.monotonic()
    verdicts: list[tuple[Job, Verdict | str]] = []
    failed = 0
    chosen.out.mkdir(parents=True, exist_ok=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as said:
        bar = said.add_task("seeds", total=len(jobs))
        for job, verdict, story in played(jobs, chosen.parallel):
            verdicts.append((job, verdict))
            said.advance(bar)
            if isinstance(verdict, str) or verdict.why:
                told = "\n".join([again(job), *story, repr(verdict)])
                (chosen.out / f"seed-{job[0]}-{job[1]}.txt").write_text(told, encoding="utf-8")
                failed += 1
                said.update(bar, description=f"seeds, {failed} failed")
                if chosen.until_found:
                    break
    found = summary(verdicts, time.monotonic() - began)
    (chosen.out / "summary.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


if __name__ == "__main__":
    main()

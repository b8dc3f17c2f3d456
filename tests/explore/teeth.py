"""Put each fault of ``planted`` back and see how soon exploring finds it: what its silence is worth.

    python -m tests.explore.teeth                         # all of them, into reports/explore/teeth.json
    python -m tests.explore.teeth --only held-for-ever    # one again; the others stay as they were

A seed finds a fault where it fails with the fault and passes without: by the rules that are checked in every seed,
which know nothing of what is planted.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.explore.faults import KINDS
from tests.explore.planted import TEETH
from tests.explore.run import DELIVERIES, Job, fixed_hashes, played
from tests.explore.world import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Bite:
    """What became of one fault. ``nth``: worlds played until one failed, 0 where none of ``most`` did; ``why``: what it
    broke."""

    planted: str
    nth: int
    most: int
    seed: int = -1
    delivery: str = ""
    why: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    wall_s: float = 0.0


def bite(planted: str, *, most: int, processes: int) -> Bite:
    """Play worlds until one fails for what is planted."""
    began = time.monotonic()
    jobs: list[Job] = [(n // 2, DELIVERIES[n % 2], tuple(KINDS), planted) for n in range(most)]
    for nth, (job, verdict, _) in enumerate(played(jobs, processes), 1):
        if isinstance(verdict, Verdict) and not verdict.why:
            continue
        sound = next(played([(*job[:3], "nothing")], 1))[1]
        if isinstance(sound, Verdict) and not sound.why:
            told = verdict if isinstance(verdict, Verdict) else None
            return Bite(
                planted=planted,
                nth=nth,
                most=most,
                seed=job[0],
                delivery=job[1],
                why=told.why if told is not None else (str(verdict),),
                faults=told.faults if told is not None else (),
                wall_s=round(time.monotonic() - began, 1),
            )
    return Bite(planted=planted, nth=0, most=most, wall_s=round(time.monotonic() - began, 1))


def report(bites: Sequence[Bite]) -> str:
    """A page: each fault, and what found it."""
    found = sum(1 for b in bites if b.nth)
    lines = [
        "# What exploring finds",
        "",
        f"`python -m tests.explore.teeth --most {max(b.most for b in bites)}`, {datetime.now(UTC):%Y-%m-%d}, "
        f"{os.cpu_count()} cores ({platform.machine()}), "
        f"Python {platform.python_version()}: {found} of {len(bites)} faults that were put back are found.",
        "Each line says what was wrong, how many worlds were played (each seed in both deliveries) until one failed",
        "that passes without the fault, what happened in it, and which rule broke. The rules are in",
        "`tests/explore/invariants.py` and `world.py`, the faults in `planted.py`; a line is seen again with",
        "`python -m tests.explore.run --seed SEED --delivery DELIVERY --planted FAULT`.",
        "",
        "| planted | worlds | seed | delivery | what happened | what broke |",
        "|---|---|---|---|---|---|",
    ]
    for b in bites:
        what = (str(b.nth), str(b.seed), b.delivery, ", ".join(b.faults), ", ".join(b.why))
        what = what if b.nth else (f"none of {b.most}", "", "", "", "")
        lines.append(f"| {b.planted} | {' | '.join(what)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Exit 1 where a fault was not found."""
    fixed_hashes("tests.explore.teeth")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(TEETH), action="append", help="this one, or several")
    parser.add_argument("--most", type=int, default=2000, help="worlds a fault")
    parser.add_argument("--parallel", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("reports/explore"))
    parser.add_argument("--docs", type=Path, help="write the page here")
    chosen = parser.parse_args()
    console = Console()
    kept = chosen.out / "teeth.json"
    bites = {b["planted"]: Bite(**b) for b in json.loads(kept.read_text())} if chosen.only and kept.exists() else {}
    table = Table("planted", "worlds", "seed", "delivery", "broke", "wall s")
    for planted in chosen.only or TEETH:
        one = bite(planted, most=chosen.most, processes=chosen.parallel)
        bites[planted] = one
        found = [bites[name] for name in TEETH if name in bites]
        chosen.out.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps([asdict(b) for b in found], indent=1) + "\n", encoding="utf-8")
        if chosen.docs is not None:
            chosen.docs.write_text(report(found), encoding="utf-8")
        row = (planted, str(one.nth or "none"), str(one.seed), one.delivery, ", ".join(one.why), f"{one.wall_s:.0f}")
        console.print(*row, sep="  ", highlight=False)
        table.add_row(*row)
    console.print(table)
    raise SystemExit(not all(b.nth for b in bites.values()))


if __name__ == "__main__":
    main()

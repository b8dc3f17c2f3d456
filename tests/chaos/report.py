"""What came of a chaos run, for machines (summary.json, windows.json) and for people (a table, a page)."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from tests.chaos.cells import CELLS
from tests.chaos.judge import Verdict

EXACTLY = "exactly_once"
_WORDS = {"late_unmarked": "late", "promises_broken": "promise", "duplicates": "twice", "resume_s_max": "slow"}

_HEAD = """\
# Chaos

`make chaos`, {where}, {minutes:.0f} minutes, {queries:,} queries. One fault a seed, on an Apache Kafka of its own for
each row (of three nodes where its name says *cluster*), a process a stage, four devices, under load. Counted from the
topics by `sluice audit`.

- *duplicates*: outcomes beyond a query's first; allowed is what may have been in flight, for each process hit.
- *resumed*: seconds until nine in ten queries were answered on time again, the longest of all seeds, from the fault
  (of the broker's own faults: from when it served again; *outage* is from the fault). Where service was away once more,
  because what comes back moves partitions and plans, or the fault comes in steps: for how long. Judged where the bound
  is told.
- *promises broken*: windows of K queries with more than m misses, without safe mode announced; *announced*: with it.
- *added*: 99th percentile from arrival to outcome less execution, before anything was broken and in the windows.

| cell | seeds | queries/s | queries | lost | duplicates (allowed) | max copies | late unmarked | resumed s (allowed) \
| outage s | promises broken (announced) | on time | added p99 ms before, during | not as promised |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|
"""


def row_name(v: Verdict) -> str:
    """``cell``, or ``cell (exactly once)``."""
    return f"{v.cell} (exactly once)" if v.delivery == EXACTLY else v.cell


def table(verdicts: Sequence[Verdict]) -> Table:
    """For a terminal of 80 columns: of each cell what was lost, what had a second outcome, when service was back."""
    shown = Table(title="Chaos", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("cell", "delivery", "queries", "lost", "twice", "back, s", "verdict"):
        shown.add_column(
            name,
            justify="left" if name in {"cell", "delivery", "verdict"} else "right",
            no_wrap=name != "verdict",
        )
    for v in in_order(verdicts):
        back = f"{v.resume_s_max:.1f}" + (f" of {v.due_s:.0f}" if v.due_s else "")
        shown.add_row(
            *(v.cell, "exactly" if v.delivery == EXACTLY else "at least", str(v.queries), str(v.lost)),
            *(str(v.duplicates), back, ", ".join(_WORDS.get(name, name) for name in v.faults) or "held"),
            style="red" if v.faults else "",
        )
    busy = sum(v.busy for v in verdicts)
    shown.caption = f"{busy} of {len(verdicts)} met a machine too busy to answer in time even before." if busy else None
    return shown


def in_order(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """As cells are listed, at least once before exactly once."""
    places = {name: place for place, name in enumerate(CELLS)}
    return sorted(verdicts, key=lambda v: (places.get(v.cell, len(places)), v.delivery == EXACTLY))


def held(out: Path) -> tuple[list[Verdict], float]:
    """Rows of an earlier run that wrote to ``out``, and the seconds it took; nothing where there was none."""
    file = out / "summary.json"
    if not file.exists():
        return [], 0.0
    summary = json.loads(file.read_text())
    return [Verdict.from_json(row) for row in summary["cells"].values()], float(summary["seconds"])


def write(out: Path, verdicts: Sequence[Verdict], seconds: float, docs: Path | None = None) -> None:
    """summary.json, windows.json (which `sluice audit --windows` reads) and report.md; the page also as ``docs``."""
    out.mkdir(parents=True, exist_ok=True)
    listed = in_order(verdicts)
    summary = {
        "machine": _where(),
        "seconds": round(seconds),
        "queries": sum(v.queries for v in listed),
        "cells": {row_name(v): v.as_json() for v in listed},
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1))
    windows = [{"cell": row_name(v), **asdict(w)} for v in listed for w in v.windows]
    (out / "windows.json").write_text(json.dumps(windows, indent=1))
    text = page(listed, seconds)
    (out / "report.md").write_text(text)
    if docs is not None:
        docs.parent.mkdir(parents=True, exist_ok=True)
        docs.write_text(text)


def page(verdicts: Sequence[Verdict], seconds: float) -> str:
    """Raw counts, a row a cell."""
    queries = sum(v.queries for v in verdicts)
    lines = _HEAD.format(where=_where(), minutes=seconds / 60, queries=queries).splitlines()
    for v in verdicts:
        allowed = f"{v.due_s:.0f}" if v.due_s else "-"
        lines.append(
            f"| {row_name(v)} | {v.seeds} | {v.rate:.0f} | {v.queries} | {v.lost} "
            f"| {v.duplicates} ({v.copies_allowed}) | {v.max_copies} | {v.late_unmarked} "
            f"| {v.resume_s_max:.1f} ({allowed}) | {v.outage_s_max:.1f} "
            f"| {v.promises_broken} ({v.promises_announced}) | {100 * v.on_time:.1f} % "
            f"| {v.added_p99_ms_before:.0f}, {v.added_p99_ms_during:.0f} | {', '.join(v.faults)} |"
        )
    return "\n".join(lines) + "\n"


def _where() -> str:
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, {datetime.now(UTC):%Y-%m-%d}"

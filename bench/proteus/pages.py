"""A figure's page: plots, the table of what was run, the paper's numbers, why they differ. JSON and PNG beside it."""

import json
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Drawing

from bench.proteus.plots import png, svg
from bench.proteus.systems import System, simulate
from bench.proteus.workloads import Workload
from simulator.experiment import Run, together
from simulator.report.page import Figure, Table, page
from simulator.report.pages import DEFINITIONS
from simulator.rows import HEADER, row_of


@dataclass(frozen=True)
class Options:
    """``seconds``: of each run, None for the whole trace. ``quick``: fewer and shorter runs.

    ``seeds``: how many, from ``seed`` on, where arrivals are drawn or cloned; a trace at scale 1 is the same for all.
    """

    out: Path
    seed: int = 0
    seeds: int = 1
    seconds: float | None = None
    quick: bool = False
    literal_s: float = 20.0

    def lasting(self, quick_s: float) -> float | None:
        """Seconds of a run over a trace."""
        return self.seconds or (quick_s if self.quick else None)


@dataclass(frozen=True)
class Result:
    """A figure; ``number``: in the paper, or a name. ``drawings``: (caption, plot); the first one is the PNG.

    ``rows``: everything measured.
    """

    number: int | str
    title: str
    intro: str
    drawings: Sequence[tuple[str, Drawing]]
    tables: Sequence[Table]
    notes: Sequence[str]
    rows: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


def run_all(systems: Sequence[System], workload: Workload, options: Options) -> dict[str, Run]:
    """Every system on the same arrivals, said as it goes."""
    found: dict[str, Run] = {}
    for system in systems:
        run = found[system.name] = simulate(system, workload, options.seed)
        s = run.summary
        print(
            f"  {workload.name}: {system.name}: violations {100 * s.violation_ratio:.2f} %, accuracy"
            f" {100 * s.effective_accuracy:.2f} %, {run.wall_s:.0f} s",
            flush=True,
        )
    return found


def run_seeds(systems: Sequence[System], load: Callable[[int], Workload], options: Options) -> dict[str, list[Run]]:
    """``run_all`` for each seed; ``load``: by seed."""
    found: dict[str, list[Run]] = {s.name: [] for s in systems}
    for seed in range(options.seed, options.seed + options.seeds):
        for name, run in run_all(systems, load(seed), replace(options, seed=seed)).items():
            found[name].append(run)
    return found


def mean_table(title: str, runs: Mapping[str, Sequence[Run]]) -> Table:
    """A row a system: means over its runs, with 95 % confidence."""
    seeds = len(next(iter(runs.values())))
    rows = [row_of(name, together(of_system)) for name, of_system in runs.items()]
    return Table(title if seeds == 1 else f"{title}, {seeds} seeds, ± 95 % confidence", HEADER, rows)


def table(title: str, runs: Mapping[str, Run], reference: Mapping[str, Mapping[str, float]] | None = None) -> Table:
    """A row a system, and below them what others report."""
    rows = [row_of(name, run.figures()) for name, run in runs.items()]
    return Table(title, HEADER, [*rows, *(row_of(name, r) for name, r in (reference or {}).items())])


def rows_of(runs: Mapping[str, Run], **more: Any) -> list[dict[str, Any]]:
    """For the JSON."""
    return [{**more, "system": name, **run.figures()} for name, run in runs.items()]


def times(one: Run, other: Run) -> str:
    """How many times the violations of ``one`` those of ``other`` are."""
    mine, theirs = one.summary.violation_ratio, other.summary.violation_ratio
    return f"{theirs / mine:.1f}x" if mine > 0.0 else "more than any multiple of"


def write(result: Result, options: Options, command: str, took_s: float) -> Path:
    """The page, its PNG and its JSON in ``options.out``; the page's path."""
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / f"figure-{result.number}"
    day = time.strftime("%Y-%m-%d", time.gmtime())
    ran = f"{command}; {took_s:.0f} CPU s, {platform.machine()}, {day}, seed {options.seed}"
    if options.seeds > 1:
        ran += f" to {options.seed + options.seeds - 1}"
    text = page(
        f"Proteus, {'Fig. ' if isinstance(result.number, int) else ''}{result.number}: {result.title}",
        intro=result.intro,
        figures=[Figure(caption, svg(drawing)) for caption, drawing in result.drawings],
        tables=result.tables,
        notes=[*result.notes, *DEFINITIONS, ran],
    )
    path = stem.with_suffix(".html")
    path.write_text(text)
    png(result.drawings[0][1], stem.with_suffix(".png"))
    stem.with_suffix(".json").write_text(json.dumps([_plain(r) for r in result.rows], indent=1))
    return path


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}

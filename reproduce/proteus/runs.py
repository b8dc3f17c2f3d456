"""Runs of several systems on the same arrivals, and their tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reproduce.figure import Options
from reproduce.proteus.systems import System, simulate
from reproduce.proteus.workloads import Workload
from sluicegate.simulator.report.page import Table
from sluicegate.simulator.report_rows import HEADER, row_of
from sluicegate.simulator.scenario.experiment import Run, together


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
    for seed in options.each_seed():
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


def by_seed(runs: Mapping[str, Sequence[Run]]) -> list[dict[str, Run]]:
    """One set of runs a seed."""
    return [dict(zip(runs, of_seed, strict=True)) for of_seed in zip(*runs.values(), strict=True)]


def mean(runs: Sequence[Run], measure: str) -> float:
    """Of a ratio, over seeds."""
    return float(together(runs)[measure])


def times(mine: float, theirs: float) -> str:
    """How many times ``mine`` violations ``theirs`` are."""
    return f"{theirs / mine:.1f}x" if mine > 0.0 else "more than any multiple of"

"""Scenarios of PROTEAN's world (``kind: gpu-slices``): its systems on the same batches, side by side.

    python -m reproduce.protean.compare examples/scenarios/protean-wiki.yaml --seeds 5 --report wiki.html

``sluice compare`` hands such scenarios on to this, with its options.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from reproduce.protean.slices.slices_experiment import SliceRun, run_once, together
from reproduce.protean.slices.slices_fields import BOUND, SliceScenario, slice_scenario
from reproduce.protean.slices.systems import system_of
from sluicegate.domain.errors import ConfigurationError, SluiceError
from sluicegate.sluice.commands.offline.simulate import SetOption, document_of, save
from sluicegate.sluice.console import JsonOption, err, one_line_errors, out, print_json, require_plots

Document = Mapping[str, Any]

_ROWS = (
    ("strict on time", "slo_compliance_strict", 100.0, 2, " %"),
    ("strict p99", "p99_strict_ms", 1.0, 0, " ms"),
    ("best effort p99", "p99_best_effort_ms", 1.0, 0, " ms"),
    ("strict answered", "strict_qps_per_gpu", 1.0, 0, "/s per GPU"),
    ("cost", "cost_usd", 1.0, 2, " USD"),
    ("reconfigurations", "reconfigurations", 1.0, 1, ""),
    ("cold starts", "cold_starts", 1.0, 0, ""),
)


def compare(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML) of kind gpu-slices.")],
    policies: Annotated[str | None, typer.Option(metavar="A,B,C", help="Systems (default: the scenario's).")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each system, on as many arrivals.")] = 5,
    settings: SetOption = None,
    report: Annotated[Path | None, typer.Option(help="HTML report.")] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Runs at a time (0: one a core).")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Run the systems of SCENARIO on the same batches and compare them."""
    with one_line_errors():
        asked = [name.strip() for name in policies.split(",") if name.strip()] if policies else None
        document = document_of(scenario, settings)
        _compare(document, scenario, names=asked, seeds=seeds, jobs=jobs, report=report, as_json=as_json)


def _compare(
    document: Document,
    path: Path,
    *,
    names: Sequence[str] | None,
    seeds: int,
    jobs: int,
    report: Path | None,
    as_json: bool,
) -> None:
    scenario = slice_scenario(document, f"scenario {path}")
    chosen = list(names) if names else list(scenario.systems)
    if len(set(chosen)) < len(chosen):
        raise ConfigurationError(f"policies: {', '.join(chosen)} names one twice")
    for name in chosen:
        if name != BOUND:
            system_of(scenario, name)
    if report is not None:
        require_plots()
    runs = _run_all(document, chosen, [scenario.seed + i for i in range(seeds)], jobs)
    results = {name: together(of_system) for name, of_system in runs.items()}
    if report is not None:
        from reproduce.protean.page import comparison  # plots take half a second to import

        save(report, comparison(scenario, results))
    if as_json:
        hidden = {"strict_quantiles_ms"}
        print_json({name: {k: v for k, v in r.items() if k not in hidden} for name, r in results.items()})
        return
    _print(scenario, results, seeds)
    if report is not None:
        out.print(f"report: {report}", soft_wrap=True)


def _run_all(document: Document, names: Sequence[str], seeds: Sequence[int], jobs: int) -> dict[str, list[SliceRun]]:
    tasks = [(dict(document), name, seed) for name in names for seed in seeds]
    runs: dict[str, list[SliceRun]] = {name: [] for name in names}
    workers = min(jobs or len(os.sched_getaffinity(0)), len(tasks))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task("simulating", total=len(tasks))
        for (_, name, _), result in zip(tasks, _results(tasks, workers), strict=True):
            if isinstance(result, str):
                raise ConfigurationError(result)
            runs[name].append(result)
            progress.advance(bar)
    return runs


def _results(tasks: Sequence[tuple[dict[str, Any], str, int]], workers: int) -> Iterator[SliceRun | str]:
    if workers <= 1:
        yield from map(_run, tasks)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_run, tasks)


def _run(task: tuple[dict[str, Any], str, int]) -> SliceRun | str:
    """A run, or what went wrong: errors of ours do not survive pickling."""
    document, name, seed = task
    try:
        return run_once(slice_scenario(document), name, seed, time.perf_counter)
    except SluiceError as error:
        return f"system {name}, seed {seed}: {error}"


def _print(scenario: SliceScenario, results: Mapping[str, Mapping[str, Any]], seeds: int) -> None:
    title = f"[bold]{escape(scenario.name)}[/]: means over {seeds} seeds, ± 95 % confidence"
    out.print(f"{title}; strict: {scenario.workload.strict}", soft_wrap=True)
    names = list(results)
    for start in range(0, len(names), 3):
        part = names[start : start + 3]
        table = Table()
        table.add_column("")
        for name in part:
            table.add_column(name, justify="right")
        for label, key, scale, digits, unit in _ROWS:
            table.add_row(label, *(_cell(results[n], key, scale, digits, unit) for n in part))
        out.print(table)


def _cell(result: Mapping[str, Any], key: str, scale: float, digits: int, unit: str) -> str:
    half = result["ci95"][key]
    if result[key] != result[key]:
        return ""
    spread = "" if half != half or half == 0 else f" ±{scale * half:.{digits}f}"
    return f"{scale * result[key]:.{digits}f}{spread}{unit}"


if __name__ == "__main__":
    typer.run(compare)

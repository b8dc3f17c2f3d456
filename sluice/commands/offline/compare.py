"""``sluice compare``: several systems on the same arrivals, side by side, with confidence intervals."""

import os
import subprocess
import sys
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

from sluicegate import sluice
from sluicegate.domain.errors import ConfigurationError, SluiceError
from sluicegate.simulator.report_rows import HEADER, row_of
from sluicegate.simulator.scenario import catalogue_of, scenario_of
from sluicegate.simulator.scenario.experiment import (
    Run,
    notes_on,
    run_once,
    systems_of,
    together,
    with_distances,
)
from sluicegate.sluice.commands.given_options import refuse_given
from sluicegate.sluice.commands.offline.simulate import PROTEANS, SetOption, document_of, save
from sluicegate.sluice.console import (
    EXIT_FAILED,
    JsonOption,
    check_writable,
    err,
    one_line_errors,
    out,
    print_json,
    require_plots,
)

Document = Mapping[str, Any]

_LOADS = "1"
_ACROSS = 3
"""Systems side by side in one table."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare")(compare)


def compare(
    context: typer.Context,
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML); examples are in examples/scenarios.")],
    policies: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Systems of the scenario, or policies or planners by name (default: all)."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each system, on as many arrivals.")] = 5,
    settings: SetOption = None,
    report: Annotated[
        Path | None, typer.Option(help="HTML report (default: reports/compare-<name>/index.html).")
    ] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Runs at a time (0: one a core).")] = 0,
    live: Annotated[bool, typer.Option("--live", help="Also run it live on emulated devices, in real time.")] = False,
    loads: Annotated[str, typer.Option(metavar="X,Y", help="With --live: multiples of the trace's load.")] = _LOADS,
    as_json: JsonOption = False,
) -> None:
    """Run the systems of SCENARIO on the same arrivals and compare them."""
    with one_line_errors():
        document = document_of(scenario, settings)
        if document.get("kind") == PROTEANS:
            if live:
                raise ConfigurationError(f"--live: a scenario of kind {PROTEANS} is simulated only")
            options = {"--policies": policies, "--seeds": seeds, "--report": report, "--jobs": jobs}
            asked = [f"{name}={value}" for name, value in options.items() if value is not None]
            asked += [f"--set={one}" for one in settings or ()] + (["--json"] if as_json else [])
            raise typer.Exit(_handed_on(scenario, asked))
        base = scenario_of(document, f"scenario {scenario}")
        if live:
            remedy = "it runs the scenario as it is, once a load, and prints: leave it out; --set changes the scenario"
            refuse_given(context, "with --live", ["policies", "seeds", "report", "jobs"], remedy)
        else:
            refuse_given(context, "without --live", ["loads"], "--set traces.scale=X changes what is simulated")
        if live:
            from sluicegate.sluice.offline.live_vs_simulated import (
                compare_live,  # the live system is imported only where it runs
            )

            if not compare_live(document, _loads(loads), as_json=as_json):
                raise typer.Exit(EXIT_FAILED)
            return
        require_plots()
        names = [name.strip() for name in policies.split(",") if name.strip()] if policies else None
        documents = systems_of(document, names)
        for name, one in documents.items():
            scenario_of(one, f"system {name}")
        target = report or Path("reports") / f"compare-{_safe(base.name)}" / "index.html"
        check_writable(target, "--report")
        runs = run_all(documents, [base.seed + i for i in range(seeds)], jobs)
        results = with_distances({name: together(of_system) for name, of_system in runs.items()})
        slos = [app.slo for app in catalogue_of(base).apps.values()]
        from sluicegate.simulator.report.pages import comparison_page  # plots take half a second to import

        page = comparison_page(f"Comparison: {base.name}", base.description, runs, results, base.reference, slos)
        save(target, page)
    if as_json:
        notes = {name: notes_on({name: of_system}) for name, of_system in runs.items()}
        print_json({n: {**figures, **({"notes": notes[n]} if notes[n] else {})} for n, figures in results.items()})
        err.print(f"report: {target}", markup=False, highlight=False, soft_wrap=True)
        return
    _print(base.name, runs, results, base.reference, target)


def _handed_on(scenario: Path, options: Sequence[str]) -> int:
    """Its exit status: PROTEAN's world re-makes that paper's figures, and lies beside the product in the repository."""
    root = Path(sluice.__file__).resolve().parents[1]
    if not (root / "reproduce").is_dir():
        raise ConfigurationError(f"scenario {scenario}: kind {PROTEANS} needs reproduce/, which the repository has")
    command = [sys.executable, "-m", "reproduce.protean.compare", str(scenario), *options]
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(root), *([inherited] if inherited else [])])
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


def run_all(documents: Mapping[str, Document], seeds: Sequence[int], jobs: int) -> dict[str, list[Run]]:
    """Every system with every seed, ``jobs`` at a time in processes of their own, with a progress bar."""
    tasks = [(name, document, seed, seed == seeds[0]) for name, document in documents.items() for seed in seeds]
    runs: dict[str, list[Run]] = {name: [] for name in documents}
    workers = min(jobs or len(os.sched_getaffinity(0)), len(tasks))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task("simulating", total=len(tasks))
        for (name, *_), result in zip(tasks, _results(tasks, workers), strict=True):
            if isinstance(result, str):
                raise ConfigurationError(result)
            runs[name].append(result)
            progress.advance(bar)
    return runs


def _results(tasks: Sequence[tuple[str, Document, int, bool]], workers: int) -> Iterator[Run | str]:
    if workers <= 1:
        yield from map(_run, tasks)
        return
    # Children are spawned, not forked: solvers and plot libraries hold threads.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_run, tasks)


def _run(task: tuple[str, Document, int, bool]) -> Run | str:
    """A run, or what went wrong: errors of ours do not survive pickling."""
    name, document, seed, with_series = task
    scenario = scenario_of(document, f"system {name}")
    try:
        return run_once(scenario, seed, time.perf_counter, with_series=with_series, with_bound=True)
    except SluiceError as error:
        return f"system {name}, seed {seed}: {error}"


def _print(
    name: str,
    runs: Mapping[str, list[Run]],
    results: Mapping[str, Mapping[str, Any]],
    reference: Mapping[str, Mapping[str, float]],
    target: Path,
) -> None:
    count = len(next(iter(runs.values())))
    out.print(f"[bold]{escape(name)}[/]: means over {count} seed{'s' * (count > 1)}, ± 95 % confidence", soft_wrap=True)
    _print_columns([row_of(system, figures) for system, figures in results.items()])
    if reference:
        out.print("[bold]for reference[/]")
        _print_rows([row_of(other, figures) for other, figures in reference.items()])
    for note in notes_on(runs):
        out.print(note, style="yellow")
    out.print(f"report: {target}", soft_wrap=True)


def _print_columns(rows: Sequence[Sequence[str]]) -> None:
    """One column a system, a few at a time: as wide as a terminal, however many there are."""
    for start in range(0, len(rows), _ACROSS):
        part = rows[start : start + _ACROSS]
        table = Table()
        table.add_column(HEADER[0], no_wrap=True)
        for row in part:
            table.add_column(row[0], justify="right")
        for number, label in enumerate(HEADER[1:], start=1):
            if any(row[number] != "-" for row in part):
                table.add_row(label, *(row[number] for row in part))
        out.print(table)


def _print_rows(rows: Sequence[Sequence[str]]) -> None:
    """One row a system; columns that say nothing are left out."""
    used = [n for n in range(len(HEADER)) if any(row[n] != "-" for row in rows)]
    table = Table()
    for number in used:
        table.add_column(HEADER[number], justify="left" if not number else "right")
    for row in rows:
        table.add_row(*(row[n] for n in used))
    out.print(table)


def _loads(text: str) -> list[float]:
    try:
        loads = [float(part) for part in text.split(",")]
    except ValueError:
        loads = [-1.0]
    if not all(0.0 < one < 1e3 for one in loads):
        raise ConfigurationError(f"--loads {text!r}: give positive numbers, such as 0.5,1,1.5")
    return loads


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name) or "scenario"

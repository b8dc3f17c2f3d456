"""``sluice simulate``: one run of a scenario under a virtual clock."""

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sluicegate.domain.errors import ConfigurationError
from sluicegate.simulator.scenario import Scenario, catalogue_of, read_scenario, scenario_of, with_setting
from sluicegate.simulator.scenario.experiment import Run, notes_on, run_once
from sluicegate.sluice.console import (
    MAX_SEED,
    JsonOption,
    check_writable,
    err,
    one_line_errors,
    out,
    print_json,
    require_plots,
    write_whole,
)

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Override a field: policies.batching=eager, devices.0.count=5."),
]


PROTEANS = "gpu-slices"
"""Kind of the scenarios of PROTEAN's world."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate")(simulate)


def simulate(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML); examples are in examples/scenarios.")],
    settings: SetOption = None,
    seed: Annotated[int | None, typer.Option(min=0, max=MAX_SEED, help="Instead of the scenario's.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report with plots here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate SCENARIO with the live policies and planner, and print its metrics."""
    with one_line_errors():
        document = document_of(scenario, settings)
        if document.get("kind") == PROTEANS:
            raise ConfigurationError(f"scenario {scenario}: kind {PROTEANS} compares systems; run `sluice compare`")
        validated = scenario_of(document, f"scenario {scenario}")
        if report is not None:
            require_plots()
            check_writable(report, "--report")
        chosen = validated.seed if seed is None else seed
        run = _watched(validated, chosen, with_series=report is not None)
        if report is not None:
            _write_report(report, validated, run)
    if as_json:
        notes = notes_on({validated.name: [run]})
        beside = {**({"notes": notes} if notes else {}), **({} if report is None else {"report": str(report)})}
        print_json({**run.figures(), **beside})
        return
    table = Table(title=f"{validated.name}, seed {chosen}", show_header=False)
    for name, value in flat(run.figures()).items():
        table.add_row(name, f"{value:.4f}" if isinstance(value, float) else str(value))
    out.print(table)
    for note in notes_on({validated.name: [run]}):
        out.print(note, style="yellow")
    if report is not None:
        out.print(f"report: {report}")


def _watched(scenario: Scenario, seed: int, *, with_series: bool) -> Run:
    """The run, and what no policy exceeds, its progress shown on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} s"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(f"simulating {escape(scenario.name)}, seed {seed}", total=None)

        def told(seconds: float, total: float) -> None:
            over = "what no policy exceeds" if seconds >= total else None
            progress.update(task, completed=seconds, total=total, description=over)

        return run_once(scenario, seed, time.perf_counter, with_series=with_series, with_bound=True, told=told)


def document_of(path: Path, settings: list[str] | None) -> dict[str, Any]:
    """The scenario in ``path`` with the settings of the command line. Raises ConfigurationError."""
    document = read_scenario(path, os.environ)
    for assignment in settings or ():
        document = with_setting(document, assignment)
    return document


def flat(figures: dict[str, Any]) -> dict[str, Any]:
    """Nested figures under dotted names."""
    result: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, dict):
            result |= {f"{name}.{inner}": content for inner, content in value.items()}
        else:
            result[name] = value
    return result


def save(path: Path, html: str) -> None:
    """Write a report, whole or not at all. Raises ConfigurationError where the path cannot be written."""
    try:
        write_whole(path, html.encode())
    except OSError as error:
        raise ConfigurationError(f"--report {path}: {error.strerror}; choose a path that can be written") from error


def _write_report(path: Path, scenario: Scenario, run: Run) -> None:
    # Plots take half a second to import: only a report needs them.
    from sluicegate.simulator.report.pages import simulation_page

    slos = [app.slo for app in catalogue_of(scenario).apps.values()]
    save(path, simulation_page(f"Simulation: {scenario.name}", scenario.description, run, slos))

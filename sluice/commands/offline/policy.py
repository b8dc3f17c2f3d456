"""``sluice policy``: selection tables offline. Generate one, a library of them, show one, size a deployment."""

from pathlib import Path
from time import process_time
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from sluicegate.domain.table import SelectionTable
from sluicegate.sluice.console import (
    EXIT_FAILED,
    JsonOption,
    check_writable,
    one_line_errors,
    out,
    print_json,
    require_plots,
)
from sluicegate.sluice.offline.policy_input import Question, model_of, read_table, write_bytes

ProfilesOption = Annotated[
    Path, typer.Option("--profiles", help="Catalogue folder, or a profiles.json in the format ramsis-profiles/1.")
]
AppOption = Annotated[str, typer.Option("--app", help="Application (task) whose variants may be chosen.")]
SloOption = Annotated[float, typer.Option("--slo-ms", help="Milliseconds from arrival to answer.")]
WorkersOption = Annotated[int, typer.Option("--workers", help="Workers sharing the app's queries.")]
QpsOption = Annotated[float, typer.Option("--qps", help="Queries a second of the whole app.")]
CriterionOption = Annotated[
    str, typer.Option("--criterion", help="query (accuracy a query) or decision (as published).")
]
PriceOption = Annotated[float, typer.Option("--price", help="Accuracy given up for one violation less.")]
GridOption = Annotated[str, typer.Option("--grid", help="Equal slack bins, or model: bins at the latencies.")]
QueueOption = Annotated[int, typer.Option("--queue", help="Longest queue told apart.")]
ShapeOption = Annotated[float, typer.Option("--arrival-shape", help="Shape of Gamma gaps; 1 is Poisson, less bursty.")]
DispatchOption = Annotated[str, typer.Option("--dispatch", help="round_robin, random or weighted.")]
ShareOption = Annotated[float | None, typer.Option("--share", help="This worker's share of queries (weighted).")]
BatchingOption = Annotated[str, typer.Option("--batching", help="maximal (the whole queue) or variable.")]
LateOption = Annotated[str, typer.Option("--late", help="Where nothing is on time: serve, or also drop.")]
PhasesOption = Annotated[int, typer.Option("--phases", help="Groups of arrivals elsewhere that the state tells apart.")]
DeviceOption = Annotated[str | None, typer.Option("--device-type", help="Where the catalogue profiles several.")]


_LOOSE = 0.05
"""Violations above which no library has a table by default."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    group = typer.Typer(name="policy", help="Selection tables: which variant for each batch.", no_args_is_help=True)
    group.command("generate")(generate)
    group.command("library")(library)
    group.command("show")(show)
    group.command("size")(size)
    app.add_typer(group)


def generate(
    profiles: ProfilesOption,
    app: AppOption,
    slo_ms: SloOption,
    workers: WorkersOption,
    qps: QpsOption,
    criterion: CriterionOption = "query",
    price: PriceOption = 0.5,
    grid: GridOption = "100",
    queue: QueueOption = 32,
    arrival_shape: ShapeOption = 1.0,
    dispatch: DispatchOption = "round_robin",
    share: ShareOption = None,
    batching: BatchingOption = "maximal",
    late: LateOption = "serve",
    phases: PhasesOption = 1,
    device_type: DeviceOption = None,
    output: Annotated[Path | None, typer.Option("--out", help="Write the table to this file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Generate the table for one load, and what it promises."""
    from sluicegate.planner.mdp.generate_table import generate as generate_table
    from sluicegate.planner.policy_tables.table_codec import encode

    with one_line_errors():
        model = model_of(
            Question(profiles, app, device_type, slo_ms, workers, qps, criterion, price, grid, queue,
                     arrival_shape, dispatch, share, batching, late, phases)
        )  # fmt: skip
        if output is not None:
            check_writable(output, "--out")
        started = process_time()
        made = generate_table(model, app=app, worker_class=device_type or "")
        cpu_s = process_time() - started
        if output is not None:
            write_bytes(output, encode(made.table))
    if as_json:
        print_json(_document(made.table, made.states, cpu_s, output))
        return
    expected = made.table.expected
    out.print(f"expected_accuracy   {expected.accuracy:.7f}")
    out.print(f"expected_violation  {expected.violation:.6g}")
    out.print(f"states              {made.states}")
    out.print(f"cpu_s               {cpu_s:.3f}")
    out.print(f"table               {output or '(give --out to keep it)'}")
    _show_expectations(made.table, model.never_in_time)


def library(
    profiles: ProfilesOption,
    app: AppOption,
    slo_ms: SloOption,
    workers: WorkersOption,
    output: Annotated[Path, typer.Option("--out", help="Folder for the tables, one file a load.")],
    criterion: CriterionOption = "query",
    price: PriceOption = 0.5,
    grid: GridOption = "100",
    queue: QueueOption = 32,
    spacing: Annotated[float, typer.Option("--spacing", help="Accuracy between neighbours, 0..1.")] = 0.01,
    max_violation: Annotated[float, typer.Option("--max-violation", help="Tolerated at the highest load.")] = 0.05,
    device_type: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Generate tables for all loads that the workers can serve, closely enough spaced."""
    from sluicegate.planner.policy_tables.table_codec import encode
    from sluicegate.planner.policy_tables.table_library import build_library
    from sluicegate.planner.policy_tables.table_requests import LibraryRules

    with one_line_errors():
        model = model_of(
            Question(profiles, app, device_type, slo_ms, workers, 0.0, criterion, price, grid, queue,
                     1.0, "round_robin", None, "maximal", "serve", 1)
        )  # fmt: skip
        check_writable(output / f"{app}.table", "--out")
        started = process_time()
        rules = LibraryRules(spacing=spacing, max_violation=max_violation)
        tables = build_library(model, app=app, worker_class=device_type or "", rules=rules)
        cpu_s = process_time() - started
        for t in tables:
            write_bytes(output / f"{app}-{1e3 * t.slo:g}ms-{t.workers}w-{t.qps:08.2f}qps.table", encode(t))
    rows = [{"qps": t.qps, "accuracy": t.expected.accuracy, "violation": t.expected.violation} for t in tables]
    if as_json:
        print_json({"tables": rows, "cpu_s": cpu_s, "folder": str(output)})
        return
    shown = Table(title=f"{len(tables)} tables in {output}, {cpu_s:.1f} s CPU")
    for name in ("queries/s", "accuracy", "violation"):
        shown.add_column(name, justify="right")
    for row in rows:
        shown.add_row(f"{row['qps']:.1f}", f"{row['accuracy']:.4f}", f"{row['violation']:.2g}")
    out.print(shown)


def show(
    table: Annotated[Path, typer.Argument(help="A table that generate or library wrote.")],
    picture: Annotated[Path | None, typer.Option("--png", help="Where the picture goes (default: beside it).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw a table: queue length across slack, one colour a variant."""
    from sluicegate.sluice.offline.table_heatmap import png, terminal, title

    with one_line_errors():
        require_plots()
        found = read_table(table)
        target = picture or table.with_suffix(".png")
        write_bytes(target, png(found))
    if as_json:
        print_json({**_document(found, len(found.actions) + 1, None, table), "png": str(target)})
        return
    out.print(f"[bold]{title(found)}[/]  {found.fingerprint}")
    out.print(terminal(found, min(out.width, 110)))
    _show_expectations(found)
    out.print(f"picture: {target}")


def size(
    profiles: ProfilesOption,
    app: AppOption,
    slo_ms: SloOption,
    qps: QpsOption,
    accuracy: Annotated[float, typer.Option("--accuracy", help="At least, per query in time, 0..1.")],
    max_violation: Annotated[float, typer.Option("--max-violation", help="At most, 0..1.")] = 0.01,
    most: Annotated[int, typer.Option("--most", help="Workers there can be.")] = 1000,
    criterion: CriterionOption = "query",
    price: PriceOption = 0.5,
    grid: GridOption = "100",
    queue: QueueOption = 32,
    device_type: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the fewest workers whose table promises the targets."""
    from sluicegate.planner.mdp.table_sizing import fewest_workers

    with one_line_errors():
        model = model_of(
            Question(profiles, app, device_type, slo_ms, 1, qps, criterion, price, grid, queue,
                     1.0, "round_robin", None, "maximal", "serve", 1)
        )  # fmt: skip
        started = process_time()
        sized = fewest_workers(model, accuracy=accuracy, violation=max_violation, most=most, app=app)
        cpu_s = process_time() - started
    if as_json:
        tried = [{"workers": k, "accuracy": a, "violation": v} for k, a, v in sized.tried] if sized else []
        print_json({"workers": sized.workers if sized else None, "tried": tried, "cpu_s": cpu_s})
    elif sized:
        out.print(f"[bold]{sized.workers}[/] worker{'s' if sized.workers > 1 else ''} ({cpu_s:.1f} s CPU)")
        _show_expectations(sized.table)
    else:
        why = f" ({escape(model.never_in_time)})" if model.never_in_time else ""
        out.print(
            f"[red]even {most} workers do not promise accuracy {accuracy:g} with violations {max_violation:g}[/]{why}"
        )
    if sized is None:
        raise typer.Exit(EXIT_FAILED)


def _document(table: SelectionTable, states: int, cpu_s: float | None, file: Path | None) -> dict[str, Any]:
    from sluicegate.sluice.offline.table_heatmap import actions

    codes = [actions(table, phase).tolist() for phase in range(table.phases)]
    return {
        "expected_accuracy": table.expected.accuracy,
        "expected_violation": table.expected.violation,
        "states": states,
        "cpu_s": cpu_s,
        "table": {
            "file": str(file) if file else None,
            "fingerprint": table.fingerprint,
            "variants": table.variants,
            "slacks_ms": [1e3 * s for s in table.slacks],
            "actions": codes[0] if table.phases == 1 else codes,
            "batches": list(table.batches) or None,
        },
        "expected": table.expected,
        "assumptions": table.assumptions,
    }


def _show_expectations(table: SelectionTable, never_in_time: str = "") -> None:
    e = table.expected
    shown = Table(title="what it promises")
    for name in ("", "mean", "median", "99 %"):
        shown.add_column(name, justify="right" if name else "left")
    for name, spread, factor in (
        ("accuracy (late: 0)", e.accuracy_spread, 1.0),
        ("queries a batch", e.batch_spread, 1.0),
        ("answered after, ms", e.response_spread, 1e3),
    ):
        shown.add_row(name, *(f"{factor * x:.4g}" for x in (spread.mean, spread.median, spread.p99)))
    out.print(shown)
    out.print(f"accuracy {e.accuracy:.5f}, violation {e.violation:.3g}, utilisation {e.utilisation:.1%}")
    if never_in_time:
        out.print(f"[yellow]nothing is in time: {escape(never_in_time)}[/]")
    elif e.violation > _LOOSE:
        out.print(
            f"[yellow]{table.qps:g} queries/s are more than {table.workers} such workers can hold: the bound on "
            "violations is loose here, and running workers would fall back on the fastest variant and drop early[/]"
        )

"""``sluice describe tables``: what the tables of a run promised, beside what came of it."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sluicegate.domain.table import SelectionTable, TableObserved
from sluicegate.planner.policy_tables.promise_monitor import Held, held
from sluicegate.sluice.catalogue.run_folders import open_broker
from sluicegate.sluice.console import EXIT_FAILED, JsonOption, one_line_errors, out, print_json
from sluicegate.sluice.offline.table_check import counted, published
from sluicegate.sluice.settings.settings import load
from sluicegate.streams.ports import Broker
from sluicegate.streams.topics import Topics

Tables = dict[tuple[str, float], SelectionTable]


def tables(
    run: Annotated[Path | None, typer.Argument(help="Folder of a finished run.")] = None,
    broker: Annotated[str | None, typer.Option(help="Broker to read.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Topic prefix.")] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare promises with what workers counted; exit code 1 where one was not held."""
    with one_line_errors():
        chosen = load(settings, prefix=prefix)
        promised, seen = asyncio.run(_read(open_broker(chosen, run, broker), Topics(chosen.prefix)))
        shelves: dict[tuple[str, str, float], list[TableObserved]] = {}
        for o in seen:
            shelves.setdefault((o.app, o.worker_class, o.slo), []).append(o)
        found = {shelf: kept for shelf, told in sorted(shelves.items()) if (kept := held(told, promised)) is not None}
    if as_json:
        print_json({"shelves": [_document(shelf, kept) for shelf, kept in found.items()]})
    elif found:
        out.print(_table(found))
    else:
        out.print("no selection table was in force; tables are used where worker.batching is table")
    if not all(kept.accuracy_held and kept.violation_held for kept in found.values()):
        raise typer.Exit(EXIT_FAILED)


async def _read(broker: Broker, topics: Topics) -> tuple[Tables, tuple[TableObserved, ...]]:
    try:
        return await published(broker, topics), await counted(broker, topics)
    finally:
        await broker.close()


def _document(shelf: tuple[str, str, float], kept: Held) -> dict[str, Any]:
    app, worker_class, slo = shelf
    is_held = {"accuracy_held": kept.accuracy_held, "violation_held": kept.violation_held}
    return {"app": app, "worker_class": worker_class, "slo_s": slo, **asdict(kept), **is_held}


def _table(found: dict[tuple[str, str, float], Held]) -> Table:
    shown = Table(title="promised and observed")
    for name in ("app, workers, SLO", "queries", "accuracy", "observed", "violation", "by hops", "observed", "held"):
        shown.add_column(name, justify="left" if name.startswith("app") else "right")
    for (app, worker_class, slo), kept in found.items():
        is_held = kept.accuracy_held and kept.violation_held
        shown.add_row(
            f"{app}, {worker_class}, {1e3 * slo:g} ms",
            str(kept.queries),
            f"{kept.expected_accuracy:.4f}",
            f"{kept.observed_accuracy:.4f} +-{kept.standard_error:.4f}",
            f"{kept.expected_violation:.2g}",
            f"{kept.delayed:.2g}",
            f"{kept.observed_violation:.2g}",
            "[green]yes[/]" if is_held else "[red]no[/]",
        )
    return shown

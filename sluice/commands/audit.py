"""``sluice audit``: prove from the topics that every query has exactly one outcome."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sluice.audit import AuditReport, read_topics
from sluice.console import EXIT_FAILED, JsonOption, one_line_errors, out, print_json
from sluice.places import open_broker
from sluice.settings import load
from streams.ports import Broker
from streams.topics import Topics


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit")(audit)


def audit(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a finished run (default: the newest, or --broker).")
    ] = None,
    broker: Annotated[str | None, typer.Option(help="Broker to audit instead of a finished run.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Topic prefix.")] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Reconcile query, result and dead-letter topics: lost, duplicated, unknown, late unmarked. Exit 1 on any."""
    with one_line_errors():
        chosen = load(settings, prefix=prefix)
        report = asyncio.run(_audit(open_broker(chosen, run, broker), Topics(chosen.prefix)))
    if as_json:
        print_json({**asdict(report), "balanced": report.balanced})
    else:
        out.print(table(report))
    if not report.balanced:
        raise typer.Exit(EXIT_FAILED)


async def _audit(broker: Broker, topics: Topics) -> AuditReport:
    try:
        return (await read_topics(broker, topics)).report()
    finally:
        await broker.close()


def table(report: AuditReport) -> Table:
    """The report as a terminal table."""
    shown = Table(title="Audit: balanced" if report.balanced else "Audit: NOT balanced")
    shown.add_column("what")
    shown.add_column("count", justify="right")
    shown.add_column("for example")
    rows = {
        "query records": report.queries,
        "outcomes": report.outcomes,
        **{f"  {kind}": count for kind, count in report.kinds.items()},
        "dead letters": report.dead_letters,
        "  of which duplicate ids": report.duplicate_ids,
        "lost": report.lost,
        "duplicates": report.duplicates,
        "unknown": report.unknown,
        "late, not marked": report.late_unmarked,
    }
    for name, count in rows.items():
        bad = name in {"lost", "duplicates", "unknown", "late, not marked"}
        style = ("red" if count else "green") if bad else ""
        key = "late_unmarked" if name.startswith("late") else name
        shown.add_row(name, str(count), ", ".join(report.examples.get(key, ())), style=style)
    return shown

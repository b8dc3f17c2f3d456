"""``sluice audit``: prove from the topics that every query has exactly one outcome."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from sluicegate.sluice.audit.fault_windows import WindowReport, read_windows
from sluicegate.sluice.audit.promise_audit import StreamReport
from sluicegate.sluice.audit.topic_audit import AuditReport, read_topics
from sluicegate.sluice.catalogue.run_folders import open_broker
from sluicegate.sluice.console import EXIT_FAILED, JsonOption, moment, one_line_errors, out, print_json, visible
from sluicegate.sluice.settings.settings import load
from sluicegate.streams.ports import Broker
from sluicegate.streams.topics import Topics

STATUS = "status"
_NOTHING = "nothing to audit"


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
    windows: Annotated[
        str | None,
        typer.Option(
            help='Tell lost, duplicated … of each fault window too: a JSON file, or "status" (devices missed).'
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Reconcile query, result and dead-letter topics: promises broken (announced or not), lost, duplicated, unknown,
    late unmarked. Exit 1 on any.
    """
    with one_line_errors():
        chosen = load(settings, prefix=prefix)
        report = asyncio.run(_audit(open_broker(chosen, run, broker), Topics(chosen.prefix), windows))
    if as_json:
        broken = {name: getattr(report, name) for name in ("promises_broken", "promises_unannounced")}
        print_json({**broken, **asdict(report), "balanced": report.balanced, "verdict": verdict(report)})
    else:
        out.print(table(report))
        if report.promises:
            out.print(promises_table(report.promises))
        if windows is not None:
            out.print(windows_table(report.windows))
    if not report.balanced or report.promises_broken:
        raise typer.Exit(EXIT_FAILED)


async def _audit(broker: Broker, topics: Topics, windows: str | None) -> AuditReport:
    try:
        given = () if windows in {None, STATUS} else read_windows(Path(str(windows)))
        audit = await read_topics(broker, topics, timed=windows is not None)
        return audit.report(audit.devices_missed() if windows == STATUS else given)
    finally:
        await broker.close()


def verdict(report: AuditReport) -> str:
    """In a word or two."""
    if not report.balanced:
        return "NOT balanced"
    return "balanced" if report.queries + report.outcomes + report.dead_letters else _NOTHING


def table(report: AuditReport) -> Table:
    """The report as a terminal table."""
    found = verdict(report)
    shown = Table(title=f"Audit: {found}")
    if found == _NOTHING:
        shown.caption = "no query was asked here; is it the broker, run or --prefix that was meant?"
    shown.add_column("what")
    shown.add_column("count", justify="right")
    shown.add_column("for example")
    silent = report.promises_unannounced
    promised = {"promises broken, unannounced": silent, "promises broken, announced": report.promises_broken - silent}
    if report.since is not None:
        shown.add_row("first query record", moment(report.since), "")
    if report.whole_since:
        whole = moment(max(report.whole_since.values()))
        shown.add_row("whole since, by retention", whole, escape(", ".join([*report.whole_since][:_TOPICS_SHOWN])))
    rows = {
        **(promised if report.promises else {}),
        "query records": report.queries,
        "outcomes": report.outcomes,
        **{f"  {kind}": count for kind, count in report.kinds.items()},
        "dead letters": report.dead_letters,
        "  of which duplicate ids": report.duplicate_ids,
        "lost": report.lost,
        "duplicates": report.duplicates,
        "unknown": report.unknown,
        "late, not marked": report.late_unmarked,
        **({"no outcome, on result topics": report.unreadable} if report.unreadable else {}),
        **({"not judged: gone by retention": report.gone_by} if report.gone_by else {}),
    }
    for name, count in rows.items():
        bad = name in {"lost", "duplicates", "unknown", "late, not marked", *promised}
        style = ("red" if count else "green") if bad else ""
        key = "late_unmarked" if name.startswith("late") else name
        shown.add_row(escape(name), str(count), escape(visible(", ".join(report.examples.get(key, ())))), style=style)
    for kind, money in report.cost.items():
        shown.add_row(escape(f"cost of instances, {kind.replace('_', ' ')}"), f"{money:.4f}", "")
    return shown


_NARROW: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0), "show_edge": False}
_NAME = 10
"""Characters that a name has a column of, at least."""
_STREAMS_SHOWN = 20
_TOPICS_SHOWN = 5


def promises_table(streams: Sequence[StreamReport]) -> Table:
    """Streams that were promised something, those with the most broken windows first."""
    shown = Table(title="Promises, recounted: windows broken", **_NARROW)
    shown.add_column("stream", overflow="fold", min_width=_NAME)
    for name in ("announced", "unan-\nnounced", "queries", "rejected", "misses"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("worst", justify="right", max_width=len("998 of 1000"))
    shown.add_column("as\ntracked", no_wrap=True)
    worst_first = sorted(streams, key=lambda s: (-s.unannounced, -s.broken, s.app, s.stream))
    for stream in worst_first[:_STREAMS_SHOWN]:
        name = stream.app if stream.stream == stream.app else f"{stream.app}/{stream.stream}"
        shown.add_row(
            escape(visible(name)),
            str(stream.broken - stream.unannounced),
            str(stream.unannounced),
            str(stream.queries),
            str(stream.rejected),
            str(stream.misses),
            "\n".join([f"{stream.mcd} in a row", *(f"{m} of {k}" for k, m in stream.worst.items())]),
            "yes" if stream.agrees else "no",
            style="red" if stream.broken else "",
        )
    if len(worst_first) > _STREAMS_SHOWN:
        shown.caption = f"and {len(worst_first) - _STREAMS_SHOWN} more"
    return shown


def windows_table(windows: Sequence[WindowReport]) -> Table:
    """One fault window a row."""
    shown = Table(title="Fault windows" if windows else "Fault windows: none", **_NARROW)
    shown.add_column("window", overflow="fold", min_width=_NAME)
    shown.add_column("began", no_wrap=True)
    for name in ("seconds", "queries", "lost", "dupli-\ncates", "late\nunmarked", "promises\nbroken"):
        shown.add_column(name, justify="right", no_wrap=True)
    for w in windows:
        counts = (w.lost, w.duplicates, w.late_unmarked, w.promises_broken)
        shown.add_row(
            escape(w.name),
            moment(w.began).replace(" ", "\n"),
            f"{w.ended - w.began:.1f}",
            *map(str, (w.queries, *counts)),
            style="red" if any(counts) else "",
        )
    return shown

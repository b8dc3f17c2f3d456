"""``sluice results``: outcomes as they come."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from heapq import heappush, heappushpop
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.markup import escape

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.outcome import Outcome
from sluicegate.sluice.audit.result_log import follow_results, nothing_there, read_results, result_topics
from sluicegate.sluice.catalogue.run_folders import open_broker
from sluicegate.sluice.console import JsonOption, err, one_line_errors, out, visible
from sluicegate.sluice.settings.settings import load
from sluicegate.streams.ports import Broker, Record, Unreadable
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics

_MALFORMED = 1000
"""Bytes that are shown of what is no outcome."""
_SOURCES = 8
"""Sources that are told where the one that was asked for has none."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("results")(results)


def results(
    run: Annotated[Path | None, typer.Argument(help="Folder of a finished run.")] = None,
    app: Annotated[list[str] | None, typer.Option("--app", help="Only this app; may be given again.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="Only what this ce_source has asked.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as outcomes come; end with Ctrl-C.")] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the newest so many; with --follow: stop after so many.")
    ] = None,
    broker: Annotated[str | None, typer.Option(help="Broker to read.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Topic prefix.")] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print outcomes, a line each (with --json a JSON object each)."""
    with one_line_errors():
        chosen = load(settings, prefix=prefix)
        where = open_broker(chosen, run, broker)
        try:
            asyncio.run(_print(where, Topics(chosen.prefix), tuple(app or ()), source, follow, limit, as_json))
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


async def _print(
    broker: Broker,
    topics: Topics,
    apps: tuple[str, ...],
    asked_by: str | None,
    follow: bool,
    limit: int | None,
    as_json: bool,
) -> None:
    try:
        partitions = await result_topics(broker, topics, apps)
        if not partitions:
            raise nothing_there(broker, topics, "result topics")
        others: set[str] = set()
        damaged = partial(_show, as_json=as_json)
        if follow:
            found = follow_results(broker, topics, apps, damaged=damaged)
        else:
            found = read_results(broker, partitions, follow=False, damaged=damaged)
        records = _of_source(found, asked_by, others)
        if limit is not None and not follow:
            newest = await _newest(records, limit)
            for record in newest:
                _show(record, as_json)
            printed = len(newest)
        else:
            printed = 0
            async for record in records:
                _show(record, as_json)
                printed += 1
                if printed == limit:
                    return
        if not printed and asked_by is not None and others:
            some = ", ".join(sorted(others)[:_SOURCES])
            raise InvalidInputError("--source", f"{asked_by!r:.80} has no outcomes there; sources that have: {some}")
        if not printed:
            err.print("no outcomes yet", highlight=False)
    finally:
        await broker.close()


async def _newest(records: AsyncIterator[Record], limit: int) -> list[Record]:
    """The last ``limit`` to be written, oldest first. Holds no more than these, however many there are."""
    kept: list[tuple[float, int, Record]] = []
    number = 0
    async for record in records:
        number += 1
        entry = (record.timestamp, number, record)
        if len(kept) < limit:
            heappush(kept, entry)
        else:
            heappushpop(kept, entry)
    return [record for _, _, record in sorted(kept)]


async def _of_source(records: AsyncIterator[Record], source: str | None, others: set[str]) -> AsyncIterator[Record]:
    """Those of ``source``; ``others``: grows by some of the other sources."""
    async for record in records:
        asked_by = codec.query_source_of(record)
        if source in (None, asked_by):
            yield record
        elif len(others) < _SOURCES:
            others.add(asked_by)


def _show(record: Record, as_json: bool) -> None:
    if as_json:
        typer.echo(_json(record).decode())
    else:
        out.print(_shown(record), highlight=False, soft_wrap=True)


def _decoded(record: Record) -> Outcome:
    """Raises InvalidInputError for what is no outcome."""
    if isinstance(record, Unreadable):
        raise InvalidInputError("record", f"cannot be read: {record.why}")
    return codec.decode_outcome(record).outcome


def _json(record: Record) -> bytes:
    try:
        _decoded(record)
    except InvalidInputError as error:
        value = (record.value or b"")[:_MALFORMED].decode(errors="replace")
        return orjson.dumps({"malformed": value, "place": record.place, "why": str(error)})
    return codec.outcome_json(record)


def _shown(record: Record) -> str:
    try:
        return line(_decoded(record))
    except InvalidInputError as error:
        return f"[red]unreadable[/] {record.place}: {escape(visible(str(error)))}"


def line(outcome: Outcome) -> str:
    """An outcome in one line, in Rich's markup."""
    mark = "late" if outcome.late else outcome.kind.value
    colour = "green" if outcome.on_time else "yellow" if outcome.late else "red"
    text = f"{outcome.query_id}  {outcome.app}  {1e3 * outcome.took:8.1f} ms"
    if outcome.variant:
        text += f"  {outcome.variant} ({100 * outcome.accuracy:.1f} %)  {outcome.device}  batch {outcome.batch_size}"
    if outcome.reason:
        text += f"  {outcome.reason}"
    if outcome.detail:
        text += f"  {outcome.detail}"
    return f"[{colour}]{mark:9}[/] {escape(visible(text))}"

"""``sluice dead-letters``: what could not be understood, and asking it again once it can be."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.sluice.audit.dead_letter_replay import (
    MAX_REPLAYS,
    Chosen,
    Replay,
    ReplayBook,
    read_replays,
    write_replays,
)
from sluicegate.sluice.audit.result_log import nothing_there
from sluicegate.sluice.catalogue.run_folders import open_broker
from sluicegate.sluice.console import JsonOption, err, moment, one_line_errors, out, print_json, visible
from sluicegate.sluice.settings.settings import load
from sluicegate.streams.ports import Broker
from sluicegate.streams.records.cloudevents import parse_time
from sluicegate.streams.topics import Topics

_SHOWN = 40

dead_letters = typer.Typer(
    name="dead-letters", help="List what could not be understood; ask it again.", no_args_is_help=True
)

AppsOption = Annotated[
    list[str] | None, typer.Option("--app", help="Only what came by this app's topics; may be given again.")
]
ReasonsOption = Annotated[
    list[str] | None, typer.Option("--reason", help="Only this reason, such as invalid; may be given again.")
]
SinceOption = Annotated[str | None, typer.Option(help="Only those found from this time on (RFC 3339).")]
UntilOption = Annotated[str | None, typer.Option(help="Only those found up to this time (RFC 3339).")]
BrokerOption = Annotated[str | None, typer.Option(help="Broker (default: a running `sluice up`).")]
PrefixOption = Annotated[str | None, typer.Option(help="Topic prefix.")]
SettingsOption = Annotated[Path | None, typer.Option(help="Settings file (YAML).")]
MostOption = Annotated[int, typer.Option(min=1, max=1000, help="A record is asked again so often at most.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(dead_letters)


@dead_letters.command("list")
def list_(
    run: Annotated[Path | None, typer.Argument(help="Folder of a finished run.")] = None,
    app: AppsOption = None,
    reason: ReasonsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    max_replays: MostOption = MAX_REPLAYS,
    broker: BrokerOption = None,
    prefix: PrefixOption = None,
    settings: SettingsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show dead letters, the newest last, and whether each could be asked again."""
    with one_line_errors():
        chosen = load(settings, prefix=prefix)
        book = ReplayBook(Topics(chosen.prefix), _chosen(app, reason, since, until), max_replays)
        found = asyncio.run(_look(open_broker(chosen, run, broker), book, write=False))
    if as_json:
        print_json({"dead_letters": [_row(one) for one in found]})
    else:
        _show(found, f"{len(found)} dead letters")
    _tell_others(found, book)


@dead_letters.command()
def replay(
    app: AppsOption = None,
    reason: ReasonsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be written.")] = False,
    max_replays: MostOption = MAX_REPLAYS,
    broker: BrokerOption = None,
    prefix: PrefixOption = None,
    settings: SettingsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the records behind dead letters to their query topics again, as they were, with their ids.

    What has an outcome, waits for one, or was replayed before is passed over. Goes on where it was interrupted when it
    is called again.
    """
    with one_line_errors():
        chosen = load(settings, prefix=prefix)
        book = ReplayBook(Topics(chosen.prefix), _chosen(app, reason, since, until), max_replays)
        where = open_broker(chosen, None, broker)
        if where.url.startswith("file://") and not dry_run:
            raise ConfigurationError("nothing to write to: start `sluice up`, or give --broker kafka://host:port")
        found = asyncio.run(_look(where, book, write=not dry_run))
    refused = sum(bool(one.refused) for one in found)
    written = 0 if dry_run else len(found) - refused
    if as_json:
        counts = {"written": written, "refused": refused, "dry_run": dry_run}
        print_json({**counts, "dead_letters": [_row(one) for one in found]})
    else:
        would = f"{len(found) - refused} would be written again" if dry_run else f"{written} written again"
        _show(found, f"{would}, {refused} refused")
    _tell_others(found, book)


async def _look(broker: Broker, book: ReplayBook, *, write: bool) -> Sequence[Replay]:
    try:
        found = await read_replays(broker, book)
        if not found and not book.apps:
            raise nothing_there(broker, book.topics, "topics of apps")
        if strange := sorted(book.chosen.apps - book.apps):
            there = ", ".join(sorted(book.apps)) or "none"
            raise InvalidInputError("--app", f"{strange[0]!r:.80} has no topics there; apps that have: {there}")
        return await write_replays(broker, found) if write else found
    finally:
        await broker.close()


def _chosen(apps: list[str] | None, reasons: list[str] | None, since: str | None, until: str | None) -> Chosen:
    return Chosen(
        apps=frozenset(apps or ()),
        reasons=frozenset(reasons or ()),
        since=0.0 if since is None else parse_time("--since", since.encode()),
        until=float("inf") if until is None else parse_time("--until", until.encode()),
    )


def _row(one: Replay) -> dict[str, Any]:
    letter = one.letter
    topic, partition, offset = letter.origin
    return {
        "at": letter.at,
        "app": one.app,
        "id": letter.query_id,
        "reason": letter.reason,
        "field": letter.field,
        "message": letter.message,
        "stage": letter.stage,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "refused": one.refused or None,
    }


def _show(found: Sequence[Replay], told: str) -> None:
    for one in found[-_SHOWN:]:
        for line in _in_lines(one):
            out.print(escape(visible(line)), highlight=False, soft_wrap=True)
    more = f" (the newest {_SHOWN} are shown)" if len(found) > _SHOWN else ""
    out.print(told + more, highlight=False)


def _tell_others(found: Sequence[Replay], book: ReplayBook) -> None:
    """Where none is meant, which there are: of a mistyped reason or app there are none either."""
    if not found and book.others:
        told = f"none is of these apps, reasons and times; there are: {', '.join(sorted(book.others))}"
        err.print(visible(told), markup=False, highlight=False, soft_wrap=True)


def _in_lines(one: Replay) -> tuple[str, ...]:
    letter = one.letter
    named = "  ".join(filter(None, (moment(letter.at), "/".join(map(str, letter.origin)), letter.query_id)))
    again = f"no, {one.refused}" if one.refused else "yes"
    return named, f"  {letter.reason}: {letter.message[:200]}", f"  asked again: {again}"

"""``sluice describe topics``: what is on the broker, what each topic carries, who writes and reads it."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sluicegate.sluice.catalogue.documented_apps import app_names, topic_specs
from sluicegate.sluice.console import JsonOption, one_line_errors, out, print_json
from sluicegate.sluice.settings.settings import Settings, load
from sluicegate.streams.describe.topic_listing import TopicInfo, as_markdown, listed
from sluicegate.streams.topics import Topics


def topics(
    app: Annotated[list[str] | None, typer.Option("--app", help="For this app; may be given again.")] = None,
    device: Annotated[list[str] | None, typer.Option("--device", help="For this device; may be given again.")] = None,
    broker: Annotated[str | None, typer.Option(help="kafka://host:port")] = None,
    prefix: Annotated[str | None, typer.Option(help="Topic prefix.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page.")] = False,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the topics of a system: what each carries, who writes and reads it."""
    with one_line_errors():
        chosen = load(settings, broker=broker, prefix=prefix)
        names = app_names(chosen, app or ())
        found = listed(Topics(chosen.prefix), names, topic_specs(chosen, names, device or ()))
    if as_json:
        copies = {"replication": chosen.kafka.replication, "min_insync_replicas": chosen.kafka.min_insync_replicas}
        print_json({"topics": [asdict(info) for info in found], **copies})
    elif markdown:
        typer.echo(as_markdown(found), nl=False)
    else:
        out.print(_table(found, chosen))


def _table(found: tuple[TopicInfo, ...], settings: Settings) -> Table:
    copies, least = settings.kafka.replication, settings.kafka.min_insync_replicas
    told = f"copies: {copies or 'as the broker does'}, in sync at least: {least or 'as the broker does'}"
    shown = Table("topic", "key", "kept", "written by", "read by", title="sluice describe topics", caption=told)
    for info in found:
        shown.add_row(info.name, info.key, info.kept, ", ".join(info.writers), ", ".join(info.readers))
    return shown

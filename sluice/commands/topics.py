"""``sluice topics``: what is on the broker, what each topic carries, who writes and reads it; and creating them."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.catalogue.documented_apps import app_names
from sluicegate.sluice.catalogue.run_folders import connected
from sluicegate.sluice.console import JsonOption, one_line_errors, out, print_json
from sluicegate.sluice.settings.settings import Settings, load
from sluicegate.streams.describe.topic_listing import TopicInfo, as_markdown, listed
from sluicegate.streams.ports import TopicSpec
from sluicegate.streams.topics import Topics


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("topics")(topics)


def topics(
    app: Annotated[list[str] | None, typer.Option("--app", help="For this app; may be given again.")] = None,
    device: Annotated[list[str] | None, typer.Option("--device", help="For this device; may be given again.")] = None,
    create: Annotated[bool, typer.Option("--create", help="Create those that do not exist.")] = False,
    broker: Annotated[str | None, typer.Option(help="kafka://host:port")] = None,
    prefix: Annotated[str | None, typer.Option(help="Topic prefix.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page.")] = False,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the topics of a system, or create them."""
    with one_line_errors():
        chosen = load(settings, broker=broker, prefix=prefix)
        names = app_names(chosen, app or ())
        devices = device or [d.name for d in chosen.all_devices()]
        specs = Topics(chosen.prefix).specs(
            names,
            devices,
            partitions=chosen.partitions_of(names),
            demand_partitions=chosen.planner.demand_partitions,
            retention=chosen.retention.retention(),
        )
        if create:
            asyncio.run(_create(chosen, specs))
        found = listed(Topics(chosen.prefix), names, specs)
    if as_json:
        copies = {"replication": chosen.kafka.replication, "min_insync_replicas": chosen.kafka.min_insync_replicas}
        print_json({"topics": [asdict(info) for info in found], **copies, "created": create})
    elif markdown:
        typer.echo(as_markdown(found), nl=False)
    else:
        out.print(_table(found, chosen))


async def _create(settings: Settings, specs: tuple[TopicSpec, ...]) -> None:
    if not settings.broker.startswith("kafka://"):
        raise ConfigurationError("--create needs a broker: give --broker kafka://host:port")
    broker = connected(settings)
    try:
        await broker.admin().create_topics(specs)
    finally:
        await broker.close()


def _table(found: tuple[TopicInfo, ...], settings: Settings) -> Table:
    copies, least = settings.kafka.replication, settings.kafka.min_insync_replicas
    told = f"copies: {copies or 'as the broker does'}, in sync at least: {least or 'as the broker does'}"
    shown = Table("topic", "key", "kept", "written by", "read by", title="sluice topics", caption=told)
    for info in found:
        shown.add_row(info.name, info.key, info.kept, ", ".join(info.writers), ", ".join(info.readers))
    return shown

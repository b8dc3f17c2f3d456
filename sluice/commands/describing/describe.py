"""``sluice describe``: access rules, schemas and metrics as documents; tables' promises."""

import typer

from sluicegate.sluice.commands.describing.acls import acls
from sluicegate.sluice.commands.describing.asyncapi import asyncapi
from sluicegate.sluice.commands.describing.commands import commands
from sluicegate.sluice.commands.describing.metrics import metrics
from sluicegate.sluice.commands.describing.settings import settings
from sluicegate.sluice.commands.describing.tables import tables


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(name="describe", help="Describe the system to those who maintain it.", no_args_is_help=True)
    group.command("acls")(acls)
    group.command("asyncapi")(asyncapi)
    group.command("commands")(commands)
    group.command("metrics")(metrics)
    group.command("settings")(settings)
    group.command("tables")(tables)
    app.add_typer(group)

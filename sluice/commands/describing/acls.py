"""``sluice describe acls``: what each role may do on the broker, as a list, as the broker's commands, or as a page."""

from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.catalogue.documented_apps import app_names
from sluicegate.sluice.console import JsonOption, one_line_errors, out, print_json
from sluicegate.sluice.settings.settings import load
from sluicegate.streams.describe.acls import ROLES, as_markdown, commands, rules
from sluicegate.streams.topics import Topics


def acls(
    app: Annotated[list[str] | None, typer.Option("--app", help="For this app; may be given again.")] = None,
    role: Annotated[list[str] | None, typer.Option("--role", help=f"Only this one of {', '.join(ROLES)}.")] = None,
    user: Annotated[str, typer.Option(help="Users are named <user>-<role>.")] = "sluice",
    shell: Annotated[bool, typer.Option("--shell", help="Print commands of kafka-acls.sh.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page.")] = False,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what each role may do on Apache Kafka, and no more."""
    with one_line_errors():
        chosen = load(settings)
        unknown = set(role or ()) - set(ROLES)
        if unknown:
            raise ConfigurationError(f"role {sorted(unknown)[0]!r} is unknown; choose of {', '.join(ROLES)}")
        found = rules(Topics(chosen.prefix), app_names(chosen, app or ()))
        found = tuple(rule for rule in found if not role or rule.role in role)
        server = chosen.broker.removeprefix("kafka://") if chosen.broker.startswith("kafka://") else "localhost:9092"
    if as_json:
        print_json({"user": user, "rules": [asdict(rule) for rule in found]})
    elif markdown:
        typer.echo(as_markdown(found), nl=False)
    elif shell:
        typer.echo("\n".join(commands(found, user=user, server=server)))
    else:
        for each, its in groupby(found, lambda rule: rule.role):
            shown = Table(title=f"{user}-{each}", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
            shown.add_column("may", no_wrap=True)
            shown.add_column("on", no_wrap=True)
            shown.add_column("name", overflow="fold")
            for rule in its:
                name = f"{rule.name}{'*' if rule.prefixed else ''}"
                shown.add_row(", ".join(rule.operations), rule.resource, name)
            out.print(shown)

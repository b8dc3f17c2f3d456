"""``sluice describe settings``: every setting, for reading or as the reference page."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from sluicegate.sluice.console import JsonOption, out, print_json
from sluicegate.sluice.settings.settings_page import as_markdown, groups


def settings(
    name: Annotated[str, typer.Argument(help="Only those whose name contains this.")] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List every setting: what it takes, its default, its variable of the environment."""
    if markdown:
        typer.echo(as_markdown(), nl=False)
        return
    chosen = [setting for group in groups() for setting in group.settings if name in setting.name]
    if as_json:
        print_json({"settings": [asdict(setting) for setting in chosen]})
        return
    shown = Table(title="sluice describe settings")
    shown.add_column("setting", no_wrap=True)
    for column in ("takes", "default"):
        shown.add_column(column, overflow="fold")
    for setting in chosen:
        shown.add_row(setting.name, setting.kind.replace("`", ""), setting.default.replace("`", ""))
    out.print(shown)

"""``sluice describe settings``: every setting, for reading or as the reference page."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from sluicegate.profiles.formats.field_errors import meant
from sluicegate.sluice.console import JsonOption, out, print_json
from sluicegate.sluice.settings.settings_page import as_markdown, groups


def settings(
    name: Annotated[str, typer.Argument(help="Only those whose name, or variable, contains this.")] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List every setting: what it takes, its default, its variable of the environment."""
    if markdown:
        typer.echo(as_markdown(), nl=False)
        return
    every = [setting for group in groups() for setting in group.settings]
    chosen = [one for one in every if name.lower() in one.name or name.upper() in one.variable]
    if as_json:
        plain = {"kind", "default"}
        told = [{k: v.replace("`", "") if k in plain else v for k, v in asdict(one).items()} for one in chosen]
        print_json({"settings": told})
        return
    if not chosen:
        near = meant(name, [one.name for one in every])
        out.print(f"no setting has {name!r} in its name{near}", markup=False, highlight=False)
        return
    shown = Table(title="sluice describe settings")
    shown.add_column("setting", no_wrap=True)
    for column in ("takes", "default"):
        shown.add_column(column, overflow="fold")
    for setting in chosen:
        shown.add_row(setting.name, setting.kind.replace("`", ""), setting.default.replace("`", ""))
    out.print(shown)
    out.print(f"{chosen[0].name} in the environment: {chosen[0].variable}", highlight=False, soft_wrap=True)

"""``sluice describe commands``: every command with its arguments and options, for reading or as the reference page."""

from collections.abc import Iterator
from typing import Annotated

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from sluicegate.sluice.console import JsonOption, out, print_json
from sluicegate.sluice.main import COMMANDS, app, register_all

_ORDER = {name: i for i, name in enumerate(COMMANDS)}


def commands(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List every command, its arguments and options."""
    found = list(_walk(_root(), "sluice"))
    if as_json:
        print_json(
            {"commands": [{"command": path, "help": _help(one), "options": _options(one)} for path, one in found]}
        )
    elif markdown:
        typer.echo(as_markdown(), nl=False)
    else:
        for path, one in found:
            out.print(f"[bold]{path}[/]  {_help(one).partition(chr(10))[0]}", highlight=False)


def as_markdown() -> str:
    """The reference page."""
    lines = [
        "# Commands",
        "",
        "Written by `sluice describe commands --markdown` from the commands themselves; a test keeps them alike. Each",
        "has `--help`; exit codes are 0, 1 (a fault was found) and 2 (could not run), 130 where it was interrupted "
        "(`replay` and `results` end in order then, with 0).",
    ]
    for path, one in _walk(_root(), "sluice"):
        lines += ["", f"## {path}", "", _help(one)]
        options = _options(one)
        if options:
            lines += ["", "| argument or option | default | |", "|---|---|---|"]
            lines += [f"| `{o['name']}` | {_cell(o['default'])} | {_cell(o['help'])} |" for o in options]
    return "\n".join(lines) + "\n"


def _root() -> TyperGroup:
    register_all()
    found = typer.main.get_command(app)
    assert isinstance(found, TyperGroup)
    return found


def _walk(group: TyperGroup, path: str) -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    for name, one in sorted(
        group.commands.items(), key=lambda named: _ORDER.get(named[0], 0) if path == "sluice" else 0
    ):
        here = f"{path} {name}"
        if isinstance(one, TyperGroup):
            if one.invoke_without_command:
                yield here, one
            yield from _walk(one, here)
        elif isinstance(one, TyperCommand) and not one.hidden:
            yield here, one


def _help(one: TyperCommand | TyperGroup) -> str:
    return " ".join((one.help or "").replace("\b", "").split())


def _options(one: TyperCommand | TyperGroup) -> list[dict[str, str]]:
    found = []
    for given in one.params:
        if not isinstance(given, TyperOption | TyperArgument) or given.name == "help" or given.hidden:
            continue
        flag = isinstance(given, TyperOption) and given.is_flag
        names = ", ".join(given.opts) if isinstance(given, TyperOption) else given.metavar or (given.name or "").upper()
        default = "" if flag or callable(given.default) or given.default in (None, (), []) else str(given.default)
        found.append(
            {
                "name": names,
                "default": "required" if given.required else default,
                "help": " ".join((given.help or "").split()),
            }
        )
    return found


def _cell(text: str) -> str:
    return text.replace("|", "\\|")

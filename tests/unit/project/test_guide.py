"""The guide: its commands exist with the options it gives them, its links lead somewhere, its settings are settings."""

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
import typer
import yaml

from sluicegate.sluice import main
from sluicegate.sluice.settings.settings import Settings
from sluicegate.sluice.settings.settings_page import groups

ROOT = Path(__file__).resolve().parents[3]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
_BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


def commands() -> Iterator[tuple[str, str]]:
    """(page, ``sluice …`` line) of all shell blocks."""
    for page in PAGES:
        for language, block in _BLOCK.findall(page.read_text()):
            if language not in {"", "sh", "bash", "shell", "console"}:
                continue
            for line in block.replace("\\\n", " ").splitlines():
                line = re.sub(r"\s+#.*", "", line).strip().removeprefix("$ ").removesuffix(" &")
                line = re.sub(r"^(\w+=\S+ )+", "", line)
                if line.startswith("sluice ") and "…" not in line and "|" not in line:
                    yield str(page.relative_to(ROOT)), line


@pytest.fixture(scope="module")
def root() -> click.Command:
    app = typer.Typer()
    for name in main.COMMANDS:
        import_module(f"sluicegate.sluice.commands.{main.COMMANDS[name]}").register(app)
    return typer.main.get_command(app)


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())))
def test_a_documented_command_is_one(page: str, line: str, root: click.Command) -> None:
    arguments = shlex.split(line)[1:]
    command, context = root, click.Context(root, info_name="sluice")
    while hasattr(command, "get_command") and arguments:
        found = command.get_command(context, arguments[0])
        if found is None:
            break
        command, context = found, click.Context(found, info_name=arguments[0], parent=context)
        arguments = arguments[1:]
    assert command is not root, f"{page}: no such command"
    if arguments and arguments != ["--help"]:
        parser = command.make_parser(context)
        parser.parse_args(list(arguments))  # raises NoSuchOption, BadOptionUsage


def test_the_readme_names_all_commands_of_a_group(root: click.Command) -> None:
    rows = re.findall(r"^\| `sluice ([\w-]+) (\w+(?:\\\|\w+)+)`", (ROOT / "README.md").read_text(), re.MULTILINE)
    told = {group: set(names.split("\\|")) for group, names in rows}
    context = click.Context(root)
    for group in told.keys() - {"demo-apps"}:
        held = root.get_command(context, group)
        assert told[group] == {name for name, one in held.commands.items() if not one.hidden}, group
    assert {"broker", "policy", "devices", "describe"} <= told.keys()


VARIABLES = {setting.variable for group in groups() for setting in group.settings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_that_are_shown_are_settings(page: Path) -> None:
    text = page.read_text()
    for variable in re.findall(r"\bSLUICE_[A-Z_]+__[A-Z_]+\b", text):
        assert any(f"{variable}__".startswith(f"{known}__") for known in VARIABLES), variable
    for language, block in _BLOCK.findall(text):
        if language == "yaml" and "# settings.yaml" in block:
            assert set(yaml.safe_load(block)) <= set(Settings.model_fields)

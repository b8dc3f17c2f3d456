"""The page of commands holds each of them, as it is."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluicegate.sluice import main
from sluicegate.sluice.commands.describing.commands import as_markdown
from sluicegate.sluice.main import COMMANDS, app, register_all

PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "commands.md"


def test_the_page_is_what_the_commands_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == as_markdown(), (
        "write it again: sluice describe commands --markdown > docs/reference/commands.md"
    )


def test_every_command_and_option_of_the_help_is_on_it() -> None:
    register_all()
    page = as_markdown()
    for name in COMMANDS:
        assert f"## sluice {name}" in page
    said = CliRunner().invoke(app, ["plan", "--help"], env={"COLUMNS": "200"}).stdout
    for option in ("--problem", "--what-if", "--explain", "--planner"):
        assert option in said and f"`{option}`" in page


def test_an_interrupt_while_a_command_is_read_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(asked: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "register_all", interrupted)
    with pytest.raises((SystemExit, KeyboardInterrupt)) as ended:  # an interrupt that is not caught ends the suite
        main.run()
    assert isinstance(ended.value, SystemExit)
    assert ended.value.code == 130

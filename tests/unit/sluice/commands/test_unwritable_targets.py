"""Where what a command makes cannot be written it says so before the work that it would have been, not after it."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

SMALL = str(Path(__file__).resolve().parents[4] / "examples" / "scenarios" / "small.yaml")
TABLE = ["--profiles", "nowhere", "--app", "a", "--slo-ms", "9", "--workers", "2"]


@pytest.mark.parametrize(
    ("module", "work", "arguments"),
    [
        ("offline.simulate", "_watched", ["simulate", SMALL, "--report", "{}/r.html"]),
        ("offline.compare", "run_all", ["compare", SMALL, "--report", "{}/r.html"]),
        ("running.demo", "open_catalogue", ["demo", "--report", "{}/report"]),
        ("offline.policy", "process_time", ["policy", "generate", *TABLE, "--qps", "5", "--out", "{}/t.table"]),
        ("offline.policy", "process_time", ["policy", "library", *TABLE, "--out", "{}/tables"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    module: str, work: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    command = import_module(f"sluicegate.sluice.commands.{module}")
    command.register(app)

    def reached(*_: Any, **__: Any) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr(command, work, reached)
    if module == "offline.policy":
        monkeypatch.setattr(command, "model_of", lambda _: None)
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    result = CliRunner().invoke(app, [argument.format(tmp_path / "file") for argument in arguments])
    assert result.exit_code == 2, result.exception
    assert "file" in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert (tmp_path / "file").read_text(encoding="utf-8") == "kept"
    made = CliRunner().invoke(app, [argument.format(tmp_path / "new") for argument in arguments])
    assert str(made.exception) == "the work began"
    assert not [path for path in (tmp_path / "new").rglob("*") if path.is_file()], "nothing is left where it fails"

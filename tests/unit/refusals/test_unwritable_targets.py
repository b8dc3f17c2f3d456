"""Where what a command makes cannot be written it says so before the work that it would have been, not after it."""

import errno
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.commands.offline.simulate import save
from sluicegate.sluice.offline.policy_input import write_bytes

SMALL = str(Path(__file__).resolve().parents[3] / "examples" / "scenarios" / "small.yaml")
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


@pytest.mark.parametrize("write", [lambda path: save(path, "new"), lambda path: write_bytes(path, b"new")])
def test_a_full_disk_leaves_what_was_there_and_nothing_half_written(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report.html"
    report.write_text("old", encoding="utf-8")

    def half(path: Path, *_: object, **__: object) -> int:
        with path.open("wb") as file:
            file.write(b"n")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", half)
        full.setattr(Path, "write_text", half)
        with pytest.raises(ConfigurationError, match="No space left on device"):
            write(report)
    assert report.read_text(encoding="utf-8") == "old" and list(tmp_path.iterdir()) == [report]
    write(report)
    assert report.read_text(encoding="utf-8") == "new" and list(tmp_path.iterdir()) == [report]


@pytest.mark.parametrize("write", [lambda path: save(path, "new"), lambda path: write_bytes(path, b"new")])
def test_what_is_no_file_is_written_to_and_a_link_leads_where_it_did(write: Any, tmp_path: Path) -> None:
    kept, link, null = tmp_path / "kept", tmp_path / "link", tmp_path / "null"
    kept.write_text("old", encoding="utf-8")
    link.symlink_to(kept)
    null.symlink_to("/dev/null")
    for path in (link, null):
        write(path)
        assert path.is_symlink()
    assert kept.read_text(encoding="utf-8") == "new" and null.is_char_device()


@pytest.mark.virtual(False)
@pytest.mark.parametrize("asked", [["doctor"], ["describe", "settings", "--json"]], ids=" ".join)
def test_where_the_output_takes_no_more_it_is_one_line_and_exit_2(asked: list[str]) -> None:
    command = [sys.executable, "-m", "sluicegate", *asked]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, text=True)
    assert ended.returncode == 2
    assert ended.stderr == "error standard output: No space left on device; what was to be told is not\n"

"""``sluice simulate`` and ``sluice compare``: notes and reports are told where JSON is asked for too."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluicegate.simulator.scenario import experiment
from sluicegate.sluice.main import app, register_all

SMALL = str(Path(__file__).resolve().parents[5] / "examples" / "scenarios" / "small.yaml")


def told(*asked: str) -> dict[str, Any]:
    register_all(asked[0])
    ended = CliRunner().invoke(app, [*asked, "--json", "--set", "duration_s=4"])
    assert ended.exit_code == 0, ended.output
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_that_the_bound_is_left_out_is_in_their_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = ("compare", SMALL, "--policies", "eager,adaptive", "--seeds", "1", "--jobs", "1")
    report = ("--report", str(tmp_path / "page.html"))
    assert ["notes" in one for one in told(*compared, *report).values()] == [False, False], "nothing is to be known"
    assert "notes" not in told("simulate", SMALL)
    monkeypatch.setattr(experiment, "MOST_BOUNDED", 3)
    left_out = ["no clairvoyant bound: it has all arrivals in memory, and is left out above 3"]
    assert told("simulate", SMALL)["notes"] == left_out
    assert {name: one["notes"] for name, one in told(*compared, *report).items()} == {
        "eager": left_out,
        "adaptive": left_out,
    }


def test_where_a_report_was_written_is_told_beside_json(tmp_path: Path) -> None:
    page = tmp_path / "a page.html"
    assert told("simulate", SMALL, "--report", str(page))["report"] == str(page)
    register_all("compare")
    asked = ["compare", SMALL, "--policies", "eager", "--seeds", "1", "--jobs", "1", "--json", "--set", "duration_s=4"]
    ended = CliRunner().invoke(app, [*asked, "--report", str(page)])
    assert json.loads(ended.stdout).keys() == {"eager"}
    assert f"report: {page}" in ended.stderr

"""``sluice demo``: what it refuses before any model is made, and where its JSON says the rest is."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sluicegate.sluice.commands.running import demo
from sluicegate.sluice.settings.settings import Settings

app = typer.Typer()
demo.register(app)


def test_emulated_gpus_are_refused_before_any_model_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("SLUICE_HOME", str(home))
    monkeypatch.setenv("SLUICE_FAKE_GPU", "a100x2")
    monkeypatch.setenv("SLUICE_CATALOGUE", str(tmp_path / "none"))  # whoever goes on to the models fails by this
    ended = CliRunner().invoke(app, ["--report", str(tmp_path / "report")])
    assert ended.exit_code == 2 and not home.exists()
    assert ended.stderr.startswith("error fake_gpu a100x2: the demo runs its models"), ended.stderr
    assert "leave it out" in ended.stderr


def test_its_json_says_where_report_run_and_topics_are() -> None:
    settings = Settings(broker="kafka://h:1", prefix="my.demo-3")
    told = demo.document({"queries": 7}, Path("reports/x/index.html"), Path("/runs/9"), settings)
    where = {"report": "reports/x/index.html", "run": "/runs/9", "broker": "kafka://h:1", "prefix": "my.demo-3"}
    assert told == {"queries": 7, **where}

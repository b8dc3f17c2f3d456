"""A stage that is not there is said before anything is built or written, and what stages lack that others bring."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluicegate.sluice.commands.running.up import lacking, portless
from sluicegate.sluice.main import app, register_all
from sluicegate.sluice.settings.settings import load


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["routr"], "stage 'routr' is unknown; choose of http, grpc, admission"),
        (["sink", "wroker"], "did you mean worker?"),
    ],
)
def test_up_refuses_a_stage_that_is_not_there_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], said: str
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("SLUICE_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    register_all("up")
    refused = CliRunner().invoke(app, ["up", *asked])
    assert refused.exit_code != 0
    assert said in " ".join(refused.output.split())
    assert not home.exists()


@pytest.mark.parametrize(
    ("broker", "roles", "missing"),
    [
        ("memory://", ["grpc"], "admission, router, worker, planner"),
        ("memory://", ["worker", "grpc", "planner"], "admission, router"),
        ("memory://", ["grpc", "admission", "router", "worker", "planner"], ""),
        ("memory://", [], ""),
        ("kafka://127.0.0.1:9092", ["grpc"], ""),
    ],
)
def test_what_stages_on_the_embedded_broker_lack_is_said_for_no_other_process_brings_it(
    broker: str, roles: list[str], missing: str
) -> None:
    said = lacking(broker, roles)
    assert f"it has no {missing}: name them too" in said if missing else said == ""


def test_what_is_set_of_an_endpoint_that_has_no_port_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert portless(load(), []) == []
    monkeypatch.setenv("SLUICE_GRPC__HOST", "0.0.0.0")
    said = "grpc.host does nothing without grpc.port: set SLUICE_GRPC__PORT"
    assert portless(load(), []) == [said]
    assert portless(load(), ["grpc"]) == [], "it runs, on any free port"
    monkeypatch.setenv("SLUICE_METRICS__RATE", "5")
    assert portless(load(), ["worker"]) == ["metrics.rate does nothing without metrics.port: set SLUICE_METRICS__PORT"]
    monkeypatch.setenv("SLUICE_GRPC__PORT", "0")
    monkeypatch.setenv("SLUICE_METRICS__PORT", "0")
    assert portless(load(), []) == []

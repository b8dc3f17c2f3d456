"""A stage that is not there is said before anything is built or written."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluicegate.sluice.main import app, register_all


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

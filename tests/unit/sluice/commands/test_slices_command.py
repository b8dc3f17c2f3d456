"""Scenarios of PROTEAN's world: what compares them, and ``sluice compare``, which hands them on to it."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from reproduce.protean.compare import compare as compare_proteans
from sluicegate.sluice.commands.offline import compare, simulate

WIKI = str(Path(__file__).parents[4] / "examples" / "scenarios" / "protean-wiki.yaml")
SHORT = ("--set", "duration_s=6", "--set", "warm_up_s=2", "--jobs", "1")
FROM_THE_REPOSITORY = (Path(compare.sluice.__file__).resolve().parents[1] / "reproduce").is_dir()
app = typer.Typer()
compare.register(app)
simulate.register(app)
proteans = typer.Typer()
proteans.command()(compare_proteans)


def test_json_has_the_figures_of_each_system_for_each_seed() -> None:
    asked = [WIKI, "--json", "--policies", "joint,protean", "--seeds", "2", *SHORT]
    result = CliRunner().invoke(proteans, asked)
    answer = json.loads(result.stdout)
    assert result.exit_code == 0
    assert list(answer) == ["joint", "protean"]
    wanted = {"slo_compliance_strict", "p99_strict_ms", "p99_best_effort_ms", "cost_usd", "reconfigurations", "seeds"}
    assert all(wanted <= set(one) for one in answer.values())
    assert [one["seed"] for one in answer["joint"]["by_seed"]] == [0, 1]


def test_a_table_and_a_page_come_out(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    asked = [WIKI, "--policies", "molecule", "--seeds", "1", "--report", str(page), *SHORT]
    result = CliRunner().invoke(proteans, asked)
    assert result.exit_code == 0
    assert "strict on time" in result.stdout
    assert page.read_text().count("<svg") == 3


@pytest.mark.skipif(not FROM_THE_REPOSITORY, reason="reproduce/ lies beside the product in the repository alone")
@pytest.mark.thorough
def test_the_command_hands_them_on_with_every_option(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    asked = ["compare", WIKI, "--policies", "molecule", "--seeds", "2", "--json", "--report", str(page), *SHORT]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0
    answer = json.loads(capfd.readouterr().out)
    assert list(answer) == ["molecule"]
    assert [one["seed"] for one in answer["molecule"]["by_seed"]] == [0, 1]
    assert page.read_text().count("<svg") == 3
    wrong = CliRunner().invoke(app, ["compare", WIKI, "--policies", "nobody"])
    assert wrong.exit_code == 2
    assert capfd.readouterr().err.startswith("error ")


def test_what_cannot_run_is_one_line() -> None:
    for command, asked in (
        (proteans, [WIKI, "--policies", "nobody"]),
        (proteans, [WIKI, "--policies", "joint,joint"]),
        (proteans, [WIKI, "--set", "workload.strict=nobody"]),
        (app, ["compare", WIKI, "--live"]),
        (app, ["simulate", WIKI]),
    ):
        result = CliRunner().invoke(command, asked)
        assert result.exit_code == 2
        assert result.output.startswith("error ")
        assert result.output.count("\n") == 1


def test_without_the_repository_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site-packages" / "sluicegate" / "sluice" / "__init__.py"
    monkeypatch.setattr(compare.sluice, "__file__", str(installed))
    result = CliRunner().invoke(app, ["compare", WIKI])
    assert result.exit_code == 2
    assert "needs reproduce/, which the repository has" in " ".join(result.stderr.split())

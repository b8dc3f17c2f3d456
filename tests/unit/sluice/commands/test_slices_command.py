"""``sluice compare`` on scenarios of sliced GPUs."""

import json
from pathlib import Path

import typer
from typer.testing import CliRunner

from sluicegate.sluice.commands.offline import compare, simulate

WIKI = str(Path(__file__).parents[4] / "examples" / "scenarios" / "protean-wiki.yaml")
SHORT = ("--set", "duration_s=15", "--set", "warm_up_s=3", "--jobs", "1")
app = typer.Typer()
compare.register(app)
simulate.register(app)


def test_json_has_the_figures_of_each_system_for_each_seed() -> None:
    asked = ["compare", WIKI, "--json", "--policies", "joint,protean", "--seeds", "2", *SHORT]
    result = CliRunner().invoke(app, asked)
    answer = json.loads(result.stdout)
    assert result.exit_code == 0
    assert list(answer) == ["joint", "protean"]
    wanted = {"slo_compliance_strict", "p99_strict_ms", "p99_best_effort_ms", "cost_usd", "reconfigurations", "seeds"}
    assert all(wanted <= set(one) for one in answer.values())
    assert [one["seed"] for one in answer["joint"]["by_seed"]] == [0, 1]


def test_a_table_and_a_page_come_out(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    asked = ["compare", WIKI, "--policies", "molecule", "--seeds", "1", "--report", str(page), *SHORT]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0
    assert "strict on time" in result.stdout
    assert page.read_text().count("<svg") == 3


def test_what_cannot_run_is_one_line() -> None:
    for asked in (
        ["compare", WIKI, "--policies", "nobody"],
        ["compare", WIKI, "--policies", "joint,joint"],
        ["compare", WIKI, "--live"],
        ["compare", WIKI, "--set", "workload.strict=nobody"],
        ["simulate", WIKI],
    ):
        result = CliRunner().invoke(app, asked)
        assert result.exit_code == 2
        assert result.output.startswith("error ")
        assert result.output.count("\n") == 1

"""Whole scenarios: planner, faults and commands, in simulation."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluicegate.simulator.promise_watch import PromiseFigures
from sluicegate.simulator.scenario import overridden, read_scenario, scenario_of
from sluicegate.simulator.scenario.experiment import Run, run_once, together
from sluicegate.sluice.main import app, register_all

ROOT = Path(__file__).resolve().parents[2]
SMALL = ROOT / "examples" / "scenarios" / "small.yaml"
KEYS = [
    "queries",
    "answered_on_time",
    "late",
    "expired",
    "dropped",
    "rejected",
    "failed",
    "violation_ratio",
    "right_in_time",
    "relative_right_in_time",
    "effective_accuracy",
    "relative_accuracy",
    "max_accuracy_drop",
    "goodput_qps",
    "p50_ms",
    "p99_ms",
    "planner",
    "wall_s",
    "seed",
    "bound",
]


def _small(**overrides: Any) -> Run:
    document = overridden(read_scenario(SMALL, {}), {"duration_s": 40, **overrides})
    return run_once(scenario_of(document), 3, lambda: 0.0)


def test_accuracy_gives_way_under_load_and_deadlines_do_not() -> None:
    calm = _small(**{"traces.qps": [50, 60]}).summary
    loaded = _small(**{"traces.qps": [600, 700]}).summary
    assert calm.effective_accuracy > loaded.effective_accuracy + 0.01
    assert calm.violation_ratio < 0.01
    assert loaded.violation_ratio < 0.05
    assert len(loaded.variants_used["images"]) >= 2


def test_a_failed_device_leaves_the_plan_and_its_queries_are_served_by_others() -> None:
    failure = {"simulation.failures": [{"device": "cpu0", "at_s": 12.0, "until_s": 30.0}]}
    quiet = {"traces.qps": [60, 80], "policies.batching": "eager"}
    whole, broken = _small(**quiet), _small(**quiet, **failure)
    assert broken.summary.queries == whole.summary.queries
    assert broken.epochs >= whole.epochs + 1
    # Only what was routed to the device within its timeout of 2 s can miss.
    lost = broken.summary.violation_ratio - whole.summary.violation_ratio
    assert 0.0 <= lost < 2.5 / 40 / 2


@pytest.mark.thorough
def test_a_slow_plan_is_followed_later() -> None:
    waves = {"duration_s": 30, "traces.qps": [300, 900], "traces.generator": {"period_s": 15, "spikes": 1}}
    quick, slow = _small(**waves), _small(**waves, **{"planner.latency_s": 3.0, "planner.patience_s": 60.0})
    assert slow.epochs < quick.epochs
    assert slow.summary.violation_ratio > 2 * quick.summary.violation_ratio > 0.0


@pytest.mark.thorough
def test_equal_seeds_give_equal_figures_with_the_planner_in_another_process() -> None:
    command = [
        sys.executable,
        "-m",
        "sluicegate.sluice.main",
        "simulate",
        str(SMALL),
        "--set",
        "duration_s=30",
        "--json",
    ]
    environment = {**os.environ, "PYTHONHASHSEED": "12"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, env=environment)
    printed = json.loads(done.stdout)
    assert list(printed) == KEYS
    assert list(printed["planner"]) == ["solves", "p50_ms", "p95_ms"]
    here = run_once(
        scenario_of(overridden(read_scenario(SMALL, {}), {"duration_s": 30})),
        printed["seed"],
        lambda: 0.0,
        with_bound=True,
    ).figures()
    for key in KEYS:
        if key not in {"planner", "wall_s"}:
            assert printed[key] == here[key], key
    assert printed["planner"]["solves"] == here["planner"]["solves"]
    ends = sum(printed[k] for k in ("answered_on_time", "late", "expired", "dropped", "rejected", "failed"))
    assert ends == printed["queries"]


def test_another_seed_is_another_market() -> None:
    """Half of what is asked for on spot is refused: what runs instead costs ten times as much."""
    devices = [{"type": "gpu", "count": 8, "price": 1.0, "spot": True}]
    notices = [{"device": f"gpu{n}", "at_s": 2.0, "deadline_s": 12.0} for n in range(8)]
    market = {"on_demand_price": 10.0, "p_rev": 0.5, "boot_s": 1.0, "interval_s": 500.0, "notices": notices}
    changes = {"duration_s": 20, "traces.qps": [5, 5], "devices": devices, "procurement": market}
    scenario = scenario_of(overridden(read_scenario(SMALL, {}), changes))
    paid = [run_once(scenario, seed, lambda: 0.0).cost for seed in (1, 2, 3, 1)]
    assert paid[0] == paid[3] and len({*paid}) > 1


@pytest.fixture(scope="module")
def cli() -> CliRunner:
    register_all()
    return CliRunner()


def test_systems_are_compared_on_the_same_arrivals(cli: CliRunner, tmp_path: Path) -> None:
    report = tmp_path / "r" / "index.html"
    arguments = ["compare", str(SMALL), "--seeds", "2", "--policies", "eager,deadline"]
    arguments += ["--set", "duration_s=4", "--set", "traces.qps=[600,700]"]
    result = cli.invoke(app, [*arguments, "--report", str(report), "--jobs", "1", "--json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert list(printed) == ["eager", "deadline"]
    assert set(KEYS) < set(printed["eager"])
    assert printed["eager"]["queries"] == printed["deadline"]["queries"]
    assert printed["eager"]["seeds"] == [1, 2]
    assert printed["eager"]["ci95"]["violation_ratio"] is not None
    assert printed["eager"]["bound"] == printed["deadline"]["bound"]
    assert 0.0 in {printed["eager"]["distance_closed"], printed["deadline"]["distance_closed"]}
    html = report.read_text(encoding="utf-8")
    assert html.count("<svg") == 7
    assert "± 95 % confidence" in html


def test_a_comparison_prints_a_table_and_a_simulation_writes_a_report(cli: CliRunner, tmp_path: Path) -> None:
    arguments = ["compare", str(SMALL), "--set", "duration_s=2", "--seeds", "2", "--jobs", "2"]
    result = cli.invoke(app, [*arguments, "--policies", "eager", "--report", str(tmp_path / "c.html")])
    assert result.exit_code == 0, result.output
    assert "violations" in result.stdout
    report = tmp_path / "s.html"
    result = cli.invoke(app, ["simulate", str(SMALL), "--set", "duration_s=4", "--report", str(report)])
    assert result.exit_code == 0, result.output
    assert "effective_accuracy" in result.stdout
    assert report.read_text(encoding="utf-8").count("<svg") == 4


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_errors_are_one_line_and_exit_2(cli: CliRunner, command: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("catalogue:\n  path: ${SLUICE_DATA}/x\n", encoding="utf-8")
    result = cli.invoke(app, [command, str(path)], env={"SLUICE_DATA": ""})
    assert result.exit_code == 2
    assert "SLUICE_DATA" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "options", [["--live", "--policies", "eager"], ["--live", "--report", "c.html"], ["--loads", "0.5"]]
)
def test_an_option_that_would_do_nothing_in_a_comparison_is_refused(cli: CliRunner, options: list[str]) -> None:
    result = cli.invoke(app, ["compare", str(SMALL), "--set", "duration_s=1", *options])
    assert result.exit_code == 2 and options[-2] in result.stderr, result.output


def test_means_over_seeds_carry_their_intervals() -> None:
    runs = [_small(**{"traces.qps": [50, 60], "duration_s": 10})] * 2
    figures = together(runs)
    assert figures["ci95"]["violation_ratio"] == 0.0
    assert figures["violation_ratio"] == runs[0].summary.violation_ratio and "promises" not in figures


def test_what_was_promised_is_counted_over_seeds_too() -> None:
    first = replace(_small(**{"traces.qps": [50, 60], "duration_s": 5}), promises=PromiseFigures(100, 3, 5, 4, 2))
    second = replace(first, seed=8, promises=PromiseFigures(100, 5, 8, 6, 2))
    means = {"queries": 100, "rejected": 4.0, "misses": 6.5, "broken_windows": 5.0, "announced": 2}
    assert together([first, second])["promises"] == means


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("trace", "arrivals", "most_violations", "least_accuracy"),
    [("zipf-exponential", 75_253, 0.01, 0.99), ("medium-normal", 112_861, 0.01, 0.985)],
)
def test_the_papers_traces_are_served_better_than_by_its_artifact(
    sluice_data: Path, trace: str, arrivals: int, most_violations: float, least_accuracy: float
) -> None:
    path = ROOT / "examples" / "scenarios" / f"proteus-{trace}.yaml"
    document = read_scenario(path, {"SLUICE_DATA": str(sluice_data)})
    summary = run_once(scenario_of(document), 0, lambda: 0.0).summary
    assert summary.queries == arrivals
    assert summary.violation_ratio < most_violations
    assert summary.effective_accuracy > least_accuracy
    for figures in document["reference"].values():
        assert summary.violation_ratio < figures["violation_ratio"]

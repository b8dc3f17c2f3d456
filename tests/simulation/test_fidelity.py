"""Live against simulated: the comparison, what it refuses, and a short run of both."""

from pathlib import Path
from typing import Any

import pytest

from domain.errors import ConfigurationError
from simulator.fidelity import Difference, difference
from simulator.scenario import Scenario, overridden, read_scenario, scenario_of
from sluice.fidelity import check, fidelity, run_live

SMALL = Path(__file__).resolve().parents[2] / "examples" / "scenarios" / "small.yaml"


def _document(**overrides: Any) -> dict[str, Any]:
    return overridden(read_scenario(SMALL, {}), overrides)


def test_differences_are_in_points_and_percent_of_the_simulated() -> None:
    live = {"effective_accuracy": 0.90, "goodput_qps": 99.0, "violation_ratio": 0.02}
    simulated = {"effective_accuracy": 0.91, "goodput_qps": 100.0, "violation_ratio": 0.01}
    apart = difference(live, simulated)
    assert apart.accuracy_points == pytest.approx(-1.0)
    assert apart.throughput_percent == pytest.approx(-1.0)
    assert apart.violation_points == pytest.approx(1.0)
    assert not apart.small
    assert Difference(0.2, -0.9, 0.9).small
    assert not Difference(0.2, float("nan"), 0.0).small


@pytest.mark.parametrize(
    "field",
    [
        {"simulation.service": "exponential"},
        {"simulation.failures": [{"device": "cpu0", "at_s": 1}]},
        {"simulation.stragglers": [{"device": "cpu0", "factor": 2}]},
        {"simulation.loads": "exclusive"},
        {"planner.latency_s": 1.0},
    ],
)
def test_what_cannot_be_done_live_is_refused_by_name(field: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(field))):
        check(scenario_of(_document(**field)))


async def test_each_load_is_run_on_both_sides() -> None:
    seen = []

    async def runner(scenario: Scenario, seed: int) -> dict[str, Any]:
        seen.append((scenario.traces.scale, seed))
        return {"effective_accuracy": 0.9, "goodput_qps": 1.0, "violation_ratio": 0.5}

    found = await fidelity(_document(duration_s=5), [0.5, 2.0], 4, runner)
    assert seen == [(0.5, 4), (2.0, 4)]
    assert list(found) == ["x0.5", "x2"]
    assert found["x2"]["simulated"]["queries"] > 2 * found["x0.5"]["simulated"]["queries"]
    assert found["x2"]["difference"]["violation_points"] > 40.0


async def test_a_short_live_run_answers_as_the_simulation_does() -> None:
    overrides = {"duration_s": 8, "traces.qps": [60, 90], "policies.batching": "eager", "simulation.warm_up_s": 4}
    document = _document(**overrides)
    found = await fidelity(document, [1.0], 2, run_live)
    live, simulated = found["x1"]["live"], found["x1"]["simulated"]
    assert live["queries"] == simulated["queries"] > 300
    # Wide: a busy machine answers late; accuracy follows the plans, which must be alike.
    assert live["violation_ratio"] < 0.2
    assert live["effective_accuracy"] == pytest.approx(simulated["effective_accuracy"], abs=0.03)

"""Model-less scaling in a run as live: workers of spare devices start, end and replace others."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.outcome import Outcome
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.engine.system_model import RunResult
from sluicegate.simulator.scenario import build, overridden, read_scenario, scenario_of, source_of

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "scenarios" / "model-less.yaml"
RUSH = [20] * 20 + [450] * 60 + [20] * 90
SHORT = [20] * 10 + [450] * 30 + [20] * 40
PRICE = {"cpu": 0.4, "gpu": 2.0}


class Served:
    """Seconds at which each device answered, and with what, by the arrival of the query."""

    def __init__(self) -> None:
        self.by: dict[str, set[int]] = {}
        self.variants: dict[str, set[str]] = {}

    def add(self, outcome: Outcome) -> None:
        if outcome.device and outcome.variant:
            self.by.setdefault(outcome.device, set()).add(int(outcome.arrival))
            self.variants.setdefault(outcome.device, set()).add(outcome.variant)


def run(tmp_path: Path, rates: Sequence[int], **changes: Any) -> tuple[RunResult, Served, Engine]:
    """The devices of the example: cpu0 and gpu0 run from the start, cpu1, cpu2 and gpu1 are spare."""
    trace = tmp_path / "rates.csv"
    trace.write_text("".join(f"{rate}\n" for rate in rates))
    document = {**read_scenario(EXAMPLE, {}), "systems": {}, "duration_s": len(rates)}
    document["traces"] = {"format": "counts", "path": str(trace)}
    scenario = scenario_of(overridden(document, changes))
    system = build(scenario, lambda: 0.0)
    seen = Served()
    source = source_of(scenario, system.catalogue, np.random.default_rng(5))
    engine = Engine(system, np.random.default_rng(5), [seen])
    return engine.run(source), seen, engine


@pytest.mark.parametrize("scaling", ["greedy", pytest.param("ilp", marks=pytest.mark.thorough)])
def test_spare_workers_start_for_the_rush_and_end_after_it_and_are_paid_for_that_time(
    tmp_path: Path, scaling: str
) -> None:
    result, seen, engine = run(tmp_path, RUSH, **{"planner.scaling": scaling})
    assert result.summary.violation_ratio < 0.1
    assert 20 + 4 <= min(seen.by["cpu1"]) < 32, "it takes 4 s to start"
    assert max(seen.by["cpu1"]) < 90 <= max(seen.by["cpu0"])
    assert "gpu1" not in seen.by, "the GPU that is there is enough, with more of the cheap workers"
    whole = (len(RUSH) + 5) / 3600.0  # and the warm-up
    more = result.cost["on_demand"] - whole * (PRICE["cpu"] + PRICE["gpu"])
    assert 110 < 3600.0 * more / PRICE["cpu"] < 250, "seconds of cpu1 and cpu2, which end a minute after the rush"
    assert {i.device for i in engine.instances.values()} <= {"cpu0", "gpu0"}, "who ends, ends its records"


@pytest.mark.thorough
def test_by_the_plan_it_is_more_accurate_and_money_weight_says_what_that_may_cost(tmp_path: Path) -> None:
    least, _, _ = run(tmp_path, SHORT)
    plan, seen, engine = run(tmp_path, SHORT, **{"planner.scaling": "plan"})
    dear, _, _ = run(tmp_path, SHORT, **{"planner.scaling": "plan", "planner.money_weight": 0.1})
    always, _, _ = run(tmp_path, SHORT, **{"planner.scaling": "plan", "planner.spare": []})
    runs = (least, dear, plan, always)
    for cheap, good in pairwise(runs):
        assert cheap.cost["on_demand"] < good.cost["on_demand"]
        assert cheap.summary.effective_accuracy < good.summary.effective_accuracy
    assert plan.summary.violation_ratio < 0.03
    assert min(seen.by["gpu1"]) >= 10 + 4, "a spare one is started for the rush"
    assert max(seen.by["gpu1"]) < 60, "and ended after it"
    assert {i.device for i in engine.instances.values()} <= {"cpu0", "gpu0"}


def test_a_dead_worker_is_replaced_by_a_spare_of_its_hardware_that_holds_the_same(tmp_path: Path) -> None:
    failures = [{"device": "gpu0", "at_s": 20.0}]
    result, seen, engine = run(tmp_path, [100] * 60, **{"simulation.failures": failures})
    assert max(seen.by["gpu0"]) < 20
    assert 20 + 2 + 4 <= min(seen.by["gpu1"]) < 20 + 2 + 4 + 5, "missed after 2 s, started within 4"
    assert seen.variants["gpu1"] == seen.variants["gpu0"]
    assert not any(i.device == "gpu0" for i in engine.instances.values()), "nobody else ends a dead one's records"
    assert result.summary.violation_ratio < 0.25


def test_what_follows_a_planner_that_died_scales_on_with_the_workers_there_are(tmp_path: Path) -> None:
    planners = {"planner.planners": 2, "planner.failures": [{"planner": "planner0", "at_s": 15.0, "until_s": 70.0}]}
    result, seen, _ = run(tmp_path, RUSH, **planners)
    assert result.summary.violation_ratio < 0.1
    assert 20 + 4 <= min(seen.by["cpu1"]) < 35, "the second planner has it started"
    assert 70 < max(seen.by["cpu1"]) < 90
    always = (PRICE["cpu"] + PRICE["gpu"]) * (len(RUSH) + 5)
    more = 3600.0 * result.cost["on_demand"] - always
    assert PRICE["cpu"] * 100 < more < (PRICE["gpu"] + PRICE["cpu"]) * 140, "what it had started has ended"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"planner.spare": ["gpu7"]}, "planner.spare: 'gpu7' is not among the devices"),
        ({"scaling": {"spare": ["cpu1"]}}, "planner.spare: 'cpu1' is driven by scaling or procurement already"),
        ({"planner.scaling": "off"}, "spare: set scaling to plan, greedy or ilp"),
        ({"planner.name": "greedy-fill"}, "greedy takes the place of the planner"),
    ],
)
def test_what_makes_no_sense_is_told(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        run(tmp_path, [10], **changes)

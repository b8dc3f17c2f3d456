"""Plans whose columns are selection tables, beside plans of single variants and tables divided without the program."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from sluicegate.domain.fold import Summary
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.scenario import build, overridden, scenario_of, source_of

SCENARIO = Path(__file__).parents[3] / "examples" / "scenarios" / "tables-and-plans.yaml"
SHORT = {"duration_s": 30, "traces.generator.period_s": 30, "tables.grid": 20}
SHORTER = {"duration_s": 10, "traces.generator.period_s": 10, "tables.grid": 10}


def summary(system: str, **changes: Any) -> Summary:
    given = yaml.safe_load(SCENARIO.read_text())
    own = given.pop("systems")[system]
    del given["parameters"]
    scenario = scenario_of(overridden(given, {**SHORT, **own, **changes}))
    model = build(scenario, lambda: 0.0)
    engine = Engine(model, np.random.default_rng(scenario.seed), ())
    return engine.run(source_of(scenario, model.catalogue, np.random.default_rng(scenario.seed))).summary


def right(of: Summary) -> float:
    """Right answers in time of all queries, each app's best variant being always right."""
    return of.relative_accuracy * of.slo_attainment


@pytest.mark.thorough
def test_one_program_violates_fewer_than_plans_of_single_variants_and_answers_as_many_right() -> None:
    both, plans = (summary(system, **SHORTER) for system in ("one-program", "allocation"))
    assert both.violation_ratio <= plans.violation_ratio
    assert right(both) >= right(plans) - 5e-3
    for app, used in both.variants_used.items():
        assert len(used) > 1, app  # by table


@pytest.mark.thorough
def test_one_program_violates_no_more_than_plans_or_tables_alone_and_answers_as_many_right() -> None:
    both, plans, tables = (summary(system) for system in ("one-program", "allocation", "tables"))
    assert both.violation_ratio <= min(plans.violation_ratio, tables.violation_ratio) + 1e-3
    assert right(both) >= right(tables) - 1e-3
    assert right(both) >= right(plans) - 5e-3  # plans of single variants spend violations on accuracy


def test_three_apps_on_two_workers_are_all_served() -> None:
    devices = [{"type": "cpu", "count": 1}, {"type": "gpu", "count": 1}]
    few = summary("one-program", devices=devices, **{"traces.qps": [40, 40]})
    assert {app: figures["slo_attainment"] > 0.9 for app, figures in few.per_app.items()} == dict.fromkeys(
        ("boxes", "images", "words"), True
    )

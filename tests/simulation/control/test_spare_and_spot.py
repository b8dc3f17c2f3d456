"""What a run with spare and with spot devices costs: spare ones only while they have a worker."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.scenario import build, read_scenario, scenario_of, source_of

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "scenarios" / "small.yaml"
SCALING = {"scaling": {"spare": ["gpu0", "gpu1"], "start_s": 1.0, "headroom": 1.0}}
MODEL_LESS = {"planner": {"scaling": "greedy", "spare": ["gpu0", "gpu1"], "start_s": 1.0, "period_s": 5}}


def cost(folder: Path, qps: int, elastic: dict[str, Any]) -> dict[str, float]:
    """Of a minute, with what comes before and after it, with two devices and two spare ones beside them."""
    trace = folder / "rates.csv"
    trace.write_text(f"{qps}\n" * 60)
    document = {
        **read_scenario(EXAMPLE, {}),
        "duration_s": 60,
        "traces": {"format": "counts", "path": str(trace)},
        "devices": [
            {"type": "cpu", "price": 36.0},
            {"type": "gpu", "count": 2, "price": 360.0},
            {"type": "cpu", "price": 18.0, "spot": True},
        ],
        "procurement": {"on_demand_price": 72.0, "start_s": 1.0},
        "systems": {},
        **elastic,
    }
    system = build(scenario_of(document), lambda: 0.0)
    engine = Engine(system, np.random.default_rng(5), [])
    return dict(engine.run(source_of(scenario_of(document), system.catalogue, np.random.default_rng(5))).cost)


BOTH = {"scaling": {**SCALING["scaling"], "spare": ["gpu0"]}, "planner": {**MODEL_LESS["planner"], "spare": ["gpu1"]}}


@pytest.mark.parametrize("elastic", [SCALING, MODEL_LESS, BOTH])
def test_spare_devices_that_never_have_a_worker_cost_nothing_beside_bought_ones(
    tmp_path: Path, elastic: dict[str, Any]
) -> None:
    assert cost(tmp_path, 1, elastic) == pytest.approx({"on_demand": 0.65, "spot": 0.325})


def test_spare_devices_are_paid_for_beside_bought_ones_while_they_have_a_worker(tmp_path: Path) -> None:
    idle, busy = cost(tmp_path, 1, SCALING), cost(tmp_path, 300, SCALING)
    assert busy["spot"] == idle["spot"]
    assert 1.0 < busy["on_demand"] - idle["on_demand"] < 2 * 6.4, "a tenth a second for each, once it has started"

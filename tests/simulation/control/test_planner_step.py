"""Demand that jumps to five times what it was, within what the devices can carry: how fast the plan follows."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sluicegate.domain.outcome import Outcome
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.scenario import build, overridden, read_scenario, scenario_of, source_of

SMALL = Path(__file__).resolve().parents[3] / "examples" / "scenarios" / "small.yaml"
STEP = 21


class BySecond:
    """Queries and misses by the second they arrived in."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()
        self.missed: Counter[int] = Counter()

    def add(self, outcome: Outcome) -> None:
        second = int(outcome.arrival)
        self.asked[second] += 1
        self.missed[second] += outcome.miss


@pytest.mark.parametrize(
    ("planner", "seed"),
    [
        ("allocation", 1),
        pytest.param("allocation", 2, marks=pytest.mark.thorough),
        pytest.param("allocation", 3, marks=pytest.mark.thorough),
        ("allocation-rounded", 1),
    ],
)
def test_three_seconds_after_a_step_to_five_times_violations_are_below_one_percent(
    tmp_path: Path, planner: str, seed: int
) -> None:
    trace = tmp_path / "step.csv"
    trace.write_text("".join(f"{100 if second < STEP else 500}\n" for second in range(45)))
    document = overridden(
        read_scenario(SMALL, {}),
        {
            "traces": {"format": "counts", "path": str(trace), "shares": {"images": 0.6, "words": 0.4}},
            "duration_s": 45,
            "planner.name": planner,
            "policies": {"routing": "accuracy-first", "batching": "adaptive"},
            "simulation": {"service": "median"},
        },
    )
    scenario = scenario_of(document)
    system = build(scenario, lambda: 0.0)
    seen = BySecond()
    source = source_of(scenario, system.catalogue, np.random.default_rng(seed))
    Engine(system, np.random.default_rng(seed), [seen]).run(source)
    after = range(STEP + 3, 44)
    assert sum(seen.asked[s] for s in after) > 400 * len(after)
    assert sum(seen.missed[s] for s in after) < 0.01 * sum(seen.asked[s] for s in after), dict(seen.missed)

"""Devices slower than their profiles say, or profiles taken on a busy machine: measured latencies correct the plans."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sluicegate.domain.events import LatencyMeasured
from sluicegate.domain.outcome import Outcome
from sluicegate.planner.estimates.profile_drift import LatencyFactors
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.scenario import build, overridden, read_scenario, scenario_of, source_of

SMALL = Path(__file__).resolve().parents[2] / "examples" / "scenarios" / "small.yaml"
SECONDS = 60
LEARNED = 20


class BySecond:
    """Queries and misses by the second they arrived in."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()
        self.missed: Counter[int] = Counter()

    def add(self, outcome: Outcome) -> None:
        self.asked[int(outcome.arrival)] += 1
        self.missed[int(outcome.arrival)] += outcome.miss


def violations(tmp_path: Path) -> float:
    """Violation ratio once the system had time to learn, everything 1.5 times as slow as profiled."""
    trace = tmp_path / "flat.csv"
    trace.write_text("600\n" * SECONDS)
    document = overridden(
        read_scenario(SMALL, {}),
        {
            "traces": {"format": "counts", "path": str(trace), "qps": None, "shares": {"images": 0.6, "words": 0.4}},
            "duration_s": SECONDS,
            "policies": {"routing": "weighted", "batching": "adaptive"},
            "planner": {"headroom": 1.2},
            "simulation": {"service": "median", "stragglers": [{"device": "*", "factor": 1.5}]},
        },
    )
    scenario = scenario_of(document)
    system = build(scenario, lambda: 0.0)
    seen = BySecond()
    Engine(system, np.random.default_rng(1), [seen]).run(
        source_of(scenario, system.catalogue, np.random.default_rng(1))
    )
    after = range(LEARNED, SECONDS - 2)
    return sum(seen.missed[s] for s in after) / sum(seen.asked[s] for s in after)


def test_plans_follow_what_is_measured(tmp_path: Path) -> None:
    assert violations(tmp_path) < 0.01


@pytest.mark.thorough
def test_without_measurements_the_wrong_profiles_would_cost_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ignored(_: LatencyFactors, __: LatencyMeasured, ___: float = 0.0) -> None:
        return None

    monkeypatch.setattr(LatencyFactors, "handle", ignored)
    assert violations(tmp_path) > 0.03


def test_a_variant_that_never_ran_is_not_passed_over_for_a_profile_taken_on_a_busy_machine(tmp_path: Path) -> None:
    trace = tmp_path / "step.csv"
    trace.write_text("20\n" * 10 + "80\n" * 10 + "300\n" * 20)
    ladder = (("large", 0.9, 10.0), ("medium", 0.8, 1.4), ("small", 0.6, 0.3))
    document = {
        "name": "busy",
        "duration_s": 40,
        "apps": {"a": {"slo_ms": 100}},
        "catalogue": {
            "format": "inline",
            "variants": [
                # Of ten batches one took four times as long: nothing of that is left when they serve.
                {"name": name, "app": "a", "accuracy": accuracy, "latency_ms": {"cpu": {1: [ms, 4.0 * ms]}}}
                for name, accuracy, ms in ladder
            ],
        },
        "devices": [{"type": "cpu"}],
        "traces": {"format": "counts", "path": str(trace), "process": "uniform"},
    }
    scenario = scenario_of(document)
    system = build(scenario, lambda: 0.0)
    arrivals = source_of(scenario, system.catalogue, np.random.default_rng(1))
    found = Engine(system, np.random.default_rng(1)).run(arrivals).summary
    assert found.slo_attainment > 0.95
    assert found.variants_used["a"]["medium"] > 0.8 * 300 * 20

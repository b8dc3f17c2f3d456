"""More than the plan can serve: what has a higher priority is let in first, in the engine as live."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.outcome import Outcome
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.scenario import build, overridden, read_scenario, scenario_of, source_of

SMALL = Path(__file__).resolve().parents[2] / "examples" / "scenarios" / "small.yaml"
URGENT, SHARE = 0.2005, 0.2
"""Seconds that tell who has a priority, and how many."""


class OnTime:
    """On time and all, of urgent images and of others, behind the first seconds."""

    def __init__(self) -> None:
        self.counts = {(urgent, what): 0 for urgent in (True, False) for what in ("asked", "on time")}

    def add(self, outcome: Outcome) -> None:
        if outcome.app == "images" and outcome.arrival > 7.0:
            urgent = outcome.deadline - outcome.arrival > (0.2 + URGENT) / 2
            self.counts[urgent, "asked"] += 1
            self.counts[urgent, "on time"] += outcome.on_time

    def share(self, urgent: bool) -> float:
        return self.counts[urgent, "on time"] / self.counts[urgent, "asked"]


def shares_on_time(qps: float, priority: int) -> tuple[float, float]:
    """Of urgent images on time, and of others."""
    document: dict[str, Any] = read_scenario(SMALL, {})
    document.pop("systems", None)
    asked = [{"share": SHARE, "latency_ms": 1e3 * URGENT, "priority": priority}]
    changes = {
        "duration_s": 14,
        "devices": [{"type": "gpu"}, {"type": "cpu"}],
        "traces.qps": [qps, qps],
        "traces.generator": {"spikes": 0},
    }
    scenario = scenario_of(overridden(document, {**changes, "apps.images.queries": asked}))
    system, seen = build(scenario, lambda: 0.0), OnTime()
    source = source_of(scenario, system.catalogue, np.random.default_rng(4))
    Engine(system, np.random.default_rng([4, 2]), [seen]).run(source)
    assert seen.counts[True, "asked"] > 100
    return seen.share(urgent=True), seen.share(urgent=False)


def test_under_overload_the_higher_priority_is_answered_and_the_rest_shares_what_is_left() -> None:
    urgent, others = shares_on_time(3000.0, 5)
    assert urgent > 0.97
    assert 0.1 < others < 0.9
    same, rest = shares_on_time(3000.0, 0)
    assert same == pytest.approx(rest, abs=0.1) and same < 0.9


def test_with_room_for_all_a_priority_changes_nothing() -> None:
    urgent, others = shares_on_time(120.0, 5)
    assert urgent > 0.98 and others > 0.98

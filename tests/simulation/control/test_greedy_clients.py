"""A client that asks for twenty times what there is, in the engine: as live, others lose little by it."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.outcome import Outcome
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.scenario import build, overridden, read_scenario, scenario_of, source_of
from tests.simulation.test_priorities import SMALL

CAPACITY = 276.0
"""Images a second of two CPU workers that do nothing else, by the fastest variant in the largest batches."""
NICE, WORDS = 10.0, 20.0
SECONDS, SETTLED = 16.0, 6.0


class OnTime:
    """By app and client: asked, and on time, once the plan knows the load."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[str, str]] = Counter()
        self.on_time: Counter[tuple[str, str]] = Counter()

    def add(self, outcome: Outcome) -> None:
        if outcome.arrival >= SETTLED:
            self.asked[outcome.app, outcome.source] += 1
            self.on_time[outcome.app, outcome.source] += outcome.on_time

    def share(self, app: str, client: str) -> float:
        assert self.asked[app, client] > 50
        return self.on_time[app, client] / self.asked[app, client]


def promised(greedy: float, queries: list[dict[str, Any]]) -> OnTime:
    """The same of an app with a promise, whose two CPU workers sustain some 2,000 queries a second with it."""
    whole = NICE + greedy + WORDS
    latency = {"cpu": {1: 9.0, 32: 40.0}}
    document: dict[str, Any] = {
        "name": "promised",
        "seed": 3,
        "duration_s": 12.0,
        "apps": {
            "images": {
                "slo_ms": 100,
                "promise": {"weakly_hard": [{"m": 2, "k": 10}]},
                "queries": [{"share": NICE / (NICE + greedy), "client": "/nice"}, *queries],
            },
            "words": {"slo_ms": 300},
        },
        "catalogue": {
            "format": "inline",
            "variants": [
                {"name": f"{app}-v", "app": app, "accuracy": accuracy, "load_s": 0.1, "latency_ms": latency}
                for app, accuracy in (("images", 0.9), ("words", 0.7))
            ],
        },
        "devices": [{"type": "cpu", "count": 3}],
        "traces": {
            "format": "generator",
            "qps": [whole, whole],
            "shares": {"images": 1.0 - WORDS / whole, "words": WORDS / whole},
            "generator": {"spikes": 0},
        },
        "policies": {"admission": "sustainable", "batching": "adaptive"},
    }
    scenario = scenario_of(document)
    system, seen = build(scenario, lambda: 0.0), OnTime()
    source = source_of(scenario, system.catalogue, np.random.default_rng(5))
    Engine(system, np.random.default_rng([5, 2]), [seen]).run(source)
    return seen


@pytest.mark.thorough
def test_a_flood_costs_another_client_of_an_app_with_a_promise_little(measured: Callable[[str, str], None]) -> None:
    greedy = 8000.0
    flood = [{"share": 1.0 - NICE / (NICE + greedy), "client": "/greedy"}]
    calm, under = promised(0.001, []), promised(greedy, flood)
    same = calm.share("images", "/nice"), under.share("images", "/nice")
    other = calm.share("words", ""), under.share("words", "")
    told = f"another on its app: {100 * same[0]:.0f} % before, {100 * same[1]:.0f} % under it"
    measured("a flood on an app with a promise, simulated", f"{told}; on another app: {100 * other[1]:.0f} % (on time)")
    assert same[1] >= same[0] - 0.10, (same, other)
    assert other[1] >= other[0] - 0.02, (same, other)
    assert 0.05 < under.share("images", "/greedy") < 0.5


def flooded(greedy: float) -> OnTime:
    """What became of all, while ``greedy`` asks for so many images a second."""
    images = NICE + greedy
    whole = images + WORDS
    document: dict[str, Any] = read_scenario(SMALL, {})
    document.pop("systems", None)
    changes = {
        "duration_s": SECONDS,
        "devices": [{"type": "cpu"}, {"type": "cpu"}],
        "traces": {
            "format": "generator",
            "qps": [whole, whole],
            "shares": {"images": images / whole, "words": WORDS / whole},
            "generator": {"spikes": 0},
        },
        "apps.images.queries": [
            {"share": NICE / images, "client": "/nice"},
            {"share": greedy / images, "client": "/greedy", "priority": 2**31 - 1},
        ],
    }
    scenario = scenario_of(overridden(document, changes))
    system, seen = build(scenario, lambda: 0.0), OnTime()
    source = source_of(scenario, system.catalogue, np.random.default_rng(7))
    Engine(system, np.random.default_rng([7, 2]), [seen]).run(source)
    return seen


def test_a_flood_costs_another_client_and_another_app_little(measured: Callable[[str, str], None]) -> None:
    calm, flood = flooded(0.001), flooded(20 * CAPACITY)
    same = calm.share("images", "/nice"), flood.share("images", "/nice")
    other = calm.share("words", ""), flood.share("words", "")
    told = f"another on its app: {100 * same[0]:.0f} % before, {100 * same[1]:.0f} % under it"
    measured(
        "a client at 20 times capacity, simulated",
        f"{told}; on another app: {100 * other[0]:.0f} % before, {100 * other[1]:.0f} % under it (on time)",
    )
    assert same[1] >= same[0] - 0.10, (same, other)
    assert other[1] >= other[0] - 0.02, (same, other)
    assert 0.0 < flood.share("images", "/greedy") < 0.1

"""Apps that are registered, changed and retired while a run goes on, as live: two unequal apps."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.outcome import Outcome, OutcomeKind, Reason
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.scenario import build, overridden, read_scenario, scenario_of, source_of

SMALL = Path(__file__).resolve().parents[3] / "examples" / "scenarios" / "small.yaml"
Found = dict[str, list[Outcome]]


class Kept:
    def __init__(self) -> None:
        self.by_app: Found = {}

    def add(self, outcome: Outcome) -> None:
        self.by_app.setdefault(outcome.app, []).append(replace(outcome))


def run(apps: dict[str, Any], registrations: list[dict[str, Any]], **changes: Any) -> Found:
    """Sixty seconds of both apps at a steady rate, 36/s of images and 24/s of words."""
    document = {
        **read_scenario(SMALL, {}),
        "systems": {},
        "duration_s": 60,
        "apps": {
            "images": {"slo_ms": 200, **apps.get("images", {})},
            "words": {"slo_ms": 100, **apps.get("words", {})},
        },
        "registrations": registrations,
    }
    document = overridden(document, {"traces": {"qps": [60, 60]}, "simulation.control_ms": 3, **changes})
    scenario = scenario_of(document)
    system = build(scenario, lambda: 0.0)
    kept = Kept()
    source = source_of(scenario, system.catalogue, np.random.default_rng(5))
    Engine(system, np.random.default_rng(5), [kept]).run(source)
    return kept.by_app


def between(outcomes: list[Outcome], start: float, end: float) -> list[Outcome]:
    return [o for o in outcomes if start <= o.arrival < end]


def on_time(outcomes: list[Outcome]) -> float:
    return sum(o.on_time for o in outcomes) / len(outcomes)


@pytest.mark.parametrize("planners", [1, 2])
def test_an_app_that_is_registered_is_served_within_a_plan_and_the_other_all_along(planners: int) -> None:
    coming = [{"at_s": 20, "app": "words"}]
    failures = [{"planner": "planner0", "at_s": 30.0}] if planners == 2 else []
    set_ = {"planner.planners": planners, "planner.failures": failures, "policies.admission": "deadline"}
    found = run({"words": {"at_start": False}}, coming, **set_)
    before = between(found["words"], 0, 20.0)
    assert {(o.kind, o.reason) for o in before} == {(OutcomeKind.REJECTED, Reason.UNKNOWN_APP)}
    assert on_time(between(found["words"], 26, 60)) > 0.98
    assert not any(o.reason == Reason.UNKNOWN_APP for o in between(found["words"], 20.01, 60))
    assert on_time(found["images"]) > 0.98


def test_a_retired_app_is_refused_and_its_devices_are_the_others() -> None:
    found = run({}, [{"at_s": 25, "app": "images", "retired": True}])
    assert on_time(between(found["images"], 0, 24)) > 0.98
    after = between(found["images"], 25.01, 60)
    assert {(o.kind, o.reason) for o in after} == {(OutcomeKind.REJECTED, Reason.UNKNOWN_APP)}
    used = [{o.device for o in between(found["words"], start, start + 15) if o.device} for start in (5, 45)]
    assert len(used[1]) > len(used[0])
    assert on_time(found["words"]) > 0.98


def test_a_new_version_has_its_variants_its_time_and_its_promise_from_then_on() -> None:
    old = {"images": {"variants": ["images-small"]}}
    new = {"at_s": 30, "app": "images", "slo_ms": 400, "variants": ["images-medium", "images-large"]}
    gpus = {"policies.batching": "balanced", "devices": [{"type": "gpu", "count": 3}]}
    found = run(old, [{**new, "promise": {"max_consecutive": 2}}], **gpus)
    first, second = between(found["images"], 0, 30), between(found["images"], 40, 60)
    assert {o.variant for o in first if o.variant} == {"images-small"}
    assert {o.variant for o in second if o.variant} <= {"images-medium", "images-large"}
    assert {round(o.deadline - o.arrival, 6) for o in first} == {0.2}
    assert {round(o.deadline - o.arrival, 6) for o in second} == {0.4}
    assert on_time(first) > 0.98 and on_time(second) > 0.98
    assert Counter(o.variant for o in between(found["words"], 0, 60)).keys() <= {"words-small", "words-large"}
    best = {round(o.best_accuracy, 6) for o in second}
    assert best == {0.83}


@pytest.mark.parametrize(
    ("apps", "registrations", "told"),
    [
        ({"words": {"at_start": False}}, [], "apps.words.at_start: it is not registered at the start, nor later"),
        ({}, [{"at_s": 5, "app": "sounds"}], "registrations.0.app: 'sounds' is none of images, words"),
        (
            {},
            [{"at_s": 5, "app": "words", "variants": ["images-small"]}],
            "'images-small' is none of words-large, words-small",
        ),
    ],
)
def test_what_makes_no_sense_is_told(apps: dict[str, Any], registrations: list[dict[str, Any]], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        run(apps, registrations)

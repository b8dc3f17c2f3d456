"""Apps that are registered, changed and retired while a run goes on, as live: two unequal apps."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.outcome import Outcome, OutcomeKind, Reason
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.promise_watch import PromiseFigures
from sluicegate.simulator.scenario import build, overridden, read_scenario, scenario_of, source_of

SMALL = Path(__file__).resolve().parents[3] / "examples" / "scenarios" / "small.yaml"
Found = dict[str, list[Outcome]]


class Kept:
    def __init__(self) -> None:
        self.by_app: Found = {}

    def add(self, outcome: Outcome) -> None:
        self.by_app.setdefault(outcome.app, []).append(replace(outcome))


def run(apps: dict[str, Any], registrations: list[dict[str, Any]], **changes: Any) -> Found:
    """How queries ended."""
    return watched(apps, registrations, **changes)[0]


def watched(
    apps: dict[str, Any], registrations: list[dict[str, Any]], **changes: Any
) -> tuple[Found, PromiseFigures | None]:
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
    result = Engine(system, np.random.default_rng(5), [kept]).run(source)
    return kept.by_app, result.promises


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


CONTROL_S = 0.003


def test_promises_are_counted_of_strict_queries_alone_and_as_they_are_registered() -> None:
    """One in a hundred asks as best effort. "images" is promised something until 40 s, "words" from 20 s on and less of
    it from 45 s on; two of three devices fail in turn, so that both miss all along."""
    wish = {"queries": [{"share": 0.01, "class": "best_effort"}]}
    promises = {
        "images": [(-np.inf, (1, 2)), (40.0, None)],
        "words": [(-np.inf, None), (20.0, (0, 1)), (45.0, (3, 8))],
    }
    asked = {app: {**wish, **_asked(since[0][1])} for app, since in promises.items()}
    changes = [{"at_s": at, "app": app, **_asked(pair)} for app, since in promises.items() for at, pair in since[1:]]
    failures = [{"device": f"cpu{n % 2}", "at_s": 3.0 + 4 * n, "until_s": 6.0 + 4 * n} for n in range(14)]
    few = {"devices": [{"type": "cpu", "count": 3}], "policies.batching": "eager"}
    found, counted = watched(asked, changes, **few, **{"simulation.failures": failures})
    assert counted is not None
    broken = Counter[tuple[str, tuple[int, int] | None]]()
    strict = {app: [o for o in ends if o.query_class is QueryClass.STRICT] for app, ends in found.items()}
    assert all(0 < len(found[app]) - len(ends) < 0.02 * len(found[app]) for app, ends in strict.items())
    for app, ends in strict.items():
        stream = sorted(ends, key=lambda o: o.sequence)
        for end, outcome in enumerate(stream, 1):
            pair = [pair for at, pair in promises[app] if at + CONTROL_S <= outcome.at][-1]
            if pair is not None and outcome.miss:
                broken[app, pair] += sum(o.miss for o in stream[max(0, end - pair[1]) : end]) > pair[0]
    assert len(broken) == 3 and min(broken.values()) > 5, broken
    assert counted.broken_windows == broken.total() >= counted.announced > 0
    assert (counted.queries, counted.rejected) == (sum(map(len, strict.values())), 0)
    assert counted.misses == sum(o.miss for ends in strict.values() for o in ends)


def _asked(pair: tuple[int, int] | None) -> dict[str, Any]:
    return {"promise": {"weakly_hard": [{"m": pair[0], "k": pair[1]}]} if pair else {}}


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

"""Queries with goals of their own in a run: refused at the door or answered by what meets them, as live."""

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
from sluicegate.simulator.scenario import build, overridden, read_scenario, scenario_of, source_of

SCENARIOS = Path(__file__).resolve().parents[2] / "examples" / "scenarios"


class Kept:
    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(replace(outcome))


def outcomes(file: str, **changes: Any) -> list[Outcome]:
    document = {**read_scenario(SCENARIOS / file, {}), "systems": {}, "duration_s": 30}
    scenario = scenario_of(overridden(document, changes))
    system = build(scenario, lambda: 0.0)
    kept = Kept()
    source = source_of(scenario, system.catalogue, np.random.default_rng(5))
    Engine(system, np.random.default_rng(5), [kept]).run(source)
    return kept.outcomes


def test_some_queries_ask_more_and_get_it_or_are_refused_and_the_others_are_as_without() -> None:
    images = [{"share": 0.25, "accuracy": 0.99}, {"share": 0.15, "latency_ms": 600, "class": "best_effort"}]
    words = [{"share": 0.3, "model": "words-small"}]
    found = outcomes(
        "small.yaml",
        traces={"qps": [60, 60]},
        apps={"images": {"slo_ms": 200, "queries": images}, "words": {"slo_ms": 100, "queries": words}},
    )
    by_app = {app: [o for o in found if o.app == app] for app in ("images", "words")}
    refused = [o for o in by_app["images"] if o.reason == Reason.INFEASIBLE]
    assert len(refused) / len(by_app["images"]) == pytest.approx(0.25, abs=0.04)
    assert {o.kind for o in refused} == {OutcomeKind.REJECTED}
    patient = [o for o in by_app["images"] if o.query_class is QueryClass.BEST_EFFORT]
    assert len(patient) / len(by_app["images"]) == pytest.approx(0.15, abs=0.04)
    assert {round(o.deadline - o.arrival, 6) for o in patient} == {0.6}
    assert {round(o.deadline - o.arrival, 6) for o in by_app["images"] if o not in patient} == {0.2}
    # What the plan does not host is no capacity: single queries make no plan.
    kinds = Counter((o.kind, o.reason) for o in by_app["words"])
    unhosted = kinds[OutcomeKind.DROPPED, Reason.NO_CAPACITY]
    assert unhosted / len(by_app["words"]) == pytest.approx(0.3, abs=0.05)
    assert {o.variant for o in by_app["words"] if o.kind is OutcomeKind.ANSWERED} == {"words-large"}


def test_where_scaling_loads_on_demand_a_named_model_is_loaded_for_the_query_that_waits() -> None:
    goals = [{"share": 0.1, "model": "images-large", "latency_ms": 20_000}]
    named = {"apps": {"images": {"slo_ms": 250, "queries": goals}}, "traces": {"qps": [20, 20]}}
    plain = outcomes("model-less.yaml", traces={"qps": [20, 20]})
    assert {o.variant for o in plain if o.kind is OutcomeKind.ANSWERED} == {"images-small"}
    asked = [o for o in outcomes("model-less.yaml", **named) if o.deadline - o.arrival > 1.0]
    assert len(asked) > 30
    assert {(o.kind, o.variant) for o in asked} == {(OutcomeKind.ANSWERED, "images-large")}


def test_shares_beyond_all_queries_are_an_error() -> None:
    goals = [{"share": 0.6, "accuracy": 0.8}, {"share": 0.5, "cost": 1.0}]
    with pytest.raises(ConfigurationError, match="queries: their shares are more than all queries"):
        outcomes("small.yaml", **{"apps.images": {"slo_ms": 200, "queries": goals}})

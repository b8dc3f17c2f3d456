"""Whole clusters of our own against proven optima, which are kept: a fresh checkout has them (tests/models/data)."""

import json
from typing import Any

import pytest

from sluicegate.planner.registry import planner
from tests.models.cluster_problems import OPTIMA, SEEDS, cluster, solved
from tests.property.problems import assert_loads_within_capacity

KNOWN: list[dict[str, Any]] = json.loads(OPTIMA.read_text())


def test_every_cluster_has_its_optimum_and_they_are_not_alike() -> None:
    assert [case["seed"] for case in KNOWN] == list(SEEDS)
    assert 3 <= sum(case["accuracy"] is None for case in KNOWN) <= 8
    assert len({round(case["accuracy"] or case["fair"], 3) for case in KNOWN}) >= 20


@pytest.mark.parametrize("seed", [14, 16])
def test_optima_that_are_kept_are_those_that_are_proven(seed: int) -> None:
    again, kept = solved(cluster(seed)), KNOWN[seed]
    assert again["fair"] == pytest.approx(kept["fair"], abs=1e-6)
    assert again["accuracy"] == pytest.approx(kept["accuracy"], abs=1e-6) if kept["accuracy"] else not kept["accuracy"]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case["seed"]), marks=() if case["seed"] % 3 == 0 else pytest.mark.thorough)
        for case in KNOWN
    ],
)
def test_a_plan_serves_and_is_right_as_the_optimum_within_half_a_thousandth(case: dict[str, Any]) -> None:
    problem = cluster(case["seed"])
    answer = planner("allocation").allocate(problem)
    assert_loads_within_capacity(problem, answer)
    worst = min(answer.served.values())
    assert case["fair"] - 1.1e-3 <= worst <= case["fair"] + 1e-6
    if case["accuracy"] is not None:
        assert worst == 1.0
        assert case["accuracy"] - 5.1e-4 <= answer.objective <= case["accuracy"] + 1e-6
        assert answer.bound >= case["accuracy"] - 1e-6


@pytest.mark.parametrize("name", ["greedy-fill", "infaas-accuracy", "clipper-ha", "clipper-ht"])
def test_no_heuristic_claims_more_than_there_is(name: str) -> None:
    for case in KNOWN[::3]:
        answer = planner(name).allocate(cluster(case["seed"]))
        assert min(answer.served.values()) <= case["fair"] + 1e-6
        if case["accuracy"] is not None and min(answer.served.values()) == 1.0:
            assert answer.objective <= case["accuracy"] + 1e-6

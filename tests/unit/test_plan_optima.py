"""The published cluster at the published demands, against proven optima."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domain.device import Device
from planner.problem import AppDemand, Problem
from planner.registry import planner
from profiles.catalogue import Catalogue
from profiles.proteus_csv import load_proteus

FLEET = (("cpu", 20), ("ampere", 10), ("pascal", 10))


@pytest.fixture(scope="module")
def oracle(sluice_data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((sluice_data / "proteus" / "milp_oracle.json").read_text())
    return found


@pytest.fixture(scope="module")
def catalogue(sluice_data: Path) -> Catalogue:
    return load_proteus(sluice_data / "proteus")


def posed(catalogue: Catalogue, oracle: dict[str, Any], case: dict[str, Any], scale: float = 1.0) -> Problem:
    """A case of the oracle, its demand times ``scale``."""
    slo = oracle["slo_ms"][case["slo"]]
    return Problem(
        demands=tuple(
            AppDemand(app=app, qps=scale * qps, slo=slo[app] / 1e3, headroom=case["beta"])
            for app, qps in case["demand_qps"].items()
        ),
        devices=tuple(Device(name=f"{kind}-{i:02d}", type=kind) for kind, count in FLEET for i in range(count)),
        catalogue=catalogue,
        capacity="largest-batch",
    )


def test_every_known_optimum_is_met_within_half_a_thousandth(catalogue: Catalogue, oracle: dict[str, Any]) -> None:
    for case in oracle["cases"]:
        optima = [x for x in (case["objective_highs"], case["objective_gurobi"]) if x is not None]
        answer = planner("allocation").allocate(posed(catalogue, oracle, case))
        named = (case["slo"], case["window_s"], case["scale"])
        assert not answer.nondeterministic
        if not optima:
            assert min(answer.served.values()) < 1.0, named
            continue
        assert min(answer.served.values()) == 1.0, named
        assert max(optima) - 5e-4 <= answer.objective <= max(optima) + 1e-6, named
        assert answer.bound >= max(optima) - 1e-6, named


def test_demand_that_no_plan_can_serve_is_shared_out_fairly(catalogue: Catalogue, oracle: dict[str, Any]) -> None:
    case = next(c for c in oracle["cases"] if c["scale"] == 3 and c["slo"] == "flat300")
    answer = planner("allocation").allocate(posed(catalogue, oracle, case, scale=2.0))
    assert 0.3 < min(answer.served.values()) < 1.0
    # Fair: nobody is far below what the fleet can give to all at once.
    qps = case["demand_qps"]
    mean = sum(answer.served[a] * q for a, q in qps.items()) / sum(qps.values())
    assert min(answer.served.values()) > 0.8 * mean


def test_the_heuristic_serves_all_and_comes_within_three_points(catalogue: Catalogue, oracle: dict[str, Any]) -> None:
    for case in oracle["cases"]:
        optimum = max(x for x in (case["objective_highs"], case["objective_gurobi"]) if x is not None)
        answer = planner("greedy-fill").allocate(posed(catalogue, oracle, case))
        assert min(answer.served.values()) == 1.0
        assert answer.objective > optimum - 0.03


def test_two_variants_on_a_device_pay_where_devices_are_few(catalogue: Catalogue, oracle: dict[str, Any]) -> None:
    case = next(c for c in oracle["cases"] if c["scale"] == 1 and c["window_s"] == [90, 100])
    whole = posed(catalogue, oracle, case, scale=0.5)
    few = replace(
        whole, devices=tuple(d for d in whole.devices if int(d.name[-2:]) < (5 if d.type == "cpu" else 3))[:10]
    )
    one = planner("allocation").allocate(few)
    two = planner("allocation").allocate(replace(few, variants_per_device=2))
    assert min(two.served.values()) >= min(one.served.values())
    assert two.objective > one.objective + 0.02
    assert max(len({v for p in two.placements if p.device == d.name for v in p.variants}) for d in few.devices) == 2

"""Costs of spot capacity and of keeping containers, at the figures that PROTEAN reports."""

from pathlib import Path

import pytest
import yaml

from reproduce.protean.slices.costs import PROBABILITIES, savings
from reproduce.protean.slices.slices_experiment import run_once
from reproduce.protean.slices.slices_fields import slice_scenario
from sluicegate.planner.capacity.procurement import PER_GPU

TWITTER = Path(__file__).parents[3] / "examples" / "scenarios" / "protean-twitter.yaml"


@pytest.mark.parametrize("interval_s", [pytest.param(300.0, marks=pytest.mark.thorough), 600.0, 3600.0])
def test_spot_saves_seventy_percent_and_spot_only_a_third_more(interval_s: float) -> None:
    saved = savings(PER_GPU["aws"], interval_s=interval_s)
    assert saved[0.0]["hybrid"] == pytest.approx(0.70, abs=0.03)
    assert sum(s["spot_only"] for s in saved.values()) / 3 == pytest.approx(0.35, abs=0.03)
    assert saved[0.0]["hybrid"] > saved[0.354]["hybrid"] > saved[0.708]["hybrid"] > 0.0


def test_a_node_has_no_spot_with_the_square_of_the_probability() -> None:
    # A shortage in an interval, and a request that fails in it: the hybrid pays on demand for just these.
    spot, on_demand = PER_GPU["aws"].spot, PER_GPU["aws"].on_demand
    expected = {p: 1.0 - ((1.0 - p**2) * spot + p**2 * on_demand) / on_demand for p in PROBABILITIES}
    found = savings(PER_GPU["aws"], interval_s=3600.0, hours=960.0)
    for probability, saved in expected.items():
        assert found[probability]["hybrid"] == pytest.approx(saved, abs=0.02)


@pytest.mark.thorough
def test_keeping_containers_saves_nearly_all_cold_starts() -> None:
    document = yaml.safe_load(TWITTER.read_text()) | {
        "duration_s": 600,
        "systems": {"kept": {"like": "protean"}, "ended": {"like": "protean", "keep_alive_s": 0}},
    }
    cold = {
        label: run_once(slice_scenario(document), label, 0, lambda: 0.0).figures["cold_starts"]
        for label in ("kept", "ended")
    }
    assert 1 - cold["kept"] / cold["ended"] == pytest.approx(0.98, abs=0.02)


def test_spot_only_misses_what_the_hybrid_answers_when_capacity_is_scarce() -> None:
    document = yaml.safe_load(TWITTER.read_text())
    document |= {"duration_s": 200, "systems": {"protean": None, "spot-only": None}}
    document["procurement"] |= {"p_rev": 0.708, "interval_s": 40, "notice_s": 45, "core": 2}
    found = {
        label: run_once(slice_scenario(document), label, 0, lambda: 0.0).figures for label in ("protean", "spot-only")
    }
    assert found["protean"]["slo_compliance_strict"] > found["spot-only"]["slo_compliance_strict"] + 0.2
    assert found["protean"]["cost_usd"] > found["spot-only"]["cost_usd"]

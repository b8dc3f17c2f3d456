"""Profiles that measurements contradict."""

import pytest

from sluicegate.domain.events import LatencyMeasured
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.estimates.profile_drift import LatencyFactors
from sluicegate.profiles.catalogue.catalogue import Catalogue

CATALOGUE = Catalogue.of(
    [App(name="a", slo=0.3)],
    [Variant(name="v", app="a", accuracy=0.9)],
    [
        Profile(
            variant="v", device_type="cpu", points=(BatchLatency(1, 0.01, 0.012), BatchLatency(8, 0.08, 0.09)), load=1.0
        )
    ],
)


def measured(ratio: float, batches: int, rows: int = 4) -> LatencyMeasured:
    return LatencyMeasured("v", "cpu", rows, ratio * 0.04, batches)


def test_a_profile_wrong_by_half_is_noticed_and_corrected_by_the_observed_factor() -> None:
    factors = LatencyFactors(CATALOGUE, "median")
    assert factors.handle(measured(1.5, 5)) is None
    factor = factors.handle(measured(1.5, 5))
    assert factor is not None and abs(factor - 1.5) < 1e-9
    assert factors.factors == {("v", "cpu"): factor}


def test_noise_within_the_threshold_changes_nothing() -> None:
    factors = LatencyFactors(CATALOGUE, "median")
    assert all(factors.handle(measured(r, 10)) is None for r in (1.1, 0.9, 1.15, 0.85, 1.0))
    assert factors.factors == {}


def test_a_machine_that_is_slow_every_other_second_moves_the_factor_once_and_no_more() -> None:
    factors = LatencyFactors(CATALOGUE, "median")
    said = [f for n in range(200) if (f := factors.handle(measured(1.5 if n % 2 else 1.0, 20))) is not None]
    assert len(said) == 1
    assert factors.factors == {("v", "cpu"): said[0]}


def test_a_profile_that_holds_again_is_trusted_again() -> None:
    factors = LatencyFactors(CATALOGUE, "median")
    factors.handle(measured(2.0, 20))
    said = [f for _ in range(40) if (f := factors.handle(measured(1.0, 20))) is not None]
    assert said[-1] == 1.0
    assert factors.factors == {}


def test_reports_of_what_is_not_in_the_catalogue_are_ignored() -> None:
    factors = LatencyFactors(CATALOGUE, "median")
    assert factors.handle(LatencyMeasured("other", "cpu", 1, 5.0, 100)) is None
    assert factors.handle(LatencyMeasured("v", "cpu", 0, 5.0, 100)) is None
    assert factors.factors == {}


FAMILY = Catalogue.of(
    [App(name="a", slo=0.3)],
    [Variant(name=name, app="a", accuracy=accuracy) for name, accuracy in (("v", 0.9), ("w", 0.8), ("x", 0.7))],
    [
        Profile(variant=name, device_type=kind, points=(BatchLatency(4, seconds, 2 * seconds),), load=1.0)
        for name, seconds in (("v", 0.04), ("w", 0.02), ("x", 0.01))
        for kind in ("cpu", "gpu")
    ],
)


def taking(name: str, ratio: float, batches: int = 20) -> LatencyMeasured:
    return LatencyMeasured(name, "cpu", 4, ratio * {"v": 0.04, "w": 0.02, "x": 0.01}[name], batches)


def test_variants_never_timed_are_taken_to_be_faster_than_profiled_as_all_that_were_timed_there_are() -> None:
    factors = LatencyFactors(FAMILY, "median")
    factors.handle(taking("v", 0.6))
    assert factors.factors == {(name, "cpu"): pytest.approx(0.6) for name in "vwx"}
    factors.handle(taking("w", 0.7))
    assert factors.factors["x", "cpu"] == pytest.approx(0.7)
    factors.handle(taking("w", 1.0, 200))
    assert factors.factors == {("v", "cpu"): pytest.approx(0.6)}


def test_what_is_lent_is_half_at_the_least_and_ends_where_a_variant_is_timed_itself() -> None:
    factors = LatencyFactors(FAMILY, "median")
    factors.handle(taking("v", 0.25))
    assert factors.factors == {("v", "cpu"): pytest.approx(0.25), ("w", "cpu"): 0.5, ("x", "cpu"): 0.5}
    factors.handle(taking("w", 1.0))
    assert factors.factors == {("v", "cpu"): pytest.approx(0.25)}


def test_variants_never_timed_are_not_taken_to_be_slower() -> None:
    factors = LatencyFactors(FAMILY, "median")
    factors.handle(taking("v", 3.0))
    assert factors.factors == {("v", "cpu"): pytest.approx(3.0)}

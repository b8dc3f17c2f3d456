"""Profiles that measurements contradict."""

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

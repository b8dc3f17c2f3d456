"""PROTEAN's geometry rule on loads where the corrected and the published one part."""

import pytest

from reproduce.protean.slices.controls import published_geometry
from sluicegate.planner.geometry.mig_tables import table_of
from sluicegate.planner.geometry.protean_geometry import (
    LARGE,
    SMALL,
    BestEffortForecast,
    desired_geometry,
    t_high,
    t_low,
)
from sluicegate.profiles.catalogue.slowdown import SlowdownTable, VariantDemand

GB = 1 << 30
A100 = table_of("a100")


def table(memory_gb: float, *, small_rdf: float = 2.4, fbr: float = 0.5) -> SlowdownTable:
    strict = {"7g": 1.0, "4g": 1.2, "3g": 1.4, "2g": 1.9, "1g": 3.4}
    other = {"7g": 1.0, "4g": 1.2, "3g": 1.4, "2g": small_rdf, "1g": 2 * small_rdf}
    return SlowdownTable(
        {
            "s": VariantDemand(name="s", solo=0.1, memory_bytes=4 * GB, rdf=strict, fbr=0.5, batch=128),
            "b": VariantDemand(name="b", solo=0.1, memory_bytes=int(memory_gb * GB), rdf=other, fbr=fbr, batch=128),
        }
    )


def test_small_slices_for_what_fits_one_by_one_and_large_beyond() -> None:
    known = table(4, small_rdf=1.4)
    chosen = [desired_geometry(known, A100, strict="s", best_effort="b", queries=128 * n) for n in range(6)]
    assert chosen == [LARGE, LARGE, SMALL, SMALL, LARGE, LARGE]


def test_a_batch_larger_than_any_small_slice_does_not_fit_into_their_sum() -> None:
    known = table(12)
    assert desired_geometry(known, A100, strict="s", best_effort="b", queries=128) == LARGE
    # As printed the sum of memories decides: 15 GB would hold 12.
    assert published_geometry(known, A100, best_effort="b", queries=128) == SMALL


def test_the_published_fallback_is_never_applied() -> None:
    assert published_geometry(table(12), A100, best_effort="b", queries=128 * 2) is None
    assert desired_geometry(table(12), A100, strict="s", best_effort="b", queries=128 * 2) == LARGE


def test_thresholds_follow_the_slowdowns() -> None:
    known = table(4, small_rdf=1.4)
    assert t_low(known, A100, strict="s", best_effort="b", capacity=3) == 2
    assert t_high(known, A100, best_effort="b", capacity=3, multiplier=3.0) == 3
    assert t_high(known, A100, best_effort="b", capacity=3, multiplier=1.0) == 0
    assert t_low(table(9, fbr=0.0), A100, strict="s", best_effort="b", capacity=1) == 2


def test_the_forecast_is_exponentially_weighted_and_starts_with_the_first_interval() -> None:
    forecast = BestEffortForecast(alpha=0.5)
    assert [forecast.update(x) for x in (100.0, 200.0, 200.0)] == [100.0, 150.0, 175.0]
    assert BestEffortForecast(alpha=1.0).update(7.0) == pytest.approx(7.0)

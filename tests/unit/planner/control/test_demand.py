"""Demand estimates on steps, ramps, spikes and days."""

import math

import numpy as np
import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import DemandCounted
from sluicegate.planner.estimates.demand_estimate import DemandEstimator, DemandSettings, demand_settings


def feed(estimator: DemandEstimator, rate_of: object, start: float, end: float, app: str = "a") -> float:
    """Half-second counts of ``rate_of(t)`` queries/s (a callable), exactly; returns the last time."""
    t = start
    while t < end - 1e-9:
        t += 0.5
        estimator.handle(DemandCounted(app, round(rate_of(t) * 0.5), 0.5), t)  # type: ignore[operator]
    return t


def test_a_steady_rate_is_estimated_as_it_is() -> None:
    estimator = DemandEstimator()
    now = feed(estimator, lambda t: 100, 0.0, 20.0)
    assert estimator.estimate("a", now).qps == pytest.approx(100, rel=0.01)


def test_a_step_is_followed_within_a_few_seconds() -> None:
    estimator = DemandEstimator()
    feed(estimator, lambda t: 100, 0.0, 20.0)
    now = feed(estimator, lambda t: 300, 20.0, 28.0)
    assert 285 < estimator.estimate("a", now).qps <= 300


def test_a_step_beyond_what_is_covered_bursts_within_a_second_and_lifts_the_estimate() -> None:
    estimator = DemandEstimator()
    feed(estimator, lambda t: 100, 0.0, 20.0)
    estimator.cover("a", 140.0)
    assert estimator.bursting(20.0) == ()
    now = feed(estimator, lambda t: 500, 20.0, 21.0)
    assert estimator.bursting(now) == ("a",)
    assert estimator.estimate("a", now).qps == pytest.approx(500, rel=0.01)
    assert estimator.estimate("a", now).burst


def test_the_maximum_of_a_burst_is_held_for_the_window_and_then_forgotten() -> None:
    estimator = DemandEstimator(DemandSettings(window=10.0))
    feed(estimator, lambda t: 100, 0.0, 20.0)
    estimator.cover("a", 140.0)
    now = feed(estimator, lambda t: 500, 20.0, 22.0)
    estimator.bursting(now)
    now = feed(estimator, lambda t: 100, 22.0, 28.0)
    assert estimator.estimate("a", now).qps == pytest.approx(500, rel=0.01)
    now = feed(estimator, lambda t: 100, 28.0, 50.0)
    assert estimator.estimate("a", now).qps == pytest.approx(100, rel=0.01)
    assert not estimator.estimate("a", now).burst


def test_a_single_second_a_little_above_is_no_burst_but_two_are() -> None:
    estimator = DemandEstimator()
    feed(estimator, lambda t: 100, 0.0, 20.0)
    estimator.cover("a", 140.0)
    now = feed(estimator, lambda t: 170, 20.0, 21.0)
    assert estimator.bursting(now) == ()
    now = feed(estimator, lambda t: 170, 21.0, 22.0)
    assert estimator.bursting(now) == ("a",)


def test_without_a_plan_nothing_is_a_burst() -> None:
    estimator = DemandEstimator()
    now = feed(estimator, lambda t: 1000, 0.0, 5.0)
    assert estimator.bursting(now) == ()


def test_a_ramp_is_followed_with_a_lag_of_its_time_constant() -> None:
    estimator = DemandEstimator()
    now = feed(estimator, lambda t: 10 * t, 0.0, 60.0)
    assert 10 * (60 - 4) < estimator.estimate("a", now).qps < 600


def test_a_day_is_followed_within_a_few_percent() -> None:
    estimator = DemandEstimator()
    worst = 0.0
    day = lambda t: 500 + 300 * math.sin(2 * math.pi * t / 200)  # noqa: E731
    now = feed(estimator, day, 0.0, 20.0)
    while now < 400:
        now = feed(estimator, day, now, now + 1.0)
        worst = max(worst, abs(estimator.estimate("a", now).qps / day(now) - 1))
    assert worst < 0.12


def test_counts_of_several_routers_add_up() -> None:
    estimator = DemandEstimator()
    for half in range(1, 40):
        for router in range(3):
            estimator.handle(DemandCounted("a", 10, 0.5), half * 0.5 + router * 0.01)
    assert estimator.estimate("a", 20.0).qps == pytest.approx(60, rel=0.02)


def test_silence_is_no_demand() -> None:
    estimator = DemandEstimator()
    feed(estimator, lambda t: 100, 0.0, 20.0)
    assert estimator.estimate("a", 60.0).qps == pytest.approx(DemandSettings().min_qps)
    estimator.handle(DemandCounted("a", 50, 0.5), 1e7)
    assert estimator.estimate("a", 1e7 + 2).qps > 1


def test_headroom_follows_the_rule_for_poisson_and_favours_small_apps() -> None:
    rng = np.random.default_rng(3)
    estimator = DemandEstimator()
    for half in range(1, 1200):
        estimator.handle(DemandCounted("small", int(rng.poisson(2.5)), 0.5), half * 0.5)
        estimator.handle(DemandCounted("large", int(rng.poisson(500)), 0.5), half * 0.5)
    small, large = estimator.estimate("small", 600.0), estimator.estimate("large", 600.0)
    settings = DemandSettings()
    assert large.headroom == pytest.approx(settings.headroom_floor)
    rule = 1 + settings.z / math.sqrt(settings.queue_time * small.qps)
    assert rule <= small.headroom <= 1.5 * rule


def test_arrivals_burstier_than_poisson_get_more_headroom() -> None:
    rng = np.random.default_rng(3)
    estimator = DemandEstimator()
    for half in range(1, 1200):
        estimator.handle(DemandCounted("calm", int(rng.poisson(50)), 0.5), half * 0.5)
        estimator.handle(DemandCounted("wild", int(rng.poisson(50 * rng.gamma(0.5, 2.0))), 0.5), half * 0.5)
    calm, wild = estimator.estimate("calm", 600.0), estimator.estimate("wild", 600.0)
    assert wild.headroom > calm.headroom + 0.3


def test_a_count_that_comes_after_its_second_was_closed_counts_in_the_oldest_open_one() -> None:
    estimator = DemandEstimator()
    estimator.handle(DemandCounted("a", 10, 0.5), 1000.5)
    assert estimator.estimate("a", 1001.6).qps == 10.0
    estimator.handle(DemandCounted("a", 6, 0.5, age=1.0), 1001.7)
    found = estimator.estimate("a", 1002.6)
    assert found.qps == pytest.approx(10.0 + 0.385 * (6.0 - 10.0))
    assert found.spread == pytest.approx(math.sqrt(1.0 / (0.3 * 8.46))), "as Poisson has it"


def test_spread_and_headroom_follow_the_squared_differences_of_neighbouring_seconds() -> None:
    estimator = DemandEstimator(DemandSettings(tolerance=1.0))
    estimator.handle(DemandCounted("a", 10, 1.0), 1001.0)
    estimator.handle(DemandCounted("a", 40, 1.0), 1002.0)
    found = estimator.estimate("a", 1002.5)
    mean, level, variance = 10.0 + 0.385 * 30.0, 10.0 + 0.05 * 30.0, 10.0 + 0.05 * (30.0**2 / 2 - 10.0)
    spread = math.sqrt(variance / level / (0.3 * mean))
    assert (found.qps, found.spread) == (pytest.approx(mean), pytest.approx(spread))
    assert found.headroom == pytest.approx(1.0 + 1.5 * spread)
    assert not found.burst


def test_headroom_and_dispersion_have_bounds() -> None:
    calm = DemandSettings(headroom_floor=1.75)
    wild = DemandSettings(tolerance=0.01, dispersion_cap=6.0, headroom_cap=3.5)
    for settings, spread, headroom in ((calm, math.sqrt(1 / 12.0), 1.75), (wild, math.sqrt(6.0 / 12.0), 2.06066)):
        estimator = DemandEstimator(settings)
        estimator.handle(DemandCounted("a", 40, 1.0), 1001.0)
        found = estimator.estimate("a", 1001.5)
        assert found.spread == pytest.approx(spread)
        assert found.headroom == pytest.approx(headroom)
        assert estimator.estimate("never counted", 1001.5).qps == 0.5
    assert DemandEstimator(wild).estimate("never counted", 1001.5).headroom == pytest.approx(3.5)


def test_a_cap_on_headroom_that_leaves_less_than_the_demand_is_refused_by_name() -> None:
    told = r"planner\.estimate\.headroom_cap: 0\.99; give 1 or more"
    with pytest.raises(ConfigurationError, match=told):
        demand_settings({"headroom_floor": 0.5, "headroom_cap": 0.99}, "planner.estimate")
    found = demand_settings({"headroom_floor": 0.5, "headroom_cap": 1.0}, "planner.estimate")
    assert DemandEstimator(found).estimate("a", 1001.0).headroom == 1.0


@pytest.mark.parametrize(
    ("before", "last", "bursts"),
    [(20, 30, False), (20, 31, True), (25, 25, False), (26, 26, True), (24, 27, True), (22, 27, False), (0, 31, True)],
)
def test_a_burst_is_a_second_beyond_one_bound_or_two_beyond_a_lower_one(before: int, last: int, bursts: bool) -> None:
    """Of 20 queries/s covered: above 30 in a second, or above 25 both in the last second and in the last two."""
    estimator = DemandEstimator(DemandSettings(sharp=1.5, sustained=1.25))
    estimator.cover("a", 20.0)
    estimator.cover("b", 20.0)
    estimator.handle(DemandCounted("b", 9, 1.0), 1001.0)
    for second, count in ((1000.0, before), (1001.0, last)):
        first = count // 2
        estimator.handle(DemandCounted("a", first, 0.5), second + 0.5)
        estimator.handle(DemandCounted("a", count - first, 0.5), second + 1.0)
    assert estimator.bursting(1002.0) == (("a",) if bursts else ())


def test_too_few_queries_are_no_burst_whatever_is_covered_and_a_burst_ends_a_window_after_it_was_seen() -> None:
    estimator = DemandEstimator(DemandSettings(min_qps=2.0, window=3.0))
    estimator.cover("a", 0.0)
    estimator.handle(DemandCounted("a", 2, 0.5), 1000.5)
    assert estimator.bursting(1001.0) == ()
    estimator.handle(DemandCounted("a", 1, 0.5), 1001.0)
    assert estimator.bursting(1001.0) == ("a",)
    assert estimator.estimate("a", 1003.9).burst
    assert not estimator.estimate("a", 1004.0).burst


def test_a_sharp_burst_raises_the_estimate_to_the_second_that_is_not_over_yet() -> None:
    estimator = DemandEstimator()
    estimator.cover("a", 15.0)
    estimator.handle(DemandCounted("a", 12, 1.0), 1001.0)
    estimator.handle(DemandCounted("a", 23, 0.5), 1001.5)
    estimator.handle(DemandCounted("a", 22, 0.5), 1002.0)
    assert estimator.estimate("a", 1002.0).qps == 12.0, "of a burst nothing is known before one looks"
    assert estimator.bursting(1002.0) == ("a",)
    assert estimator.estimate("a", 1002.0).qps == 45.0

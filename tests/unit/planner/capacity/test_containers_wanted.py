"""How many workers a load wants: what one does at a time, where the load is going, for how long a number is kept."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.capacity.autoscaling import (
    Autoscaler,
    Observed,
    ScaleTo,
    ScalingSettings,
    Trend,
    Unit,
    containers_wanted,
    units,
)
from sluicegate.planner.capacity.capacity_fields import LoadFields, SpotFields
from sluicegate.planner.capacity.cores import LoadRules, SpotRules
from sluicegate.planner.problems.throughput import throughput
from sluicegate.profiles.catalogue.catalogue import Catalogue

NOW = 6000.0


@pytest.mark.parametrize("now", [1.5, NOW])
def test_a_trend_goes_on_from_level_and_slope_and_never_below_nothing(now: float) -> None:
    trend = Trend(alpha=0.5, beta=0.3)
    assert trend.ahead(5.0) == 0.0
    trend.update(10.0, now)
    assert trend.ahead(7.0) == 10.0
    trend.update(16.0, now + 2.0)  # level 13, slope .3 x 1.5
    assert trend.ahead(4.0) == pytest.approx(13.0 + 4 * 0.45)
    trend.update(4.0, now + 3.0)  # level (4 + 13.45) / 2, slope .7 x .45 - .3 x 4.275
    assert trend.ahead(2.0) == pytest.approx(8.725 - 2 * 0.9675)
    assert trend.ahead(20.0) == 0.0


def test_a_trend_weighs_samples_by_a_half_and_slopes_by_three_tenths() -> None:
    usual, same = Trend(), Trend(alpha=0.5, beta=0.3)
    for trend in (usual, same):
        for second, rate in enumerate((3.0, 9.0, 4.0)):
            trend.update(rate, NOW + second)
    assert usual.ahead(3.0) == same.ahead(3.0)


@pytest.mark.parametrize("back", [0.0, 1.0, 1.2, 0.999, 3600.0])
def test_a_clock_that_is_set_back_makes_no_trend_of_a_fluctuation(back: float) -> None:
    trend = Trend()
    for second in range(20):
        trend.update(10.0 + second % 2, NOW + second)
    for second in range(20, 40):
        trend.update(10.0 + second % 2, NOW + second - back)
        assert trend.ahead(10.0) < 14.0


def test_a_rise_is_seen_after_a_clock_was_set_back() -> None:
    trend = Trend()
    for second in range(60):
        trend.update(10.0 * second, NOW + second - (1800.0 if second >= 30 else 0.0))
    assert trend.ahead(10.0) == pytest.approx(690.0, abs=15.0)


def test_on_hand_is_what_comes_in_the_time_of_a_batch_and_a_backlog_within_the_slo() -> None:
    unit = Unit("v", 4, 0.25, 0.5)
    assert unit.on_hand(12.0) == 3.0
    assert unit.on_hand(12.0, 3.0) == 4.5


def profile(variant: str, kind: str, *points: tuple[int, float, float]) -> Profile:
    return Profile(variant=variant, device_type=kind, points=tuple(BatchLatency(*point) for point in points))


CATALOGUE = Catalogue.of(
    [App(name="a", slo=0.5), App(name="b", slo=0.25), App(name="c", slo=0.5)],
    [
        Variant(name="a-top", app="a", accuracy=0.95),
        Variant(name="a-z", app="a", accuracy=0.9),
        Variant(name="a-b", app="a", accuracy=0.9),
        Variant(name="a-low", app="a", accuracy=0.5),
        Variant(name="b-only", app="b", accuracy=0.8),
        Variant(name="c-only", app="c", accuracy=0.8),
    ],
    [
        profile("a-top", "cpu", (1, 0.26, 0.3)),
        profile("a-z", "cpu", (1, 0.01, 0.02)),
        profile("a-b", "cpu", (1, 0.125, 0.2), (4, 0.25, 0.26), (8, 0.375, 0.5)),
        profile("a-low", "cpu", (1, 0.001, 0.002)),
        profile("b-only", "cpu", (1, 0.126, 0.2)),
        profile("c-only", "gpu", (1, 0.01, 0.01)),
    ],
)


def test_a_worker_runs_the_most_accurate_variant_that_has_a_batch_within_half_the_slo_at_its_best() -> None:
    assert units(CATALOGUE, "cpu", "median") == {"a": Unit("a-b", 4, 0.25, 0.5)}
    assert units(CATALOGUE, "cpu") == {"a": Unit("a-b", 1, 0.2, 0.5)}
    assert units(CATALOGUE, "gpu") == {"c": Unit("c-only", 1, 0.01, 0.5)}


def test_a_worker_that_runs_several_batches_at_a_time_counts_as_it_does_in_plans() -> None:
    three = replace(CATALOGUE.profiles["a-b", "cpu"], executors=3)
    several = Catalogue.of(CATALOGUE.apps.values(), CATALOGUE.variants.values(), [*CATALOGUE.profiles.values(), three])
    assert units(several, "cpu", "median") == {"a": Unit("a-b", 12, 0.25, 0.5)}
    assert units(several, "gpu") == {"c": Unit("c-only", 1, 0.01, 0.5)}
    assert throughput(three, 0.25).qps == 12 / 0.25


def test_containers_are_whole_batches_of_each_variant() -> None:
    batches = {"v": 4, "w": 10, "none": 0}
    assert containers_wanted(batches, {"v": 8.0, "w": 0.5, "new": 2.5, "none": 1.0}) == 2 + 1 + 3 + 1
    assert containers_wanted(batches, {"v": 8.0 + 1e-10, "w": 0.0}) == 2
    assert containers_wanted(batches, {"v": 8.001}) == 3
    for wrong in (-0.1, float("inf"), float("nan")):
        with pytest.raises(InvalidInputError, match=r"^queries\.v"):
            containers_wanted(batches, {"w": 1.0, "v": wrong})


def test_the_largest_number_wanted_is_kept_for_a_while_within_its_bounds() -> None:
    scaler = Autoscaler({"v": 4}, ScalingSettings(keep_alive=30.0, least=1, most=6))

    def seen(queries: float, now: float, expected: float = 0.0) -> list[ScaleTo]:
        return scaler.handle(Observed("a", {"v": queries}, {"v": expected}), now)

    assert (scaler.target("a"), seen(0.0, NOW)) == (1, [])
    assert seen(9.0, NOW + 1.0) == [ScaleTo("a", 3)]
    assert seen(1.0, NOW + 11.0) == []
    assert seen(7.0, NOW + 31.0) == []
    assert seen(1.0, NOW + 31.5) == [ScaleTo("a", 2)]
    assert seen(1.0, NOW + 40.0, expected=17.0) == [ScaleTo("a", 5)]
    assert seen(90.0, NOW + 41.0) == [ScaleTo("a", 6)]
    assert seen(0.0, NOW + 99.0) == [ScaleTo("a", 1)]
    assert (scaler.target("a"), scaler.target("b")) == (1, 1)


def test_settings_of_scaling_have_bounds() -> None:
    assert ScalingSettings() == ScalingSettings(keep_alive=600.0, least=0, most=1000)
    ScalingSettings(keep_alive=0.0, least=3, most=3)
    for keep_alive, least, most in ((-1.0, 0, 1), (float("inf"), 0, 1), (1.0, -1, 1), (1.0, 4, 3)):
        with pytest.raises(InvalidInputError, match="make no sense"):
            ScalingSettings(keep_alive=keep_alive, least=least, most=most)


def test_scaling_by_load_is_as_its_settings_say_and_documented_where_they_say_nothing() -> None:
    said = LoadFields(
        spare=("s", "t"), keep_alive_s=1.0, headroom=2.0, lead_s=3.0, settle_s=4.0, patience_s=5.0, start_timeout_s=6.0
    )
    assert said.rules() == LoadRules(
        spare=("s", "t"), keep_alive=1.0, headroom=2.0, lead=3.0, settle=4.0, patience=5.0, start_timeout=6.0
    )
    silent = LoadFields(spare=("s",))
    assert silent.period_s == 1.0
    assert silent.rules() == LoadRules(
        spare=("s",), keep_alive=600.0, headroom=1.2, lead=10.0, settle=3.0, patience=60.0, start_timeout=30.0
    )
    for headroom in (0.99, 10.01):
        with pytest.raises(ValidationError, match="headroom"):
            LoadFields(spare=("s",), headroom=headroom)
    with pytest.raises(ValidationError, match="spare"):
        LoadFields(spare=())


def test_spot_capacity_is_as_its_settings_say_and_documented_where_they_say_nothing() -> None:
    said = SpotFields(mode="spot-only", on_demand_price=7.5, interval_s=11.0, settle_s=0.5)
    assert said.rules() == SpotRules(on_demand_price=7.5, mode="spot-only", interval=11.0, settle=0.5)
    silent = SpotFields(on_demand_price=0.0)
    assert (silent.p_rev, silent.boot_s, silent.poll_s) == (0.0, 20.0, 1.0)
    assert silent.rules() == SpotRules(on_demand_price=0.0, mode="hybrid", interval=60.0, settle=3.0)

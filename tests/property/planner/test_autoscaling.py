"""The autoscaler against its definition: the largest number wanted within the window, bounded, said once."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.domain.errors import InvalidInputError
from sluicegate.planner.capacity.autoscaling import Autoscaler, Observed, ScaleTo, ScalingSettings, containers_wanted

loads = st.lists(st.tuples(st.floats(0.0, 400.0), st.floats(0.0, 500.0)), min_size=1, max_size=40)


@given(loads, st.floats(0.0, 900.0), st.integers(0, 3), st.integers(3, 9))
@settings(max_examples=100, deadline=None)
def test_the_target_is_the_most_wanted_within_the_window(
    steps: list[tuple[float, float]], keep: float, least: int, most: int
) -> None:
    scaler = Autoscaler({"a": 64}, ScalingSettings(keep_alive=keep, least=least, most=most))
    now, history, said = 0.0, [], least
    for gap, queries in steps:
        now += gap
        history.append((now, math.ceil(queries / 64 - 1e-9)))
        for action in scaler.handle(Observed("app", {"a": queries}, {}), now):
            assert action.containers != said
            said = action.containers
        wanted = max(n for t, n in history if t >= now - keep)
        assert scaler.target("app") == said == min(max(wanted, least), most)


def test_the_forecast_warms_ahead_and_each_variant_rounds_up_alone() -> None:
    scaler = Autoscaler({"a": 128, "b": 4})
    assert scaler.handle(Observed("app", {"a": 1, "b": 5}, {}), 0.0) == [ScaleTo("app", 3)]
    assert scaler.handle(Observed("app", {"a": 1}, {"a": 1000}), 1.0) == [ScaleTo("app", 8)]
    assert scaler.handle(Observed("app", {}, {}), 600.0) == []
    assert scaler.handle(Observed("app", {}, {}), 602.0) == [ScaleTo("app", 0)]
    assert containers_wanted({}, {"x": 2.5}) == 3


@pytest.mark.parametrize("queries", [float("nan"), float("inf"), -1.0])
def test_nonsense_is_refused(queries: float) -> None:
    with pytest.raises(InvalidInputError, match=r"queries\.a"):
        Autoscaler({}).handle(Observed("app", {"a": queries}, {}), 0.0)
    with pytest.raises(InvalidInputError):
        ScalingSettings(least=2, most=1)

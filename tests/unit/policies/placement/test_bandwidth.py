"""Bandwidth of variants from measurements that contradict one another, are saturated or not, and say too little."""

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.policies.placement.bandwidth import MAX_FBR, Colocation, estimate_fbr, predicted


def test_where_measurements_differ_relative_errors_count() -> None:
    """2 x = 2 and 4 x = 4.4, each over its own size: (x - 1) + (4 x / 4.4 - 1) 4 / 4.4 = 0."""
    found = estimate_fbr([Colocation(("a",) * 2, 2.0), Colocation(("a",) * 4, 4.4)])
    part = 4 / 4.4
    assert found.fbr["a"] == pytest.approx((1 + part) / (1 + part * part), abs=1e-5)
    assert (found.identifiable, found.active) == (frozenset("a"), 0)


def test_what_slowed_nobody_says_something_only_where_the_others_break_it() -> None:
    """Three of "b" slow each other 1.8 times; one beside two "a" slows nobody, so that "a" has 0.2 at most."""
    rows = [Colocation(("b",) * 3, 1.8), Colocation(("a", "a", "b"), 1.01), Colocation(("a",) * 4, 1.2)]
    found = estimate_fbr(rows)
    assert found.active == 1
    assert found.fbr["b"] > found.fbr["a"] > 0.2
    idle = estimate_fbr([Colocation(("b",) * 3, 1.8), Colocation(("a",), 0.97)])
    assert idle.fbr == pytest.approx({"a": 0.0, "b": 0.6}, abs=1e-5)
    assert (idle.identifiable, idle.active) == (frozenset("b"), 0)


def test_slowdown_within_the_noise_is_none() -> None:
    assert estimate_fbr([Colocation(("a",) * 2, 1.02)]).fbr["a"] == 0.0
    assert estimate_fbr([Colocation(("a",) * 2, 1.021)]).fbr["a"] == pytest.approx(0.5105, abs=1e-5)
    assert estimate_fbr([Colocation(("a",) * 2, 1.29)], saturation=0.3).fbr["a"] == 0.0


def test_of_two_that_only_ran_together_the_sum_is_known_and_neither_term() -> None:
    found = estimate_fbr([Colocation(("a", "b"), 1.5), Colocation(("c",) * 2, 1.3)])
    assert found.fbr["a"] + found.fbr["b"] == pytest.approx(1.5, abs=1e-5)
    assert found.identifiable == {"c"}
    nothing = estimate_fbr([Colocation(("a",), 0.97), Colocation(("b", "c"), 1.0)])
    assert (nothing.fbr, nothing.identifiable, nothing.active) == ({"a": 0.0, "b": 0.0, "c": 0.0}, frozenset(), 0)
    assert estimate_fbr([Colocation(("c",) * 2, 9.9)]).fbr["c"] == pytest.approx(MAX_FBR)


def test_together_nobody_is_faster_than_alone() -> None:
    assert predicted({"a": 0.4, "b": 0.7, "c": 9.0}, ["a", "b", "b"]) == pytest.approx(1.8)
    assert predicted({"a": 0.4, "b": 0.3}, ["a", "b"]) == 1.0


@pytest.mark.parametrize("slowdown", [0.0, -1.0, float("inf"), float("nan")])
def test_a_slowdown_that_is_none_is_refused_by_its_place(slowdown: float) -> None:
    with pytest.raises(InvalidInputError, match=r"colocations\[1\]\.slowdown"):
        estimate_fbr([Colocation(("a",), 1.0), Colocation(("a",), slowdown)])
    with pytest.raises(InvalidInputError, match="none was measured"):
        estimate_fbr([])

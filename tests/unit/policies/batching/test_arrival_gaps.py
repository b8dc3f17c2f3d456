"""Gaps between arrivals: what a wait for the next one is worth."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.policies.batching.arrival_gaps import ArrivalGaps


def seen(gaps: list[float], slo: float = 0.1) -> ArrivalGaps:
    known = ArrivalGaps(slo)
    for gap in gaps:
        known.add(gap)
    return known


def exponential(rate: float, count: int = 4000) -> list[float]:
    found: list[float] = np.random.default_rng(3).exponential(1.0 / rate, count).tolist()
    return found


def test_nothing_is_expected_before_anything_was_seen() -> None:
    assert ArrivalGaps(0.1).wait_until(0.0, 1.0) == 0.0


def test_regular_arrivals_are_waited_for_below_their_rate_only() -> None:
    known = seen([0.010] * 64)
    assert known.wait_until(0.0, 50.0) >= 0.010
    assert known.wait_until(0.0, 300.0) == 0.0


def test_arrivals_without_memory_are_worth_the_same_wait_however_long_nothing_came() -> None:
    known = seen(exponential(1000.0))
    for since in (0.0, 0.0005, 0.001, 0.002):
        assert known.wait_until(since, 500.0) > since
        assert known.wait_until(since, 2000.0) <= max(since, 0.0002)


def test_the_rest_of_a_burst_is_waited_for_and_the_next_burst_is_not() -> None:
    known = seen(([0.0001] * 7 + [0.08]) * 20)
    assert 0.0001 <= known.wait_until(0.0, 200.0) < 0.001
    assert known.wait_until(0.001, 200.0) == 0.0


def test_no_wait_is_longer_than_any_gap_seen() -> None:
    assert 0.001 <= seen([0.001] * 64).wait_until(0.0, 0.001) <= 0.002


def test_old_gaps_are_forgotten() -> None:
    known = seen([0.05] * 500 + [0.001] * 5000)
    assert known.wait_until(0.0, 400.0) > 0.0
    assert known.wait_until(0.003, 15.0) == 0.0


def test_gaps_beyond_the_slo_and_arrivals_at_once_are_known_apart_from_those_beside_them() -> None:
    assert seen([0.5] * 64).wait_until(0.0, 0.5) >= 0.5, "five times the SLO"
    assert 0.0 < seen([0.0] * 64).wait_until(0.0, 1.0) < 2e-7, "no longer than a moment"


def test_weights_do_not_overflow() -> None:
    assert 0.001 <= seen([0.001] * 20_000).wait_until(0.0, 400.0) <= 0.002


@given(st.lists(st.floats(0.0, 10.0), min_size=16, max_size=64), st.floats(0.0, 1.0))
def test_a_dearer_wait_is_never_longer(gaps: list[float], since: float) -> None:
    known = seen(gaps)
    waits = [known.wait_until(since, rate) for rate in (0.1, 1.0, 10.0, 100.0, 1e4)]
    assert all(cheap >= dear for cheap, dear in pairwise(waits))

"""Queries of an app with a promise: how many, how large, and when the next comes, by the bound that is announced."""

from typing import Any

import pytest

from sluicegate.simulator.arrivals.promised_load import PromisedArrivals, PromisedLoad

START = 1000.0
BURSTS, EVEN, RANDOM, EDGES = range(4)


class Draws:
    """Draws the kinds given, one by one; random gaps of a quarter of their mean; the most rows."""

    def __init__(self, *kinds: int) -> None:
        self.kinds = list(kinds)
        self.asked: list[tuple[int, ...]] = []

    def integers(self, *bounds: int) -> int:
        self.asked.append(bounds)
        return self.kinds.pop(0) if len(bounds) == 1 else bounds[1] - 1

    def exponential(self, mean: float) -> float:
        return mean / 4


def arrivals(
    draws: Any, *, queries: int = 1000, rows: tuple[int, int] = (1, 1), share: float = 1.0
) -> PromisedArrivals:
    return PromisedArrivals(PromisedLoad(app="a", queries=queries, rows=rows, share=share), draws)


def gaps(made: PromisedArrivals, count: int, bound: tuple[int, float]) -> list[float]:
    """Seconds between each of ``count`` queries and the next."""
    now, found = START, []
    for _ in range(count):
        after = made.after(now, bound)
        found.append(after - now)
        now = after
    return found


def test_a_query_has_any_number_of_rows_between_the_least_and_the_most() -> None:
    draws = Draws()
    assert arrivals(draws, rows=(3, 3)).rows() == 3 and not draws.asked
    assert arrivals(draws, rows=(2, 5)).rows() == 5 and draws.asked == [(2, 6)]


def test_while_no_bound_is_announced_a_query_comes_each_tenth_of_a_second() -> None:
    made = arrivals(Draws(), queries=3)
    assert [made.after(START, bound) - START for bound in (None, (0, 2.0))] == pytest.approx([0.1, 0.1])
    assert made.left == 1


@pytest.mark.parametrize(("share", "gap"), [(1.0, 2.0), (0.5, 4.0), (0.8, 2.5)])
def test_at_first_as_many_come_at_even_distances_as_make_up_the_share_of_the_bound(share: float, gap: float) -> None:
    assert gaps(arrivals(Draws(), share=share), 5, (3, 6.0)) == pytest.approx(5 * [gap])


def test_none_comes_before_a_window_has_ended_that_bears_no_more() -> None:
    """One a window of 4 s, and gaps drawn as a quarter of that from the twentieth on."""
    assert all(4.0 <= gap < 4.0 + 1e-6 for gap in gaps(arrivals(Draws(RANDOM, RANDOM, RANDOM)), 60, (1, 4.0)))


def stretch(kind: int, most: int, window: float, share: float) -> list[float]:
    """Gaps of three windows' queries, from the first of a stretch of that kind."""
    made = arrivals(Draws(kind, kind), share=share)
    now = START
    for _ in range(20 * most - 1):
        now = made.after(now, (most, window))
    now += 99.0
    found = []
    for _ in range(3 * most):
        after = made.after(now, (most, window))
        found.append(after - now)
        now = after
    return found


def test_bursts_are_of_as_many_as_a_window_bears_with_the_rest_of_the_time_between_them() -> None:
    assert stretch(BURSTS, 3, 4.0, 0.5) == pytest.approx([8.0, 0.0, 0.0] * 3, abs=1e-9)


def test_at_the_edges_one_comes_as_a_window_begins_and_the_others_just_before_it_ends() -> None:
    """The first of three opens the window; two follow at its end, and the next window begins a little later."""
    found = stretch(EDGES, 3, 4.0, 0.5)
    assert found == pytest.approx([0.008, 7.992, 0.0] * 3, abs=1e-9)
    assert stretch(EDGES, 1, 4.0, 0.5) == pytest.approx(3 * [7.992], abs=1e-9)


def test_random_gaps_have_the_mean_that_makes_up_the_share() -> None:
    """A quarter of the mean of 8 / 2 s each: the window of 4 s, borne by two, holds each third one up."""
    found = stretch(RANDOM, 2, 4.0, 0.5)
    assert found == pytest.approx([1.0, 3.0, 1.0, 3.0, 1.0, 3.0], abs=1e-6)

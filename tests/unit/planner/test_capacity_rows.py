"""A query of several rows is run whole: the batch limit lets the app's largest query in."""

from dataclasses import replace

import pytest

from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.planner.problems.throughput import NONE, Throughput, throughput

PROFILE = Profile(
    variant="v",
    device_type="cpu",
    points=(BatchLatency(1, 0.002, 0.002), BatchLatency(4, 0.004, 0.004), BatchLatency(64, 0.100, 0.100)),
)


def test_the_most_efficient_batch_is_taken_where_queries_are_single_rows() -> None:
    assert throughput(PROFILE, 0.05).batch == 4


def test_the_limit_is_never_below_the_largest_query_that_fits() -> None:
    found = throughput(PROFILE, 0.05, rows=10)
    assert found.batch == 10
    assert abs(found.qps - 10 / (0.004 + 0.096 * 6 / 60)) < 1e-6


def test_where_the_largest_query_does_not_fit_smaller_ones_are_served() -> None:
    assert throughput(PROFILE, 0.005, rows=16).batch == 4


STEEP = Profile(
    variant="v",
    device_type="cpu",
    points=tuple(
        BatchLatency(batch, seconds, 2 * seconds)
        for batch, seconds in ((1, 0.25), (3, 0.375), (4, 0.5), (8, 0.75), (16, 1.25))
    ),
)


@pytest.mark.parametrize(
    ("budget", "batch", "seconds"),
    [(0.2, 0, 1.0), (0.25, 1, 0.25), (0.3125, 2, 0.3125), (0.312, 1, 0.25), (0.375, 3, 0.375), (0.5, 3, 0.375),
     (0.5625, 5, 0.5625), (0.75, 8, 0.75), (9.0, 16, 1.25)],
)  # fmt: skip
def test_the_best_of_all_batches_within_the_budget_is_counted_on(budget: float, batch: int, seconds: float) -> None:
    """Of three and of four, in .375 and .5 seconds, there are as many a second: the smaller batch is taken."""
    assert throughput(STEEP, budget) == Throughput(batch, batch / seconds)


def test_throughput_goes_by_the_quantile_the_measured_factor_and_the_executors() -> None:
    assert throughput(STEEP, 0.75, quantile="p95") == Throughput(3, 4.0)
    assert throughput(STEEP, 0.75, factor=2.0) == Throughput(3, 4.0)
    assert throughput(replace(STEEP, executors=3), 0.75) == Throughput(8, 32.0)
    assert throughput(replace(STEEP, executors=3), 0.2) == NONE


@pytest.mark.parametrize(
    ("budget", "found"),
    [(0.25, NONE), (0.26, Throughput(1, 4.0)), (0.5, Throughput(1, 4.0)), (0.51, Throughput(4, 8.0)),
     (0.75, Throughput(4, 8.0)), (9.0, Throughput(8, 10.0))],
)  # fmt: skip
def test_the_rule_of_the_artifact_takes_the_largest_of_four_sizes_below_the_budget_and_whole_queries(
    budget: float, found: Throughput
) -> None:
    """Eight in three quarters of a second are 10.67 a second."""
    assert throughput(STEEP, budget, capacity="largest-batch") == found
    assert throughput(STEEP, budget, capacity="largest-batch", rows=16) == found


def test_less_than_a_query_a_second_is_nothing_by_the_rule_of_the_artifact() -> None:
    slow = Profile(variant="v", device_type="cpu", points=(BatchLatency(1, 1.25, 1.25),))
    assert throughput(slow, 2.0, capacity="largest-batch") == NONE
    assert throughput(slow, 2.0) == Throughput(1, 0.8)

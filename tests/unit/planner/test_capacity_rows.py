"""A query of several rows is run whole: the batch limit lets the app's largest query in."""

from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.planner.problems.throughput import throughput

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

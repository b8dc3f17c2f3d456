"""The profiler's plan: interleaved, bounded, and honest about every sample."""

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.profiles.catalogue.profiler import Effort, Measurement, Sample, Sweep, summarise


def driven(sweep: Sweep, seconds: dict[str, float]) -> list[Measurement]:
    """Run a sweep in which a row of each variant takes ``seconds``."""
    order = []
    while (measurement := sweep.next()) is not None:
        order.append(measurement)
        wall = seconds[measurement.variant] * measurement.batch
        sweep.record(measurement, Sample(wall, wall / 2))
    return order


def test_rounds_are_interleaved_over_variants_and_batch_sizes() -> None:
    order = driven(Sweep(["a", "b"], [1, 4], Effort(least=3, enough=5)), {"a": 1e-4, "b": 1e-4})
    assert len(order) == 20
    for start in range(0, 20, 4):
        assert len(set(order[start : start + 4])) == 4
    assert [m.batch for m in order[:4]] == [1, 1, 4, 4]
    assert order[4:8] != order[8:12] or order[8:12] != order[12:16]


def test_slow_pairs_get_their_share_of_time_and_no_more() -> None:
    effort = Effort(least=4, enough=100, share=0.5)
    order = driven(Sweep(["slow", "fast"], [1], effort), {"slow": 0.1, "fast": 0.001})
    counts = {name: sum(m.variant == name for m in order) for name in ("slow", "fast")}
    assert counts == {"slow": 5, "fast": 100}


def test_batch_sizes_beyond_one_that_takes_too_long_are_given_up() -> None:
    sweep = Sweep(["slow"], [1, 2, 4, 8], Effort(least=3, enough=3, longest=0.5))
    order = driven(sweep, {"slow": 0.2})
    assert {m.batch for m in order} == {1, 2, 4}
    assert [p.batch for p in sweep.points("slow")] == [1, 2, 4]
    assert sweep.progress == 1.0


@pytest.mark.parametrize("stalled", [1, 2, 4, 9])
def test_one_stall_of_the_machine_gives_no_batch_size_up(stalled: int) -> None:
    sweep = Sweep(["brisk", "slow"], [1, 2, 4], Effort(least=3, enough=9, share=9.0, longest=0.5))
    count = 0
    while (measurement := sweep.next()) is not None:
        wall = {"brisk": 0.01, "slow": 0.2}[measurement.variant] * measurement.batch
        count += measurement == Measurement("brisk", 1)
        stalls = measurement == Measurement("brisk", 1) and count == stalled
        sweep.record(measurement, Sample(3.0 if stalls else wall, wall))
    assert [p.batch for p in sweep.points("brisk")] == [1, 2, 4]
    assert all(len(samples) == 9 for samples in sweep.rounds("brisk").values())
    assert max(s.wall for s in sweep.rounds("brisk")[1]) == 3.0, "it counts as any other"
    assert sweep.progress == 1.0


@settings(max_examples=50)
@given(st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=60))
def test_no_sample_is_left_out(walls: list[float]) -> None:
    point = summarise(8, [Sample(w, 2 * w) for w in walls])
    assert point.batch == 8
    assert abs(point.median - statistics.median(walls)) < 1e-9
    assert abs(point.cpu - 2 * statistics.median(walls)) < 1e-9
    assert point.median <= point.p95 <= max(walls) * (1 + 1e-9)
    rank = 0.95 * (len(walls) - 1)
    ordered = sorted(walls)
    low = int(rank)
    high = min(low + 1, len(walls) - 1)
    assert abs(point.p95 - (ordered[low] + (ordered[high] - ordered[low]) * (rank - low))) < 1e-9


@settings(max_examples=30)
@given(
    st.dictionaries(st.sampled_from("abc"), st.floats(1e-5, 0.2), min_size=1),
    st.sets(st.integers(1, 16), min_size=1, max_size=4),
)
def test_every_sweep_ends_with_each_measured_pair_sampled_enough(seconds: dict[str, float], sizes: set[int]) -> None:
    effort = Effort(least=3, enough=9, share=0.05, longest=1.0)
    order = driven(sweep := Sweep(seconds, sorted(sizes), effort), seconds)
    assert len(order) <= 9 * len(seconds) * len(sizes)
    for variant in seconds:
        points = sweep.points(variant)
        assert [p.batch for p in points] == sorted(p.batch for p in points)
        assert points[0].batch == min(sizes)
        for point in points:
            assert order.count(Measurement(variant, point.batch)) >= 3

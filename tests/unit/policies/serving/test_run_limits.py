"""How long a batch may run, and a load take; when one is overdue; what is told of those that ran."""

import pytest

from sluicegate.domain.actions import Run
from sluicegate.domain.events import LatencyMeasured
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, LengthPoints, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.query import Query
from sluicegate.policies.serving.batch_times import BatchTimes, RunLimits
from sluicegate.profiles.catalogue.catalogue import Catalogue, KnownCatalogue

VARIANTS = [Variant(name=name, app=app, accuracy=0.5) for name, app in (("slow", "a"), ("quick", "a"), ("new", "b"))]
CATALOGUE = Catalogue.of(
    [App(name="a", slo=0.7), App(name="b", slo=0.3)],
    VARIANTS,
    [
        Profile(
            variant="slow", device_type="cpu", points=(BatchLatency(1, 0.1, 0.2), BatchLatency(4, 0.3, 0.8)), load=3.0
        ),
        Profile(variant="quick", device_type="cpu", points=(BatchLatency(1, 0.001, 0.002),), load=0.2),
        Profile(variant="new", device_type="gpu", points=(BatchLatency(1, 0.1, 9.0),)),
    ],
)


def limit(times: BatchTimes, variant: str, rows: int) -> float:
    """Of a batch, which then runs."""
    app = CATALOGUE.variants[variant].app
    run = Run(variant, (Query(id="q", app=app, arrival=0.0, deadline=1e9, rows=rows),), rows)
    found = times.limit(run)
    times.note(run, 0.1)
    return found


def times_of(known: Catalogue = CATALOGUE, **limits: float) -> BatchTimes:
    return BatchTimes(Device(name="d", type="cpu"), Slice(name="s"), known, RunLimits(**limits))


def run_of(variant: str, rows: int, *, app: str = "a", length: int = 0) -> Run:
    return Run(variant, (Query("q", app, 1000.0, 1009.0, rows=rows, length=length),), rows)


def test_a_batch_may_take_a_multiple_of_its_profiled_p95_but_never_less_than_the_floor() -> None:
    times = times_of(factor=5.0, floor=0.9)
    for _ in range(3):
        assert limit(times, "slow", 1) == pytest.approx(5 * 0.2)
        assert limit(times, "slow", 4) == pytest.approx(5 * 0.8)
        assert limit(times, "slow", 6) == pytest.approx(5 * 0.8 * 6 / 4)  # beyond what was measured
        assert limit(times, "quick", 1) == pytest.approx(0.9)


def test_a_variant_without_a_profile_there_may_take_a_multiple_of_its_apps_slo() -> None:
    assert limit(times_of(factor=5.0, floor=0.9), "new", 1) == pytest.approx(5 * 0.3)


def test_the_first_batch_of_a_size_after_a_load_may_also_take_as_long_as_the_load_did() -> None:
    times = times_of(factor=5.0, floor=0.9)
    times.loaded("slow", 3.0)
    times.loaded("quick", 7.0)
    assert limit(times, "slow", 1) == pytest.approx(1.0 + 3.0)
    assert limit(times, "slow", 1) == pytest.approx(1.0)
    assert limit(times, "slow", 4) == pytest.approx(4.0 + 3.0)
    assert limit(times, "quick", 1) == pytest.approx(0.9 + 7.0)
    times.loaded("slow", 2.0)
    assert limit(times, "slow", 1) == pytest.approx(1.0 + 2.0)
    assert limit(times, "quick", 1) == pytest.approx(0.9)


def test_a_load_may_take_a_multiple_of_what_it_took_when_profiled_but_never_less_than_the_floor() -> None:
    times = times_of(factor=5.0, load_floor=4.0)
    times.loaded("slow", 9.0)  # what it took of late, on a machine in trouble, is no measure
    assert times.load_limit("slow") == pytest.approx(5 * 3.0)
    assert times.load_limit("quick") == pytest.approx(4.0)
    assert times.load_limit("new") is None  # profiled on other devices alone


def test_a_batch_is_overdue_after_three_times_its_profiled_p95_and_a_quarter_of_a_second_at_least() -> None:
    times = times_of()
    assert times.patience(run_of("slow", 1)) == pytest.approx(3 * 0.2)
    assert times.patience(run_of("slow", 4)) == pytest.approx(3 * 0.8)
    assert times.patience(run_of("slow", 7)) == pytest.approx(3 * 0.8), "no more is known of larger ones"
    assert times.patience(run_of("quick", 1)) == 0.25
    assert times.patience(run_of("new", 1, app="b")) == pytest.approx(3 * 0.3), "without a profile by the SLO"


def test_the_first_batch_of_a_size_after_a_load_is_overdue_later_by_as_long_as_the_load_took() -> None:
    times = times_of()
    times.loaded("slow", 3.0)
    times.loaded("quick", 7.0)
    times.ran("slow", 4)
    assert times.patience(run_of("slow", 1)) == pytest.approx(3 * 0.2 + 3.0)
    assert times.patience(run_of("slow", 4)) == pytest.approx(3 * 0.8)
    assert times.patience(run_of("quick", 1)) == pytest.approx(0.25 + 7.0)
    times.note(run_of("slow", 1), 0.15)
    assert times.patience(run_of("slow", 1)) == pytest.approx(3 * 0.2)


def test_what_a_batch_takes_is_expected_by_its_p95_and_normal_by_its_median() -> None:
    times = times_of()
    assert (times.expected(run_of("slow", 1)), times.expected(run_of("slow", 9))) == (0.2, 0.8)
    assert times.expected(run_of("new", 1, app="b")) == 0.0
    rows = {rows: times.normal(LatencyMeasured("slow", "cpu", rows, 5.0)) for rows in (0, 1, 2, 4, 9)}
    assert rows == pytest.approx({0: 0.1, 1: 0.1, 2: 0.1 + 0.2 / 3, 4: 0.3, 9: 0.3})
    assert times.normal(LatencyMeasured("new", "cpu", 1, 5.0)) == 0.0


def test_profiles_that_are_registered_later_count_from_then() -> None:
    known = KnownCatalogue(CATALOGUE)
    times = times_of(known, factor=5.0, floor=0.9)
    slow = LatencyMeasured("slow", "cpu", 1, 5.0)
    assert (limit(times, "slow", 1), limit(times, "slow", 1), times.normal(slow)) == (1.0, 1.0, 0.1)
    slower = Profile(variant="slow", device_type="cpu", points=(BatchLatency(1, 0.4, 0.6),))
    known.add(Catalogue.of(CATALOGUE.apps.values(), VARIANTS, [slower]))
    assert (limit(times, "slow", 1), times.normal(slow)) == (1.0, 0.1), "nobody has told it"
    times.registered()
    assert (limit(times, "slow", 1), times.normal(slow)) == (3.0, 0.4)
    assert times.expected(run_of("slow", 1)) == 0.6


def test_batches_are_measured_by_variant_and_size_and_each_is_told_once() -> None:
    times = times_of()
    for variant, rows, seconds in (("quick", 1, 0.25), ("slow", 2, 0.125), ("quick", 1, 0.75), ("slow", 4, 1.0)):
        times.note(run_of(variant, rows), seconds)
    assert times.take_measured() == (
        LatencyMeasured("quick", "cpu", 1, 0.5, 2),
        LatencyMeasured("slow", "cpu", 2, 0.125, 1),
        LatencyMeasured("slow", "cpu", 4, 1.0, 1),
    )
    assert (times.take_busy(), times.take_busy()) == (2.125, 0.0)
    assert times.take_measured() == ()
    times.note(run_of("quick", 1), 0.5)
    assert times.take_measured() == (LatencyMeasured("quick", "cpu", 1, 0.5, 1),)
    assert times.take_busy() == 0.5


@pytest.mark.parametrize(("together", "counts"), [(0, 0.5), (1, 1.2), (2, 0.75), (3, 0.5), (4, 0.5)])
def test_a_batch_beside_fewer_than_all_counts_as_if_all_had_run(together: int, counts: float) -> None:
    """Three executors, each of which takes 0.8 of the bandwidth: 2.4 times as long as alone, 1.5 times as two."""
    point = (BatchLatency(1, 0.4, 0.5),)
    crowded = Profile(variant="slow", device_type="cpu", points=point, fbr=0.8, executors=3)
    times = times_of(Catalogue.of(CATALOGUE.apps.values(), VARIANTS, [crowded]))
    times.note(run_of("slow", 1), 0.5, together)
    (measured,) = times.take_measured()
    assert measured.execution_s == pytest.approx(counts)
    assert times.take_busy() == 0.5, "it was busy for as long as it ran"


def test_what_no_profile_tells_of_counts_as_long_as_it_took() -> None:
    times = times_of()
    times.note(run_of("new", 1, app="b"), 0.5, 2)
    assert times.take_measured() == (LatencyMeasured("new", "cpu", 1, 0.5, 1),)


def test_inputs_of_other_lengths_have_limits_of_their_own_and_are_measured_as_the_longest() -> None:
    text = Profile(
        variant="slow",
        device_type="cpu",
        points=(BatchLatency(1, 0.3, 0.4), BatchLatency(2, 0.5, 0.8)),
        length=16,
        shorter=(LengthPoints(4, (BatchLatency(1, 0.05, 0.1), BatchLatency(2, 0.15, 0.3))),),
    )
    times = times_of(Catalogue.of(CATALOGUE.apps.values(), VARIANTS, [text]), factor=5.0, floor=0.1)
    for length, p95 in ((4, 0.3), (16, 0.8), (3, 0.3), (0, 0.8)):
        run = run_of("slow", 2, length=length)
        assert times.limit(run) == pytest.approx(5 * p95)
        assert times.expected(run) == p95
        assert times.patience(run) == pytest.approx(max(0.25, 3 * p95))
        times.ran("slow", 2)
    times.note(run_of("slow", 2, length=4), 0.15)
    (measured,) = times.take_measured()
    assert measured.execution_s == pytest.approx(0.15 * 0.8 / 0.3)


def test_an_app_has_an_only_variant_where_it_has_no_other() -> None:
    times = times_of()
    assert [times.is_only(variant) for variant in ("slow", "quick", "new")] == [False, False, True]

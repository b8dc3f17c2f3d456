"""How long a batch may run, and a load take."""

import pytest

from sluicegate.domain.actions import Run
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.query import Query
from sluicegate.policies.serving.batch_times import BatchTimes, RunLimits
from sluicegate.profiles.catalogue.catalogue import Catalogue

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


def times_of(**limits: float) -> BatchTimes:
    return BatchTimes(Device(name="d", type="cpu"), Slice(name="s"), CATALOGUE, RunLimits(**limits))


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

"""The clairvoyant bound in parts: prices of device time, chances of batches, and what time there is, by hand."""

from dataclasses import replace
from math import exp, inf
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtri

from sluicegate.domain.fleet.device import Slice
from sluicegate.domain.models.profile import BatchLatency, LengthPoints, Profile
from sluicegate.simulator.arrivals.sampling import Chunk
from sluicegate.simulator.bound import clairvoyant_bound
from sluicegate.simulator.bound.batch_chances import chances_of
from sluicegate.simulator.bound.clairvoyant import _by_window
from sluicegate.simulator.bound.fleet_capacity import Fleet
from sluicegate.simulator.bound.priced_time import Asked, Way, most_value
from sluicegate.simulator.engine.faults import Faults, Straggler
from sluicegate.simulator.engine.system_model import SystemModel
from sluicegate.simulator.scenario import build, scenario_of


def asked(*classes: tuple[int, int, float]) -> Asked:
    """(first interval, last, queries)."""
    first, last, counts = zip(*classes, strict=True)
    return Asked(np.array(first), np.array(last), np.array(counts, dtype=float))


def way(value: float, *takes: float) -> Way:
    """Seconds of resource 0, 1, ..; 0 takes nothing of it."""
    return Way(value, tuple((resource, seconds) for resource, seconds in enumerate(takes) if seconds))


@pytest.mark.parametrize("unit", [1.0, 0.25, 8.0])
@pytest.mark.parametrize(
    ("seconds", "worth"),
    [
        (4.0, 4 * 0.5),
        (15.0, 5 * 0.5 + 5 * 0.8),
        (20.0, 10 * 0.8),
        (30.0, 5 * 0.8 + 5 * 1.0),
        (50.0, 10 * 1.0),
    ],
)
def test_ten_queries_are_answered_in_the_best_mixture_of_ways_that_there_is_time_for(
    seconds: float, worth: float, unit: float
) -> None:
    """Of 1, 2 or 4 units each; what takes 3 is no better than half of each of its neighbours, 5 gain nothing."""
    ways = [way(value, unit * takes) for value, takes in ((1.0, 4), (0.85, 3), (0.5, 1), (0.99, 5), (0.8, 2))]
    found = most_value([asked((3, 3, 10.0))], [ways], np.array([unit * seconds / 2.0]), 2.0)
    assert found == pytest.approx(worth, abs=1e-5)


def test_queries_take_time_from_their_first_interval_to_their_last_and_no_other() -> None:
    """Two seconds of the device in each interval, a second each: of five that may only be run in one, two are."""
    ways = [way(0.5, 1.0)]
    one = np.array([2.0])
    assert most_value([asked((4, 4, 5.0))], [ways], one, 1.0) == pytest.approx(2 * 0.5, abs=1e-5)
    assert most_value([asked((4, 5, 5.0))], [ways], one, 1.0) == pytest.approx(4 * 0.5, abs=1e-5)
    assert most_value([asked((4, 6, 5.0))], [ways], one, 1.0) == pytest.approx(5 * 0.5, abs=1e-5)
    later = asked((4, 5, 3.0), (5, 5, 2.0))  # two of the three go first
    assert most_value([later], [ways], one, 1.0) == pytest.approx(4 * 0.5, abs=1e-5)


def test_time_goes_to_those_whose_answers_are_worth_more_for_it() -> None:
    """Three seconds: two go to the two queries worth 0.9 a second, the third to half of one worth 0.6 in two."""
    rich, poor = asked((2, 2, 2.0)), asked((2, 2, 4.0))
    found = most_value([rich, poor], [[way(0.9, 1.0)], [way(0.6, 2.0)]], np.array([3.0]), 1.0)
    assert found == pytest.approx(2 * 0.9 + 0.5 * 0.6, abs=1e-5)


def test_each_resource_has_its_own_price_and_a_way_may_take_two_of_them() -> None:
    """Seven queries: 4 fit on the first alone, then 2 on the second; or each takes a part of both."""
    seven = asked((1, 1, 7.0))
    capacity = np.array([4.0, 6.0])
    apart = [way(1.0, 1.0), way(0.5, 0.0, 3.0)]
    assert most_value([seven], [apart], capacity, 1.0) == pytest.approx(4 * 1.0 + 2 * 0.5, abs=1e-5)
    both = [way(1.0, 1.0, 2.0)]
    assert most_value([seven], [both], capacity, 1.0) == pytest.approx(3.0, abs=1e-5)


def test_a_long_trace_is_priced_in_stretches_to_the_same_end() -> None:
    each = asked(*((i, i, 3.0) for i in range(250)))
    assert most_value([each], [[way(0.5, 1.0)]], np.array([2.0]), 1.0) == pytest.approx(250 * 2 * 0.5, abs=1e-3)
    over = asked((99, 100, 5.0))  # into the next stretch: as if its last interval were that of the first stretch
    assert most_value([over], [[way(0.5, 1.0)]], np.array([2.0]), 1.0) + 1e-5 >= 4 * 0.5


def test_nothing_is_worth_anything_without_ways_or_queries() -> None:
    assert most_value([asked((0, 2, 9.0))], [[]], np.array([2.0]), 1.0) == 0.0
    assert most_value([], [], np.array([2.0]), 1.0) == 0.0


def test_queries_that_may_be_run_in_the_same_intervals_are_counted_together() -> None:
    ready = np.array([6.4, 7.2, 7.9, 7.5, 6.9])
    until = np.array([8.1, 7.9, 9.0, 7.75, 8.9])
    found = Asked.of(ready, until, 1.0)
    classes = zip(found.first.tolist(), found.last.tolist(), found.counts.tolist(), strict=True)
    assert list(classes) == [(6, 8, 2.0), (7, 7, 2.0), (7, 9, 1.0)]
    assert found.queries == 5.0
    assert Asked.of(ready, until, 2.0).first.tolist() == [3, 3]
    assert Asked.of(ready[:0], until[:0], 1.0).queries == 0.0


PROFILE = Profile(
    variant="v",
    device_type="old",
    points=(BatchLatency(1, 0.1, 0.2), BatchLatency(2, 0.16, 0.48), BatchLatency(3, 0.21, 0.21)),
)


def system(**changes: Any) -> SystemModel:
    document: dict[str, Any] = {
        "catalogue": {
            "variants": [
                {
                    "name": "v",
                    "app": "a",
                    "accuracy": 0.9,
                    "latency_ms": {"old": {1: 50}, "new": {1: 40}, "a100": {1: 20}},
                },
                {"name": "w", "app": "a", "accuracy": 0.6, "latency_ms": {"old": {1: 20}, "new:3g": {1: 30}}},
            ]
        },
        "apps": {"a": {"slo_ms": 100}},
        "devices": [{"type": "old", "count": 2}, {"type": "new"}],
        "traces": {"qps": [1, 2]},
    }
    return build(scenario_of({**document, **changes}), lambda: 0.0)


def chances(service: Any, window: float, *, factor: float = 1.0, certain: bool = False, **slow: Any) -> Any:
    model = replace(system(), service=service, **slow)
    return chances_of(model, PROFILE, 0, window, factor, certain=certain)


def test_batches_as_profiled_are_in_time_for_certain_where_they_take_no_longer_than_the_query_may_wait() -> None:
    assert chances("median", 0.1, certain=True) == [(1.0, 0.1)]
    assert chances("median", 0.16, certain=True) == [(1.0, 0.1), (1.0, 0.08)]
    assert chances("median", 0.0999, certain=True) == []
    assert chances("p95", 0.2, certain=True) == [(1.0, 0.2)]
    assert chances("p95", 0.3, certain=True) == [(1.0, 0.2), (1.0, pytest.approx(0.07))]
    assert chances("median", 0.08, factor=0.5, certain=True) == [(1.0, 0.05), (1.0, 0.04)]


def test_short_inputs_are_in_time_by_what_they_take() -> None:
    short = LengthPoints(8, (BatchLatency(1, 0.02, 0.03),))
    profile = replace(PROFILE, points=PROFILE.points[:1], length=32, shorter=(short,))
    assert chances_of(system(), profile, 8, 0.05, 1.0, certain=True) == [(1.0, 0.02)]
    assert chances_of(system(), profile, 32, 0.05, 1.0, certain=True) == []


def test_where_some_batches_are_slow_the_others_are_in_time_and_the_slow_take_what_the_query_may_wait() -> None:
    slow: dict[str, Any] = {"slow_probability": 0.25, "slow_factor": 3.0}
    one, *_ = chances("median", 0.15, **slow)
    assert one == pytest.approx((0.75, 0.75 * 0.1 + 0.25 * 0.15))
    one, two, three = chances("median", 0.35, **slow)
    assert one == pytest.approx((1.0, 0.75 * 0.1 + 0.25 * 0.3))
    assert two == pytest.approx((0.75, (0.75 * 0.16 + 0.25 * 0.35) / 2))
    assert three == pytest.approx((0.75, (0.75 * 0.21 + 0.25 * 0.35) / 3))


def test_exponential_times_are_in_time_by_their_chance_and_counted_up_to_the_wait() -> None:
    one, two, _ = chances("exponential", 0.32)
    assert one == pytest.approx((1 - exp(-3.2), 0.1 * (1 - exp(-3.2))))
    assert two == pytest.approx((1 - exp(-2.0), 0.16 * (1 - exp(-2.0)) / 2))


def test_drawn_times_are_in_time_at_their_median_half_and_at_their_p95_nineteen_times_in_twenty() -> None:
    """Three rows always take the same. What is taken is counted again over two hundred thousand equal chances."""
    assert [chance for chance, _ in chances("sampled", 0.2)] == pytest.approx([0.95, 0.6309], abs=1e-4)
    assert chances("sampled", 0.1)[0][0] == pytest.approx(0.5)
    assert chances("sampled", 0.21)[2] == pytest.approx((1.0, 0.07))
    equal = ndtri((np.arange(200_000) + 0.5) / 200_000)
    drawn = 0.16 * 3.0 ** (equal / 1.6448536269514722)
    assert chances("sampled", 0.3)[1][1] == pytest.approx(np.minimum(drawn, 0.3).mean() / 2, rel=1e-5)


def test_time_is_counted_by_kind_of_slice_and_sped_up_by_the_fastest_moments_alone() -> None:
    model = system()
    fleet = Fleet(replace(model, faults=Faults(stragglers=(Straggler("old*", 0.5, 1.0, inf), Straggler("new0", 3.0)))))
    assert fleet.capacity.tolist() == [2.0, 1.0] and fleet.fastest == 0.5
    assert [(kind.profiled, kind.takes("v")) for kind in fleet.kinds] == [("old", ((0, 1.0),)), ("new", ((1, 1.0),))]
    assert Fleet(model).fastest == 1.0


def test_what_nothing_says_of_a_slice_is_as_on_the_whole_device() -> None:
    model = system(devices=[{"type": "new"}])
    slices = Slice("left", "3g"), Slice("right", "4g")
    fleet = Fleet(replace(model, devices=tuple(replace(device, slices=slices) for device in model.devices)))
    left, right = fleet.kinds
    found = [fleet.profile(name, kind) for kind in (left, right) for name in ("v", "w")]
    assert [p.curve("median")(1) if p else None for p in found] == [0.04, 0.03, 0.04, None]


def test_slices_that_share_a_processor_take_their_part_of_it_beside_themselves() -> None:
    slices = [{"name": name, "profile": "3g", "instance": "both"} for name in ("left", "right")]
    fleet = Fleet(system(devices=[{"type": "new", "slices": slices}], simulation={"bandwidth": {"v": 0.25}}))
    assert fleet.capacity.tolist() == [1.0, 2.0]  # the processor, then the two halves
    (kind,) = fleet.kinds
    assert (kind.takes("v"), kind.takes("w")) == (((1, 1.0), (0, 0.25)), ((1, 1.0), (0, 1.0)))


def test_a_gpu_that_may_be_cut_is_taken_by_the_part_of_its_compute_and_of_its_memory() -> None:
    devices = [{"type": "a100", "geometry": "4g+3g", "count": 2}]
    fleet = Fleet(system(devices=devices, slices={"rdf": {"1g": 3.5, "2g": 2.0, "3g": 2.0, "4g": 1.5, "7g": 1.0}}))
    assert fleet.capacity.tolist() == [2.0, 2.0]
    takes = {kind.profiled: kind.takes("v") for kind in fleet.kinds}
    assert takes["a100:1g"] == ((0, 1 / 7), (1, 1 / 8))
    assert takes["a100:3g"] == ((0, 3 / 7), (1, 4 / 8))
    assert takes["a100:4g"] == ((0, 4 / 7), (1, 4 / 8))


def test_up_to_sixty_four_waits_are_told_apart_and_of_more_the_longer_holds() -> None:
    waits = np.array([*(0.1 * n for n in range(64, 0, -1)), 0.1, 0.0, -1.0])
    told = _by_window(waits)
    assert [window for window, _ in told] == sorted({*waits.tolist()} - {0.0, -1.0}) and len(told) == 64
    assert [int(mine.sum()) for _, mine in told] == [2] + 63 * [1]
    more = np.arange(1.0, 201.0)
    told = _by_window(more)
    assert len(told) <= 64 and told[-1][0] == 200.0
    assert sum(mine.sum() for _, mine in told) == 200
    assert all(more[mine].max() <= window for window, mine in told)


class Nothing:
    apps = ("a",)
    duration = 7.0

    def chunks(self) -> list[Chunk]:
        return []


def test_a_trace_without_arrivals_is_worth_nothing() -> None:
    bound = clairvoyant_bound(system(), Nothing(), np.random.default_rng(4))  # type: ignore[arg-type]
    assert (bound.right_in_time, bound.relative_right_in_time) == (0.0, 0.0)
    assert bound.violation_ratio == 0.0, "nothing was asked, and nothing missed"

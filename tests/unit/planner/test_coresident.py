"""``co-resident``: which variants share a slice, which app gets which slice, at which share."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.mdp.generate_table import generate
from sluicegate.planner.mdp.mdp_model import Candidate, SelectionModel
from sluicegate.planner.mdp.utilisation_cap import tolerable_rate
from sluicegate.planner.problems.problem import AppDemand, Problem
from sluicegate.planner.registry import planner
from sluicegate.profiles.catalogue.catalogue import Catalogue

MB = 1 << 20
SPEED = {"cpu": 1.0, "gpu": 0.2}
SIZES = {"small": (0.7, 0.01, 50), "mid": (0.8, 0.03, 100), "beaten": (0.75, 0.04, 100), "big": (0.9, 0.08, 400)}


def catalogue() -> Catalogue:
    apps, variants, profiles = [], [], []
    for app in ("a", "b"):
        apps.append(App(name=app, slo=0.1))
        for name, (accuracy, seconds, memory) in SIZES.items():
            variants.append(Variant(name=f"{app}-{name}", app=app, accuracy=accuracy))
            for kind, factor in SPEED.items():
                points = (
                    BatchLatency(1, factor * seconds, factor * seconds),
                    BatchLatency(8, 5 * factor * seconds, 5 * factor * seconds),
                )
                profiles.append(
                    Profile(variant=f"{app}-{name}", device_type=kind, points=points, memory_bytes=memory * MB)
                )
    return Catalogue.of(apps, variants, profiles)


def ask(cpus: int, gpus: int = 0, *, memory: int = 0, **qps: float) -> Problem:
    devices = [Device(name=f"cpu{i:02d}", type="cpu", memory_bytes=memory) for i in range(cpus)]
    devices += [Device(name=f"gpu{i:02d}", type="gpu") for i in range(gpus)]
    demands = tuple(AppDemand(app=app, qps=q, slo=0.1) for app, q in qps.items())
    return Problem(demands=demands, devices=tuple(devices), catalogue=catalogue())


def test_equal_workers_share_equally_and_hold_the_whole_front() -> None:
    answer = planner("co-resident").allocate(ask(4, a=50.0))
    assert {p.variants for p in answer.placements} == {("a-big", "a-mid", "a-small")}
    assert {p.share for p in answer.placements} == {0.25}
    assert answer.served == {"a": 1.0}
    assert 0.7 / 0.9 <= answer.objective <= answer.bound == 1.0
    assert answer.loads == 12
    assert any("accuracy" in step for step in answer.steps)


def test_what_memory_does_not_hold_is_left_out_the_most_accurate_first() -> None:
    answer = planner("co-resident").allocate(ask(2, memory=200 * MB, a=10.0))
    assert {p.variants for p in answer.placements} == {("a-mid", "a-small")}


def test_faster_workers_take_more() -> None:
    answer = planner("co-resident").allocate(ask(2, 2, a=100.0))
    share = {p.device: p.share for p in answer.placements}
    assert share["gpu00"] > 2.0 * share["cpu00"]
    assert sum(share.values()) == pytest.approx(1.0)


def test_devices_follow_demand_and_stay_where_they_can() -> None:
    first = planner("co-resident").allocate(ask(10, a=100.0, b=100.0))
    assert Counter(p.app for p in first.placements) == {"a": 5, "b": 5}
    changed = replace(ask(10, a=160.0, b=40.0), previous=first.placements)
    second = planner("co-resident").allocate(changed)
    assert Counter(p.app for p in second.placements) == {"a": 8, "b": 2}
    before = {p.device: p.app for p in first.placements}
    assert sum(p.app != before[p.device] for p in second.placements) == 3
    assert second.loads == 9


def test_an_app_with_little_demand_still_gets_a_worker() -> None:
    answer = planner("co-resident").allocate(ask(3, a=1000.0, b=0.001))
    assert Counter(p.app for p in answer.placements) == {"a": 2, "b": 1}
    assert answer.served["a"] < 1.0


def test_no_device_or_no_feasible_variant_is_no_placement() -> None:
    assert planner("co-resident").allocate(ask(0, a=5.0)).placements == ()
    impossible = replace(ask(2), demands=(AppDemand(app="a", qps=5.0, slo=0.001),))
    answer = planner("co-resident").allocate(impossible)
    assert answer.placements == ()
    assert answer.served == {"a": 0.0}


def classes(cpus: int, **qps: float) -> Problem:
    """App a, with the SLOs ``tight`` 40 ms and ``loose`` 400 ms."""
    slos = {"tight": 0.04, "loose": 0.4}
    demands = tuple(AppDemand(app="a", qps=q, slo=slos[name]) for name, q in qps.items())
    return replace(ask(cpus), demands=demands)


def test_each_slo_class_gets_slices_of_its_own() -> None:
    answer = planner("co-resident").allocate(classes(6, tight=100.0, loose=100.0))
    tight = [p for p in answer.placements if p.slo == 0.04]
    loose = [p for p in answer.placements if p.slo == 0.4]
    assert len(tight) + len(loose) == 6
    assert len(tight) > len(loose)  # little slack needs more workers for the same demand
    assert sum(p.share for p in tight) == pytest.approx(0.5)
    assert sum(p.share for p in loose) == pytest.approx(0.5)
    assert any("40 ms" in step for step in answer.steps)


def test_with_fewer_slices_than_classes_the_tightest_slo_is_kept_for_all() -> None:
    (only,) = planner("co-resident").allocate(classes(1, tight=5.0, loose=5.0)).placements
    assert (only.slo, only.share) == (0.0, 1.0)
    assert only.variants == ("a-mid", "a-small")  # the big one is not in time for the tight queries


def test_slices_stay_with_the_class_that_they_served() -> None:
    first = planner("co-resident").allocate(classes(6, tight=100.0, loose=100.0))
    again = replace(classes(6, tight=60.0, loose=140.0), previous=first.placements)
    before = {p.device: p.slo for p in first.placements}
    second = planner("co-resident").allocate(again)
    moved = sum(p.slo != before[p.device] for p in second.placements)
    counts = [Counter(p.slo for p in a.placements)[0.04] for a in (first, second)]
    assert moved == counts[0] - counts[1]


def test_headroom_is_what_the_promised_violations_leave() -> None:
    """An app of one worker must stay far below its best rate, one of many comes nearer; none of it is a constant."""
    few = planner("co-resident").allocate(ask(1, a=20.0))
    many = planner("co-resident").allocate(ask(20, a=400.0))
    assert 400.0 * many.headroom["a"] / 20 > 1.1 * 20.0 * few.headroom["a"]
    front = tuple(
        Candidate(name, accuracy, tuple(s * (0.5 + 0.5 * b) for b in range(1, 17)))
        for name, accuracy, s in (("s", 0.7, 0.01), ("b", 0.9, 0.06))
    )
    for workers in (1, 4):
        load = workers * tolerable_rate(front, 0.1, workers, 1e-3)
        at = [
            generate(
                SelectionModel(variants=front, slo=0.1, workers=workers, qps=f * load, violation_price=50.0)
            ).table.expected.violation
            for f in (0.97, 1.1)
        ]
        assert at[0] <= 1e-3 < at[1]


def test_bad_demand_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="qps"):
        planner("co-resident").allocate(ask(1, a=float("nan")))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 6), st.integers(0, 4), st.floats(0.0, 500.0), st.floats(0.0, 500.0))
def test_every_slice_has_one_app_and_shares_add_up(cpus: int, gpus: int, a: float, b: float) -> None:
    problem = ask(cpus, gpus, a=a, b=b)
    answer = planner("co-resident").allocate(problem)
    assert len({p.device for p in answer.placements}) == len(answer.placements) <= cpus + gpus
    for app in ("a", "b"):
        shares = [p.share for p in answer.placements if p.app == app]
        assert not shares or sum(shares) == pytest.approx(1.0)
    assert planner("co-resident").allocate(problem) == answer

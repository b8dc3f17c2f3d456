"""Model-less scaling as planners: replicate, upgrade, downgrade, avoid, load what is asked for, restore."""

from dataclasses import replace

import pytest

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Placement
from sluicegate.planner.capacity.events import Wishes
from sluicegate.planner.model_less.scaling_planners import ScalingPlanner
from sluicegate.planner.problems.problem import Allocation, AppDemand, Problem
from sluicegate.profiles.catalogue.catalogue import Catalogue

BOTH = pytest.mark.parametrize("exact", [False, True])


def catalogue() -> Catalogue:
    """One app; on a CPU 10 and 100 queries/s, on a GPU (five times the price) 800, one batch at a time."""
    variants = [Variant(name=n, app="a", accuracy=x, family="net") for n, x in (("slow", 0.9), ("quick", 0.8))]
    seconds = {("slow", "cpu"): 0.1, ("quick", "cpu"): 0.01, ("slow", "gpu"): 0.01, ("quick", "gpu"): 0.00125}
    profiles = [
        Profile(variant=v, device_type=t, points=(BatchLatency(1, s, s),), load=2.0) for (v, t), s in seconds.items()
    ]
    return Catalogue.of([App(name="a", slo=0.5)], variants, profiles)


def asked(qps: float, *, cpus: int = 4, gpus: int = 1, **more: object) -> Problem:
    devices = [Device(name=f"cpu{i}", type="cpu", price=1.0) for i in range(cpus)]
    devices += [Device(name=f"gpu{i}", type="gpu", price=5.0) for i in range(gpus)]
    problem = Problem(
        demands=(AppDemand(app="a", qps=qps, slo=0.5, headroom=1.05),), devices=tuple(devices), catalogue=catalogue()
    )
    return replace(problem, **more)  # type: ignore[arg-type]


def held(allocation: Allocation) -> list[tuple[str, str]]:
    return sorted((p.device[:3], p.variants[0]) for p in allocation.placements)


@BOTH
def test_the_least_that_answers_is_started_and_more_with_the_load(exact: bool) -> None:
    planner = ScalingPlanner(exact=exact)
    first = planner.allocate(asked(80))
    assert held(first) == [("cpu", "quick")]
    more = planner.allocate(asked(180, previous=first.placements))
    assert held(more) == [("cpu", "quick")] * 2
    assert {p.device for p in first.placements} < {p.device for p in more.placements}  # what runs stays


@BOTH
def test_what_loads_slowly_is_started_where_demand_has_stood_for_long(exact: bool) -> None:
    problem = asked(80)
    profiles = [replace(p, load=60.0 if p.device_type == "cpu" else 0.2) for p in problem.catalogue.profiles.values()]
    slow = Catalogue.of(problem.catalogue.apps.values(), problem.catalogue.variants.values(), profiles)
    for stood, there in ((0.0, "gpu"), (12.0, "gpu"), (600.0, "cpu")):
        found = ScalingPlanner(exact=exact).allocate(replace(problem, catalogue=slow, stood={"a": stood, "b": 700.0}))
        assert [device for device, _ in held(found)] == [there]
    free = ScalingPlanner(exact=exact, rate=0.0).allocate(replace(problem, catalogue=slow))
    assert [device for device, _ in held(free)] == ["cpu"]


@BOTH
def test_what_is_not_needed_is_given_up_once_that_has_lasted(exact: bool) -> None:
    planner = ScalingPlanner(exact=exact)
    placed = planner.allocate(asked(180)).placements
    counts = []
    for _ in range(3):
        placed = planner.allocate(asked(50, previous=placed)).placements
        counts.append(len(placed))
    assert counts == ([1, 1, 1] if exact else [2, 1, 1])  # the greedy waits for the loading time, two ticks


@BOTH
def test_a_device_that_interferes_is_left_while_others_are_enough(exact: bool) -> None:
    planner = ScalingPlanner(exact=exact)
    placed = planner.allocate(asked(80)).placements
    planner.wishes = Wishes(tuple(p.device for p in placed), (), {})
    moved = planner.allocate(asked(80, previous=placed)).placements
    assert len(moved) == 1
    assert moved[0].device not in planner.wishes.avoided
    alone = asked(80, cpus=1, gpus=0, previous=placed[:1])
    planner.wishes = Wishes(("cpu0",), (), {})
    assert planner.allocate(alone).placements  # nothing else could answer: it stays


@BOTH
def test_a_variant_that_is_asked_for_gets_an_instance_without_taking_the_last_one(exact: bool) -> None:
    planner = ScalingPlanner(exact=exact)
    planner.wishes = Wishes((), ("slow",), {})
    assert held(planner.allocate(asked(80, gpus=0))) == [("cpu", "quick"), ("cpu", "slow")]
    assert held(planner.allocate(asked(80, cpus=1, gpus=0))) == [("cpu", "quick")]
    assert held(planner.allocate(asked(150, cpus=2, gpus=0))) == [("cpu", "quick")] * 2
    placed = (Placement("cpu0", "a", ("quick",), 0.5, 1), Placement("cpu1", "a", ("quick",), 0.5, 1))
    spared = planner.allocate(asked(80, cpus=2, gpus=0, previous=placed))  # the greedy gives one up a little later
    assert held(spared) == [("cpu", "quick"), ("cpu", "slow")]


def test_what_a_dead_worker_held_is_what_the_one_in_its_place_gets() -> None:
    planner = ScalingPlanner(exact=False)
    planner.wishes = Wishes((), (), {"cpu3": ("quick",)})
    (placed,) = planner.allocate(asked(80)).placements
    assert (placed.device, placed.variants) == ("cpu3", ("quick",))
    planner.wishes = Wishes((), (), {"cpu3": ("unheard-of",)})
    assert len(planner.allocate(asked(80)).placements) == 1


def test_nothing_fits_and_as_much_as_can_be_is_answered() -> None:
    for exact in (False, True):
        found = ScalingPlanner(exact=exact).allocate(asked(5000, cpus=2, gpus=1))
        assert found.served["a"] == pytest.approx(1000 / 5250, rel=1e-3)
        assert isinstance(found.placements[0], Placement)

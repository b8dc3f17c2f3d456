"""Model-less scaling as planners: replicate, upgrade, downgrade, avoid, load what is asked for, restore."""

from dataclasses import replace

import pytest

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Placement
from sluicegate.planner.capacity.events import Wishes
from sluicegate.planner.model_less.problem_adapter import Scale
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
@pytest.mark.parametrize(("stood", "there"), [(3.0, "gpu"), (14.0, "gpu"), (15.5, "cpu")])
def test_a_second_of_loading_costs_an_hours_price_over_the_time_that_hosts_have_stood(
    exact: bool, stood: float, there: str
) -> None:
    """60 s at a price of 1 are 1 + 60 / t, a fifth of a second at 5 is 5 + 1 / t: alike at t = 14.75 s."""
    problem = asked(80)
    profiles = [replace(p, load=60.0 if p.device_type == "cpu" else 0.2) for p in problem.catalogue.profiles.values()]
    slow = Catalogue.of(problem.catalogue.apps.values(), problem.catalogue.variants.values(), profiles)
    found = ScalingPlanner(exact=exact).allocate(replace(problem, catalogue=slow, stood={"a": stood, "b": 99.0}))
    assert [device for device, _ in held(found)] == [there]
    assert found.steps[0].startswith("scaling-ilp: accuracy" if exact else "scaling-greedy: accuracy")


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


def test_each_way_to_scale_has_its_name() -> None:
    assert (ScalingPlanner(exact=True).name, ScalingPlanner(exact=False).name) == ("scaling-ilp", "scaling-greedy")


@pytest.mark.parametrize("priced", [True, False])
def test_a_unit_that_holds_a_variant_is_an_instance_at_the_units_price_or_at_one_where_nothing_has_any(
    priced: bool,
) -> None:
    held_by = (Placement("cpu1", "a", ("quick",), 0.5, 1), Placement("gone", "a", ("quick",), 0.5, 1))
    problem = asked(80, cpus=3, previous=held_by)
    if not priced:
        problem = replace(problem, devices=tuple(replace(d, price=0.0) for d in problem.devices))
    scale = Scale(problem)
    fleet = scale.fleet
    assert fleet.asked["a"].load == 84.0
    assert sorted(fleet.resources.values()) == [1.0, 3.0]
    gpu, cpu = 5.0 if priced else 1.0, 1.0
    told = sorted((scale.variant(v.name), v.capacity, v.cost, v.load, v.architecture) for v in fleet.variants)
    assert told == [
        ("quick", pytest.approx(100.0), cpu, 2.0, "net"),
        ("quick", pytest.approx(800.0), gpu, 2.0, "net"),
        ("slow", pytest.approx(10.0), cpu, 2.0, "net"),
        ("slow", pytest.approx(100.0), gpu, 2.0, "net"),
    ]
    running = [(scale.variant(v.name), v.capacity, fleet.count(v.name)) for v in fleet.variants if fleet.count(v.name)]
    assert running == [("quick", pytest.approx(100.0), 1)], "what held it and is gone does not run"
    (host,) = (v.name for v in fleet.variants if scale.variant(v.name) == "slow" and v.capacity > 50.0)
    placed = scale.placed(fleet.after({host: 1}), "told so")
    assert held(placed) == [("cpu", "quick"), ("gpu", "slow")]
    assert placed.loads == 1
    assert placed.steps[0].startswith("told so: accuracy ")
    assert placed.steps[0].endswith(f" over all demand, {gpu + cpu:g} an hour")


@BOTH
def test_a_variant_that_others_beat_in_all_is_loaded_where_it_is_asked_for(exact: bool) -> None:
    known = asked(80).catalogue
    dull = Variant(name="dull", app="a", accuracy=0.5, family="net")
    slower = Profile(variant="dull", device_type="cpu", points=(BatchLatency(1, 0.2, 0.2),), load=2.0)
    more = Catalogue.of(known.apps.values(), [*known.variants.values(), dull], [*known.profiles.values(), slower])
    planner = ScalingPlanner(exact=exact)
    problem = replace(asked(80), catalogue=more)
    assert held(planner.allocate(problem)) == [("cpu", "quick")]
    planner.wishes = Wishes((), ("dull",), {})
    assert held(planner.allocate(problem)) == [("cpu", "dull"), ("cpu", "quick")]

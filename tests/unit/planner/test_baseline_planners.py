"""What published planners do and do not do."""

from dataclasses import dataclass, field, replace

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, LengthPoints, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Placement
from sluicegate.planner.allocation.linear import Goal, Matrix
from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.allocation.solver_types import Solved
from sluicegate.planner.baselines.ablations import WithoutAssignment
from sluicegate.planner.baselines.as_published import AtItsWord
from sluicegate.planner.baselines.clipper_sommelier import ClipperPlanner
from sluicegate.planner.baselines.subproblems import extreme_variants, keeping_apps, single_batches
from sluicegate.planner.problems.problem import Allocation, AppDemand, Problem
from sluicegate.planner.problems.throughput import throughput
from sluicegate.planner.registry import PLANNERS, planner
from sluicegate.profiles.catalogue.catalogue import Catalogue

LATENCY = {"low": 0.004, "mid": 0.02, "high": 0.1}
ACCURACY = {"low": 0.7, "mid": 0.85, "high": 0.95}
CATALOGUE = Catalogue.of(
    [App(name=a, slo=0.5) for a in "ab"],
    [Variant(name=f"{a}-{k}", app=a, accuracy=ACCURACY[k]) for a in "ab" for k in LATENCY],
    [
        Profile(
            variant=f"{a}-{k}",
            device_type="cpu",
            points=(BatchLatency(1, s, s), BatchLatency(4, 2 * s, 2 * s)),
        )
        for a in "ab"
        for k, s in LATENCY.items()
    ],
)


def asked(a: float, b: float, devices: int = 4) -> Problem:
    return Problem(
        demands=(AppDemand(app="a", qps=a, slo=0.5), AppDemand(app="b", qps=b, slo=0.5)),
        devices=tuple(Device(name=f"d{i}", type="cpu") for i in range(devices)),
        catalogue=CATALOGUE,
    )


def owners(answer: Allocation) -> dict[str, str]:
    return {p.device: p.app for p in answer.placements}


def levels(answer: Allocation) -> set[str]:
    return {v.split("-")[1] for p in answer.placements for v in p.variants}


@pytest.mark.parametrize(("name", "level"), [("clipper-ht", "low"), ("clipper-ha", "high")])
def test_clipper_holds_one_accuracy_and_never_moves(name: str, level: str) -> None:
    first = planner(name).allocate(asked(20, 20))
    assert levels(first) == {level}
    later = planner(name).allocate(replace(asked(2000, 1), previous=first.placements))
    assert later.placements == first.placements
    assert later.loads == 0


@pytest.mark.parametrize("name", ["clipper-ht", "clipper-ha", "sommelier"])
def test_devices_that_join_after_the_first_are_placed_as_well(name: str) -> None:
    alone = planner(name).allocate(asked(20, 20, devices=1))
    together = planner(name).allocate(replace(asked(20, 20), previous=alone.placements))
    assert len(owners(together)) == 4
    assert set(owners(together).values()) == {"a", "b"}


def test_clipper_can_be_placed_for_an_expected_demand() -> None:
    first = ClipperPlanner(accurate=True, expected={"a": 60.0, "b": 1.0}).allocate(asked(1, 1))
    assert sum(app == "a" for app in owners(first).values()) == 3


def test_what_was_on_a_lost_device_is_lost() -> None:
    first = planner("clipper-ha").allocate(asked(20, 20))
    fewer = replace(asked(20, 20), devices=asked(20, 20).devices[1:], previous=first.placements)
    assert {p.device for p in planner("clipper-ha").allocate(fewer).placements} == {"d1", "d2", "d3"}


@pytest.mark.parametrize("name", ["sommelier", "allocation-without-placement"])
def test_sommelier_swaps_variants_but_devices_keep_their_app(name: str) -> None:
    first = planner(name).allocate(asked(30, 30))
    later = planner(name).allocate(replace(asked(500, 1), previous=first.placements))
    assert owners(later) == owners(first)
    assert "low" in {v.split("-")[1] for p in later.placements if p.app == "a" for v in p.variants}
    assert {p.device for p in later.placements} <= {f"d{i}" for i in range(4)}


def test_infaas_grows_by_what_costs_least_accuracy_and_keeps_what_is_enough() -> None:
    first = planner("infaas-accuracy").allocate(asked(30, 30))
    assert min(first.served.values()) == 1.0
    assert levels(first) == {"high"}
    same = planner("infaas-accuracy").allocate(replace(asked(30, 30), previous=first.placements))
    assert same.loads == 0
    more = planner("infaas-accuracy").allocate(replace(asked(300, 30), previous=first.placements))
    assert more.served["a"] == 1.0
    assert {p.device for p in first.placements if p.app == "b"} <= {p.device for p in more.placements if p.app == "b"}


# Eight in a batch take longer than four would for half as many: the largest batch is not the best one.
UNEVEN = Catalogue.of(
    [App(name="a", slo=0.5)],
    [Variant(name="a-low", app="a", accuracy=0.7), Variant(name="a-high", app="a", accuracy=0.9)],
    [
        Profile(
            variant=name,
            device_type="cpu",
            points=tuple(BatchLatency(b, x * s, x * s) for b, x in ((1, 1.0), (4, 2.0), (8, 6.0))),
        )
        for name, s in (("a-low", 0.02), ("a-high", 0.04))
    ],
)


@pytest.mark.parametrize("name", ["clipper-ht", "clipper-ha", "sommelier", "infaas-accuracy"])
def test_at_its_papers_word_a_baseline_reckons_with_the_largest_batch_and_five_percent(name: str) -> None:
    qps = 40.0
    problem = Problem(
        demands=(AppDemand(app="a", qps=qps, slo=0.5, headroom=1.5),),
        devices=tuple(Device(name=f"d{i}", type="cpu") for i in range(2)),
        catalogue=UNEVEN,
    )
    mended, published = (planner(n).allocate(problem) for n in (name, f"{name}-published"))
    assert {p.max_batch for p in mended.placements} == {4}
    assert {p.max_batch for p in published.placements} == {8}
    slowest = 8 / (6 * (0.04 if name == "clipper-ha" else 0.02))
    assert max(p.share for p in published.placements) * qps * 1.05 <= slowest * (1 + 1e-6)


def test_proteus_as_published_is_content_with_a_plan_that_is_far_from_optimal() -> None:
    problem = asked(100, 100, devices=6)
    published, exact = (planner(n).allocate(problem) for n in ("proteus-published", "proteus-per-device"))
    assert min(published.served.values()) == min(exact.served.values()) == 1.0
    assert published.objective <= exact.objective + 1e-6
    assert published.bound >= exact.objective - 1e-6


def test_a_planner_is_called_what_it_is_chosen_by() -> None:
    assert {name: planner(name).name for name in PLANNERS} == {name: name for name in PLANNERS}


@pytest.mark.parametrize("name", ["greedy-fill", "scaling-greedy"])
def test_who_does_not_search_promises_no_more_than_the_best_variants_would_be(name: str) -> None:
    answer = planner(name).allocate(asked(1000, 400))
    assert min(answer.served.values()) == 1.0
    assert answer.objective < 0.99 and answer.bound == pytest.approx(1.0)


@pytest.mark.parametrize("a", [100.0, 3000.0])
def test_without_a_solver_the_bound_is_the_best_that_is_in_time_of_what_is_served(a: float) -> None:
    """At 190 ms the most accurate variants are not; of 3000 queries/s not all are served."""
    tight = tuple(replace(d, slo=0.19) for d in asked(a, 40).demands)
    answer = planner("greedy-fill").allocate(replace(asked(a, 40), demands=tight))
    assert (answer.served["a"] == 1.0) is (a == 100.0)
    assert answer.bound == pytest.approx(0.85 / 0.95)


@pytest.mark.parametrize("variants", [1, 2])
@pytest.mark.parametrize("name", ["greedy-fill", "allocation"])
def test_cheap_spot_units_answer_their_part_of_strict_queries_and_no_more(name: str, variants: int) -> None:
    """Four devices' worth of strict queries, three quarters of them not on spot: one spot unit, three others."""
    devices = tuple(Device(name=f"d{i}", type="cpu", price=1.0 + i % 2, spot=i % 2 == 0) for i in range(8))
    qps = 4 * 4 / (2 * LATENCY["low"]) / 1.05 - 1.0
    demands = (AppDemand(app="a", qps=qps, slo=0.5),)
    limits = {"budget": 7.0, "strict_on_demand": 0.75, "variants_per_device": variants}
    strict = replace(asked(1, 1), devices=devices, demands=demands, **limits)  # type: ignore[arg-type]
    answer = planner(name).allocate(strict)
    assert answer.served["a"] == pytest.approx(1.0, abs=1e-3)
    spot = {d.name for d in devices if d.spot}
    assert sum(p.share for p in answer.placements if p.device in spot) <= 0.25 + 1e-6
    few = replace(strict, devices=devices[:2], demands=(replace(demands[0], qps=qps / 8),), budget=9.0)
    assert planner(name).allocate(few).served["a"] == pytest.approx(1.0)


def test_without_selection_only_the_most_accurate_is_held() -> None:
    assert levels(planner("allocation-without-selection").allocate(asked(500, 1))) == {"high"}


def test_without_batching_every_batch_is_one() -> None:
    answer = planner("allocation-without-batching").allocate(asked(30, 30))
    assert {p.max_batch for p in answer.placements} == {1}


@pytest.mark.parametrize("devices", [6, 14])
def test_without_assignment_those_that_are_needed_share_evenly(devices: int) -> None:
    answer = planner("allocation-without-assignment").allocate(asked(150, 10, devices=devices))
    for app in "ab":
        shares = {round(p.share, 9) for p in answer.placements if p.app == app and p.share > 0}
        assert len(shares) == 1
    assert sum(p.share for p in answer.placements if p.app == "a") == pytest.approx(1.0)


def test_the_literal_program_finds_the_same_optimum() -> None:
    ours, literal = (planner(n).allocate(asked(150, 40)) for n in ("allocation", "proteus-per-device"))
    assert ours.objective == pytest.approx(literal.objective, abs=1e-3)


def test_the_literal_program_lowers_demand_by_a_twentieth_until_it_can_be_served() -> None:
    """Three devices carry 1500 of the 2100 queries/s, headroom included: 0.95 to the seventh is less than that part."""
    answer = planner("proteus-per-device").allocate(asked(2000, 1))
    assert answer.steps[:-1] == ("infeasible",) * 7 and answer.steps[-1].startswith("accuracy ")
    assert answer.served == {"a": pytest.approx(1500.0 / 2100.0), "b": 1.0}
    nowhere = planner("proteus-per-device").allocate(replace(asked(20, 20), devices=()))
    assert nowhere.placements == () and nowhere.objective == 0.0


@pytest.mark.parametrize(("off", "gap"), [(0.02, 0.02), (-0.02, 0.0)])
def test_a_solvers_bound_below_its_answer_leaves_no_gap(
    monkeypatch: pytest.MonkeyPatch, off: float, gap: float
) -> None:
    solve = Matrix.solve

    def bounded(matrix: Matrix, goal: Goal, **more: object) -> Solved | None:
        found = solve(matrix, goal, **more)  # type: ignore[arg-type]
        return None if found is None else replace(found, bound=found.value + off)

    monkeypatch.setattr(Matrix, "solve", bounded)
    answer = planner("proteus-per-device").allocate(asked(300, 40))
    assert answer.served == {"a": 1.0, "b": 1.0} and answer.objective < 0.97
    assert answer.bound - answer.objective == pytest.approx(gap)


HALF = asked(150, 140)
"""Between what whole devices of one accuracy serve."""


def test_the_rounded_allocation_is_not_searched_further() -> None:
    assert planner("allocation-rounded") == AllocationPlanner(name="allocation-rounded", polish=False)
    polished, rounded = (AllocationPlanner(polish=polish).allocate(HALF) for polish in (True, False))
    assert any(step.startswith("polish:") for step in polished.steps)
    assert not any(step.startswith("polish:") for step in rounded.steps)
    assert planner("allocation-rounded").allocate(HALF).steps == rounded.steps


@dataclass
class Told:
    """A planner that answers what it is told to, and remembers what it was asked."""

    answer: Allocation = field(default_factory=lambda: Allocation(placements=(), served={}, objective=0.0, bound=0.0))
    asked: list[Problem] = field(default_factory=list)
    name: str = "told"

    def allocate(self, problem: Problem) -> Allocation:
        self.asked.append(problem)
        return self.answer


@pytest.mark.parametrize(("devices", "starts"), [(3, True), (4, False), (5, False), (6, False), (7, True)])
def test_the_start_lasts_until_half_of_the_devices_hold_something(devices: int, starts: bool) -> None:
    """Of seven devices three hold something, of three one; of what is gone nothing counts."""
    holding = {3: 1, 4: 2, 5: 3, 6: 3, 7: 3}[devices]
    held = tuple(Placement(f"d{i}", "b", ("b-high",), 0.5, 1) for i in range(holding))
    gone = tuple(Placement(f"gone{i}", "b", ("b-high",), 0.1, 1) for i in range(5))
    problem = replace(asked(20, 20, devices=devices), previous=held + gone)
    answer = planner("clipper-ht").allocate(problem)
    assert (answer.steps != ("kept the placements in force",)) is starts
    assert starts or answer.placements == held


def test_what_is_kept_serves_its_shares_of_todays_demand_at_the_weights_of_today() -> None:
    held = (
        Placement("d0", "a", ("a-low",), 0.6, 1),
        Placement("d1", "a", ("a-high",), 0.3, 1),
        Placement("d2", "b", ("b-mid",), 0.75, 1),
        Placement("d3", "b", ("b-mid",), 0.75, 1),
        Placement("gone", "a", ("a-high",), 0.1, 1),
    )
    problem = asked(30, 20)
    weighed = replace(problem, demands=(replace(problem.demands[0], weight=2.0), problem.demands[1]), previous=held)
    answer = planner("clipper-ha").allocate(weighed)
    assert answer.placements == held[:4]
    assert answer.served == pytest.approx({"a": 0.9, "b": 1.0})
    right = 60.0 * (0.6 * 0.7 / 0.95 + 0.3) + 20.0 * 1.5 * 0.85 / 0.95
    assert answer.objective == pytest.approx(right / (60.0 * 0.9 + 20.0 * 1.5))
    assert (answer.bound, answer.loads) == (1.0, 0)
    other = replace(weighed, demands=weighed.demands[1:])
    assert planner("clipper-ha").allocate(other).served == {"b": 1.0}


def test_the_extreme_variants_are_those_within_half_the_slo_on_some_device() -> None:
    def extremes(slo: float, *, factor: float = 1.0) -> tuple[list[str], list[str]]:
        demands = (AppDemand(app="b", qps=1.0, slo=slo), AppDemand(app="a", qps=1.0, slo=0.5))
        problem = replace(asked(1, 1), demands=demands, latency_factor={("b-mid", "cpu"): factor})
        return extreme_variants(problem, accurate=True), extreme_variants(problem, accurate=False)

    assert extremes(0.2) == (["a-high", "b-high"], ["a-low", "b-low"])
    assert extremes(0.19) == (["a-high", "b-mid"], ["a-low", "b-low"])
    assert extremes(0.19, factor=5.0) == (["a-high", "b-low"], ["a-low", "b-low"])
    assert extremes(0.007) == (["a-high"], ["a-low"])
    two = replace(asked(1, 1), demands=(AppDemand(app="a", qps=1.0, slo=0.1), AppDemand(app="a", qps=1.0, slo=0.2)))
    assert extreme_variants(two, accurate=True) == ["a-high"], "in time for the looser of its SLOs"
    assert extreme_variants(replace(asked(1, 1), devices=(Device(name="g", type="gpu"),)), accurate=True) == []


def test_a_device_that_keeps_its_app_is_of_a_type_that_only_the_app_is_profiled_on() -> None:
    held = (Placement("d1", "b", ("b-mid",), 1.0, 4), Placement("gone", "a", ("a-mid",), 1.0, 4))
    kept = keeping_apps(replace(asked(1, 2, devices=3), previous=held, latency_factor={("b-low", "cpu"): 1.5}))
    assert [(d.name, d.type) for d in kept.devices] == [("d0", "cpu"), ("d1", "cpu|b"), ("d2", "cpu")]
    assert {v for v, kind in kept.catalogue.profiles if kind == "cpu|b"} == {"b-low", "b-mid", "b-high"}
    assert len(kept.catalogue.profiles) == 9
    profile = kept.catalogue.profiles["b-mid", "cpu|b"]
    assert (profile.device_type, profile.points) == ("cpu|b", CATALOGUE.profiles["b-mid", "cpu"].points)
    assert kept.latency_factor == {("b-low", "cpu"): 1.5, ("b-low", "cpu|b"): 1.5}


def test_batches_of_one_keep_what_a_variant_takes_to_load_and_to_hold() -> None:
    heavy = {key: replace(p, load=3.5, memory_bytes=70) for key, p in CATALOGUE.profiles.items()}
    single = single_batches(replace(asked(1, 1), catalogue=replace(CATALOGUE, profiles=heavy))).catalogue
    profile = single.profiles["a-mid", "cpu"]
    assert profile.points == (BatchLatency(1, 0.02, 0.02),)
    assert (profile.load, profile.memory_bytes, profile.variant, profile.device_type) == (3.5, 70, "a-mid", "cpu")


def test_batches_of_one_are_as_many_at_a_time_as_others_are() -> None:
    shorter = (LengthPoints(8, (BatchLatency(1, 0.01, 0.01),)),)
    several = {
        key: replace(p, executors=2, fbr=0.5, length=16, shorter=shorter) for key, p in CATALOGUE.profiles.items()
    }
    single = single_batches(replace(asked(1, 1), catalogue=replace(CATALOGUE, profiles=several))).catalogue
    profile = single.profiles["a-mid", "cpu"]
    assert (profile.executors, profile.fbr, profile.length, profile.shorter) == (2, 0.5, 16, ())
    assert throughput(profile, 0.1).qps == 2 * throughput(replace(profile, executors=1), 0.1).qps


def test_without_assignment_what_is_served_is_spread_evenly_and_accuracy_follows() -> None:
    placements = (
        Placement("d0", "a", ("a-high",), 0.8, 1),
        Placement("d1", "a", ("a-low",), 0.1, 1),
        Placement("d2", "a", ("a-low",), 0.0, 1),
        Placement("d3", "b", ("b-mid",), 1.0, 1),
    )
    answer = Allocation(placements=placements, served={"a": 0.9, "b": 1.0}, objective=0.99, bound=1.0)
    problem = asked(30, 20)
    weighed = replace(problem, demands=(replace(problem.demands[0], weight=2.0), problem.demands[1]))
    spread = WithoutAssignment(base=Told(answer)).allocate(weighed)  # type: ignore[arg-type]
    assert [p.share for p in spread.placements] == pytest.approx([0.45, 0.45, 0.0, 1.0])
    right = 60.0 * 0.45 * (1.0 + 0.7 / 0.95) + 20.0 * 0.85 / 0.95
    assert spread.objective == pytest.approx(right / (60.0 * 0.9 + 20.0))
    nothing = replace(answer, placements=())
    assert WithoutAssignment(base=Told(nothing)).allocate(weighed).objective == 0.0  # type: ignore[arg-type]


def test_at_its_papers_word_a_baseline_plans_for_five_percent_more_and_loads_are_free() -> None:
    base = Told()
    demands = (AppDemand(app="a", qps=9.0, slo=0.5, headroom=1.0), AppDemand(app="b", qps=9.0, slo=0.5, headroom=3.0))
    word = AtItsWord(base)
    word.allocate(replace(asked(1, 1), demands=demands))
    assert word.name == "told-published"
    assert [d.headroom for d in base.asked[0].demands] == [1.05, 1.05]
    assert (base.asked[0].capacity, base.asked[0].loads) == ("largest-batch", "free")
    wrong = replace(asked(1, 1), demands=(replace(demands[0], headroom=0.9),))
    with pytest.raises(InvalidInputError, match="headroom"):
        planner("sommelier-published").allocate(wrong)

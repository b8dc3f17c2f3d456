"""What published planners do and do not do."""

from dataclasses import replace

import pytest

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.baselines.clipper_sommelier import ClipperPlanner
from sluicegate.planner.problems.problem import Allocation, AppDemand, Problem
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

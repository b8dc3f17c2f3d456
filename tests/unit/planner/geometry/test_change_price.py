"""What a cut costs meanwhile, and how long what it gains has to last: eight whole GPUs, two apps."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from sluicegate.domain.models.app import QueryClass
from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.geometry.first_cut import profiled
from sluicegate.planner.geometry.gpu_pools import sliced
from sluicegate.planner.geometry.joint_planner import ChangeRules, JointGeometry
from sluicegate.planner.problems.problem import Allocation, AppDemand, Problem, RecutGroup, Recuts
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import load_catalogue

GPUS = Path(__file__).resolve().parents[4] / "examples" / "gpus"
NAMES = tuple(f"g{i}" for i in range(8))


@cache
def catalogue() -> Catalogue:
    return profiled(load_catalogue(GPUS), ("a100",), rdf={})


@cache
def standing(vision: float, bulk: float) -> Problem:
    """Whole GPUs that hold what a plan gives them; two may be cut."""
    apps = catalogue().apps
    asked = Problem(
        demands=(
            AppDemand(app="vision", qps=vision, slo=apps["vision"].slo),
            AppDemand(app="bulk", qps=bulk, slo=apps["bulk"].slo, query_class=QueryClass.BEST_EFFORT),
        ),
        devices=tuple(sliced(name, "a100", ("7g",)) for name in NAMES),
        catalogue=catalogue(),
    )
    held = AllocationPlanner().allocate(asked).placements
    return replace(asked, previous=held, recuts=Recuts((RecutGroup(frozenset(NAMES), 2),)))


def answer(vision: float, bulk: float, *, stood: float, rules: ChangeRules | None = None) -> Allocation:
    problem = replace(standing(vision, bulk), stood={"vision": stood, "bulk": stood + 7.0})
    return JointGeometry(AllocationPlanner(), rules=rules).allocate(problem)


def test_a_cut_for_accuracy_waits_until_demand_has_stood_as_long_as_it_takes_to_pay() -> None:
    early = answer(110.0, 75.0, stood=5.0)
    assert early.geometries is None, "not for good: it is thought about again"
    assert any("changes pay after" in step for step in early.steps)
    assert {p.device for p in early.placements} == set(NAMES)
    late = answer(110.0, 75.0, stood=50.0)
    assert late.geometries
    assert not {p.device for p in late.placements} & set(late.geometries)
    assert min(late.served.values()) == 1.0


def test_what_would_not_pay_in_any_time_that_is_looked_ahead_is_settled() -> None:
    hasty = ChangeRules(pays_within=20.0)
    for stood in (5.0, 500.0):
        assert answer(110.0, 75.0, stood=stood, rules=hasty).geometries == {}


def test_a_slower_cut_has_to_last_longer() -> None:
    stood = 30.0
    assert answer(110.0, 75.0, stood=stood, rules=ChangeRules(takes=10.0)).geometries
    assert answer(110.0, 75.0, stood=stood, rules=ChangeRules(takes=30.0)).geometries is None


@pytest.mark.parametrize("stood", [0.0, 1000.0])
def test_where_nothing_is_gained_nothing_is_cut_however_long_demand_stands(stood: float) -> None:
    assert answer(5.0, 4.0, stood=stood).geometries == {}


def test_service_that_is_gained_is_worth_a_cut_at_once() -> None:
    # More than whole GPUs serve by their fastest variants.
    found = answer(2500.0, 1500.0, stood=0.0)
    assert found.geometries

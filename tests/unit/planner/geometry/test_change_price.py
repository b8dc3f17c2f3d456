"""What a cut costs meanwhile, and how long what it gains has to last: eight whole GPUs, two apps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import QueryClass
from sluicegate.planner.allocation.pipeline import AllocationPlanner, Counts
from sluicegate.planner.allocation.rounding import Whole
from sluicegate.planner.allocation.solver_types import SolverError
from sluicegate.planner.geometry import joint_planner
from sluicegate.planner.geometry.first_cut import profiled
from sluicegate.planner.geometry.geometry_search import GeometrySettings
from sluicegate.planner.geometry.gpu_pools import sliced
from sluicegate.planner.geometry.joint_plan import GeometryPlan
from sluicegate.planner.geometry.joint_planner import ChangeRules, JointGeometry
from sluicegate.planner.geometry.mig_tables import TABLES
from sluicegate.planner.greedy_fill import GreedyFill
from sluicegate.planner.policy_tables.table_requests import TableRules
from sluicegate.planner.problems.problem import Allocation, AppDemand, Planner, Problem, RecutGroup, Recuts
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import load_catalogue
from tests.models.recut_world import catalogue as light_and_heavy

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
    return replace(asked, previous=held, recuts=Recuts((RecutGroup(tuple(sorted(NAMES)), 2),)))


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


@pytest.mark.parametrize(("inner", "cut"), [(AllocationPlanner(), {"g6", "g7"}), (GreedyFill(), set())])
def test_what_a_cut_brings_within_a_budget_is_told_by_who_spends_it(inner: Planner, cut: set[str]) -> None:
    """To one a part of a GPU costs its part, to the other as much as the whole one."""
    asked = standing(110.0, 75.0)
    dear = tuple(replace(d, price=3.0) for d in asked.devices)
    stood = {"vision": 500.0, "bulk": 507.0}
    found = JointGeometry(inner).allocate(replace(asked, devices=dear, budget=12.0, stood=stood))
    assert set(found.geometries or ()) == cut
    assert JointGeometry(inner).allocate(replace(asked, devices=dear, stood=stood)).geometries


@dataclass
class Told:
    """Serves what it is told to: with all GPUs, and with some of them being cut."""

    stay: Allocation
    meanwhile: Mapping[int, Allocation]
    name: str = "told"

    def allocate(self, problem: Problem) -> Allocation:
        return self.stay if len(problem.devices) == len(NAMES) else self.meanwhile[len(problem.devices)]


def served(strict: float, best_effort: float, objective: float = 0.5) -> Allocation:
    by_class = {("vision", QueryClass.STRICT): strict, ("bulk", QueryClass.BEST_EFFORT): best_effort}
    return Allocation(placements=(), served={}, objective=objective, bound=1.0, served_by_class=by_class)


def judged(
    monkeypatch: pytest.MonkeyPatch,
    stay: Allocation,
    meanwhile: Mapping[int, Allocation],
    *,
    strict: float = 0.0,
    best_effort: float = 0.0,
    value: float = 0.0,
    stood: float = 500.0,
    pays_within: float = 80.0,
) -> Allocation:
    """The answer where a plan to cut g5 and g2 into halves gains so much. A cut takes 10 s."""

    def counts(accuracy: float) -> Counts:
        return Counts(
            Whole(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), accuracy, accuracy, ()), 0.0, (), False
        )

    changes = {"g5": ("4g", "3g"), "g2": ("3g", "3g")}
    gained = {QueryClass.STRICT: strict, QueryClass.BEST_EFFORT: best_effort}
    plan = GeometryPlan(
        geometries=changes,
        changes=changes,
        devices=(),
        counts=counts(0.25 + value),
        before=counts(0.25),
        gained=gained,
        objective=0.0,
        bound=0.0,
        steps=("planned",),
    )
    monkeypatch.setattr(joint_planner, "plan_geometry", lambda *_: plan)
    problem = replace(standing(110.0, 75.0), stood={"vision": stood + 7.0, "bulk": stood})
    rules = ChangeRules(takes=10.0, pays_within=pays_within)
    return JointGeometry(Told(stay, meanwhile), rules=rules).allocate(problem)


@pytest.mark.parametrize(("gained", "cut"), [(0.03125, True), (0.031, False)])
def test_service_that_a_cut_costs_meanwhile_has_to_come_back_in_time(
    monkeypatch: pytest.MonkeyPatch, gained: float, cut: bool
) -> None:
    """A quarter of the strict queries for 10 s is a thirty-second of them for 80 s."""
    during = served(0.5, 0.25)
    found = judged(monkeypatch, served(0.75, 1.0), {6: during, 7: during}, strict=gained)
    assert (set(found.geometries or ()), found.steps[-1]) == (
        ({"g2", "g5"}, "planned") if cut else (set(), "geometry: 1 changes pay after inf s")
    )


@pytest.mark.parametrize(("strict", "cut"), [(0.75, True), (0.7495, True), (0.748, False)])
def test_best_effort_service_is_worth_no_strict_service(
    monkeypatch: pytest.MonkeyPatch, strict: float, cut: bool
) -> None:
    during = served(strict, 0.5)
    found = judged(monkeypatch, served(0.75, 0.5), {6: during, 7: during}, best_effort=0.2)
    assert bool(found.geometries) is cut
    assert cut or found.geometries == {}


@pytest.mark.parametrize(
    ("stood", "pays_within", "cut"), [(20.0, 80.0, True), (19.9, 80.0, None), (500.0, 20.0, True), (500.0, 19.9, False)]
)
def test_accuracy_that_a_cut_costs_has_to_come_back_while_hosts_stand(
    monkeypatch: pytest.MonkeyPatch, stood: float, pays_within: float, cut: bool | None
) -> None:
    """An eighth for 10 s is a sixteenth for 20 s."""
    stay, during = served(1.0, 1.0, 0.875), served(1.0, 1.0, 0.75)
    found = judged(monkeypatch, stay, {6: during, 7: during}, value=0.0625, stood=stood, pays_within=pays_within)
    if cut:
        assert set(found.geometries or ()) == {"g2", "g5"} and found.objective == 0.75
    else:
        assert found.geometries == (None if cut is None else {})
        assert found.objective == 0.875
        assert found.steps[-2:] == ("geometry: 2 changes pay after 20 s", "geometry: 1 changes pay after 20 s")


def test_what_gains_ten_seconds_of_calm_may_be_expected_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    during = served(1.0, 1.0, 0.75)
    for stay, cut in ((0.8125, True), (0.815, False)):
        found = judged(monkeypatch, served(1.0, 1.0, stay), {6: during, 7: during}, value=0.0625, stood=3.0)
        assert bool(found.geometries) is cut


def test_where_two_changes_cost_too_much_the_first_is_made_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile = {6: served(1.0, 1.0, 0.5), 7: served(1.0, 1.0, 0.875)}
    found = judged(monkeypatch, served(1.0, 1.0, 0.875), meanwhile, value=0.01)
    assert found.geometries is not None
    assert {name: [s.profile for s in parts] for name, parts in found.geometries.items()} == {"g2": ["3g", "3g"]}
    assert found.objective == 0.875


@pytest.mark.parametrize("error", [SolverError("no licence"), InvalidInputError("demands[vision]", "cannot be")])
def test_a_geometry_is_searched_for_with_the_settings_that_were_given(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, GeometrySettings]] = []

    def failing(problem: Problem, settings: GeometrySettings, tables: object) -> GeometryPlan:
        assert tables is TABLES and problem.recuts is not None
        asked.append((problem.recuts.groups[0].limit, settings))
        raise error

    monkeypatch.setattr(joint_planner, "plan_geometry", failing)
    own, stay = GeometrySettings(change_weight=0.3), served(1.0, 1.0)
    found = JointGeometry(Told(stay, {}), settings=own).allocate(standing(110.0, 75.0))
    assert asked == [(2, own)]
    assert (found.geometries, found.steps) == (None, (f"geometry: {error}",))
    JointGeometry(Told(stay, {})).allocate(standing(110.0, 75.0))
    assert asked[1][1].limits.seconds < own.limits.seconds, "a running system waits for the answer"
    none = replace(standing(110.0, 75.0), recuts=None)
    assert JointGeometry(Told(stay, {})).allocate(none) is stay and len(asked) == 2
    few = replace(standing(110.0, 75.0), recuts=Recuts((RecutGroup(tuple(sorted(NAMES)), 0),)))
    assert JointGeometry(Told(stay, {})).allocate(few).geometries == {} and len(asked) == 2


def test_gpus_are_cut_for_apps_that_are_asked_for_with_several_slos() -> None:
    """Each SLO class has slices of its own, on the GPUs that are left meanwhile as on those that were cut."""
    devices = tuple(sliced(name, "a100", ("4g", "3g")) for name in NAMES[:4])
    light = tuple(AppDemand(app="light", qps=qps, slo=slo) for slo, qps in ((0.1, 600.0), (0.2, 400.0)))
    asked = Problem(
        demands=light,
        devices=devices,
        catalogue=light_and_heavy(),
        tables=TableRules(grid=10),
        recuts=Recuts((RecutGroup(frozenset(NAMES[:4]), 1),)),
    )
    found = JointGeometry(AllocationPlanner()).allocate(asked)
    assert found.geometries is not None and len(found.geometries) == 1
    (name, parts), *_ = found.geometries.items()
    assert "1g" in {s.profile for s in parts}
    assert {(p.app, p.slo) for p in found.placements} == {("light", 0.1), ("light", 0.2)}
    assert name not in {p.device for p in found.placements}

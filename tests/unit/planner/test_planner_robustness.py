"""A system is never left without a plan: solver trouble, empty fleets, apps that nobody can serve, hostile numbers."""

import math
from dataclasses import replace
from typing import Any

import pytest

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, Promise, QueryClass, WeaklyHard
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.allocation import linear
from sluicegate.planner.allocation.linear import Matrix
from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.allocation.solver_types import Limits, SolverError
from sluicegate.planner.control.solve_or_fallback import answered
from sluicegate.planner.problems.problem import Allocation, AppDemand, Problem
from sluicegate.planner.registry import PLANNERS, planner
from sluicegate.profiles.catalogue.catalogue import Catalogue

CATALOGUE = Catalogue.of(
    [App(name="a", slo=0.3), App(name="b", slo=0.3), App(name="slow", slo=0.3)],
    [
        Variant(name="a0", app="a", accuracy=0.7),
        Variant(name="a1", app="a", accuracy=0.9),
        Variant(name="b0", app="b", accuracy=0.8),
        Variant(name="slow0", app="slow", accuracy=0.99),
    ],
    [
        Profile(variant=name, device_type="cpu", points=(BatchLatency(1, s, s), BatchLatency(8, 4 * s, 4 * s)))
        for name, s in (("a0", 0.004), ("a1", 0.02), ("b0", 0.01), ("slow0", 0.5))
    ],
)
PROBLEM = Problem(
    demands=(AppDemand(app="a", qps=100, slo=0.3), AppDemand(app="b", qps=50, slo=0.3)),
    devices=tuple(Device(name=f"d{i}", type="cpu") for i in range(4)),
    catalogue=CATALOGUE,
)
OURS = ("allocation", "allocation-rounded", "greedy-fill", "proteus-per-device", "infaas-accuracy", "sommelier")


def broken(*_: Any, **__: Any) -> None:
    raise RuntimeError("the library fell over")


def test_a_solver_that_raises_is_replaced_by_the_heuristic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.planner.allocation.linear.mathopt.solve", broken)
    answer = planner("allocation").allocate(PROBLEM)
    assert min(answer.served.values()) == 1.0
    assert "fell over" in answer.steps[0]
    assert "greedy-fill" in answer.steps[0]


def test_a_missing_solver_is_replaced_by_the_heuristic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "mathopt", None)
    assert min(planner("allocation").allocate(PROBLEM).served.values()) == 1.0


class Failing:
    """A planner with a defect."""

    name = "failing"

    def allocate(self, problem: Problem) -> Allocation:
        raise ZeroDivisionError("division by zero")


def test_any_error_of_a_planner_is_answered_by_the_heuristic() -> None:
    answer = answered(Failing(), PROBLEM)
    assert min(answer.served.values()) == 1.0
    assert "failing: ZeroDivisionError" in answer.steps[0]


def test_input_that_no_planner_accepts_leaves_what_is_in_force() -> None:
    before = planner("allocation").allocate(PROBLEM)
    hostile = replace(
        PROBLEM,
        demands=(replace(PROBLEM.demands[0], qps=math.nan), PROBLEM.demands[1]),
        devices=PROBLEM.devices[1:],
        previous=before.placements,
    )
    answer = answered(planner("allocation"), hostile)
    assert answer.placements == tuple(p for p in before.placements if p.device != "d0")
    assert all(0.0 <= s <= 1.0 for s in answer.served.values())


def test_a_search_that_fails_leaves_the_rounded_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    solve = Matrix.solve

    def searching_fails(self: Matrix, *arguments: Any, **options: Any) -> Any:
        if options.get("limits") is not None:
            raise SolverError("out of memory")
        return solve(self, *arguments, **options)

    monkeypatch.setattr(Matrix, "solve", searching_fails)
    hard = replace(PROBLEM, demands=tuple(replace(d, qps=4 * d.qps) for d in PROBLEM.demands))
    answer = planner("allocation").allocate(hard)
    assert answer.placements
    assert answer.bound >= answer.objective


def test_a_safety_stop_in_seconds_marks_the_plan() -> None:
    apps = [f"x{i}" for i in range(12)]
    catalogue = Catalogue.of(
        [App(name=a, slo=0.3) for a in apps],
        [
            Variant(name=f"{a}-{v}", app=a, accuracy=0.5 + 0.04 * v + 0.001 * i)
            for i, a in enumerate(apps)
            for v in range(9)
        ],
        [
            Profile(variant=f"{a}-{v}", device_type=t, points=(BatchLatency(1, s, s), BatchLatency(8, 5 * s, 5 * s)))
            for i, a in enumerate(apps)
            for v in range(9)
            for k, t in enumerate(("p", "q", "r"))
            if (s := 0.002 * 1.45**v * (1 + 0.07 * i) / (1 + k + 0.3 * ((i * v) % 3)))
        ],
    )
    problem = Problem(
        demands=tuple(AppDemand(app=a, qps=250 + 31 * i, slo=0.3) for i, a in enumerate(apps)),
        devices=tuple(Device(name=f"{t}{i:02d}", type=t) for t in "pqr" for i in range(13)),
        catalogue=catalogue,
    )
    answer = AllocationPlanner(limits=Limits(gap=1e-9, nodes=10**9, seconds=0.2)).allocate(problem)
    assert answer.nondeterministic
    assert min(answer.served.values()) > 0.5


@pytest.mark.parametrize("name", OURS)
def test_no_device_is_a_plan_that_serves_nothing(name: str) -> None:
    answer = planner(name).allocate(replace(PROBLEM, devices=()))
    assert answer.placements == ()
    assert set(answer.served.values()) == {0.0}


@pytest.mark.parametrize("name", OURS)
def test_devices_that_nothing_is_profiled_on_serve_nothing(name: str) -> None:
    answer = planner(name).allocate(replace(PROBLEM, devices=(Device(name="x", type="tpu"),)))
    assert answer.placements == ()


@pytest.mark.parametrize("name", OURS)
def test_an_app_that_no_variant_can_serve_does_not_starve_the_others(name: str) -> None:
    answer = planner(name).allocate(replace(PROBLEM, demands=(*PROBLEM.demands, AppDemand(app="slow", qps=5, slo=0.3))))
    assert answer.served["slow"] == 0.0
    assert answer.served["a"] == answer.served["b"] == 1.0


@pytest.mark.parametrize("name", OURS)
def test_without_demand_every_app_is_still_held_somewhere(name: str) -> None:
    if name in ("proteus-per-device", "infaas-accuracy"):
        return  # as published they hold nothing for nobody
    idle = replace(PROBLEM, demands=tuple(replace(d, qps=0.0) for d in PROBLEM.demands))
    answer = planner(name).allocate(idle)
    assert {p.app for p in answer.placements} == {"a", "b"}
    assert set(answer.served.values()) == {1.0}


def test_one_device_and_two_apps_serves_one_or_shares_the_device() -> None:
    single = replace(PROBLEM, devices=PROBLEM.devices[:1], demands=tuple(replace(d, qps=20.0) for d in PROBLEM.demands))
    alone = planner("allocation").allocate(single)
    assert sorted(alone.served.values()) == [0.0, 1.0]
    shared = planner("allocation").allocate(replace(single, variants_per_device=2))
    assert set(shared.served.values()) == {1.0}
    assert len(shared.placements) == 2


@pytest.mark.parametrize("loose", [400.0, 1026.0, 1264.0, 5000.0])
@pytest.mark.parametrize("strict", [86.0, 171.0])
def test_best_effort_beyond_what_is_left_beside_strict_gets_what_is_left(strict: float, loose: float) -> None:
    """What two programs leave to their tolerances is no service lost: it once left best effort with nothing."""
    line = tuple(BatchLatency(rows, 0.008 + 0.001 * rows, 0.009 + 0.001 * rows) for rows in (1, 64))
    catalogue = Catalogue.of(
        [
            App(name="a", slo=0.1, promise=Promise(weakly_hard=(WeaklyHard(2, 10),))),
            App(name="z", slo=0.6, query_class=QueryClass.BEST_EFFORT),
        ],
        [Variant(name="a0", app="a", accuracy=0.9), Variant(name="z0", app="z", accuracy=0.7)],
        [Profile(variant=name, device_type="cpu", points=line) for name in ("a0", "z0")],
    )
    demands = (
        AppDemand(app="a", qps=strict, slo=0.1, headroom=1.3, spread=0.2),
        AppDemand(app="z", qps=loose, slo=0.6, headroom=1.1, spread=0.06, query_class=QueryClass.BEST_EFFORT),
    )
    one = (Device(name="d0", type="cpu"),)
    answer = planner("allocation").allocate(
        Problem(demands=demands, devices=one, catalogue=catalogue, variants_per_device=3)
    )
    assert answer.served["a"] == 1.0
    assert 0.4 * min(1.0, 600.0 / loose) < answer.served["z"] <= 1.0


@pytest.mark.parametrize("name", sorted(set(PLANNERS)))
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"qps": math.nan}, "qps"),
        ({"qps": -1.0}, "qps"),
        ({"qps": math.inf}, "qps"),
        ({"slo": 0.0}, "slo"),
        ({"headroom": 0.5}, "headroom"),
        ({"min_accuracy": math.nan}, "min_accuracy"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(name: str, change: dict[str, Any], field: str) -> None:
    bad = replace(PROBLEM, demands=(replace(PROBLEM.demands[0], **change), PROBLEM.demands[1]))
    with pytest.raises(InvalidInputError, match=field):
        planner(name).allocate(bad)


def test_names_given_twice_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="listed twice"):
        planner("allocation").allocate(replace(PROBLEM, devices=(PROBLEM.devices[0], PROBLEM.devices[0])))
    with pytest.raises(InvalidInputError, match="listed twice"):
        planner("allocation").allocate(replace(PROBLEM, demands=(PROBLEM.demands[0], PROBLEM.demands[0])))


def test_an_unknown_planner_is_a_configuration_error_that_lists_the_known() -> None:
    with pytest.raises(ConfigurationError, match="greedy-fill"):
        planner("oracle")

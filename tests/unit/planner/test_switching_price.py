"""What loading costs a plan: its time x the demand displaced x the chance that it returns, everywhere by default."""

from dataclasses import replace

import pytest

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Placement
from sluicegate.planner.control.controller_settings import ControllerSettings
from sluicegate.planner.estimates.problem_builder import Outlook
from sluicegate.planner.problems.plan_limits import Loads, PlanLimitFields, PlanLimits, limits_of
from sluicegate.planner.problems.problem import AppDemand, Problem
from sluicegate.planner.registry import planner
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.simulator.scenario.scenario_fields import PlannerSpec
from sluicegate.sluice.offline.problem_file import ProblemFile
from sluicegate.sluice.settings.settings import PlannerSettings

BOTH = pytest.mark.parametrize("name", ["allocation", "allocation-rounded"])
SLOW = 37.0
"""Seconds to load, beside serving."""
POINTS = {"fast": (0.88, 0.02), "exact": (0.92, 0.1)}


def ask(qps: float, load: float, holding: str | None) -> Problem:
    """One app on four devices that hold ``holding`` (None: nothing); they answer 40 queries/s by the exact variant."""
    catalogue = Catalogue.of(
        [App(name="a", slo=0.5, max_rows=1)],
        [Variant(name=name, app="a", accuracy=accuracy) for name, (accuracy, _) in POINTS.items()],
        [
            Profile(variant=name, device_type="p", points=(BatchLatency(1, seconds, seconds),), load=load)
            for name, (_, seconds) in POINTS.items()
        ],
    )
    devices = tuple(Device(name=f"p{i}", type="p") for i in range(4))
    held = tuple(Placement(d.name, "a", (holding,), 0.25, 1) for d in devices) if holding else ()
    demand = AppDemand(app="a", qps=qps, slo=0.5, headroom=1.05, spread=0.05)
    return Problem(demands=(demand,), devices=devices, catalogue=catalogue, previous=held)


def answering(name: str, problem: Problem) -> set[str]:
    answer = planner(name).allocate(problem)
    return {p.variants[0] for p in answer.placements if p.share > 0}


@BOTH
def test_a_slow_load_is_not_made_for_little_accuracy(name: str) -> None:
    assert answering(name, ask(30.0, SLOW, "fast")) == {"fast"}
    assert planner(name).allocate(ask(30.0, SLOW, "fast")).loads == 0
    assert answering(name, replace(ask(30.0, SLOW, "fast"), loads="free")) == {"exact"}


@BOTH
@pytest.mark.parametrize("device", ["p0", "p2"])
def test_where_money_counts_what_one_device_holds_stays_there(name: str, device: str) -> None:
    problem = ask(5.0, 1.0, "exact")
    held = tuple(replace(p, share=1.0) for p in problem.previous if p.device == device)
    priced = tuple(replace(d, price=2.0) for d in problem.devices)
    answer = planner(name).allocate(replace(problem, devices=priced, previous=held, money_weight=1e-4))
    assert [(p.device, p.variants) for p in answer.placements] == [(device, ("exact",))]
    assert answer.loads == 0


@BOTH
def test_a_load_that_is_over_when_a_burst_is_seen_is_free(name: str) -> None:
    assert answering(name, ask(30.0, 1.0, "fast")) == {"exact"}


@BOTH
def test_and_so_is_a_slow_one_once_the_hosts_have_stood_long(name: str) -> None:
    assert answering(name, replace(ask(30.0, SLOW, "fast"), stood={"a": 20.0})) == {"fast"}
    assert answering(name, replace(ask(30.0, SLOW, "fast"), stood={"a": 3600.0})) == {"exact"}


@BOTH
def test_a_slow_load_is_made_where_units_are_to_spare(name: str) -> None:
    assert answering(name, ask(6.0, SLOW, "fast")) == {"exact"}
    assert answering(name, replace(ask(6.0, SLOW, "fast"), price=100.0)) == {"fast"}


@BOTH
def test_service_goes_first_whatever_it_takes_to_load(name: str) -> None:
    answer = planner(name).allocate(ask(120.0, 60.0, "exact"))
    assert answer.served == {"a": 1.0}
    assert "fast" in {p.variants[0] for p in answer.placements}


@BOTH
def test_loads_of_devices_that_hold_nothing_are_free(name: str) -> None:
    assert answering(name, ask(30.0, 60.0, None)) == {"exact"}


@BOTH
def test_a_device_that_joins_is_loaded_with_what_gains_most(name: str) -> None:
    problem = ask(35.0, 60.0, "fast")
    joined = replace(problem, devices=(*problem.devices, Device(name="new", type="p")))
    answer = planner(name).allocate(joined)
    assert {p.device: p.variants for p in answer.placements}["new"] == ("exact",)
    assert answer.loads == 1


@BOTH
def test_a_load_that_holds_its_device_up_costs_more_than_one_beside_serving(name: str) -> None:
    beside = replace(ask(30.0, 5.0, "fast"), stood={"a": 38.0})
    assert "exact" in answering(name, beside)
    assert answering(name, replace(beside, loads="exclusive")) == {"fast"}
    assert "exact" in answering(name, replace(beside, loads="exclusive", stood={"a": 54.0}))


@BOTH
@pytest.mark.parametrize(("mode", "missed"), [("free", 0.0), ("beside", 4.0 / 3.0), ("exclusive", 5.0 + 3.0 * 4.0)])
def test_what_its_loads_are_taken_to_cost_is_told_with_a_plan(name: str, mode: Loads, missed: float) -> None:
    """Three of four devices, of which 31.5 queries/s need 0.63 at least, load for 5 s after 400 s of calm."""
    problem = replace(ask(30.0, 5.0, "fast"), loads=mode, stood={"a": 400.0})
    first, *others = problem.previous
    answer = planner(name).allocate(replace(problem, previous=(replace(first, variants=("exact",)), *others)))
    assert answer.loads == 3
    assert answer.load_cost == pytest.approx(3 * missed / 4 / 400.0 * 0.63 / 4)


@pytest.mark.parametrize(
    ("qps", "spread", "headrooms"),
    [(33.0, 0.2, (1.3, 1.3, 1.05)), (36.0, 0.2, (1.2, 1.2, 1.05)), (38.0, 0.3, (1.15, 1.15, 1.15))],
)
def test_headroom_is_not_bought_by_loads_that_hold_devices_up_for_more_than_it_saves(
    qps: float, spread: float, headrooms: tuple[float, ...]
) -> None:
    asked = ask(qps, 20.0, "exact")
    asked = replace(asked, demands=(replace(asked.demands[0], spread=spread),), stood={"a": 60.0})
    modes: tuple[Loads, ...] = ("free", "beside", "exclusive")
    answers = [planner("allocation").allocate(replace(asked, loads=mode)) for mode in modes]
    assert [answer.headroom["a"] for answer in answers] == pytest.approx(headrooms)
    assert [answer.loads for answer in answers] == [int(headroom > 1.05) for headroom in headrooms]


def test_loads_cost_everywhere_unless_they_are_said_to_be_free() -> None:
    file = ProblemFile.model_validate(
        {
            "apps": [{"name": "a", "slo_ms": 100, "demand_qps": 1}],
            "pools": [{"type": "p", "count": 1}],
            "profiles": {"format": "catalogue", "path": "x"},
        }
    )
    asked: list[PlanLimits | PlanLimitFields] = [ControllerSettings(), PlannerSettings(), PlannerSpec(), file]
    for known in (*asked, ask(1.0, 1.0, None)):
        assert (limits_of(known)["loads"], limits_of(known)["price"]) == ("beside", 1.0)
    assert limits_of(PlannerSpec(), "exclusive")["loads"] == "exclusive"
    assert limits_of(PlannerSpec(loads="free"), "exclusive")["loads"] == "free"


def test_an_app_has_stood_since_its_hosts_changed_not_its_shares() -> None:
    catalogue = Catalogue.of(
        [App(name=n, slo=0.1) for n in ("a", "b")], [Variant(name=n, app=n, accuracy=0.9) for n in ("a", "b")], []
    )
    outlook = Outlook(catalogue, ControllerSettings())
    devices = [Device(name=n, type="p") for n in ("p0", "p1", "p2")]
    a, b = Placement("p0", "a", ("a",), 1.0, 4), Placement("p1", "b", ("b",), 1.0, 4)
    outlook.problem(devices, (a, b), 100.0)
    assert outlook.problem(devices, (replace(a, share=0.5), b), 130.0).stood == {"a": 30.0, "b": 30.0}
    more = (a, b, Placement("p2", "b", ("b",), 0.5, 4))
    assert outlook.problem(devices, more, 140.0).stood == {"a": 40.0, "b": 0.0}
    assert outlook.problem(devices, more, 145.0).stood == {"a": 45.0, "b": 5.0}

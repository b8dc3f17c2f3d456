"""Fleets that are scaled: what is wrong with one, what accuracy as the aim does with it, when workers are looked at."""

from math import inf
from typing import Any

import pytest
from pydantic import ValidationError

from sluicegate.domain.errors import InvalidInputError
from sluicegate.planner.capacity.worker_count import AddWorker, WorkerBeat, WorkerLeft, WorkerScaling, WorkerTick
from sluicegate.planner.model_less.greedy_scaling import GreedyScaling
from sluicegate.planner.model_less.objectives import LeastCost, MostAccurate, Saving
from sluicegate.planner.model_less.planner_choice import PlannerChoice
from sluicegate.planner.model_less.scaling_problem import Asked, Fleet, ScalingVariant
from sluicegate.simulator.scenario.scenario_fields import PlannerSpec
from sluicegate.sluice.settings.settings import PlannerSettings

NOW = 4000.0
VARIANTS = (
    ScalingVariant(name="p", app="a", latency=0.1, capacity=10.0, cost=2.0, resources=2.0),
    ScalingVariant(name="q", app="a", latency=0.31, capacity=100.0, cost=5.0),
    ScalingVariant(name="o", app="a", latency=0.3, capacity=1.5, cost=0.5, hardware="gpu"),
    ScalingVariant(name="r", app="b", latency=0.2, capacity=7.0, cost=3.0, resources=1.5, hardware="gpu"),
)
ASKED = {"a": Asked(load=20.0, slo=0.3), "b": Asked(load=6.0, slo=0.2)}


def fleet(*, cpu: float = 5.0, **running: int) -> Fleet:
    return Fleet(variants=VARIANTS, asked=ASKED, running=running, resources={"cpu": cpu})


def test_a_fleet_counts_what_keeps_the_slo_and_what_is_left_of_each_hardware() -> None:
    there = fleet(p=2, q=1, r=1, o=2)
    assert [v.name for v in there.of_app("a")] == ["o", "p"]
    assert (there.capacity("a"), there.capacity("b")) == (23.0, 7.0)
    assert (there.free("cpu"), there.free("gpu")) == (0.0, inf)
    assert there.cost() == 13.0
    after = there.after({"p": -1, "r": 2})
    assert [after.count(name) for name in "pqro"] == [1, 1, 3, 2]


def test_what_is_wrong_with_a_fleet_is_too_little_capacity_too_little_room_or_fewer_than_none() -> None:
    assert fleet(p=2, o=1, r=1).faults() == []
    assert fleet(p=2, q=1, r=1).faults() == ["a: 20 queries/s for 20"], "a twentieth more is to be kept ready"
    assert fleet(p=2, q=1, r=1).faults(slack=1.0) == []
    assert fleet(cpu=4.5, p=2, q=1, r=1).faults(slack=1.0) == ["cpu: 0.5 too much"]
    assert fleet(cpu=1.0, p=2, r=1).faults(slack=1.0) == ["cpu: 3 too much"]
    assert fleet(p=2, r=-1).faults(slack=1.0) == ["b: -7 queries/s for 6", "r: -1 instances"]


@pytest.mark.parametrize("name", ["latency", "capacity", "resources", "cost", "load"])
def test_a_variant_has_times_capacity_and_resources_above_nothing_and_costs_from_nothing_on(name: str) -> None:
    usual: dict[str, Any] = {"name": "v", "app": "a", "latency": 0.1, "capacity": 10.0, "cost": 0.0, "load": 0.0}
    ScalingVariant(**usual)
    for wrong in (inf, -1e-9, *((0.0,) if name not in ("cost", "load") else ())):
        with pytest.raises(InvalidInputError, match=rf"^v\.{'cost' if name == 'load' else name}"):
            ScalingVariant(**{**usual, name: wrong})


def accurate(load: float, cpu: float, **running: int) -> Fleet:
    variants = tuple(
        ScalingVariant(name=name, app="a", latency=0.1, capacity=capacity, cost=1.0, accuracy=accuracy)
        for name, capacity, accuracy in (("low", 10.0, 0.5), ("mid", 6.0, 0.7), ("top", 2.0, 0.9))
    )
    return Fleet(
        variants=variants, asked={"a": Asked(load=load, slo=0.3)}, running=running, resources={"cpu": cpu}
    )  # fmt: skip


def test_what_is_short_is_added_at_the_least_cost_of_mean_accuracy() -> None:
    """Of three at .9, one at .7 in the place of one is .78 in the mean, one at .5 is .614; on what is free, none."""
    assert MostAccurate().grow(accurate(9.0, 3.0, top=3), "a", 3.0) == {"top": -1, "mid": 1}
    assert MostAccurate().grow(accurate(9.0, 4.0, top=3), "a", 3.0) == {"top": 1}
    assert MostAccurate().grow(accurate(99.0, 3.0, low=3), "a", 9.0) == {}, "nothing adds any more"
    assert GreedyScaling(slack=1.0, aim=MostAccurate()).step(accurate(14.0, 3.0, top=3)) == {"top": -2, "mid": 2}


@pytest.mark.parametrize(
    ("spare", "changes"),
    [(0.0, {"top": -1, "mid": 1}), (4.0, {"low": -1, "mid": 1}), (8.0, {"low": -1, "top": 1})],
)
def test_what_is_to_spare_is_exchanged_for_the_best_mean_accuracy(spare: float, changes: dict[str, int]) -> None:
    """Two at .5 and one at .9 answer 22 at .536: then 26 at .546, 18 at .611 or 14 at .614."""
    there = accurate(5.0, 3.0, low=2, top=1)
    assert MostAccurate().improve(there, "a", spare) == Saving(changes)
    assert MostAccurate().improve(accurate(5.0, 3.0, top=3), "a", 99.0) is None


def test_workers_are_looked_at_every_two_seconds_and_those_that_left_are_not_replaced() -> None:
    scaling = WorkerScaling(timeout=100.0)
    assert scaling.handle(WorkerTick(), NOW) == []
    scaling.handle(WorkerBeat("w0", "cpu", 0.8, {}), NOW)
    assert scaling.handle(WorkerTick(), NOW) == [], "80 per cent are not above it"
    scaling.handle(WorkerBeat("w0", "cpu", 0.81, {}), NOW + 1.0)
    assert scaling.handle(WorkerTick(), NOW + 1.9) == []
    assert scaling.handle(WorkerTick(), NOW + 2.0) == [AddWorker("cpu", "used")]
    scaling.handle(WorkerLeft("w0"), NOW + 3.0)
    assert scaling.handle(WorkerTick(), NOW + 500.0) == []
    assert WorkerScaling().timeout == 2.0


def priced(load: float, *, room: float = 9.0, **running: int) -> Fleet:
    variants = (
        ScalingVariant(name="one", app="a", latency=0.1, capacity=10.0, cost=2.0),
        ScalingVariant(name="few", app="a", latency=0.1, capacity=30.0, cost=5.5, hardware="gpu", resources=2.0),
    )
    resources = {"cpu": 9.0, "gpu": room}
    return Fleet(variants=variants, asked={"a": Asked(load=load, slo=0.3)}, running=running, resources=resources)


def test_what_is_left_once_one_is_gone_may_be_exactly_what_is_asked_for() -> None:
    assert GreedyScaling(slack=1.0).step(priced(10.0, one=2)) == {"one": -1}
    assert GreedyScaling(slack=1.0).step(priced(10.001, one=2)) == {}
    assert GreedyScaling(slack=1.0).step(priced(20.0, one=2)) == {}


def test_several_give_way_to_one_where_that_costs_less_and_fits_and_not_otherwise() -> None:
    aim = LeastCost()
    assert aim.improve(priced(30.0, one=3), "a", 0.0) == Saving({"one": -3, "few": 1})
    assert aim.improve(priced(30.0, room=1.9, one=3), "a", 0.0) is None
    assert aim.improve(priced(20.0, one=2), "a", 0.0) is None, "5.5 are more than 4"
    assert aim.improve(priced(10.0, few=1), "a", 20.0) == Saving({"few": -1, "one": 1})
    assert Saving({"one": -1}).wait == 0.0


def test_scaling_takes_the_place_of_planner_and_geometry_only_where_it_makes_the_plans() -> None:
    for scaling in ("greedy", "ilp"):
        assert PlannerChoice.model_validate({"scaling": scaling, "spare": ["s"]}).takes_its_place
        for other in ({"geometry": "joint"}, {"geometry": "protean"}, {"name": "greedy-fill"}, {"name": "zebra"}):
            with pytest.raises(ValidationError, match=f"scaling: {scaling} takes the place of the planner"):
                PlannerChoice.model_validate({"scaling": scaling, **other})
    plan = PlannerChoice(name="zebra", scaling="plan", geometry="protean", spare=("s",))
    assert (plan.scales, plan.takes_its_place) == (True, False)
    off = PlannerChoice()
    assert (off.name, off.scaling, off.spare, off.geometry) == ("allocation", "off", (), "off")
    assert (off.geometry_patience_s, off.geometry_rest_s, off.scales) == (5.0, 60.0, False)
    with pytest.raises(ValidationError, match="spare: set scaling to plan, greedy or ilp"):
        PlannerChoice(spare=("s",))


def test_a_budget_is_refused_where_scaling_that_knows_none_makes_the_plans() -> None:
    for scaling in ("greedy", "ilp"):
        for choice in (PlannerSettings, PlannerSpec):
            assert choice.model_validate({"scaling": scaling, "price": 2.0}).takes_its_place
            with pytest.raises(ValidationError, match=f"budget: scaling {scaling} knows none: set scaling to plan"):
                choice.model_validate({"scaling": scaling, "budget": 0.0})
            for kept in ("plan", "off"):
                assert choice.model_validate({"scaling": kept, "budget": 3.0}).budget == 3.0
            assert choice.model_validate({"name": f"scaling-{scaling}", "price": 2.0}).name == f"scaling-{scaling}"
            with pytest.raises(ValidationError, match=f"budget: scaling-{scaling} knows none: choose another planner"):
                choice.model_validate({"name": f"scaling-{scaling}", "budget": 0.0})

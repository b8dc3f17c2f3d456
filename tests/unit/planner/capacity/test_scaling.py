"""Model-less scaling: the paper's example exactly, the greedy beside the program, workers by the three rules."""

from collections.abc import Mapping
from math import ceil

import numpy as np
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.fleet.instance import InstanceState
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.capacity.worker_count import AddWorker, ReplaceWorker, WorkerBeat, WorkerScaling, WorkerTick
from sluicegate.planner.model_less.greedy_scaling import GreedyScaling
from sluicegate.planner.model_less.integer_program import scale_exactly
from sluicegate.planner.model_less.objectives import Changes, LeastCost, Saving
from sluicegate.planner.model_less.scaling_problem import Asked, Fleet, ScalingVariant
from sluicegate.planner.problems.problem import AppDemand, Problem
from sluicegate.profiles.catalogue.catalogue import Catalogue

TABLE_2 = (
    ScalingVariant(name="A", app="a", latency=0.200, capacity=5.0, cost=1.0),
    ScalingVariant(name="B", app="a", latency=0.020, capacity=100.0, cost=3.0),
    ScalingVariant(name="C", app="a", latency=0.015, capacity=800.0, cost=16.0),
)
"""Variants of tables 2 and 3 of the paper."""


def fleet(load: float, slo: float, **running: int) -> Fleet:
    return Fleet(variants=TABLE_2, asked={"a": Asked(load=load, slo=slo)}, running=running)


@pytest.mark.parametrize(
    ("load", "slo", "changes", "cost"),
    [(10.0, 0.3, {"A": 2}, 2.0), (10.0, 0.05, {"B": 1}, 3.0), (1000.0, 0.3, {"B": 2, "C": 1}, 22.0)],
)
def test_table_3_of_the_paper_exactly(load: float, slo: float, changes: dict[str, int], cost: float) -> None:
    found = scale_exactly(fleet(load, slo), slack=1.0)
    assert found is not None
    assert (found.changes, found.cost) == (changes, cost)


@pytest.mark.parametrize(("load", "slo", "cost"), [(10.0, 0.3, 3.0), (10.0, 0.05, 3.0), (1000.0, 0.3, 25.0)])
def test_with_five_per_cent_of_slack(load: float, slo: float, cost: float) -> None:
    found = scale_exactly(fleet(load, slo))
    assert found is not None
    assert found.cost == cost


def test_what_runs_and_breaks_the_slo_does_not_count_and_is_given_up() -> None:
    found = scale_exactly(fleet(10.0, 0.05, A=5), slack=1.0)
    assert found is not None
    assert found.changes == {"A": -5, "B": 1}


def test_loading_counts_when_it_has_a_price() -> None:
    slow = ScalingVariant(name="slow", app="a", latency=0.1, capacity=10.0, cost=1.0, load=100.0)
    quick = ScalingVariant(name="quick", app="a", latency=0.1, capacity=10.0, cost=1.5, load=1.0)
    asked = Fleet(variants=(slow, quick), asked={"a": Asked(load=9.0, slo=1.0)})
    free, priced = scale_exactly(asked), scale_exactly(asked, rate=0.01)
    assert free is not None
    assert priced is not None
    assert (free.changes, priced.changes) == ({"slow": 1}, {"quick": 1})


def test_resources_are_shared_by_all_apps() -> None:
    variants = tuple(
        ScalingVariant(name=n, app=n, latency=0.1, capacity=10.0, cost=1.0, resources=2.0) for n in ("x", "y")
    )
    asked = {n: Asked(load=15.0, slo=1.0) for n in ("x", "y")}
    assert scale_exactly(Fleet(variants=variants, asked=asked, resources={"cpu": 7.9})) is None
    found = scale_exactly(Fleet(variants=variants, asked=asked, resources={"cpu": 8.0}))
    assert found is not None
    assert found.changes == {"x": 2, "y": 2}


def test_the_greedy_replicates_or_upgrades_whichever_costs_less() -> None:
    greedy = GreedyScaling()
    assert greedy.step(fleet(0.9, 0.3)) == {"A": 1}
    assert greedy.step(fleet(9.0, 0.3, A=1)) == {"A": 1}
    assert greedy.step(fleet(90.0, 0.3, A=1)) == {"B": 1}
    assert greedy.step(fleet(1000.0, 0.3, A=1)) == {"C": 2}
    other = ScalingVariant(name="Z", app="a", latency=0.01, capacity=900.0, cost=0.1, architecture="another")
    mixed = Fleet(variants=(*TABLE_2, other), asked={"a": Asked(load=90.0, slo=0.3)}, running={"A": 1})
    assert greedy.step(mixed) == {"B": 1}, "an upgrade stays within its architecture"


def test_where_no_variant_fits_as_often_as_needed_what_fits_is_added() -> None:
    tight = Fleet(variants=TABLE_2, asked={"a": Asked(load=5000.0, slo=0.3)}, resources={"cpu": 3.0})
    changes = GreedyScaling().step(tight)
    assert changes == {"C": 3}
    assert tight.after(changes).free("cpu") == 0.0


def test_of_what_fits_in_part_no_more_is_added_than_is_needed() -> None:
    variants = tuple(
        ScalingVariant(name=name, app="a", latency=0.1, capacity=10.0, cost=1.0, hardware=hardware)
        for name, hardware in (("first", "gpu"), ("second", "cpu"))
    )
    asked = Fleet(variants=variants, asked={"a": Asked(load=35.0, slo=1.0)}, resources={"gpu": 2.0, "cpu": 3.0})
    assert GreedyScaling().step(asked) == {"first": 2, "second": 2}


def test_the_greedy_goes_down_only_after_as_many_ticks_as_loading_takes() -> None:
    variants = (
        ScalingVariant(name="small", app="a", latency=0.1, capacity=10.0, cost=1.0, load=2.0),
        ScalingVariant(name="large", app="a", latency=0.1, capacity=100.0, cost=5.0, load=3.5),
    )
    ample = Fleet(variants=variants, asked={"a": Asked(load=9.0, slo=1.0)}, running={"small": 1, "large": 1})
    greedy = GreedyScaling()
    assert [greedy.step(ample) for _ in range(4)] == [{}, {}, {}, {"large": -1}]
    swap = Fleet(variants=variants, asked={"a": Asked(load=9.0, slo=1.0)}, running={"large": 1})
    assert [greedy.step(swap) for _ in range(4)] == [{}, {}, {}, {"large": -1, "small": 1}]
    peak = Fleet(variants=variants, asked={"a": Asked(load=95.0, slo=1.0)}, running={"small": 1, "large": 1})
    interrupted = [greedy.step(f) for f in (ample, ample, ample, peak, ample, ample, ample)]
    assert interrupted == [{}] * 7, "a peak in between starts the count again"


def test_a_variant_without_sense_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="capacity"):
        ScalingVariant(name="v", app="a", latency=0.1, capacity=0.0, cost=1.0)
    with pytest.raises(InvalidInputError, match="cost"):
        ScalingVariant(name="v", app="a", latency=0.1, capacity=1.0, cost=float("nan"))


BATCHES = {"A": 1, "B": 2, "C": 12}
"""Rows in a batch with which the capacity and the latency of a variant go together."""


def allocated_cost(variants: tuple[ScalingVariant, ...], batches: Mapping[str, int], load: float, slo: float) -> float:
    """What the allocation program pays: an instance is a device of the variant's own type, at its price.

    It keeps half of the SLO for queues, which the example does not: it is given twice the SLO.
    """
    app = App(name="a", slo=2 * slo)
    profiles = [
        Profile(
            variant=v.name, device_type=f"for-{v.name}", points=(BatchLatency(batches[v.name], v.latency, v.latency),)
        )
        for v in variants
    ]
    catalogue = Catalogue.of([app], [Variant(name=v.name, app="a", accuracy=0.9) for v in variants], profiles)
    devices = tuple(
        Device(name=f"{v.name}{i}", type=f"for-{v.name}", price=v.cost)
        for v in variants
        for i in range(min(40, ceil(load / v.capacity) + 1))
    )
    demands = (AppDemand(app="a", qps=load, slo=2 * slo, headroom=1.0),)
    problem = Problem(demands=demands, devices=devices, catalogue=catalogue, money_weight=0.001)
    found = AllocationPlanner().allocate(problem)
    assert found.served["a"] == pytest.approx(1.0)
    price = {d.name: d.price for d in devices}
    return sum(price[name] for name in {p.device for p in found.placements if p.share > 0})


@pytest.mark.parametrize(("load", "slo", "cost"), [(10.0, 0.3, 2.0), (10.0, 0.05, 3.0), (1000.0, 0.3, 22.0)])
def test_the_allocation_program_pays_for_the_papers_example_what_the_scaling_program_does(
    load: float, slo: float, cost: float
) -> None:
    assert allocated_cost(TABLE_2, BATCHES, load, slo) == cost


@pytest.mark.parametrize("seed", range(6))
def test_the_allocation_program_pays_no_more_on_random_variants(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batches = {f"v{i}": int(rng.integers(1, 9)) for i in range(4)}
    variants = []
    for name, batch in batches.items():
        latency = float(rng.uniform(0.01, 0.2))
        price = float(np.round(rng.uniform(1.0, 9.0), 1))
        variants.append(ScalingVariant(name=name, app="a", latency=latency, capacity=batch / latency, cost=price))
    fleet = Fleet(variants=tuple(variants), asked={"a": Asked(load=300.0, slo=0.25)})
    exact = scale_exactly(fleet, slack=1.0)
    assert exact is not None
    assert allocated_cost(tuple(variants), batches, 300.0, 0.25) <= exact.cost + 1e-6


def workers(*beats: tuple[str, str, float, InstanceState | None]) -> list[AddWorker | ReplaceWorker]:
    scaling = WorkerScaling()
    for name, hardware, used, state in beats:
        scaling.handle(WorkerBeat(name, hardware, used, {} if state is None else {"v": state}), 0.0)
    return scaling.handle(WorkerTick(), 0.1)


ACTIVE, OVERLOADED, INTERFERED = InstanceState.ACTIVE, InstanceState.OVERLOADED, InstanceState.INTERFERED


def test_a_worker_is_added_where_all_of_its_hardware_are_used_above_80_per_cent() -> None:
    assert workers(("w0", "cpu", 0.9, ACTIVE), ("w1", "cpu", 0.81, ACTIVE)) == [AddWorker("cpu", "used")]
    assert workers(("w0", "cpu", 0.9, ACTIVE), ("w1", "cpu", 0.79, ACTIVE)) == []


def test_a_worker_is_added_where_every_instance_is_interfered() -> None:
    assert workers(("g0", "gpu", 0.1, INTERFERED), ("w0", "cpu", 0.1, ACTIVE)) == [AddWorker("gpu", "interfered")]
    assert workers(("g0", "gpu", 0.1, INTERFERED), ("g1", "gpu", 0.1, ACTIVE)) == []
    assert workers(("g0", "gpu", 0.1, None)) == []


def test_a_worker_of_the_commonest_hardware_is_added_where_most_workers_hold_overload() -> None:
    beats = [(f"w{i}", "cpu" if i < 3 else "gpu", 0.5, OVERLOADED) for i in range(5)]
    assert workers(*beats) == [AddWorker("cpu", "overloaded")]
    beats[0] = ("w0", "cpu", 0.5, ACTIVE)
    assert workers(*beats) == []


def test_where_most_workers_hold_overload_and_no_spare_of_the_commonest_is_left_another_of_them_is_added() -> None:
    scaling = WorkerScaling()
    for name, hardware in (("w0", "cpu"), ("w1", "cpu"), ("g0", "gpu")):
        scaling.handle(WorkerBeat(name, hardware, 0.5, {"v": OVERLOADED}), 0.0)
    assert scaling.handle(WorkerTick(("gpu",)), 0.1) == [AddWorker("gpu", "overloaded")]


def test_after_one_worker_no_other_is_added_for_thirty_seconds() -> None:
    scaling = WorkerScaling(timeout=100.0)
    scaling.handle(WorkerBeat("w0", "cpu", 0.9, {}), 0.0)
    added = [t for t in range(1, 80) if scaling.handle(WorkerTick(), float(t))]
    assert added == [1, 31, 61]


def test_a_dead_worker_is_replaced_at_once_with_what_it_held() -> None:
    scaling = WorkerScaling(timeout=2.0)
    scaling.handle(WorkerBeat("w0", "gpu", 0.1, {"b": ACTIVE, "a": ACTIVE}), 0.0)
    scaling.handle(WorkerBeat("w1", "gpu", 0.1, {}), 1.5)
    assert scaling.handle(WorkerTick(), 2.0) == []
    assert scaling.handle(WorkerTick(), 2.1) == [ReplaceWorker("w0", "gpu", ("a", "b"))]
    assert scaling.handle(WorkerTick(), 2.2) == []


class OneOrTheOther:
    """An aim that would save either of two, as ``wishes`` say, after 3 s."""

    at_once = False

    def __init__(self, *wishes: str) -> None:
        self.wishes = list(wishes)

    def grow(self, fleet: Fleet, app: str, need: float) -> Changes:
        raise AssertionError((fleet, app, need))

    def improve(self, fleet: Fleet, app: str, spare: float) -> Saving:
        return Saving({self.wishes.pop(0): -1}, 3.0)


def test_what_may_be_saved_must_be_the_same_for_as_long_as_it_waits() -> None:
    rich = fleet(10.0, 0.3, A=10, B=2)
    steady = GreedyScaling(aim=OneOrTheOther("A", "A", "A", "A"))
    assert [steady.step(rich) for _ in range(4)] == [{}, {}, {"A": -1}, {}]
    torn = GreedyScaling(aim=OneOrTheOther("A", "A", "B", "B", "B"))
    assert [torn.step(rich) for _ in range(5)] == [{}, {}, {}, {}, {"B": -1}]


def test_of_two_downgrades_the_one_that_saves_more_is_made() -> None:
    """Two dear ones would each become one of the cheapest that suffices; what is saved counts, not what it costs."""
    variants = (
        ScalingVariant(name="cheap", app="a", latency=0.1, capacity=10.0, cost=2.0),
        ScalingVariant(name="dear", app="a", latency=0.1, capacity=30.0, cost=9.0),
        ScalingVariant(name="middle", app="a", latency=0.1, capacity=30.0, cost=4.0),
    )
    there = Fleet(variants=variants, asked={"a": Asked(load=25.0, slo=0.3)}, running={"dear": 1, "middle": 0})
    saving = LeastCost().improve(there, "a", spare=0.0)
    assert saving is not None
    assert saving.changes == {"dear": -1, "middle": 1}
    both = Fleet(variants=variants, asked={"a": Asked(load=25.0, slo=0.3)}, running={"dear": 1, "middle": 1})
    saving = LeastCost().improve(both, "a", spare=20.0)  # either may become a cheap one
    assert saving is not None
    assert saving.changes == {"dear": -1, "cheap": 1}


@pytest.mark.parametrize(("need", "workers"), [(59.9, 2), (60.0, 2), (60.1, 3)])
def test_what_workers_carry_exactly_takes_no_more_of_them(need: float, workers: int) -> None:
    variants = (ScalingVariant(name="only", app="a", latency=0.1, capacity=30.0, cost=4.0),)
    fleet = Fleet(variants=variants, asked={"a": Asked(load=25.0, slo=0.3)}, running={"only": 1})
    assert LeastCost().grow(fleet, "a", need) == {"only": workers}

"""Selection on arrival: states of instances, choice of workers, named models, mitigation."""

import itertools

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.fleet.instance import InstanceState
from sluicegate.domain.query import Goal
from sluicegate.policies.model_less.infaas_selection import (
    Asked,
    Chosen,
    GoalSelection,
    GoalVariant,
    Infeasible,
    InstanceReported,
    Mitigate,
    VariantsRegistered,
    WorkerReported,
    instance_state,
)

SMALL = GoalVariant(name="small", app="app", accuracy=0.7, latency=0.010, cost=1.0, load=0.5, peak=100.0)
LARGE = GoalVariant(name="large", app="app", accuracy=0.9, latency=0.050, cost=3.0, load=2.0, peak=20.0)
GPU = GoalVariant(name="gpu", app="app", accuracy=0.9, latency=0.005, cost=9.0, load=5.0, hardware="gpu")


@pytest.fixture
def selection() -> GoalSelection:
    """Three variants; two CPU workers, of which the second is less used; no GPU."""
    found = GoalSelection()
    found.handle(VariantsRegistered("app", (SMALL, LARGE, GPU)), 0.0)
    found.handle(WorkerReported("w0", "cpu", 0.9), 0.0)
    found.handle(WorkerReported("w1", "cpu", 0.2), 0.0)
    return found


def active(selection: GoalSelection, variant: GoalVariant, worker: str, qps: float = 1.0) -> None:
    selection.handle(InstanceReported("app", variant.name, worker, True, qps, variant.latency), 0.0)


def state(before: InstanceState, qps: float, slow: float, *, loaded: bool = True) -> InstanceState:
    return instance_state(loaded=loaded, qps=qps, peak=100.0, latency=slow * 0.01, profiled=0.01, before=before)


def test_the_state_function_is_total_and_not_loaded_is_always_inactive() -> None:
    for before, qps, slow in itertools.product(InstanceState, (0.0, 96.0, 100.0, 200.0), (0.0, 1.3, 2.0)):
        assert state(before, qps, slow) in set(InstanceState) - {InstanceState.INACTIVE}
        assert state(before, qps, slow, loaded=False) is InstanceState.INACTIVE


def test_overload_and_interference_are_entered_and_left_at_different_points() -> None:
    A, O, I = InstanceState.ACTIVE, InstanceState.OVERLOADED, InstanceState.INTERFERED  # noqa: E741
    assert [state(A, 99.0, 1.0), state(A, 100.0, 1.0), state(O, 96.0, 1.0), state(O, 94.0, 1.0)] == [A, O, O, A]
    assert [state(A, 1.0, 1.45), state(A, 1.0, 1.55), state(I, 1.0, 1.3), state(I, 1.0, 1.2)] == [A, I, I, A]


def test_an_interfered_instance_that_is_overloaded_as_well_is_overloaded() -> None:
    assert state(InstanceState.INTERFERED, 100.0, 2.0) is InstanceState.OVERLOADED


def test_the_cheapest_loaded_variant_that_meets_the_goals_is_chosen(selection: GoalSelection) -> None:
    active(selection, SMALL, "w0")
    active(selection, LARGE, "w1")
    assert selection.get_variant("app", 0.1, Goal()) == Chosen("small", "w0")
    assert selection.get_variant("app", 0.1, Goal(accuracy=0.8)) == Chosen("large", "w1")
    assert selection.handle(Asked("app", 0.1, Goal(accuracy=0.8, cost=3.0)), 0.0) == [Chosen("large", "w1")]


def test_what_is_not_loaded_is_loaded_on_the_least_used_worker_of_hardware_that_is_there(
    selection: GoalSelection,
) -> None:
    assert selection.get_variant("app", 0.1, Goal(accuracy=0.8)) == Chosen("large", "w1", load=True)
    assert selection.get_variant("app", 0.008, Goal()) == Infeasible(GPU)
    selection.handle(WorkerReported("g0", "gpu", 0.5), 0.0)
    assert selection.get_variant("app", 0.008, Goal()) == Chosen("gpu", "g0", load=True)


def test_an_infeasible_query_gets_the_nearest_suggestion(selection: GoalSelection) -> None:
    assert selection.get_variant("app", 0.1, Goal(accuracy=0.95)) == Infeasible(GPU)
    assert selection.get_variant("app", 0.004, Goal(accuracy=0.9)) == Infeasible(GPU)
    assert selection.get_variant("app", 0.1, Goal(accuracy=0.8, cost=2.0)) == Infeasible(SMALL)


def test_a_named_model_only_has_its_worker_chosen(selection: GoalSelection) -> None:
    assert selection.get_variant("app", 0.001, Goal(model="large")) == Chosen("large", "w1", load=True)
    active(selection, LARGE, "w0")
    assert selection.get_variant("app", 0.001, Goal(model="large")) == Chosen("large", "w0")
    with pytest.raises(InvalidInputError, match="'none' is no variant of app"):
        selection.get_variant("app", 0.1, Goal(model="none"))
    with pytest.raises(InvalidInputError, match="not registered"):
        selection.get_variant("other", 0.1, Goal())


def test_queries_between_two_reports_spread_over_the_least_loaded_instances(selection: GoalSelection) -> None:
    active(selection, SMALL, "w0", qps=10.0)
    active(selection, SMALL, "w1", qps=12.0)
    chosen = [selection.get_variant("app", 0.1, Goal()) for _ in range(6)]
    workers = [c.worker for c in chosen if isinstance(c, Chosen)]
    assert sorted(workers) == ["w0"] * 4 + ["w1"] * 2


def test_packing_fills_the_fullest_instance_that_has_room(selection: GoalSelection) -> None:
    selection.packing = True
    active(selection, SMALL, "w0", qps=97.0)
    active(selection, SMALL, "w1", qps=50.0)
    chosen = [selection.get_variant("app", 0.1, Goal()) for _ in range(5)]
    assert [c.worker for c in chosen if isinstance(c, Chosen)] == ["w0", "w0", "w0", "w1", "w1"]


def test_interfered_and_overloaded_instances_get_no_queries(selection: GoalSelection) -> None:
    active(selection, SMALL, "w0")
    selection.handle(InstanceReported("app", "small", "w1", True, 1.0, 2 * SMALL.latency), 0.0)
    assert selection.get_variant("app", 0.1, Goal()) == Chosen("small", "w0")
    selection.handle(InstanceReported("app", "small", "w0", True, 100.0, SMALL.latency), 0.0)
    assert selection.get_variant("app", 0.1, Goal()) == Chosen("small", "w1", load=True)


def test_an_interfered_instance_is_mitigated_once_at_the_first_report_and_where_there_is_room(
    selection: GoalSelection,
) -> None:
    slow = InstanceReported("app", "small", "w0", True, 1.0, 1.6 * SMALL.latency)
    assert selection.handle(slow, 0.0) == [Mitigate("app", "small", "w0", "w1")]
    assert selection.handle(slow, 1.0) == []
    on_idle = InstanceReported("app", "small", "w1", True, 1.0, 1.6 * SMALL.latency)
    assert selection.handle(on_idle, 1.0) == [Mitigate("app", "small", "w1", "w1")]
    selection.handle(WorkerReported("w1", "cpu", 0.95), 1.0)
    again = InstanceReported("app", "large", "w0", True, 1.0, 1.6 * LARGE.latency)
    assert selection.handle(again, 1.0) == [Mitigate("app", "large", "w0", None)]


def test_a_worker_that_is_gone_takes_its_instances_with_it(selection: GoalSelection) -> None:
    active(selection, SMALL, "w1")
    selection.handle(WorkerReported("w1", "cpu", alive=False), 0.0)
    assert selection.state("app", "small", "w1") is InstanceState.INACTIVE
    assert selection.get_variant("app", 0.1, Goal()) == Chosen("small", "w0", load=True)


def test_what_is_registered_again_keeps_the_instances_of_variants_that_stay(selection: GoalSelection) -> None:
    active(selection, SMALL, "w1")
    active(selection, LARGE, "w1")
    selection.handle(VariantsRegistered("app", (SMALL,)), 0.0)
    assert selection.get_variant("app", 0.1, Goal()) == Chosen("small", "w1")
    assert selection.get_variant("app", 0.1, Goal(accuracy=0.8)) == Infeasible(SMALL)
    assert selection.handle(InstanceReported("app", "large", "w1", True), 0.0) == []

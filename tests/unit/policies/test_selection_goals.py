"""States of instances, and what is suggested where nothing meets the goals."""

import itertools
from math import inf

from sluicegate.domain.fleet.instance import InstanceState
from sluicegate.policies.model_less.goal_variants import AppGoals, GoalVariant
from sluicegate.policies.model_less.instance_states import instance_state

SMALL = GoalVariant(name="small", app="app", accuracy=0.7, latency=0.010, cost=1.0, load=0.5)
LARGE = GoalVariant(name="large", app="app", accuracy=0.9, latency=0.050, cost=3.0, load=2.0)
GPU = GoalVariant(name="gpu", app="app", accuracy=0.9, latency=0.005, cost=9.0, load=5.0, hardware="gpu")


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


def test_the_cheapest_that_meets_the_goals_is_feasible_and_else_the_nearest_is_suggested() -> None:
    known = AppGoals((SMALL, LARGE, GPU))
    assert known.feasible(0.0, 0.1, inf) == SMALL
    assert known.feasible(0.8, 0.1, inf) == LARGE
    assert known.feasible(0.0, 0.008, inf) == GPU
    for accuracy, latency, cost, nearest in ((0.95, 0.1, inf, GPU), (0.9, 0.004, inf, GPU), (0.8, 0.1, 2.0, SMALL)):
        assert known.feasible(accuracy, latency, cost) is None
        assert known.nearest(accuracy, latency, cost) == nearest

"""What every allocation must satisfy, for every planner."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.domain.models.app import QueryClass
from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.problems.problem import Problem
from sluicegate.planner.registry import planner
from tests.property.examples import drawn
from tests.property.problems import assert_feasible, problems

SETTINGS = drawn(40)
TIE = 1e-6
"""What solvers leave of a share: nobody is ahead by less."""
NAMES = (
    "allocation",
    "allocation-rounded",
    "greedy-fill",
    "clipper-ht",
    "clipper-ha",
    "sommelier",
    "infaas-accuracy",
    "proteus-per-device",
    "allocation-without-selection",
    "allocation-without-batching",
)


@pytest.mark.parametrize("name", NAMES)
@drawn(25)
@given(data=st.data())
def test_plans_satisfy_every_constraint(name: str, data: st.DataObject) -> None:
    problem = data.draw(problems())
    answer = planner(name).allocate(problem)
    assert_feasible(problem, answer)
    assert answer.objective <= answer.bound + 1e-9


@drawn(25)
@given(problem=problems(max_devices=5))
def test_counting_identical_devices_loses_nothing_against_a_variable_for_each(problem: Problem) -> None:
    literal = planner("proteus-per-device").allocate(problem)
    ours = planner("allocation").allocate(problem)
    wanted = [d for d in problem.demands if d.qps > 0]
    if wanted and min(literal.served_by_class[d.app, d.query_class] for d in wanted) > 1 - 1e-6:
        assert min(ours.served_by_class[d.app, d.query_class] for d in wanted) > 1 - 1e-6
        assert abs(ours.objective - literal.objective) <= 1.1e-3


@SETTINGS
@given(problem=problems(), data=st.data())
def test_the_order_of_apps_and_devices_changes_nothing(problem: Problem, data: st.DataObject) -> None:
    shuffled = replace(
        problem,
        demands=tuple(data.draw(st.permutations(problem.demands))),
        devices=tuple(data.draw(st.permutations(problem.devices))),
    )
    assert planner("allocation").allocate(problem) == planner("allocation").allocate(shuffled)


@drawn(40)
@given(problem=problems(), variants=st.sampled_from([1, 2]))
def test_a_plan_that_is_not_rough_is_the_one_that_searching_gives(problem: Problem, variants: int) -> None:
    problem = replace(problem, variants_per_device=variants)
    rough, searched = (AllocationPlanner(polish=polish).allocate(problem) for polish in (False, True))
    assert not searched.rough
    assert rough == searched or rough.rough


@SETTINGS
@given(problem=problems())
def test_planning_again_from_the_plan_loads_nothing(problem: Problem) -> None:
    first = planner("allocation").allocate(problem)
    again = planner("allocation").allocate(replace(problem, previous=first.placements))
    assert again.loads == 0


@drawn(15)
@given(problem=problems(variants_per_device=2, max_devices=4))
def test_planning_again_where_devices_hold_two_variants_loads_nothing(problem: Problem) -> None:
    first = planner("allocation").allocate(problem)
    again = planner("allocation").allocate(replace(problem, previous=first.placements))
    assert again.loads == 0


@SETTINGS
@given(problem=problems(max_devices=5))
def test_a_device_more_never_serves_less(problem: Problem) -> None:
    fewer = replace(problem, devices=problem.devices[:-1])
    if not fewer.devices:
        return
    less, more = planner("allocation").allocate(fewer), planner("allocation").allocate(problem)
    for query_class in QueryClass:
        # Best effort may lose to strict demand that only the further device can serve: the first class asked counts.
        asked = [(d.app, query_class) for d in problem.demands if d.qps > 0 and d.query_class is query_class]
        if asked:
            servable = [key for key in asked if more.served_by_class[key] > 0 or less.served_by_class[key] > 0]
            worst = min((less.served_by_class[key] for key in servable), default=0.0)
            assert min((more.served_by_class[key] for key in servable), default=0.0) >= worst - 2e-3
            break
    if min(less.served.values()) > 1 - 1e-9:
        assert more.objective >= less.objective - 1e-3


@drawn(25)
@given(problem=problems(variants_per_device=2, max_devices=4))
def test_devices_that_hold_two_variants_keep_every_constraint(problem: Problem) -> None:
    answer = planner("allocation").allocate(problem)
    assert_feasible(problem, answer)
    assert answer.objective <= answer.bound + 1e-9


@pytest.mark.parametrize("name", ["allocation", pytest.param("allocation-rounded", marks=pytest.mark.thorough)])
@drawn(15)
@given(problem=problems(max_devices=3, apps=(4, 8)), variants=st.integers(2, 4))
def test_apps_that_outnumber_devices_are_served_no_less_than_without_a_solver(
    name: str, problem: Problem, variants: int
) -> None:
    problem = replace(problem, variants_per_device=variants)
    ours, simple = planner(name).allocate(problem), planner("greedy-fill").allocate(problem)
    assert_feasible(problem, ours)
    alone = {d: planner("greedy-fill").allocate(replace(problem, demands=(d,))).served[d.app] for d in problem.demands}
    for query_class in QueryClass:  # the least served first, then all: what comes first decides
        asked = [d for d in problem.demands if d.query_class is query_class and d.qps > 0 and alone[d] > 0]
        mine, other = ([x.served_by_class[d.app, query_class] for d in asked] for x in (ours, simple))
        total = sum(d.qps * (m - o) for d, m, o in zip(asked, mine, other, strict=True))
        for gained in (
            (min(mine, default=0.0) - min(other, default=0.0), total / sum(d.qps for d in asked)) if asked else ()
        ):
            if abs(gained) > TIE:
                assert gained > 0.0
                return


@drawn(25)
@given(problem=problems(max_devices=3))
def test_holding_two_variants_never_serves_less(problem: Problem) -> None:
    one = planner("allocation").allocate(problem)
    two = planner("allocation").allocate(replace(problem, variants_per_device=2))
    strict, best_effort = (
        [(d.app, d.query_class) for d in problem.demands if d.query_class is of and d.qps > 0] for of in QueryClass
    )
    served, instead = one.served_by_class, two.served_by_class
    assert min((instead[d] for d in strict), default=1.0) >= min((served[d] for d in strict), default=1.0) - 2e-3
    if all(instead[d] <= served[d] + 1e-9 for d in strict):  # otherwise best effort may pay for what strict gains
        gained = min((instead[d] for d in best_effort), default=1.0)
        assert gained >= min((served[d] for d in best_effort), default=1.0) - 2e-3

"""Units that change hosts for accuracy, and sets of variants that units of a kind are held to, counted by hand."""

from dataclasses import replace

import numpy as np
import pytest

from sluicegate.domain.models.app import QueryClass
from sluicegate.planner.allocation.program import Host, PoolKey, Program, Serve
from sluicegate.planner.allocation.rounding import evaluate
from sluicegate.planner.allocation.table_columns import Class, classes, one_set_each
from sluicegate.planner.allocation.unit_exchange import improved
from sluicegate.planner.problems.problem import AppDemand

STRICT = AppDemand(app="a", qps=6.0, slo=0.3, headroom=1.0)
LATER = replace(STRICT, qps=2.0, query_class=QueryClass.BEST_EFFORT)


def host(name: str, pool: int = 0, loaded: int = 0) -> Host:
    return Host(pool, (name,), loaded, 0.0, 0.0)


ONE_APP = Program(
    demands=(LATER, STRICT),
    pools=(PoolKey("gpu", price=1.0), PoolKey("old", price=0.1)),
    counts=(4, 1),
    hosts=(host("good"), host("fast", 1)),
    serves=(
        Serve(0, 0, "good", 1.0, 0.4, 1, 5.0),
        Serve(0, 1, "good", 1.0, 0.8, 1, 7.5),
        Serve(1, 0, "fast", 0.7, 0.1, 1, 20.0),
        Serve(1, 1, "fast", 0.7, 0.5, 1, 12.0),
    ),
    empty_units=(4, 1),
)
"""One fast unit serves all at 0.7. The first good one makes it 0.9625, the second 1: all takes 1.2 of them."""


def moved(program: Program, *units: int, chunk: int = 1, moves: int = 200) -> list[int]:
    found: list[int] = improved(program, evaluate(program, np.array(units)), chunk=chunk, moves=moves).units.tolist()
    return found


def test_idle_units_are_taken_as_long_as_one_makes_answers_more_accurate() -> None:
    assert moved(ONE_APP, 0, 1) == [2, 1]
    assert moved(ONE_APP, 0, 1, moves=1) == [1, 1]
    assert moved(ONE_APP, 0, 1, chunk=2) == [2, 1]
    assert moved(ONE_APP, 0, 1, chunk=4) == [4, 1]
    assert moved(ONE_APP, 0, 1, chunk=5) == [0, 1], "there are not so many"
    assert moved(replace(ONE_APP, counts=(1, 1)), 0, 1) == [1, 1]


@pytest.mark.parametrize(("weight", "units"), [(0.3, [0, 1]), (0.05, [1, 1]), (0.03, [2, 0])])
def test_where_money_counts_a_unit_is_taken_for_more_than_its_price_and_given_back_for_less(
    weight: float, units: list[int]
) -> None:
    """0.2625 and 0.0375 for the first and the second good unit; beside two the fast one answers nothing."""
    assert moved(replace(ONE_APP, money_weight=weight), 0, 1) == units


@pytest.mark.parametrize(("budget", "units"), [(1.09, [0, 1]), (1.1, [1, 1]), (2.0, [1, 1]), (2.1, [2, 1])])
def test_units_are_taken_as_far_as_the_budget_goes(budget: float, units: list[int]) -> None:
    assert moved(replace(ONE_APP, budget=budget), 0, 1) == units


def test_a_program_with_a_cap_on_loads_or_a_core_on_demand_is_left_as_it_is() -> None:
    assert moved(replace(ONE_APP, max_loads=9), 0, 1) == [0, 1]
    assert moved(replace(ONE_APP, strict_on_demand=0.1), 0, 1) == [0, 1]


def test_a_unit_goes_from_an_app_that_loses_nothing_to_one_that_gains_and_nobody_is_served_less() -> None:
    """a holds two and needs one; b is answered by a poor one and needs two of the good."""
    two = Program(
        demands=(STRICT, replace(STRICT, app="b", qps=2.0)),
        pools=(PoolKey("gpu"),),
        counts=(3,),
        hosts=(host("a-good"), host("b-good"), host("b-poor")),
        serves=(
            Serve(0, 0, "a-good", 1.0, 1.0, 1, 6.0),
            Serve(1, 1, "b-good", 1.0, 2.0, 1, 1.0),
            Serve(2, 1, "b-poor", 0.5, 1.0, 1, 2.0),
        ),
        empty_units=(3,),
    )
    assert moved(two, 2, 0, 1) == [1, 2, 0]
    assert moved(two, 2, 0, 1, moves=1) == [1, 1, 1]
    busy = replace(two, serves=(replace(two.serves[0], need=1.5), *two.serves[1:]))
    assert moved(busy, 2, 0, 1) == [2, 0, 1], "a would be served less by one"
    loaded = replace(two, hosts=(replace(two.hosts[0], loaded=1), *two.hosts[1:]), price=0.0)
    assert moved(loaded, 2, 0, 1) == [1, 2, 0]


def test_classes_have_units_of_their_own_while_there_are_units_for_all() -> None:
    """Those for all say which SLO they are for where it is not the app's own."""
    demands = (replace(STRICT, slo=0.4), replace(STRICT, slo=0.05), replace(LATER, slo=0.4), replace(STRICT, app="b"))
    own = {"a": 0.4, "b": 0.3}
    assert classes(demands, 3, own) == (
        Class("a", 0.05, 0.05, (1,)), Class("a", 0.4, 0.4, (0, 2)), Class("b", 0.3, 0.0, (3,)),
    )  # fmt: skip
    assert classes(demands, 2, own) == (Class("a", 0.05, 0.05, (0, 1, 2)), Class("b", 0.3, 0.0, (3,)))
    assert classes(demands, 2, {"a": 0.05, "b": 0.5}) == (
        Class("a", 0.05, 0.0, (0, 1, 2)), Class("b", 0.3, 0.3, (3,)),
    )  # fmt: skip


def tabled(demand: AppDemand, *, worth: tuple[float, float], loaded: tuple[int, int] = (0, 0)) -> Program:
    """Units of two kinds of GPU hold x and y, or x and z; beside them is a host without a table."""

    def sets(pool: int, second: str, held: int) -> Host:
        return Host(pool, ("x", second), held, 0.0, 0.0, (second, "x"), 0.0, 10.0)

    return Program(
        demands=(demand, replace(demand, app="b", qps=1.0)),
        pools=(PoolKey("big"), PoolKey("big", memory_bytes=9), PoolKey("small")),
        counts=(2, 1, 3),
        hosts=(sets(0, "y", loaded[0]), sets(0, "z", loaded[1]), sets(1, "y", 0), sets(2, "y", 0), host("b-v", 2)),
        serves=(
            Serve(0, 0, "y", worth[0], 1.0, 1, 6.0),
            Serve(1, 0, "z", worth[1], 1.0, 1, 6.0),
            Serve(2, 0, "y", worth[0], 1.0, 1, 6.0),
            Serve(3, 0, "y", 0.1, 1.0, 1, 6.0),
            Serve(4, 1, "b-v", 1.0, 0.5, 1, 2.0),
        ),
        empty_units=(2, 1, 3),
        price=0.0,
    )


@pytest.mark.parametrize(
    ("qps", "worth", "loaded", "kept"),
    [
        (6.0, (0.9, 0.8), (0, 1), [0, 2, 3, 4]),
        (6.0, (0.8, 0.9), (1, 0), [1, 3, 4]),
        (0.0, (0.9, 0.8), (0, 1), [1, 3, 4]),
        (0.0, (0.8, 0.9), (2, 1), [0, 2, 3, 4]),
    ],
)
def test_units_of_a_kind_hold_the_set_that_is_used_most_else_the_one_that_is_held_most(
    qps: float, worth: tuple[float, float], loaded: tuple[int, int], kept: list[int]
) -> None:
    program = tabled(replace(STRICT, qps=qps), worth=worth, loaded=loaded)
    found = one_set_each(program)
    assert found.hosts == tuple(program.hosts[h] for h in kept)
    assert [(found.hosts[s.host], s.variant) for s in found.serves] == [
        (program.hosts[h], program.serves[h].variant) for h in kept
    ]


def test_where_units_of_a_kind_have_one_set_each_nothing_is_left_out() -> None:
    program = tabled(STRICT, worth=(0.9, 0.8))
    alike = replace(program, hosts=(program.hosts[0], program.hosts[0], *program.hosts[2:]))
    assert one_set_each(alike) is alike

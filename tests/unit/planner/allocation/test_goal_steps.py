"""The chain of goals counted by hand: two ways to serve one app, then apps that cannot all be served."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from sluicegate.domain.models.app import QueryClass
from sluicegate.planner.allocation.column_pruning import restrict
from sluicegate.planner.allocation.goal_chain import Known, at_service, run, servable
from sluicegate.planner.allocation.linear import Matrix
from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.allocation.program import Host, PoolKey, Program, Serve
from sluicegate.planner.allocation.rounding import Whole, evaluate
from sluicegate.planner.allocation.solver_types import Goal, Limits, Solved
from sluicegate.planner.problems.problem import AppDemand


def host(name: str, pool: int = 0, loaded: int = 0) -> Host:
    return Host(pool, (name,), loaded, 0.0, 0.0)


TWO_WAYS = Program(
    demands=(AppDemand(app="a", qps=10.0, slo=0.3, headroom=1.0),),
    pools=(PoolKey("gpu"),),
    counts=(2,),
    hosts=(host("good"), host("fast")),
    serves=(Serve(0, 0, "good", 1.0, 3.0, 1, 3.3), Serve(1, 0, "fast", 0.8, 0.5, 1, 20.0)),
    empty_units=(2,),
)
"""Two units: all of the demand takes three of the good, one of the fast. Half and half fills them: 3/2 + 1/2."""

SHORT = Program(
    demands=(
        AppDemand(app="a", qps=3.0, slo=0.3),
        AppDemand(app="b", qps=1.0, slo=0.3),
        AppDemand(app="c", qps=4.0, slo=0.3, query_class=QueryClass.BEST_EFFORT),
    ),
    pools=(PoolKey("big"), PoolKey("small")),
    counts=(1, 2),
    hosts=(host("a-v"), host("b-v", 1), host("c-v", 1)),
    serves=(
        Serve(0, 0, "a-v", 0.8, 2.0, 1, 1.5),
        Serve(1, 1, "b-v", 1.0, 0.8, 1, 1.3),
        Serve(2, 2, "c-v", 1.0, 4.0, 1, 1.0),
    ),
    empty_units=(1, 2),
)
"""The large unit answers half of a; of the small ones b needs one, and the other answers a quarter of c."""


class Counted(Matrix):
    """Remembers what was asked."""

    def __init__(self, program: Program, *, integer: bool) -> None:
        super().__init__(program, integer=integer)
        self.goals: list[Goal] = []
        self.hinted: list[bool] = []

    @override
    def solve(self, goal: Goal, **more: Any) -> Solved | None:
        self.goals.append(goal)
        self.hinted.append(more["hint"] is not None)
        return super().solve(goal, **more)


def test_where_all_can_be_served_the_first_step_is_the_last() -> None:
    found = run(Matrix(TWO_WAYS), TWO_WAYS)
    assert found.full and found.log == ("all demand: accuracy 0.900000",)
    assert found.solved.shares == pytest.approx(np.array([0.5, 0.5]))
    assert found.solved.units == pytest.approx(np.array([1.5, 0.5]))
    assert found.solved.value == pytest.approx(0.9) and found.solved.bound == pytest.approx(0.9)


def test_what_a_unit_and_a_query_are_worth_is_told_only_where_it_is_asked() -> None:
    """One unit more moves half of the demand from 0.8 to 1; a query more takes capacity from the good one."""
    plain, priced = (run(Matrix(TWO_WAYS), TWO_WAYS, duals=asked).solved for asked in (False, True))
    assert run(Matrix(TWO_WAYS), TWO_WAYS).solved.pool_duals is None
    assert plain.pool_duals is None and plain.demand_duals is None
    assert priced.pool_duals == pytest.approx(np.array([0.1]))
    assert priced.demand_duals == pytest.approx(np.array([0.7]))


def test_with_its_service_given_a_program_finds_the_best_accuracy_that_keeps_it() -> None:
    for served, value in ((0.5, 0.5), (0.8, 0.6 + 0.8 * 0.2), (1.0, 0.9)):
        found = at_service(Matrix(TWO_WAYS), TWO_WAYS, np.array([served]))
        assert found.value == pytest.approx(value, abs=1e-5)
        assert found.served == pytest.approx(np.array([served]), abs=2e-6)
        assert found.pool_duals is None
    told = at_service(Matrix(TWO_WAYS), TWO_WAYS, np.array([0.8]), duals=True)
    assert told.pool_duals == pytest.approx(np.array([0.1]))


def test_strict_demands_are_served_fairly_then_most_then_the_others_from_what_is_left() -> None:
    found = run(Matrix(SHORT), SHORT)
    assert not found.full
    assert found.solved.served == pytest.approx(np.array([0.5, 1.0, 0.25]), abs=1e-5)
    assert found.log == (
        "all demand: infeasible",
        "fair share 0.500000 of 2 demands",
        "served 0.625000 of their queries",
        "fair share 0.250000 of 1 demands",
        "served 0.250000 of their queries",
        "accuracy with service fixed: 0.400000",
    )


def test_a_rounded_answer_is_as_far_from_the_best_as_the_relaxed_one_until_it_is_searched() -> None:
    """Of two units one is good and answers a third; the best in whole units, but for the search to find out."""
    value = 1.0 / 3.0 + 0.8 * 2.0 / 3.0
    rounded, searched = (AllocationPlanner(polish=polish, fill_idle=False).solve(TWO_WAYS) for polish in (False, True))
    for found in (rounded, searched):
        assert found.whole.units.tolist() == [1, 1] and not found.nondeterministic
        assert found.whole.value == found.whole.accuracy == pytest.approx(value)
    assert rounded.gap == pytest.approx(0.9 - value)
    assert 0.0 <= searched.gap <= 5e-4
    assert rounded.steps[:2] == ("prune: 2 ways to serve 1 demands", "lp: all demand: accuracy 0.900000")
    assert rounded.steps[2].startswith(f"round up: served 1.0000, accuracy {value:.6f} after ")
    assert not any(step.startswith("polish: ") for step in rounded.steps)
    assert any(step.startswith("polish: ") for step in searched.steps)


def test_idle_units_are_filled_where_that_is_asked_and_change_neither_answer_nor_gap() -> None:
    many = replace(TWO_WAYS, counts=(7,))
    bare, filled = (AllocationPlanner(fill_idle=fill).solve(many) for fill in (False, True))
    assert (bare.whole.units.tolist(), filled.whole.units.tolist()) == ([3, 0], [7, 0])
    assert filled.steps == (*bare.steps, "idle units: 4 kept or given to the apps with least spare capacity")
    assert bare.gap == pytest.approx(0.0, abs=1e-9) and filled.gap == pytest.approx(0.0, abs=1e-9)


def test_what_is_held_now_is_kept_where_it_is_better_than_what_was_rounded() -> None:
    """A load costs 0.8 x (4 - 1) / 3 / 2 / 10 = 0.04; going from two fast units to one of each gains a fifteenth."""
    held = replace(
        TWO_WAYS,
        hosts=(Host(0, ("good",), 0, 4.0, 0.0), Host(0, ("fast",), 2, 0.0, 0.0)),
        empty_units=(0,),
    )
    for price, units in ((0.8, [1, 1]), (2.0, [0, 2])):
        found = AllocationPlanner().solve(replace(held, price=price))
        assert found.whole.units.tolist() == units
        assert found.gap <= 5e-4


def test_where_nothing_can_be_served_nothing_is_solved() -> None:
    for empty in (replace(TWO_WAYS, counts=(0,)), replace(TWO_WAYS, hosts=(), serves=())):
        found = AllocationPlanner().solve(empty)
        assert found.steps[1:] == ("nothing can be served",) and found.gap == 0.0
        assert found.whole.served.tolist() == [0.0] and not found.whole.units.any()


def test_what_has_no_host_or_no_query_is_not_asked_for() -> None:
    nobody = replace(SHORT, serves=SHORT.serves[:2], hosts=SHORT.hosts[:2])
    assert servable(nobody).tolist() == [1.0, 1.0, 0.0]
    idle = replace(SHORT, demands=(replace(SHORT.demands[0], qps=0.0), *SHORT.demands[1:]))
    assert servable(idle).tolist() == [0.0, 1.0, 1.0]
    found = run(Matrix(nobody), nobody)
    assert found.solved.served == pytest.approx(np.array([0.5, 1.0, 0.0]), abs=1e-5)
    assert len(found.log) == 4


def test_in_whole_units_steps_that_cannot_gain_are_not_solved() -> None:
    relaxed = run(Matrix(SHORT), SHORT)
    best = evaluate(SHORT, np.array([1, 1, 1]))
    assert best.served == pytest.approx(np.array([0.5, 1.0, 0.25]))
    searched = Counted(SHORT, integer=True)
    found = run(searched, SHORT, Known(best.as_solved(), relaxed, Limits(), "scip"))
    assert [goal.prices for goal in searched.goals] == [True]
    assert found.solved.units.tolist() == [1.0, 1.0, 1.0]
    assert found.log[-1] == "accuracy with service fixed: 0.400000"


def test_in_whole_units_a_step_that_may_gain_is_solved() -> None:
    relaxed = run(Matrix(SHORT), SHORT)
    worse = evaluate(SHORT, np.array([1, 1, 0]))
    searched = Counted(SHORT, integer=True)
    found = run(searched, SHORT, Known(worse.as_solved(), relaxed, Limits(), "scip"))
    assert found.solved.units.tolist() == [1.0, 1.0, 1.0]
    # Best-effort demand alone lacks something: its fair share, its service, then accuracy.
    assert [(goal.phi, goal.served is not None, goal.prices) for goal in searched.goals] == [
        (1.0, False, False), (0.0, True, False), (0.0, False, True),
    ]  # fmt: skip
    assert searched.hinted == [True, False, True], "what is known lacks the fair share that was just found"


def test_a_way_is_all_lanes_of_a_host_together_at_the_accuracy_of_the_best() -> None:
    lanes = replace(
        TWO_WAYS,
        serves=(
            Serve(0, 0, "a#0", 0.7, 2.0, 4, 5.0, 0),
            Serve(0, 0, "a#1", 0.6, 2.0 / 3.0, 4, 15.0, 1),
            Serve(1, 0, "b", 0.9, 4.0, 4, 2.5),
        ),
    )
    assert (lanes.serve_lane.tolist(), lanes.lane_host.tolist()) == ([0, 1, 2], [0, 0, 1])
    assert (replace(lanes, serves=()).lane_host.tolist(), replace(lanes, serves=()).ways) == ([], ())
    together, alone = lanes.ways
    assert (together.demand, together.host, together.accuracy) == (0, 0, 0.7)
    assert together.need == pytest.approx(0.5)
    assert (alone.demand, alone.host, alone.accuracy) == (0, 1, 0.9)
    assert alone.need == pytest.approx(4.0)


def many(loaded: int) -> Program:
    """Fifty-two hosts of one pool, each more accurate than the one before; one of them is loaded."""
    names = [f"v{i:02}" for i in range(52)]
    return Program(
        demands=(AppDemand(app="a", qps=10.0, slo=0.3),),
        pools=(PoolKey("gpu"),),
        counts=(3,),
        hosts=tuple(host(name, loaded=int(i == loaded)) for i, name in enumerate(names)),
        serves=tuple(Serve(i, 0, name, 0.3 + 0.01 * i, 2.0, 1, 5.0) for i, name in enumerate(names)),
        empty_units=(2,),
    )


def test_a_large_program_keeps_its_best_hosts_and_all_that_is_in_use() -> None:
    program = many(loaded=1)
    units = np.zeros(52, dtype=np.int64)
    units[4] = 2
    shares = np.zeros(52)
    relaxed = Solved(
        0.5, 0.5, shares, np.where(np.arange(52) == 6, 0.25, 0.0), np.ones(1), 0.0,
        pool_duals=np.array([0.02]), demand_duals=np.array([0.1]),
    )  # fmt: skip
    part = restrict(program, relaxed, Whole(units, shares, np.ones(1), 0.5, 0.5, (1.0, 1.0)))
    assert sorted(set(range(52)) - set(part.hosts.tolist())) == [0, 2]
    assert part.serves.tolist() == part.hosts.tolist()
    assert [part.program.hosts[s.host].variants[0] for s in part.program.serves] == [
        s.variant for s in part.program.serves
    ]
    assert part.widen(np.arange(0.2, 50.0), 52)[[0, 1, 2, 3, 51]].tolist() == [0, 0, 0, 1, 49]
    narrow = part.narrow(replace(relaxed, units=np.arange(52.0), shares=np.arange(52.0)))
    assert narrow.units.tolist() == narrow.shares.tolist() == part.hosts.tolist()


def test_a_host_is_worth_all_that_one_unit_of_it_answers() -> None:
    """Half a unit for each of two demands earns a tenth twice; fifty hosts of one demand earn 0.18, one more 0.17."""
    first, second = AppDemand(app="a", qps=5.0, slo=0.3), AppDemand(app="a", qps=5.0, slo=0.4)
    gains = [*[0.17], *[0.18] * 50]
    program = Program(
        demands=(first, second),
        pools=(PoolKey("gpu"),),
        counts=(3,),
        hosts=tuple(host(f"v{i:02}") for i in range(52)),
        serves=(
            *(Serve(i, 0, f"v{i:02}", 2.0 * (0.1 + gain), 1.0, 1, 5.0) for i, gain in enumerate(gains)),
            Serve(51, 0, "v51", 2.0 * (0.1 + 0.1), 0.5, 1, 10.0),
            Serve(51, 1, "v51", 2.0 * (0.3 + 0.1), 0.5, 1, 10.0),
        ),
        empty_units=(3,),
    )
    nothing = np.zeros(53)
    relaxed = Solved(
        0.5, 0.5, nothing, np.zeros(52), np.ones(2), 0.0, pool_duals=np.zeros(1), demand_duals=np.array([0.1, 0.3])
    )
    part = restrict(program, relaxed, Whole(np.zeros(52, dtype=np.int64), nothing, np.ones(2), 0.5, 0.5, (1.0, 1.0)))
    assert sorted(set(range(52)) - set(part.hosts.tolist())) == [0, 50]
    assert part.serves.tolist() == [*range(1, 50), 51, 52]

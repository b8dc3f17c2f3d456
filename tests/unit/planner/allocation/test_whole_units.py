"""What whole units answer, cost and become on devices, counted by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.models.app import QueryClass
from sluicegate.planner.allocation.assignment import allocation, assign, served
from sluicegate.planner.allocation.idle_units import fill
from sluicegate.planner.allocation.program import Host, PoolKey, Program, Serve, Unit
from sluicegate.planner.allocation.rounding import Whole, _trim, evaluate, prices, round_up, service_of
from sluicegate.planner.allocation.solver_types import Solved
from sluicegate.planner.allocation.unit_repair import repaired
from sluicegate.planner.problems.problem import AppDemand

PLAIN = AppDemand(app="a", qps=6.0, slo=0.3, headroom=1.0)
LATER = replace(PLAIN, qps=2.0, query_class=QueryClass.BEST_EFFORT)


def host(name: str, pool: int = 0, loaded: int = 0, load_s: float = 0.0, stood: float = 0.0) -> Host:
    return Host(pool, (name,), loaded, load_s, stood)


def solved(units: list[float], serves: int) -> Solved:
    return Solved(0.0, 0.0, np.zeros(serves), np.array(units), np.zeros(1), 0.0)


def whole(units: list[int], served: list[float], service: tuple[float, ...] = (), value: float = 0.0) -> Whole:
    return Whole(np.array(units), np.zeros(len(units)), np.array(served), value, value, service)


CLASSES = Program(
    demands=(LATER, PLAIN),
    pools=(PoolKey("gpu"), PoolKey("old")),
    counts=(4, 3),
    hosts=(host("good"), host("fast", 1)),
    serves=(
        Serve(0, 0, "good", 1.0, 0.4, 1, 5.0),
        Serve(0, 1, "good", 1.0, 0.8, 1, 7.5),
        Serve(1, 0, "fast", 0.7, 0.1, 1, 20.0),
        Serve(1, 1, "fast", 0.7, 0.5, 1, 12.0),
    ),
    empty_units=(4, 3),
)


def test_strict_queries_take_the_accurate_units_first() -> None:
    """Strict ones leave a fifth of the good unit, which answers half of the others; the fast one takes the rest."""
    found = evaluate(CLASSES, np.array([1, 1]))
    assert found.shares == pytest.approx(np.array([0.5, 1.0, 0.5, 0.0]))
    assert found.served == pytest.approx(np.array([1.0, 1.0]))
    assert found.accuracy == pytest.approx(0.75 + 0.25 * (0.5 + 0.5 * 0.7))
    assert found.value == found.accuracy
    assert found.service == pytest.approx((1.0, 0.75, 1.0, 0.25))


def test_units_of_one_variant_are_filled_evenly_by_what_they_can_answer() -> None:
    same = Program(
        demands=(PLAIN,),
        pools=(PoolKey("gpu"), PoolKey("old")),
        counts=(1, 1),
        hosts=(host("v", 1), host("v", 0)),
        serves=(Serve(0, 0, "v", 0.9, 1.0, 1, 6.0), Serve(1, 0, "v", 0.9, 0.5, 1, 12.0)),
        empty_units=(1, 1),
    )
    assert evaluate(same, np.array([1, 1])).shares == pytest.approx(np.array([1.0, 2.0]) / 3.0)
    assert evaluate(same, np.array([1, 0])).shares == pytest.approx(np.array([1.0, 0.0]))


def test_of_a_strict_demand_spot_units_answer_no_more_than_their_part_of_what_is_answered() -> None:
    """Half stands on demand and is three quarters of what is answered: a sixth comes from spot, however large."""
    core = Program(
        demands=(PLAIN,),
        pools=(PoolKey("gpu"), PoolKey("gpu", spot=True)),
        counts=(1, 1),
        hosts=(host("v"), host("v", 1)),
        serves=(Serve(0, 0, "v", 1.0, 2.0, 1, 3.0), Serve(1, 0, "v", 1.0, 0.25, 1, 24.0)),
        empty_units=(1, 1),
        strict_on_demand=0.75,
    )
    found = evaluate(core, np.array([1, 1]))
    assert found.shares == pytest.approx(np.array([1.0 / 2.0, 1.0 / 6.0]))
    assert found.served == pytest.approx(np.array([2.0 / 3.0]))
    # A quarter on demand and four fifths on spot are enough where a quarter has to stay.
    enough = (replace(core.serves[0], need=4.0), replace(core.serves[1], need=1.25))
    shares = evaluate(replace(core, serves=enough, strict_on_demand=0.25), np.array([1, 1])).shares
    assert shares == pytest.approx(np.array([0.25, 0.75]))
    relaxed = replace(core, demands=(replace(PLAIN, query_class=QueryClass.BEST_EFFORT),))
    assert evaluate(relaxed, np.array([1, 1])).served == pytest.approx(np.array([1.0]))


def test_units_cost_their_rent_and_what_is_newly_loaded() -> None:
    made = Program(
        demands=(PLAIN,),
        pools=(PoolKey("gpu", price=3.0),),
        counts=(5,),
        hosts=(host("v", loaded=1, load_s=4.0, stood=30.0), host("w", loaded=2, load_s=7.0, stood=30.0)),
        serves=(Serve(0, 0, "v", 0.8, 1.0, 1, 6.0), Serve(1, 0, "w", 1.0, 2.0, 1, 3.0)),
        empty_units=(2,),
        price=2.0,
        pressed=0.5,
    )
    # Three of five units hold something: 2.0 x 0.5 x (4 - 1) / 3 / 5 / 30 x 3/5 a load; two are loaded, none of w.
    units = np.array([3, 1])
    assert prices(made, units) == pytest.approx(2 * 0.004)
    assert prices(replace(made, money_weight=0.02), units) == pytest.approx(2 * 0.004 + 0.02 * 3.0 * 4)
    assert prices(made, np.array([1, 2])) == 0.0
    assert prices(replace(made, hosts=(), serves=(), money_weight=0.02), np.zeros(0, dtype=np.int64)) == 0.0
    assert evaluate(made, units).value == pytest.approx(1.0 * 0.5 + 0.8 * 0.5 - 2 * 0.004)


def test_service_is_told_class_by_class_of_what_can_be_served() -> None:
    three = replace(
        CLASSES,
        demands=(LATER, replace(PLAIN, qps=5.0), replace(PLAIN, qps=1.0, app="b"), replace(PLAIN, qps=0.0, app="c")),
        serves=(*CLASSES.serves, Serve(0, 2, "good", 1.0, 1.0, 1, 1.0), Serve(0, 3, "good", 1.0, 0.0, 1, 1.0)),
    )
    found = service_of(three, np.array([0.5, 0.9, 0.4, 0.1]))
    assert found == pytest.approx((0.4, (5.0 * 0.9 + 0.4) / 8.0, 0.5, 2.0 * 0.5 / 8.0))
    nobody = replace(three, serves=three.serves[:4])
    assert service_of(nobody, np.array([0.5, 0.9, 0.4, 0.1])) == pytest.approx((0.9, 5.0 * 0.9 / 8.0, 0.5, 0.125))


def test_answers_are_compared_by_the_first_service_that_differs_then_by_value() -> None:
    base = whole([1], [1.0], (0.5, 0.8), 0.3)
    assert base.service_beyond(whole([1], [1.0], (0.4, 0.9), 0.9)) == pytest.approx(0.1)
    assert base.service_beyond(whole([1], [1.0], (0.5 + 2e-6, 0.9), 0.0)) == pytest.approx(-0.1)
    assert base.service_beyond(whole([1], [1.0], (0.5 + 4e-6, 0.1), 0.0)) == pytest.approx(-4e-6)
    assert base.beats(whole([1], [1.0], (0.4, 0.9), 0.9))
    assert not base.beats(whole([1], [1.0], (0.5, 0.9), 0.1))
    assert base.beats(whole([1], [1.0], (0.5, 0.8 - 1e-6), 0.2))
    assert not base.beats(base)


@pytest.mark.parametrize(("used", "units"), [(1.0 + 5e-7, 1), (1.0 + 2e-6, 2), (1.4, 2)])
def test_a_relaxed_count_becomes_the_next_whole_one_beyond_the_solvers_tolerance(used: float, units: int) -> None:
    found, programs = round_up(CLASSES, solved([used, 0.2], 4))
    assert (found.units.tolist(), programs) == ([units, 1], 1)


def test_a_demand_that_lacks_gets_an_idle_unit_before_another_hosts() -> None:
    short = evaluate(CLASSES, np.array([0, 0]))
    mended = repaired(CLASSES, np.ones(2), short)
    assert mended.served == pytest.approx(np.array([1.0, 1.0]))
    assert repaired(replace(CLASSES, max_loads=0), np.ones(2), short) is short
    full = evaluate(CLASSES, np.array([1, 1]))
    assert repaired(CLASSES, np.ones(2), full) is full


def idle(demand: AppDemand, *, counts: tuple[int, ...] = (2,), held: tuple[int, int] = (0, 0)) -> Program:
    """Units that hold a fast variant, ten times as fast, or a good one."""
    return Program(
        demands=(demand,),
        pools=(PoolKey("gpu"),),
        counts=counts,
        hosts=(host("fast", loaded=held[0]), host("good", loaded=held[1])),
        serves=(Serve(0, 0, "fast", 0.7, demand.qps / 100.0, 1, 100.0), Serve(1, 0, "good", 1.0, 0.05, 1, 10.0)),
        empty_units=(sum(counts) - sum(held),),
    )


@pytest.mark.parametrize(("qps", "units"), [(0.5, [2, 0]), (4.0, [2, 0]), (0.0, [0, 2])])
def test_idle_units_of_an_unanswered_app_are_fast_ones_where_it_asks_for_anything_else_accurate(
    qps: float, units: list[int]
) -> None:
    program = idle(replace(PLAIN, qps=qps))
    assert fill(program, whole([0, 0], [0.0])).tolist() == units


def test_idle_units_of_an_answered_app_lose_none_of_its_accuracy() -> None:
    program = idle(replace(PLAIN, qps=0.5), counts=(3,))
    for units, then in (([1, 0], [3, 0]), ([0, 1], [0, 3])):
        assert fill(program, evaluate(program, np.array(units))).tolist() == then


def test_idle_units_keep_what_they_hold_and_only_the_empty_ones_are_given_away() -> None:
    program = idle(replace(PLAIN, qps=0.5), counts=(5,), held=(1, 3))
    assert fill(program, evaluate(program, np.array([1, 0]))).tolist() == [2, 3]
    assert fill(replace(program, budget=9.0), evaluate(program, np.array([1, 0]))).tolist() == [1, 0]


@pytest.mark.parametrize(("cap", "units"), [(None, [1, 0, 1]), (1, [1, 0, 1]), (0, [2, 0, 0])])
def test_an_app_that_no_unit_holds_gets_one_before_others_keep_theirs_where_it_may_be_loaded(
    cap: int | None, units: list[int]
) -> None:
    """Both units hold what app a needs one of; nobody asks for b."""
    both = idle(replace(PLAIN, qps=50.0), held=(2, 0))
    made = replace(
        both,
        demands=(*both.demands, replace(PLAIN, app="b", qps=0.0)),
        hosts=(*both.hosts, host("b-v")),
        serves=(*both.serves, Serve(2, 1, "b-v", 1.0, 0.0, 1, 7.0)),
        max_loads=cap,
    )
    assert fill(made, evaluate(made, np.array([1, 0, 0]))).tolist() == units


def test_idle_units_are_given_to_the_app_with_least_to_spare_for_its_demand() -> None:
    """A unit answers 10 of a, of which 6 are asked for, and 30 of b, of which 15 are: a, b (2.0), a (3.3), b again."""
    made = Program(
        demands=(PLAIN, replace(PLAIN, app="b", qps=15.0)),
        pools=(PoolKey("gpu"),),
        counts=(7,),
        hosts=(host("a-v"), host("b-v")),
        serves=(Serve(0, 0, "a-v", 1.0, 0.6, 1, 10.0), Serve(1, 1, "b-v", 1.0, 0.5, 1, 30.0)),
        empty_units=(7,),
    )
    found = [
        fill(replace(made, counts=(n,)), evaluate(replace(made, counts=(n,)), np.array([1, 1]))).tolist()
        for n in (2, 3, 4, 5, 6, 7)
    ]
    assert found == [[1, 1], [2, 1], [2, 2], [3, 2], [3, 3], [4, 3]]


def test_what_an_app_has_to_spare_counts_by_its_demand_however_small_both_are() -> None:
    """Half a query/s where a tenth is asked for is five times enough, ten where five are is twice."""
    made = Program(
        demands=(replace(PLAIN, qps=0.1), replace(PLAIN, app="b", qps=5.0)),
        pools=(PoolKey("gpu"),),
        counts=(3,),
        hosts=(host("a-v"), host("b-v")),
        serves=(Serve(0, 0, "a-v", 1.0, 0.2, 1, 0.5), Serve(1, 1, "b-v", 1.0, 0.5, 1, 10.0)),
        empty_units=(3,),
    )
    assert fill(made, evaluate(made, np.array([1, 1]))).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("units", "relaxed", "more", "kept"),
    [
        ([2, 1, 1], [1.2, 0.5, 0.3], {}, [1, 1, 0]),
        ([2, 1, 1], [1.2, 0.1, 0.3], {}, [1, 0, 1]),
        ([1, 0, 1], [0.6, 0.0, 0.1], {"budget": 3.5}, [1, 0, 0]),
        ([1, 0, 1], [0.2, 0.0, 0.1], {"budget": 3.5}, [0, 0, 1]),
        ([1, 0, 1], [0.2, 0.0, 0.1], {"budget": 4.0}, [1, 0, 1]),
        ([1, 1, 0], [0.2, 0.1, 0.0], {"max_loads": 0}, [1, 1, 0]),
        ([1, 1, 1], [0.4, 0.1, 0.2], {"max_loads": 0}, [1, 1, 0]),
        ([1, 1, 1], [0.2, 0.1, 0.4], {"max_loads": 0}, [1, 1, 0]),
        ([1, 1, 1], [0.2, 0.1, 0.4], {"max_loads": 1}, [1, 1, 1]),
        ([0, 2, 1], [0.0, 1.9, 0.3], {"max_loads": 0}, [0, 2, 0]),
    ],
)
def test_of_too_many_units_those_go_whose_last_part_is_used_least_for_its_price(
    units: list[int], relaxed: list[float], more: dict[str, Any], kept: list[int]
) -> None:
    """A unit of the second host is held: none of it need be loaded. One unit of the first pool is empty and may
    be, which is no leave to load what the other holds anew."""
    made = Program(
        demands=(PLAIN,),
        pools=(PoolKey("gpu", price=3.0), PoolKey("old", price=1.0)),
        counts=(2, 1),
        hosts=(host("v"), host("w", loaded=1), host("v", 1)),
        serves=tuple(Serve(h, 0, "v", 0.8, 1.0, 1, 6.0) for h in range(3)),
        empty_units=(1, 0),
        **more,
    )
    shared = replace(made, pools=made.pools[:1], hosts=tuple(replace(h, pool=0) for h in made.hosts), counts=(2,))
    tried = made if more else shared
    assert _trim(tried, np.array(units), np.array(relaxed)).tolist() == kept


def test_units_stay_where_they_are_then_empty_ones_are_loaded_then_others() -> None:
    made = Program(
        demands=(PLAIN, replace(PLAIN, app="b", qps=3.0)),
        pools=(PoolKey("gpu"),),
        counts=(3,),
        hosts=(host("x", loaded=1), host("z")),
        serves=(Serve(0, 0, "x", 0.9, 1.0, 4, 6.0), Serve(1, 1, "z", 1.0, 1.0, 8, 3.0)),
        empty_units=(1,),
    )
    answer = Whole(np.array([2, 1]), np.array([0.6, 0.3]), np.array([0.6, 0.3]), 0.5, 0.5, ())
    units = [Unit("d0", "whole", ("y",)), Unit("d1", "whole", ()), Unit("d2", "whole", ("x",))]
    placements, loads = assign(made, answer, {PoolKey("gpu"): units})
    assert loads == 2
    assert [(p.device, p.app, p.variants, p.max_batch) for p in placements] == [
        ("d0", "b", ("z",), 8), ("d1", "a", ("x",), 4), ("d2", "a", ("x",), 4),
    ]  # fmt: skip
    assert [p.share for p in placements] == pytest.approx([0.3, 0.3, 0.3])


def one_host(*variants: str, pool: int = 0) -> Program:
    """A host of several variants of an app, in the pool of units that hold something or that of the others."""
    return Program(
        demands=(PLAIN,),
        pools=(PoolKey("gpu"), PoolKey("gpu", empty=True)),
        counts=(2, 1),
        hosts=(Host(pool, variants, 0, 0.0, 0.0),),
        serves=tuple(Serve(0, 0, v, 0.9 - 0.1 * i, 1.0, 2 + i, 6.0) for i, v in enumerate(variants)),
        empty_units=(0, 1),
    )


def test_which_of_two_equal_pools_a_unit_was_counted_in_is_no_reason_to_load() -> None:
    holding = [Unit("d1", "whole", ("w",)), Unit("d2", "whole", ("x",))]
    pools = {PoolKey("gpu"): holding, PoolKey("gpu", empty=True): [Unit("d0", "whole", ())]}
    answer = Whole(np.array([1]), np.array([1.0]), np.array([1.0]), 0.9, 0.9, ())
    (placed,), loads = assign(one_host("x", pool=1), answer, pools)
    assert (placed.device, loads) == ("d2", 0)
    (placed,), loads = assign(one_host("z", pool=1), answer, pools)
    assert (placed.device, loads) == ("d0", 1)
    (placed,), loads = assign(one_host("z"), answer, pools)
    assert (placed.device, loads) == ("d1", 1)


def test_several_variants_go_to_the_unit_that_lacks_the_fewest_of_them() -> None:
    holding = [Unit("d1", "whole", ("w", "y")), Unit("d2", "whole", ("x", "z"))]
    pools = {PoolKey("gpu"): holding, PoolKey("gpu", empty=True): []}
    answer = Whole(np.array([1]), np.array([0.25, 0.5, 0.125]), np.array([0.875]), 0.5, 0.5, ())
    (placed,), loads = assign(one_host("x", "y", "z"), answer, pools)
    assert (placed.device, loads) == ("d2", 1)
    assert (placed.variants, placed.share, placed.max_batch) == (("x", "y", "z"), 0.875, 4)


def test_a_single_variant_goes_to_a_unit_that_holds_it_beside_another() -> None:
    holding = [Unit("d1", "whole", ("w", "y")), Unit("d2", "whole", ("v", "x"))]
    pools = {PoolKey("gpu"): holding, PoolKey("gpu", empty=True): []}
    answer = Whole(np.array([1]), np.array([1.0]), np.array([1.0]), 0.9, 0.9, ())
    (placed,), loads = assign(one_host("x"), answer, pools)
    assert (placed.device, loads) == ("d2", 0)


TABLED = Program(
    demands=(replace(LATER, headroom=1.25), replace(PLAIN, headroom=1.25)),
    pools=(PoolKey("gpu"), PoolKey("old")),
    counts=(1, 2),
    hosts=(
        Host(1, ("x", "y"), 0, 0.0, 0.0, ("y", "x"), 0.3, 10.0),
        Host(0, ("x", "y"), 0, 0.0, 0.0, ("y", "x"), 0.3, 30.0),
    ),
    serves=(
        Serve(0, 0, "y+x#0", 0.9, 0.5, 4, 5.0, 0),
        Serve(0, 1, "y+x#0", 0.9, 1.5, 4, 5.0, 0),
        Serve(0, 1, "y+x#1", 0.5, 3.0, 4, 2.5, 1),
        Serve(1, 0, "y+x#0", 0.9, 0.25, 8, 10.0, 0),
        Serve(1, 1, "y+x#0", 0.9, 0.5, 8, 15.0, 0),
    ),
    empty_units=(1, 2),
)
"""Two slow units and one thrice as fast, each with a selection table."""


def test_units_with_tables_share_by_what_they_can_answer_whatever_the_program_splits() -> None:
    answer = Whole(np.array([2, 1]), np.array([0.4, 0.3, 0.1, 0.25, 0.5]), np.array([0.65, 0.9]), 0.7, 0.7, ())
    pools = {PoolKey("gpu"): [Unit("g0", "whole")], PoolKey("old"): [Unit("o0", "whole"), Unit("o1", "whole")]}
    placements, loads = assign(TABLED, answer, pools)
    assert loads == 6
    assert [(p.device, p.variants, p.max_batch, p.slo) for p in placements] == [
        ("g0", ("y", "x"), 8, 0.3), ("o0", ("y", "x"), 4, 0.3), ("o1", ("y", "x"), 4, 0.3),
    ]  # fmt: skip
    # A quarter of the app's queries is best effort; a slow unit answers a fifth of what they answer together.
    served_in_all = 0.25 * 0.65 + 0.75 * 0.9
    assert [p.share / served_in_all for p in placements] == pytest.approx([0.6, 0.2, 0.2])


def test_headroom_of_apps_on_tables_is_how_far_the_scarcest_of_their_demands_may_grow() -> None:
    """Two slow units are twice what strict queries take of them, one fast is twice, too; of best effort it is more."""
    answer = whole([2, 1], [1.0, 1.0], value=0.7)
    assert allocation(TABLED, answer, 0.0, (), loads=0, steps=()).headroom == pytest.approx({"a": 1.25 * 4.0})
    slow = whole([2, 0], [1.0, 1.0], value=0.7)
    assert allocation(TABLED, slow, 0.0, (), loads=0, steps=()).headroom == pytest.approx({"a": 1.25 * 2.0})
    scarce = replace(TABLED, serves=tuple(replace(s, need=10.0 * s.need) for s in TABLED.serves))
    assert allocation(scarce, slow, 0.0, (), loads=0, steps=()).headroom == {"a": 1.0}
    assert allocation(CLASSES, whole([1, 1], [1.0, 1.0], value=0.9), 0.0, (), loads=0, steps=()).headroom == {}


def test_what_is_served_is_told_by_class_and_by_app_and_a_tolerance_is_no_shortage() -> None:
    made = replace(CLASSES, demands=(*CLASSES.demands, replace(PLAIN, app="b", qps=0.0)))
    by_class, by_app = served(made, whole([0, 0], [0.25, 1.0 - 2e-6, 0.0]))
    assert by_class == {
        ("a", QueryClass.BEST_EFFORT): 0.25, ("a", QueryClass.STRICT): 1.0, ("b", QueryClass.STRICT): 1.0,
    }  # fmt: skip
    assert by_app == {"a": (6.0 + 0.5) / 8.0, "b": 1.0}
    _, short = served(made, whole([0, 0], [1.0, 1.0 - 4e-6, 0.0]))
    assert short["a"] == pytest.approx(1.0 - 3e-6, abs=1e-9) and short["a"] < 1.0


def test_accuracy_and_its_bound_are_reported_over_what_is_served() -> None:
    answer = whole([1, 0], [0.0, 0.5], value=0.3)  # 6 of 8 queries are strict: 0.375 of all is served
    told = allocation(CLASSES, answer, 0.03, (), loads=2, steps=("s",))
    assert told.objective == pytest.approx(0.3 / 0.375)
    assert told.bound == pytest.approx((0.3 + 0.03) / 0.375)
    assert (told.loads, told.steps, told.nondeterministic) == (2, ("s",), False)
    assert allocation(CLASSES, answer, 0.3, (), loads=0, steps=()).bound == 1.0
    nothing = allocation(CLASSES, whole([0, 0], [0.0, 0.0], value=0.0), 0.1, (), loads=0, steps=())
    assert (nothing.objective, nothing.bound) == (0.0, 0.0)

"""GPUs counted as fleets, and the search for how many of each cut: small fleets of A30s, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from sluicegate.domain.errors import ConfigurationError, IllegalEventError, InvalidInputError
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.plan import Placement
from sluicegate.planner.allocation import goal_chain
from sluicegate.planner.allocation.linear import Goal, Matrix
from sluicegate.planner.allocation.program import Host, PoolKey, Program, Serve
from sluicegate.planner.allocation.solver_types import Limits, Solved
from sluicegate.planner.geometry.first_cut import first_cut, laid_out
from sluicegate.planner.geometry.geometry_search import GeometrySettings, Search
from sluicegate.planner.geometry.gpu_pools import (
    assigned,
    by_the_table,
    can_be_cut,
    fleet_of,
    grouped,
    largest_pools,
    recut,
    sliced,
)
from sluicegate.planner.geometry.joint_plan import GeometryPlan, as_cut
from sluicegate.planner.geometry.joint_program import Fleet, GeometryMatrix, units_of, whole_gpus
from sluicegate.planner.geometry.mig_tables import GB, TABLES, Geometry
from sluicegate.planner.geometry.reconfigurator import (
    Desired,
    Drain,
    GeometryChanged,
    GpuLeft,
    GpuState,
    Reconfigurator,
    Resume,
    SlicesIdle,
    change_limit,
)
from sluicegate.planner.problems.problem import AppDemand, Problem, RecutGroup, Recuts
from sluicegate.profiles.catalogue.catalogue import Catalogue

A30 = TABLES["a30"]
NOTHING = Catalogue.of([], [], [])
WHOLE: Geometry = ("4g",)
HALVES: Geometry = ("2g", "2g")
QUARTERS: Geometry = ("1g", "1g", "1g", "1g")


def problem(*devices: Device, **more: object) -> Problem:
    return Problem(demands=(), devices=devices, catalogue=NOTHING, **more)  # type: ignore[arg-type]


def fleet(gpus: int, changes: int, *, charged: bool = True, slots: int = 1) -> Fleet:
    """All whole now; they may become quarters."""
    return Fleet(gpus, (WHOLE, QUARTERS), {WHOLE: gpus}, {"4g": 0, "1g": 1}, changes, slots, charged)


def asked(large: float, small: float, gpus: int = 2) -> Program:
    """App a takes ``large`` whole GPUs, app b ``small`` quarters, less accurately; pools as large as they can be."""
    return Program(
        demands=(AppDemand(app="a", qps=1.0, slo=0.3), AppDemand(app="b", qps=3.0, slo=0.3)),
        pools=(PoolKey("a30:4g"), PoolKey("a30:1g")),
        counts=(gpus, 4 * gpus),
        hosts=(Host(0, ("a-v",), 0, 0.0, 0.0), Host(1, ("b-v",), 0, 0.0, 0.0)),
        serves=(Serve(0, 0, "a-v", 1.0, large, 1, 1.0), Serve(1, 1, "b-v", 0.6, small, 1, 1.0)),
        empty_units=(gpus, 0),
    )


@pytest.mark.parametrize(
    ("relaxed", "changes", "whole"),
    [
        ([1.4, 2.6], 5, [1, 3]),
        ([1.4, 2.6], 2, [2, 2]),
        ([1.4, 2.6], 0, [4, 0]),
        ([3.5, 0.5], 5, [4, 0]),
        ([3.4, 0.6], 5, [3, 1]),
    ],
)
def test_whole_gpus_come_as_near_as_whole_changes_bring_them(
    relaxed: list[float], changes: int, whole: list[int]
) -> None:
    assert whole_gpus(fleet(4, changes), np.array(relaxed)).tolist() == whole


def test_units_of_fleets_are_what_their_cuts_give_and_other_pools_keep_theirs() -> None:
    other = Fleet(2, (HALVES, WHOLE), {HALVES: 2}, {"2g": 3, "4g": 0}, 1, 2, charged=False)
    chosen = [np.array([1, 2]), np.array([1, 1])]
    # Whole: one, and one of two slots; quarters: two GPUs of four; halves: one GPU of two, two slots each.
    assert units_of([fleet(3, 1), other], chosen, (90, 91, 92, 93)) == (3, 8, 92, 4)


def test_without_being_asked_for_whole_gpus_a_program_cuts_parts_of_them() -> None:
    """A GPU and a half for one app, half of one for the other."""
    program = asked(1.5, 2.0)
    matrix = GeometryMatrix(program, [fleet(2, 1)], change_weight=0.01)
    found = goal_chain.run(matrix, program)
    assert found.full
    (gpus,) = matrix.by_fleet()
    assert gpus == pytest.approx(np.array([1.5, 0.5]))
    assert found.solved.value == pytest.approx(0.25 + 0.75 * 0.6 - 0.01 * 0.5 / 2)


def test_changes_that_cost_nothing_are_no_part_of_the_value() -> None:
    program = asked(1.5, 2.0)
    matrix = GeometryMatrix(program, [fleet(2, 1, charged=False)], change_weight=0.01)
    assert goal_chain.run(matrix, program).solved.value == pytest.approx(0.25 + 0.75 * 0.6)


def test_a_search_cuts_as_many_gpus_as_serve_more_and_says_what_came_of_it() -> None:
    """One of two GPUs may be quartered: four of the ten quarters that b asks for; a needs no more than the other."""
    search = Search(asked(1.0, 10.0), [fleet(2, 1)], GeometrySettings())
    found = search.run()
    assert [g.tolist() for g in found.stay.gpus] == [[2, 0]] and found.stay.changes == 0
    assert [g.tolist() for g in found.best.gpus] == [[1, 1]] and found.best.changes == 1
    assert found.stay.counts.whole.served == pytest.approx(np.array([1.0, 0.0]), abs=1e-5)
    assert found.best.counts.whole.served == pytest.approx(np.array([1.0, 0.4]), abs=1e-5)
    (searched,) = [step for step in search.steps if step.startswith("geometry search: ")]
    assert searched == "geometry search: accuracy with service fixed: 0.425000"  # 0.25 + 0.75 x 0.4 x 0.6 - 0.01 / 2


@pytest.mark.parametrize(("weight", "changes"), [(0.79, 1), (0.81, 0)])
def test_a_change_is_made_for_more_than_its_part_of_the_price_of_changing_all(weight: float, changes: int) -> None:
    """It brings the worst served from nothing to 0.4."""
    search = Search(asked(1.0, 10.0), [fleet(2, 1)], GeometrySettings(change_weight=weight))
    assert search.price(1) == pytest.approx(weight / 2)
    assert search.run().best.changes == changes


def test_changes_of_gpus_that_cost_nothing_are_not_counted() -> None:
    found = Search(asked(1.0, 10.0), [fleet(2, 1, charged=False)], GeometrySettings()).run()
    assert [g.tolist() for g in found.best.gpus] == [[1, 1]]
    assert found.best.changes == 0


@pytest.mark.parametrize(("most", "loads"), [(None, 4), (0, 1), (2, 3)])
def test_slices_that_a_cut_could_make_are_no_empty_ones_to_load_on(most: int | None, loads: int) -> None:
    """One GPU is whole, one quartered; three quarters hold what nobody asks for now, the fourth nothing."""
    program = replace(
        asked(1.0, 4.0),
        hosts=(Host(0, ("a-v",), 1, 0.0, 0.0), Host(1, ("b-v",), 0, 0.0, 0.0), Host(1, ("c-v",), 3, 0.0, 0.0)),
        empty_units=(1, 5),
        max_loads=most,
    )
    cut = Fleet(2, (WHOLE, QUARTERS), {WHOLE: 1, QUARTERS: 1}, {"4g": 0, "1g": 1}, 0, 1, charged=True)
    assert Search(program, [cut], GeometrySettings()).run().best.counts.whole.units.tolist()[1] == loads


def test_where_the_search_runs_out_one_gpu_at_a_time_is_cut_as_long_as_that_serves_more() -> None:
    """Half a GPU is what the relaxed program would quarter, and no whole one is near; only then is b served at all."""
    limits = Limits(nodes=0, seconds=0.0)
    search = Search(asked(1.5, 2.0), [fleet(2, 1)], GeometrySettings(limits=limits))
    found = search.run()
    assert not any(step.startswith("geometry search: accuracy") for step in search.steps)
    assert [g.tolist() for g in found.best.gpus] == [[1, 1]]
    assert found.best.counts.whole.served == pytest.approx(np.array([1.0 / 1.5, 1.0]), abs=1e-5)
    apart = Search(asked(1.5, 2.0), [fleet(1, 0), fleet(1, 1)], GeometrySettings(limits=limits)).run()
    assert [g.tolist() for g in apart.best.gpus] == [[1, 0], [0, 1]], "only one of the two fleets may change"


SHARED = replace(asked(1.5, 3.5, gpus=5), hosts=(Host(0, ("a-v",), 0, 0.0, 0.0), Host(0, ("b-v",), 0, 0.0, 0.0)))
"""Five parts of slices, of which one app takes one and a half."""


def test_variants_that_share_slices_are_given_parts_of_units_where_others_are_given_whole_ones() -> None:
    shared, whole = (
        Search(SHARED, [], GeometrySettings(shared=together)).run().best.counts.whole for together in (True, False)
    )
    assert shared.served == pytest.approx(np.array([1.0, 1.0]))
    assert shared.shares == pytest.approx(np.array([1.0, 1.0]))
    assert shared.units.tolist() == [2, 4], "rounded up for show"
    assert shared.accuracy == shared.value == pytest.approx(0.25 + 0.75 * 0.6)
    assert shared.service == pytest.approx((1.0, 1.0))
    assert whole.served.min() < 0.9


@pytest.mark.parametrize(("off", "gap"), [(0.02, 0.02), (-0.02, 0.0)])
def test_a_solvers_bound_below_its_answer_is_no_gap(monkeypatch: pytest.MonkeyPatch, off: float, gap: float) -> None:
    solve = Matrix.solve

    def bounded(matrix: Matrix, goal: Goal, **more: object) -> Solved | None:
        found = solve(matrix, goal, **more)  # type: ignore[arg-type]
        return None if found is None else replace(found, bound=found.value + off)

    monkeypatch.setattr(Matrix, "solve", bounded)
    assert Search(SHARED, [], GeometrySettings(shared=True)).run().best.counts.gap == pytest.approx(gap)


def test_gpus_of_a_type_are_a_fleet_and_of_a_price_where_money_counts() -> None:
    devices = (
        sliced("g2", "a30", WHOLE, price=2.0),
        sliced("g0", "a30", HALVES, price=1.0),
        sliced("g1", "a30", WHOLE, price=1.0, spot=True),
        sliced("h0", "a100", ("7g",), price=1.0),
        Device(name="c0", type="cpu"),
        Device(name="g9", type="a30"),
    )

    def names(asked: Problem) -> list[tuple[str, list[str]]]:
        return [(g.table.gpu, [d.name for d in g.devices]) for g in grouped(asked, TABLES)]

    assert names(problem(*devices)) == [("a100", ["h0"]), ("a30", ["g0", "g1", "g2"])]
    assert names(problem(*devices, budget=9.0)) == [
        ("a100", ["h0"]), ("a30", ["g0"]), ("a30", ["g1"]), ("a30", ["g2"]),
    ]  # fmt: skip
    assert (sliced("g", "a30", HALVES).price, sliced("g", "a30", HALVES).spot) == (0.0, False)
    assert [can_be_cut(d) for d in devices] == [True] * 4 + [False] * 2
    assert not can_be_cut(replace(devices[0], slices=()))
    assert {(g.max_changes, g.charged) for g in grouped(problem(*devices), TABLES)} == {(None, True)}


def test_gpus_that_may_be_cut_are_apart_from_those_that_may_not() -> None:
    devices = tuple(sliced(f"g{i}", "a30", WHOLE) for i in range(5))
    groups = (RecutGroup(("g1", "g3"), 2), RecutGroup(("g4",), 1, free=True))
    found = grouped(problem(*devices, recuts=Recuts(groups)), TABLES)
    assert [([d.name for d in g.devices], g.max_changes, g.charged) for g in found] == [
        (["g0", "g2"], 0, True), (["g1", "g3"], 2, True), (["g4"], 1, False),
    ]  # fmt: skip


def test_pools_are_as_large_as_any_cut_could_make_them_with_the_memory_of_the_table() -> None:
    devices = tuple(sliced(f"g{i}", "a30", WHOLE, price=1.5) for i in range(3))
    asked = problem(*devices)
    assert largest_pools(asked, grouped(asked, TABLES)) == {
        PoolKey("a30:1g", 6 * GB): 12, PoolKey("a30:2g", 12 * GB): 6, PoolKey("a30:4g", 24 * GB): 3,
    }  # fmt: skip
    dear = problem(*devices, money_weight=0.1)
    assert largest_pools(dear, grouped(dear, TABLES))[PoolKey("a30:2g", 12 * GB, 1.5)] == 6
    said = replace(devices[0], slices=(Slice("4g.0", "4g", 7),))
    (rated, cpu) = by_the_table(problem(said, Device(name="c0", type="cpu", memory_bytes=3)), TABLES).devices
    assert (rated.slices[0].memory_bytes, cpu.memory_bytes) == (24 * GB, 3)


@pytest.mark.parametrize(("said", "own", "limit"), [(None, None, 2), (5, None, 5), (0, None, 0), (5, 1, 1), (5, 0, 0)])
def test_as_many_gpus_change_as_their_group_says_else_the_settings_else_three_in_ten(
    said: int | None, own: int | None, limit: int
) -> None:
    devices = tuple(sliced(f"g{i}", "a30", HALVES if i < 3 else WHOLE) for i in range(7))
    asked = problem(*devices)
    (group,) = grouped(asked, TABLES)
    sizes = largest_pools(asked, [group])
    pools = tuple(sorted(sizes))
    program = Program(
        demands=(),
        pools=pools,
        counts=tuple(sizes[k] for k in pools),
        hosts=(),
        serves=(),
        empty_units=(0,) * len(pools),
    )
    made = fleet_of(asked, program, replace(group, max_changes=own), said, 3)
    assert (made.gpus, made.max_changes, made.slots, made.charged) == (7, limit, 3, True)
    assert made.now == {HALVES: 3, WHOLE: 4}
    assert made.pools == {"1g": 0, "2g": 1, "4g": 2}
    assert set(made.options) == set(A30.undominated) and len(made.options) == len(A30.undominated)


def test_gpus_that_hold_most_keep_their_cut() -> None:
    devices = tuple(sliced(f"g{i}", "a30", HALVES) for i in range(3))
    held = (Placement("g2", "a", ("v",), 1.0, 1, "2g.0"), Placement("g2", "b", ("w",), 1.0, 1, "2g.1"))
    asked = problem(*devices, previous=(*held, Placement("g1", "a", ("v",), 1.0, 1, "2g.0")))
    (group,) = grouped(asked, TABLES)
    made = Fleet(3, (WHOLE, HALVES, QUARTERS), {HALVES: 3}, {}, 3, 1, charged=True)
    assert assigned(asked, group, made, np.array([1, 1, 1])) == {"g1": WHOLE, "g0": QUARTERS, "g2": HALVES}
    assert assigned(asked, group, made, np.array([1, 2, 0])) == {"g0": WHOLE, "g1": HALVES, "g2": HALVES}
    cut = recut(devices[0], ("1g", "2g", "1g"), A30)
    assert [(s.name, s.profile, s.memory_bytes // GB) for s in cut.slices] == [
        ("2g.0", "2g", 12), ("1g.1", "1g", 6), ("1g.2", "1g", 6),
    ]  # fmt: skip


def test_once_a_cut_stands_what_its_slices_held_is_gone_and_nothing_else() -> None:
    devices = (sliced("g0", "a30", HALVES), sliced("g1", "a30", HALVES), Device(name="c0", type="cpu"))
    held = tuple(
        Placement(device, "a", ("v",), 0.25, 1, part)
        for device, part in (("g0", "2g.0"), ("g0", "2g.1"), ("g1", "2g.0"), ("g1", "4g.0"), ("c0", "whole"))
    )
    asked = problem(*devices, previous=held, recuts=Recuts((RecutGroup(("g0",), 1),)))
    nothing = Search(SHARED, [], GeometrySettings(shared=True)).run().best.counts
    cut = ("2g", "1g", "1g")
    plan = GeometryPlan(
        geometries={"g0": cut, "g1": HALVES},
        changes={"g0": cut},
        devices=(sliced("g0", "a30", cut), *devices[1:]),
        counts=nothing,
        before=nothing,
        gained={},
        objective=0.0,
        bound=0.0,
        steps=(),
    )
    then = as_cut(asked, plan)
    assert [(p.device, p.slice) for p in then.previous] == [("g1", "2g.0"), ("c0", "whole")]
    assert (then.devices, then.recuts) == (plan.devices, None)


def test_a_gpu_starts_whole_or_as_it_is_asked_for() -> None:
    assert (first_cut("a100", None), first_cut("a30", None)) == (("7g",), ("4g",))
    assert first_cut("a100", "3g+4g") == ("4g", "3g")
    with pytest.raises(ConfigurationError, match="'4g\\+4g' cannot be placed on a100"):
        first_cut("a100", "4g+4g")
    assert [s.name for s in laid_out("a100", ("4g", "2g", "1g"))] == ["4g.0", "2g.4", "1g.6"]
    stays = laid_out("a100", ("3g", "2g", "1g", "1g"), there=(Slice("3g.4", "3g"), Slice("4g.0", "4g")))
    assert [(s.name, s.memory_bytes // GB) for s in stays] == [("1g.0", 5), ("1g.1", 5), ("2g.2", 10), ("3g.4", 20)]


@pytest.mark.parametrize(("patience", "fraction"), [(0, 0.5), (3, -0.1), (3, -1.0), (3, 1.1), (-2, 0.0)])
def test_a_rule_without_patience_or_with_a_part_that_is_none_is_refused(patience: int, fraction: float) -> None:
    with pytest.raises(InvalidInputError, match="reconfiguration"):
        Reconfigurator({"g": WHOLE}, patience=patience, fraction=fraction)


@pytest.mark.parametrize(("fraction", "limit"), [(0.0, 1), (0.3, 2), (0.5, 3), (1.0, 7)])
def test_a_part_of_the_gpus_may_change_at_a_time_one_at_least(fraction: float, limit: int) -> None:
    assert Reconfigurator({f"g{i}": WHOLE for i in range(7)}, patience=1, fraction=fraction).limit == limit
    assert (change_limit(10), change_limit(9), change_limit(3), change_limit(0)) == (3, 2, 1, 1)


def test_a_change_that_failed_leaves_the_cut_and_starts_the_count_anew() -> None:
    rule = Reconfigurator({"g": WHOLE, "h": WHOLE}, patience=2)
    assert [rule.handle(Desired("g", HALVES), 40.0 + t) for t in range(2)] == [[], [Drain("g", HALVES)]]
    assert list(rule.in_flight) == ["g"] and rule.counter("g") == 0
    # One token is out: the other waits, and may take it once it is back.
    assert [rule.handle(Desired("h", QUARTERS), 42.0 + t) for t in range(3)] == [[], [], []]
    rule.handle(SlicesIdle("g"), 46.0)
    assert rule.state("g") is GpuState.CHANGING
    assert rule.handle(GeometryChanged("g", ok=False), 48.0) == [Resume("g", WHOLE)]
    assert (rule.geometry("g"), rule.counter("g"), list(rule.in_flight)) == (WHOLE, 0, [])
    assert rule.handle(Desired("g", HALVES), 49.0) == []
    assert rule.handle(Desired("h", QUARTERS), 50.0) == [Drain("h", QUARTERS)]
    assert rule.issued == 2
    rule.handle(GpuLeft("h"), 51.0)
    assert not rule.in_flight
    for known in (rule.state, rule.geometry, rule.counter):
        with pytest.raises(IllegalEventError, match="no GPU is called h"):
            known("h")
    assert rule.handle(Desired("g", HALVES), 52.0) == [Drain("g", HALVES)]

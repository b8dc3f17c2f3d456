"""The tables of the plans in force: who leads asks, publishes and judges; who stands by only knows what is there."""

from collections.abc import Sequence
from functools import cache

import pytest

from sluicegate.domain.actions import Announce
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.table import SelectionTable, TableObserved
from sluicegate.planner.control.events import TableRead, TablesReached
from sluicegate.planner.control.planned_tables import PlannedTables, TableAction
from sluicegate.planner.policy_tables.keys import Shelf, TableName
from sluicegate.planner.policy_tables.table_requests import LibraryRules, TableRules, questions
from sluicegate.planner.policy_tables.table_schedule import (
    LoadMissing,
    Made,
    Make,
    PutTable,
    WithdrawTable,
    make_tables,
)
from tests.harness import toy_catalogue

NOW = 1.7e9
RULES = TableRules(hop_s=0.01, guard_s=0.02, grid=10, watch_s=10.0, library=LibraryRules(spacing=0.4))
DEVICES = (Device(name="d0", type="cpu"), Device(name="d1", type="cpu"))
SHELF = Shelf("toy", "cpu", 0.25)


def plan(number: int, *shares: float) -> Plan:
    names = ("toy-v2", "toy-v0")
    placed = tuple(Placement(f"d{i}", "toy", names, share, 4) for i, share in enumerate(shares))
    return Plan(epoch=Epoch(1, number), created=NOW, placements=placed, demand={"toy": 60.0})


def tables() -> PlannedTables:
    return PlannedTables(toy_catalogue(), RULES)


def makes(actions: Sequence[TableAction]) -> list[Make]:
    return [action for action in actions if isinstance(action, Make)]


def put(actions: Sequence[TableAction]) -> list[SelectionTable]:
    return [action.table for action in actions if isinstance(action, PutTable)]


def said(actions: Sequence[TableAction]) -> list[Announce]:
    return [action for action in actions if isinstance(action, Announce)]


@cache
def library() -> tuple[SelectionTable, ...]:
    """Of two equal workers."""
    (found,) = questions(plan(1, 0.5, 0.5), toy_catalogue(), DEVICES, {}, RULES)
    return make_tables(Make(found), RULES.library)


def filled() -> PlannedTables:
    """With the whole library of a plan published."""
    made = tables()
    made.handle(TablesReached())
    (first,) = makes(made.follow(plan(1, 0.5, 0.5), DEVICES, {}))
    (whole,) = makes(made.handle(Made(first, ())))
    assert put(made.handle(Made(whole, library()))) == sorted(library(), key=lambda t: -t.qps)
    return made


def test_nothing_is_asked_before_what_stands_on_the_topic_is_known_nor_before_a_plan_is_in_force() -> None:
    made = tables()
    assert made.follow(plan(1, 0.5, 0.5), DEVICES, {}) == [] == made.ask()
    (first,) = makes(made.handle(TablesReached()))
    assert first.question.shelf == SHELF and first.question.model.workers == 2
    assert [v.name for v in first.question.model.variants] == ["toy-v0", "toy-v2"]
    other = tables()
    assert other.handle(TablesReached()) == []
    (first,) = makes(other.follow(plan(1, 1.0), DEVICES, {("toy-v2", "cpu"): 1.5}))
    assert (first.question.model.workers, first.question.slowdown) == (1, {"toy-v2": 1.5})


@pytest.mark.parametrize("there", [True, False])
def test_a_library_is_announced_once_it_is_there_or_no_table_holds_the_slo(there: bool) -> None:
    made = tables()
    made.handle(TablesReached())
    (first,) = makes(made.follow(plan(1, 0.5, 0.5), DEVICES, {}))
    actions = made.handle(Made(first, library()[:1]))
    assert put(actions) == [*library()[:1]] and said(actions) == []
    (whole,) = makes(actions)
    (told,) = said(made.handle(Made(whole, library() if there else ())))
    ready = f"{len(library())} tables, up to {max(t.qps for t in library()):.4g} queries/s"
    none = "no table holds 250 ms here; workers fall back"
    assert told == Announce("tables:toy/cpu/250ms", "ready" if there else "none", ready if there else none)


def test_a_library_that_could_not_be_made_is_announced_as_that() -> None:
    made = tables()
    made.handle(TablesReached())
    (first,) = makes(made.follow(plan(1, 0.5, 0.5), DEVICES, {}))
    (whole,) = makes(made.handle(Made(first, library()[:1])))
    detail = "they could not be made; those there are serve on"
    assert made.handle(Made(whole, (), failed=True)) == [Announce("tables:toy/cpu/250ms", "failed", detail)]


def test_who_takes_over_knows_what_stands_on_the_topic_and_goes_on_from_there() -> None:
    published = library()
    assert len(published) > 1
    other, odd = tables(), TableName(SHELF, 1.0)
    for table in published:
        assert other.handle(TableRead(TableName(SHELF, table.qps), table)) == []
    assert other.handle(TableRead(odd, published[0])) == []
    assert other.handle(TablesReached()) == []
    other.begin()
    assert other.ask() == [], "no plan is in force in the new term"
    (whole,) = makes(other.follow(plan(2, 0.5, 0.5), DEVICES, {}))
    assert whole.loads == (), "some table is there: nothing is more urgent than the library"
    actions = other.handle(Made(whole, published))
    assert [action.name for action in actions if isinstance(action, WithdrawTable)] == [odd]
    for table in published:
        other.handle(TableRead(TableName(SHELF, table.qps), None))
    other.handle(TableRead(odd, None))
    other.begin()
    (first,) = makes(other.follow(plan(3, 0.5, 0.5), DEVICES, {}))
    assert first.loads != (), "nothing is there any more"


def observed(table: SelectionTable, on_time: int) -> TableObserved:
    accuracy = table.expected.accuracy
    return TableObserved(
        app="toy", worker_class="cpu", slo=0.25, fingerprint=table.fingerprint, qps=table.qps, share=0.5,
        seconds=2000 / table.qps, arrivals=1000, queries=1000, on_time=on_time, accuracy_sum=on_time * accuracy,
        accuracy_squares=on_time * (accuracy**2 + 0.001), ratios=(1.0,) * 20,
    )  # fmt: skip


@pytest.mark.parametrize("own", [True, False])
def test_what_was_counted_under_a_table_is_judged_whoever_published_it_and_beyond_its_withdrawal(own: bool) -> None:
    made = filled() if own else tables()
    for table in () if own else library():
        made.handle(TableRead(TableName(SHELF, table.qps), table))
        made.handle(TableRead(TableName(SHELF, table.qps), None))
    table = library()[-1]
    assert made.counted([observed(table, 700)], NOW) == []
    (broken,) = made.counted([observed(table, 700)], NOW + 10.5)
    assert (broken.subject, broken.state) == ("tables:toy/cpu/250ms", "drift")
    assert tables().counted([observed(table, 700)] * 3, NOW + 10.5) == [], "it was never heard of"


def test_a_load_that_no_table_covers_is_made_next_of_those_that_a_plan_asks_for() -> None:
    made = tables()
    made.handle(TablesReached())
    (first,) = makes(made.follow(plan(1, 0.5, 0.5), DEVICES, {}))
    assert made.handle(LoadMissing(Shelf("other", "cpu", 0.25), 90.0)) == []
    assert made.handle(LoadMissing(SHELF, 90.0)) == [], "one at a time"
    (urgent,) = makes(made.handle(Made(first, library()[:1])))
    assert urgent.loads == (pytest.approx(1.1 * 90.0),)

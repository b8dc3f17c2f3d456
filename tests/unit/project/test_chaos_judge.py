"""When service counts as resumed after a fault, what is judged of it, and how that is shown."""

import io
from dataclasses import fields, replace
from pathlib import Path

import pytest
from rich.console import Console

from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.query import Query
from sluicegate.sluice.audit.fault_windows import WindowReport
from tests.chaos.cells import CELLS
from tests.chaos.judge import Verdict, resumed_after
from tests.chaos.report import held, table, write


def outcomes(*away: tuple[float, float], seconds: float = 12.0) -> list[Outcome]:
    """Twenty queries a second; those that arrive within ``away`` are late."""
    found = []
    for number in range(int(20 * seconds)):
        arrival = number / 20 + 0.01
        query = Query(id=str(number), app="toy", arrival=arrival, deadline=arrival + 1.0)
        late = any(began <= arrival < ended for began, ended in away)
        outcome = Outcome.of(query, OutcomeKind.ANSWERED, arrival + 0.1)
        found.append(replace(outcome, at=arrival + 3.0) if late else outcome)
    return found


@pytest.mark.parametrize(
    ("away", "resumed"),
    [
        ((), 0.0),
        (((0.0, 6.2),), 6.5),
        (((1.0, 6.2),), 6.5),  # from the fault, not from when it was felt
        (((0.0, 2.0), (2.5, 4.0)), 4.0),  # half a second is not steady
        (((0.0, 6.0), (9.0, 9.5)), 6.0),  # a second time, by what came back
        (((0.0, 2.0), (5.0, 10.0)), 5.0),
        (((9.0, 11.0),), 11.0),
        (((1.5, 12.0),), 12.0),  # never again
    ],
)
def test_service_is_back_once_it_is_steady(away: tuple[tuple[float, float], ...], resumed: float) -> None:
    assert resumed_after(outcomes(*away), 0.0, 12.0) == resumed


def test_a_fault_in_steps_is_not_reckoned_from_its_first() -> None:
    away = outcomes((4.0, 5.0), (8.0, 10.0))
    assert resumed_after(away, 0.0, 12.0) == 5.0
    assert resumed_after(away, 0.0, 12.0, steps=True) == 2.0


def test_without_queries_there_is_no_service() -> None:
    assert resumed_after([], 0.0, 5.0) == 5.0


def row(**changes: object) -> Verdict:
    """Of a cell in which nothing went wrong."""
    plain = {field.name: 0 for field in fields(Verdict)} | {"cell": "worker-stop", "delivery": "at_least_once"}
    plain |= {"hits": ("d0",), "windows": (), "calm_on_time": 1.0, "seeds": 1, "resume_s_allowed": 4.0}
    return Verdict(**{**plain, **changes})  # type: ignore[arg-type]


def test_how_soon_service_is_back_is_judged_in_many_seeds_on_a_machine_that_kept_up() -> None:
    slow = row(resume_s_max=9.0)
    assert slow.faults == ()
    assert replace(slow, seeds=20).faults == ("resume_s_max",)
    assert replace(slow, seeds=20, calm_on_time=0.3).faults == ()


@pytest.mark.parametrize("wrong", [{"lost": 1}, {"late_unmarked": 1}, {"promises_broken": 1}, {"duplicates": 1}])
def test_what_is_lost_or_untrue_is_a_fault_on_any_machine(wrong: dict[str, int]) -> None:
    assert row(**wrong, calm_on_time=0.1).faults == tuple(wrong)


def test_copies_beyond_what_was_in_flight_are_a_fault_where_nobody_stood_still_unasked() -> None:
    assert row(duplicates=3, copies_allowed=2).faults == ("duplicates",)
    assert row(duplicates=3, copies_allowed=2, calm_on_time=0.1).faults == ()


def test_the_table_is_read_at_80_columns() -> None:
    rows = [
        row(cell=name, delivery=delivery, queries=123_386, duplicates=504, resume_s_max=11.5, seeds=20)
        for name in CELLS
        for delivery in ("at_least_once", "exactly_once")
    ]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table([*rows, row(calm_on_time=0.1, lost=7)]))
    told = console.export_text()
    for name in CELLS:
        assert told.count(f"{name} ") >= 2
    assert told.count("11.5 of 4") == len(rows)
    assert "…" not in told


def test_rows_of_an_earlier_run_are_read_as_they_were_written(tmp_path: Path) -> None:
    window = WindowReport(
        name="0: d0", began=1.0, ended=2.0, queries=3, lost=0, duplicates=0, late_unmarked=0, promises_broken=0
    )
    kept = row(windows=(window,))
    assert held(tmp_path) == ([], 0.0)
    write(tmp_path, [kept], 12.0)
    assert held(tmp_path) == ([kept], 12.0)

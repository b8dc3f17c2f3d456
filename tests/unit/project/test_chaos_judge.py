"""When service counts as resumed after a fault."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.query import Query
from sluicegate.sluice.audit.fault_windows import WindowReport
from tests.chaos.judge import Verdict, resumed_after
from tests.chaos.report import held, write


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


def test_without_queries_there_is_no_service() -> None:
    assert resumed_after([], 0.0, 5.0) == 5.0


def test_rows_of_an_earlier_run_are_read_as_they_were_written(tmp_path: Path) -> None:
    window = WindowReport(
        name="0: d0", began=1.0, ended=2.0, queries=3, lost=0, duplicates=0, late_unmarked=0, promises_broken=0
    )
    numbers = {field.name: 0 for field in fields(Verdict) if field.name != "faults"}
    row = Verdict(
        **{**numbers, "cell": "worker-stop", "delivery": "at_least_once", "hits": ("d0",), "windows": (window,)}
    )  # type: ignore[arg-type]
    assert held(tmp_path) == ([], 0.0)
    write(tmp_path, [row], 12.0)
    assert held(tmp_path) == ([row], 12.0)

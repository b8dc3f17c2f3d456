"""Every policy, planner and machine in a world where nothing equals its neighbour, at two times: it decides the same.

What a clock says at the start is nobody's business. One run starts at 0 and one at 1.7e9; all hops, ticks and loads
are binary fractions of a second, so that sums of them are exact at both, and the two runs are the same to the query.
"""

from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest

from sluicegate.planner.control import core
from sluicegate.simulator.engine.system_model import RunResult
from tests.models.unequal import NOW, Ended, cases, simulated, unequal

TOLERANCE = 1e-5
"""Seconds; a clock at 1.7e9 tells a quarter of a microsecond."""


@pytest.fixture(autouse=True)
def exact_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planners tick by eighths of a second: tenths add up to other sums at other times."""
    monkeypatch.setattr(core, "_TICK", 0.125)


@cache
def at_zero(name: str) -> tuple[dict[str, Ended], RunResult]:
    return simulated(unequal(cases()[name]), 0.0)


def differences(ends: dict[str, Ended], others: dict[str, Ended]) -> list[tuple[Ended, Ended | None]]:
    return [
        (one, other)
        for query, one in ends.items()
        if (other := others.get(query)) is None
        or abs(one.after - other.after) > TOLERANCE
        or replace(one, after=other.after) != other
    ]


@pytest.mark.parametrize("name", cases())
def test_it_decides_the_same_at_any_time(name: str) -> None:
    (ends, figures), (today, others) = at_zero(name), simulated(unequal(cases()[name]), NOW)
    assert len(ends) == len(today) > 200
    assert differences(ends, today) == []
    assert figures.epochs == others.epochs
    assert figures.cost == pytest.approx(others.cost)


SAME = {
    ("planner", "allocation-without-placement", "sommelier"): "one is defined as the other",
}


@pytest.mark.parametrize("kind", ["batching", "planner", "routing", "scaling", "slices", "turns"])
def test_each_of_a_kind_is_felt(kind: str) -> None:
    named = sorted(name.removeprefix(f"{kind} ") for name in cases() if name.startswith(f"{kind} "))
    runs = {name: at_zero(f"{kind} {name}")[0] for name in named}
    same = {(kind, one, other) for one, other in combinations(named, 2) if not differences(runs[one], runs[other])}
    assert same == {pair for pair in SAME if pair[0] == kind}

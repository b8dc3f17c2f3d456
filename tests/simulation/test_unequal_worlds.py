"""Every policy, planner and machine in a world where nothing equals its neighbour: it decides as it did, whatever the
clock says at the start, and again of what it heard.

One run starts at 0 and one at 1.7e9; all hops, ticks and loads are binary fractions of a second, so that sums of them
are exact at both, and the two runs are the same to the query. What comes of the first is on record.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_type_hints

import pytest

from sluicegate.planner.capacity.core import CapacityCore
from sluicegate.planner.capacity.events import CapacityEvent
from sluicegate.simulator.engine.system_model import RunResult
from tests.architecture.test_engine_reaches import REACHING, machines
from tests.models.recorded_cores import Made, cores, noted
from tests.models.recorded_decisions import MOVED, of_world, record, worlds
from tests.models.unequal import NOW, Ended, cases, exact_ticks, simulated, unequal

TOLERANCE = 1e-5
"""Seconds; a clock at 1.7e9 tells a quarter of a microsecond."""
AGAIN = {*REACHING, "a late app", "batching balanced", "faults", "scaling ilp", "turns duty-cycle", "two planners"}
"""Worlds whose cores are asked again, and that ``make test`` plays today too: in them all cores hear all they can."""


@dataclass(frozen=True, slots=True)
class Again:
    """What fresh cores say to what those of a run heard. ``heard``: events by kind of core."""

    differences: list[str]
    heard: Counter[str]
    rules: set[str]


@cache
def at_zero(name: str) -> tuple[dict[str, Ended], RunResult, dict[str, Any]]:
    with noted(steps=True, again=False) as made:
        ends, result = simulated(unequal({**cases(), **worlds()}[name]), 0.0)
    return ends, result, of_world(ends, result, made)


@cache
def today(name: str) -> tuple[dict[str, Ended], RunResult, Again]:
    if name not in AGAIN:
        return *simulated(unequal(cases()[name]), NOW), Again([], Counter(), set())
    with noted(steps=True) as made:
        ends, result = simulated(unequal(cases()[name]), NOW)
    return ends, result, asked_again(made)


def asked_again(made: Mapping[Any, Made]) -> Again:
    heard: Counter[str] = Counter()
    with TemporaryDirectory() as folder, exact_ticks():
        found = [f"{one.kind.__name__}: {d}" for one in made.values() for d in one.differences(Path(folder))]
    for one in made.values():
        heard[one.kind.__name__] += len(one.steps)
    return Again(found, heard, {type(getattr(core, "_policy", None)).__name__ for core in made})


def differences(ends: dict[str, Ended], others: dict[str, Ended]) -> list[tuple[Ended, Ended | None]]:
    return [
        (one, other)
        for query, one in ends.items()
        if (other := others.get(query)) is None
        or abs(one.after - other.after) > TOLERANCE
        or replace(one, after=other.after) != other
    ]


@pytest.mark.parametrize("name", worlds())
def test_it_goes_as_it_went(name: str) -> None:
    assert at_zero(name)[2] == record()["worlds"][name], MOVED


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in AGAIN else pytest.mark.thorough) for name in cases()]
)
def test_it_decides_the_same_at_any_time(name: str) -> None:
    (ends, figures, _), (others, again, _) = at_zero(name), today(name)
    assert len(ends) == len(others) > 200
    assert differences(ends, others) == []
    assert figures.epochs == again.epochs
    assert figures.cost == pytest.approx(again.cost)


@pytest.mark.parametrize("name", sorted(AGAIN))
def test_fresh_cores_decide_the_same_of_what_was_heard(name: str) -> None:
    assert today(name)[2].differences == []


def test_every_core_is_asked_again_and_each_rule_of_capacity_has_been_behind_its_core() -> None:
    found = [today(name)[2] for name in sorted(AGAIN)]
    heard = sum((one.heard for one in found), Counter[str]())
    assert heard.keys() == cores().keys()
    assert min(heard.values()) > 100
    of_capacity = {name for name, kind in machines().items() if _hears(kind) == CapacityEvent}
    assert len(of_capacity) == 4
    assert of_capacity - {CapacityCore.__name__} <= set[str]().union(*(one.rules for one in found))


def _hears(kind: type) -> object:
    return get_type_hints(vars(kind)["handle"]).get("event")


SAME = {
    ("planner", "allocation-without-placement", "sommelier"): "one is defined as the other",
}


@pytest.mark.parametrize("kind", ["batching", "planner", "routing", "scaling", "slices", "turns"])
def test_each_of_a_kind_is_felt(kind: str) -> None:
    named = sorted(name.removeprefix(f"{kind} ") for name in cases() if name.startswith(f"{kind} "))
    runs = {name: at_zero(f"{kind} {name}")[0] for name in named}
    same = {(kind, one, other) for one, other in combinations(named, 2) if not differences(runs[one], runs[other])}
    assert same == {pair for pair in SAME if pair[0] == kind}

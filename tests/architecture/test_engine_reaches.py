"""Every machine of decisions is reached by the simulator's engine, or is named here with the reason why it is not."""

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from sluicegate import planner, policies
from tests.models.unequal import NOW, cases, simulated, unequal

NOT_REACHED: dict[str, str] = {}
"""By class. One that the engine reaches by now must leave this list."""
REACHING = (
    "admission sustainable",
    "batching adaptive",
    "batching table",
    "geometry protean",
    "routing accuracy-first",
    "scaling greedy",
    "slices strict-first",
    "spare workers",
    "spot",
)
"""Worlds that together reach everything."""


def machines() -> dict[str, type]:
    """Every machine of decisions by its name."""
    found = {}
    for root in (policies, planner):
        for module in pkgutil.walk_packages(root.__path__, root.__name__ + "."):
            for name, value in vars(importlib.import_module(module.name)).items():
                own = inspect.isclass(value) and value.__module__ == module.name and "handle" in vars(value)
                if own and not getattr(value, "_is_protocol", False):
                    found[name] = value
    return found


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Names of the machines that are asked while the test runs."""
    names: set[str] = set()

    def noting(name: str, handle: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any, **named: Any) -> Any:
            names.add(name)
            return handle(*given, **named)

        return noted

    for name, machine in machines().items():
        monkeypatch.setattr(machine, "handle", noting(name, vars(machine)["handle"]))
    yield names


def test_the_engine_reaches_every_machine_but_those_named(reached: set[str]) -> None:
    for name in REACHING:
        simulated(unequal(cases()[name]), NOW)
    assert machines().keys() - reached == NOT_REACHED.keys()


def unordered(kind: Any, seen: set[Any], path: str = "") -> Iterator[str]:
    """Where an event or action, or what it is made of, holds a set."""
    if kind in (set, frozenset, AbstractSet) or get_origin(kind) in (set, frozenset, AbstractSet):
        yield path
    for part in get_args(kind):
        if not isinstance(part, str):  # of a Literal
            yield from unordered(part, seen, path)
    if dataclasses.is_dataclass(kind) and kind not in seen:
        seen.add(kind)
        for name, held in get_type_hints(kind).items():
            yield from unordered(held, seen, f"{path}.{name}" if path else f"{getattr(kind, '__name__', '')}.{name}")


def test_nothing_that_is_recorded_holds_a_set_whose_order_another_process_does_not_repeat() -> None:
    found = set()
    for machine in machines().values():
        for name, hint in get_type_hints(vars(machine)["handle"]).items():
            found |= {f"{where} ({name})" for where in unordered(hint, set())}
    assert found == set()

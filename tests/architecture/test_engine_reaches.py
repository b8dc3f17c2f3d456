"""Every machine of decisions is reached by the simulator's engine, or is named here with the reason why it is not."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

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

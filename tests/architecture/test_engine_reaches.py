"""Every machine of decisions is reached by the simulator's engine, or is named here with the reason why it is not."""

import importlib
import inspect
import pkgutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate import planner, policies
from sluicegate.simulator.scenario import Scenario
from sluicegate.simulator.scenario.experiment import run_once
from sluicegate.simulator.scenario.scenario_file import overridden, read_scenario, scenario_of

SCENARIOS = Path(__file__).resolve().parents[2] / "examples" / "scenarios"
SMALL, SLICED, TABLES = (SCENARIOS / f"{name}.yaml" for name in ("small", "sliced-gpus", "published-tables"))
NOT_REACHED: dict[str, str] = {}
"""By class. One that the engine reaches by now must leave this list."""
SETTINGS: tuple[dict[str, Any], ...] = (
    {
        "policies.admission": "deadline",
        "planner.planners": 2,
        "planner.failures": [{"planner": "planner0", "at_s": 1.5}],
    },
    {"policies.admission": "sustainable", "policies.routing": "slack-blend", "policies.turns": "duty-cycle"},
    {"policies.batching": "balanced", "apps.images.promise": {"max_consecutive": 2}},
    {
        "policies": {"routing": "weighted", "batching": {"name": "table", "grid": 10}},
        "devices": [{"type": "cpu", "count": 4}],
        "apps": {"words": {}},
        "traces": {"format": "generator", "qps": [40, 60]},
        "planner.name": "allocation",
    },
    {
        "planner": {"scaling": "greedy", "spare": ["cpu3"]},
        "policies.admission": "deadline",
        "apps.images.queries": [{"share": 0.2, "model": "images-large"}, {"share": 0.1, "accuracy": 0.99}],
    },
    {"apps.words.at_start": False, "registrations": [{"app": "words", "at_s": 1.0}]},
    {
        "simulation.failures": [{"device": "cpu0", "at_s": 1.0, "until_s": 5.0}],
        "simulation.executor_failures": [{"device": "gpu*", "at_s": 2.0}],
    },
    {
        "devices": [{"type": "gpu", "count": 3}, {"type": "gpu", "name": "cheap", "spot": True}],
        "scaling": {"spare": ["gpu2"]},
        "procurement": {
            "on_demand_price": 2.0,
            "notices": [{"device": "cheap0", "at_s": 2.0, "deadline_s": 5.0}],
        },
    },
)


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


def scenarios() -> Iterator[Scenario]:
    """Those that together reach everything."""
    sliced = {"planner.geometry": "protean", "devices.0.count": 2, "duration_s": 12.0, "traces.qps": [60, 60]}
    for file, changes in [*((SMALL, changes) for changes in SETTINGS), (SLICED, sliced), (TABLES, {})]:
        document = {**read_scenario(file, {}), "systems": {}}
        document["policies"] = document.get("policies", {}) if file == TABLES else {}
        document = overridden(document, {"duration_s": 6.0, **changes})
        yield scenario_of(document)


def test_the_engine_reaches_every_machine_but_those_named(reached: set[str]) -> None:
    for scenario in scenarios():
        run_once(scenario, 1, time.perf_counter)
    assert machines().keys() - reached == NOT_REACHED.keys()

"""Rules that choose among variants are refused where what they choose by is missing, live and in scenarios."""

from pathlib import Path
from typing import Any

import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.simulator.scenario import build, scenario_of
from sluicegate.sluice.system.system import System
from sluicegate.streams import connect
from tests.harness import settings_for, toy_catalogue

WITHOUT = "without measurements always runs the fastest variant; give worker.batching_options.capable"


def alone(apps: tuple[str, ...]) -> Catalogue:
    """``apps`` of one variant each."""
    known = toy_catalogue(apps)
    kept = {f"{app}-v1" for app in apps}
    return Catalogue.of(
        known.apps.values(),
        [v for v in known.variants.values() if v.name in kept],
        [p for p in known.profiles.values() if p.variant in kept],
    )


def started(folder: Path, catalogue: Catalogue, **worker: Any) -> System:
    settings = settings_for("memory://", folder, worker={"executor": "emulated", **worker})
    broker = connect("memory://")
    return System(settings, catalogue, Path(), broker, broker.producer(), folder)


@pytest.mark.parametrize("name", ["model-switching", "model-switching-published"])
def test_switching_by_measurements_needs_them(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=WITHOUT):
        started(tmp_path, toy_catalogue(), batching=name)
    measured = {"capable": {"toy-v0": 400.0, "toy-v2": 80.0}}
    started(tmp_path, toy_catalogue(), batching=name, batching_options=measured)


def test_tables_need_an_app_with_something_to_choose(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="one, two has one each; register a smaller or a larger"):
        started(tmp_path, alone(("two", "one")), batching="table")
    started(tmp_path, alone(("two", "one")), batching="adaptive")
    started(tmp_path, toy_catalogue(("two", "one")), batching="table")


@pytest.mark.parametrize("variants", [1, 2])
def test_and_in_a_scenario(variants: int) -> None:
    known = [
        {"name": f"v{i}", "app": "a", "accuracy": 0.7 + 0.1 * i, "latency_ms": {"cpu": {1: 9 + 40 * i}}}
        for i in range(variants)
    ]
    document = {
        "catalogue": {"variants": known},
        "apps": {"a": {"slo_ms": 200}},
        "devices": [{"type": "cpu"}],
        "traces": {"qps": [5, 5]},
        "policies": {"batching": {"name": "table", "grid": 10}},
    }
    if variants > 1:
        build(scenario_of(document), lambda: 0.0)
        return
    with pytest.raises(ConfigurationError, match="a has one each"):
        build(scenario_of(document), lambda: 0.0)

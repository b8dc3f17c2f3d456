"""The demo's simulated rows are of the system that ran: its apps' terms, policies and planner, with fewer variants."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.models.profile import BatchLatency
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.simulator.arrivals.lists import ListedArrivals
from sluicegate.simulator.scenario import build, scenario_of
from sluicegate.sluice.load.demo_run import ROWS
from sluicegate.sluice.load.what_else import ALL, BEST, FASTEST, Alternative, _document, alternatives
from sluicegate.sluice.settings.settings import Settings, settings_of
from tests.harness import toy_catalogue

NARROW = toy_catalogue(("east", "west"))
WIDE = [
    replace(p, points=(*p.points, BatchLatency(ROWS, 2 * p.points[-1].median, 2 * p.points[-1].p95)))
    for p in NARROW.profiles.values()
]
TOY = Catalogue.of(NARROW.apps.values(), NARROW.variants.values(), WIDE)
"""A query's rows take 19 to 95 ms."""
EVERY = {app: [v.name for v in TOY.of_app(app)] for app in TOY.apps}


def settings_with(**changes: Any) -> Settings:
    devices = [{"name": f"cpu{i}", "price": 1.0 + i, "memory_bytes": 3 << 20} for i in range(2)]
    return settings_of("test", {"apps": ["east", "west"], "devices": devices, **changes})


def simulated(folder: Path, **changes: Any) -> dict[str, Alternative]:
    """Of 15 queries of each app in three seconds, of 32 rows each."""
    save_catalogue(folder, TOY, {})
    settings = settings_with(**changes)
    times = np.arange(15) * 0.2

    def arrivals() -> ListedArrivals:
        return ListedArrivals({"east": times, "west": times}, 3.0)

    return alternatives(settings, TOY, folder, arrivals, 1)


def test_terms_policies_and_planner_are_those_of_the_settings(tmp_path: Path) -> None:
    save_catalogue(tmp_path, TOY, {})
    settings = settings_with(
        slo_s={"east": 0.4},
        min_accuracy={"west": 0.75},
        weights={"east": 3.0},
        promises={"west": {"max_consecutive": 2, "weakly_hard": [[1, 5]]}},
        admission={"policy": "sustainable", "mode": "observe"},
        routing="weighted",
        worker={"batching": "static", "batching_options": {"size": 4}, "turns": "duty-cycle"},
        planner={"name": "proportional", "headroom": 1.5, "budget": 2.5, "lease_s": 4.0, "estimate": {"z": 1.0}},
    )
    scenario = scenario_of(_document(settings, TOY, tmp_path, 3.0, EVERY))
    system = build(scenario, lambda: 0.0)
    assert {app.name: app for app in system.apps} == {name: settings.as_set(app) for name, app in TOY.apps.items()}
    assert [(d.price, d.memory_bytes) for d in system.devices] == [(1.0, 3 << 20), (2.0, 3 << 20)]
    policies, planner = scenario.policies, scenario.planner
    assert policies.admission is not None and policies.routing is not None
    assert (policies.admission.name, policies.admission.options) == ("sustainable", {"mode": "observe"})
    assert (policies.routing.name, policies.turns) == ("weighted", "duty-cycle")
    assert (policies.batching.name, policies.batching.options) == ("static", {"size": 4})
    assert (planner.name, planner.headroom, planner.budget, planner.lease_s) == ("proportional", 1.5, 2.5, 4.0)
    assert planner.demand == {"z": 1.0}


def test_an_slo_that_only_the_fastest_keeps_is_missed_by_the_best_alone(tmp_path: Path) -> None:
    found = simulated(tmp_path, slo_s={"east": 0.09, "west": 0.09})
    assert (found[FASTEST].missed, found[BEST].missed) == (0.0, 1.0)
    assert simulated(tmp_path)[BEST].missed == 0.0


@pytest.mark.parametrize(
    "changes",
    [
        {"min_accuracy": {"east": 0.85, "west": 0.75}},
        {"worker": {"batching": "jellyfish-plus"}},
        {"planner": {"scaling": "greedy", "spare": ["cpu1"]}},
    ],
)
def test_all_three_rows_are_there_whatever_is_set(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert list(simulated(tmp_path, **changes)) == [ALL, BEST, FASTEST]


def test_where_there_is_one_variant_nothing_is_chosen_by_tables(tmp_path: Path) -> None:
    save_catalogue(tmp_path, TOY, {})
    settings = settings_with(worker={"batching": "table"}, tables={"late": "drop"})
    every, one = (
        scenario_of(_document(settings, TOY, tmp_path, 3.0, chosen))
        for chosen in (EVERY, {app: names[:1] for app, names in EVERY.items()})
    )
    assert every.tables is not None and one.tables is None
    assert (every.policies.batching.name, every.tables.late, one.policies.batching.name) == (
        "table",
        "drop",
        "adaptive",
    )

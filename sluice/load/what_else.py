"""What the demo's arrivals would have met with fewer variants: the same arrivals and profiles, simulated behind the
live run, with all variants, with the most accurate one of each app alone, and with the fastest one alone.

Simulated figures stand beside simulated ones: ``ALL`` says how near the simulation is to what ran.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sluicegate.domain.fold import Summary
from sluicegate.domain.models.app import App
from sluicegate.domain.models.variant import Variant
from sluicegate.policies.batching.registry import selects, takes
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.simulator.arrivals.sampling import ArrivalSource
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.scenario import build, scenario_of
from sluicegate.simulator.scenario.scenario_fields import PlannerSpec
from sluicegate.simulator.scenario.sliced_devices import MB
from sluicegate.sluice.load.demo_run import ROWS
from sluicegate.sluice.settings.settings import Settings

_CUT = frozenset(name for name in PlannerSpec.model_fields if name.startswith("geometry"))
"""Of GPUs that are cut otherwise as demand moves, of which the demo has none."""
ALL, BEST, FASTEST = "all variants", "the best alone", "the fastest alone"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to have served it. Ratios of all queries; ``accuracy``: of what was in time."""

    missed: float
    right_in_time: float
    accuracy: float

    @staticmethod
    def of(summary: Summary) -> "Alternative":
        """Of a run's summary."""
        return Alternative(summary.violation_ratio, summary.right_in_time, summary.effective_accuracy)


def alternatives(
    settings: Settings, catalogue: Catalogue, models: Path, arrivals: Callable[[], ArrivalSource], seed: int
) -> dict[str, Alternative]:
    """By name. ``arrivals`` gives the live run's, anew each time. Takes seconds."""
    found = {}
    for name, chosen in _chosen(settings, catalogue).items():
        source = arrivals()
        document = _document(settings, catalogue, models, source.duration, chosen)
        system = build(scenario_of(document), time.perf_counter)
        found[name] = Alternative.of(Engine(system, np.random.default_rng(seed)).run(source).summary)
    return found


def first_line(found: Mapping[str, Alternative]) -> str:
    """What scaling accuracy brought, in a sentence."""
    every, best, fastest = (found[name] for name in (ALL, BEST, FASTEST))
    return (
        f"On the same arrivals, simulated: the best variants alone would have missed {best.missed:.1%} of the queries, "
        f"all variants {every.missed:.1%}; right in time are {best.right_in_time:.1%} with the best alone, "
        f"{fastest.right_in_time:.1%} with the fastest alone, {every.right_in_time:.1%} with all."
    )


def _chosen(settings: Settings, catalogue: Catalogue) -> dict[str, dict[str, list[str]]]:
    device_type = settings.all_devices()[0].type

    def row_s(variant: Variant) -> float:
        return min(p.median / p.batch for p in catalogue.profiles[variant.name, device_type].points)

    served = {
        app: [v for v in catalogue.of_app(app) if (v.name, device_type) in catalogue.profiles] for app in settings.apps
    }
    return {
        ALL: {app: [v.name for v in variants] for app, variants in served.items()},
        BEST: {app: [max(variants, key=lambda v: v.accuracy).name] for app, variants in served.items()},
        FASTEST: {app: [min(variants, key=row_s).name] for app, variants in served.items()},
    }


def _document(
    settings: Settings, catalogue: Catalogue, models: Path, duration: float, chosen: Mapping[str, list[str]]
) -> dict[str, Any]:
    """The system that ran, with these variants. The guard is left out: hops take no time here."""
    worker, planner, door = settings.worker, settings.planner, settings.admission
    alone = all(len(names) == 1 for names in chosen.values())
    batching = {"name": worker.batching, **worker.batching_options}
    by_tables = takes(worker.batching, "tables")
    return {
        "name": "demo",
        "duration_s": duration,
        "catalogue": {"format": "sluice", "path": str(models)},
        "apps": {app: _app(settings.as_set(catalogue.apps[app]), names, catalogue) for app, names in chosen.items()},
        "devices": [
            {"name": d.name, "type": d.type, "memory_mb": d.memory_bytes / MB, "price": d.price, "spot": d.spot}
            for d in settings.all_devices()
        ],
        "traces": {"format": "generator", "qps": (1.0, 1.0)},  # in whose place the live run's are put
        "planner": {
            **planner.model_dump(include=set(PlannerSpec.model_fields) - {"demand", *_CUT}),
            "spare": [f"{name}0" for name in planner.spare],  # groups of one device, which is numbered
            "demand": planner.estimate,
        },
        "policies": {
            "admission": {"name": door.policy, **({"mode": door.mode} if door.policy == "sustainable" else {})},
            "routing": settings.routing,
            "batching": "adaptive" if alone and selects(worker.batching) else batching,
            "turns": worker.turns,
            "quantile": worker.quantile,
        },
        "tables": settings.tables.model_dump() if by_tables and not alone else None,
    }


def _app(app: App, names: list[str], catalogue: Catalogue) -> dict[str, Any]:
    promise = app.promise
    return {
        "variants": names,
        "queries": [{"share": 1.0, "rows": ROWS}],
        "slo_ms": 1e3 * app.slo,
        "min_accuracy": min(app.min_accuracy, max(catalogue.variants[name].accuracy for name in names)),
        "weight": app.weight,
        "promise": {
            "max_consecutive": promise.max_consecutive,
            "weakly_hard": [{"m": one.m, "k": one.k} for one in promise.weakly_hard],
        },
    }

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
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.simulator.arrivals.sampling import ArrivalSource
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.scenario import build, scenario_of
from sluicegate.sluice.load.demo_run import ROWS
from sluicegate.sluice.settings.settings import Settings

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
        system = build(scenario_of(_document(settings, models, source.duration, chosen)), time.perf_counter)
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


def _document(settings: Settings, models: Path, duration: float, chosen: Mapping[str, list[str]]) -> dict[str, Any]:
    wishes = [{"share": 1.0, "rows": ROWS}]
    return {
        "name": "demo",
        "duration_s": duration,
        "catalogue": {"format": "sluice", "path": str(models)},
        "apps": {app: {"variants": names, "queries": wishes} for app, names in chosen.items()},
        "devices": [{"name": device.name, "type": device.type} for device in settings.all_devices()],
        "traces": {"format": "generator", "qps": (1.0, 1.0)},  # in whose place the live run's are put
        "planner": {"period_s": settings.planner.period_s, "quantile": settings.planner.quantile},
        "policies": {"quantile": settings.worker.quantile},
    }

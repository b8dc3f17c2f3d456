"""A world in which nothing equals its neighbour, simulated from any time on.

Two apps of unlike SLO, class and accuracy, each of two variants of unlike speed, accuracy and batch limit; a GPU cut
into two slices of unlike size, a whole one and a processor; queries that ask for more, for less, and for a variant. A
swapped argument, a sum in place of a difference or a lost factor changes what comes of it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.outcome import Outcome
from sluicegate.planner.control import core
from sluicegate.planner.registry import PLANNERS
from sluicegate.policies.admission.registry import ADMISSION
from sluicegate.policies.batching.registry import BATCHING, STATIONS, keeps_promises, takes
from sluicegate.policies.placement.strategies import STRATEGIES
from sluicegate.policies.routing.registry import ROUTING
from sluicegate.simulator.arrivals.sampling import ArrivalSource, Chunk
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.engine.system_model import RunResult
from sluicegate.simulator.scenario import build, overridden, scenario_of
from sluicegate.simulator.scenario.experiment import arrivals_of

NOW = 1.7e9
"""What a wall clock says; the other clock starts at 0."""
_SEED = 1
_PARTS = {"cpu": 5.0, "a100": 1.0, "a100:4g": 1.4, "a100:3g": 1.9}


def _latencies(first_ms: float, growth: float, batches: tuple[int, ...]) -> dict[str, dict[int, list[float]]]:
    """Median and p95 by part and batch."""
    medians = {b: first_ms * (1 + growth * (b - 1)) for b in batches}
    return {part: {b: [slow * ms, 1.1 * slow * ms] for b, ms in medians.items()} for part, slow in _PARTS.items()}


UNEQUAL: Mapping[str, Any] = {
    "name": "unequal",
    "duration_s": 4.0,
    "apps": {
        "images": {"slo_ms": 210, "queries": [{"share": 0.1, "model": "images-large"}, {"share": 0.2, "rows": 2}]},
        "notes": {"slo_ms": 370, "queries": [{"share": 0.3, "class": "best_effort"}, {"share": 0.1, "accuracy": 0.6}]},
    },
    "catalogue": {
        "format": "inline",
        "variants": [
            {
                "name": name,
                "app": name.partition("-")[0],
                "accuracy": accuracy,
                "memory_mb": memory,
                "load_s": load,
                "latency_ms": _latencies(first, growth, batches),
            }
            for name, accuracy, memory, load, first, growth, batches in (
                ("images-small", 0.71, 900, 0.25, 4.0, 0.4, (1, 4, 8)),
                ("images-large", 0.83, 2100, 0.75, 11.0, 0.6, (1, 4)),
                ("notes-brief", 0.55, 400, 0.125, 6.0, 0.3, (1, 2, 6)),
                ("notes-full", 0.64, 3000, 0.625, 17.0, 0.7, (1, 2)),
            )
        ],
    },
    "devices": [
        {"type": "a100", "name": "cut", "memory_mb": 40000, "geometry": "4g+3g"},
        {"type": "a100", "name": "whole", "memory_mb": 40000},
        {"type": "cpu", "memory_mb": 8000},
    ],
    "traces": {
        "format": "generator",
        "qps": [80, 400],
        "shares": {"images": 0.6, "notes": 0.4},
        "generator": {"period_s": 4, "spikes": 0},
    },
    "planner": {"name": "greedy-fill", "period_s": 2},
    "simulation": {
        "service": "sampled",
        "to_router_ms": 1e3 / 1024,
        "to_device_ms": 3e3 / 1024,
        "control_ms": 7e3 / 1024,
    },
}


def unequal(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The world as a scenario's document, with each dotted name of ``changes`` set."""
    return overridden(UNEQUAL, changes)


@dataclass(frozen=True, slots=True)
class Ended:
    """A query's end. ``after``: seconds from the start of the world."""

    app: str
    kind: str
    reason: str
    variant: str
    device: str
    slice: str
    rows: int
    after: float


class Ends:
    """An observer that keeps them by query."""

    def __init__(self, start: float) -> None:
        self._start = start
        self.by_query: dict[str, Ended] = {}

    def add(self, o: Outcome) -> None:
        """Keep it."""
        self.by_query[o.query_id] = Ended(
            app=o.app,
            kind=str(o.kind),
            reason=str(o.reason or ""),
            variant=o.variant or "",
            device=o.device or "",
            slice=o.slice or "",
            rows=o.batch_size,
            after=o.at - self._start,
        )


class _Later:
    """Arrivals of ``source``, ``start`` seconds later."""

    def __init__(self, source: ArrivalSource, start: float) -> None:
        self._source, self._start = source, start
        self.apps = source.apps
        self.duration = source.duration + start

    def chunks(self) -> Iterator[Chunk]:
        """In time order."""
        return ((times + self._start, apps) for times, apps in self._source.chunks())


@contextmanager
def exact_ticks() -> Iterator[None]:
    """Planners tick by eighths of a second: tenths add up to other sums at other times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "_TICK", 0.125)
        yield


def simulated(document: Mapping[str, Any], start: float) -> tuple[dict[str, Ended], RunResult]:
    """Everything of ``document``, which counts from 0, happens from ``start`` on: ends by query, and figures."""
    scenario = scenario_of(_later(document, start))
    system = build(scenario, lambda: 0.0)
    system = replace(system, timing=replace(system.timing, warm_up=system.timing.warm_up - start))
    ends = Ends(start)
    source = _Later(arrivals_of(scenario, system.catalogue, _SEED), start)
    with exact_ticks():
        result = Engine(system, np.random.default_rng([_SEED, 2]), [ends]).run(source)
    return ends.by_query, result


def _later(given: Any, start: float) -> Any:
    """With all that says when, in seconds from the start of a run, ``start`` later."""
    if isinstance(given, Mapping):
        return {
            key: value + start if key in {"at_s", "until_s", "deadline_s"} else _later(value, start)
            for key, value in given.items()
        }
    return [_later(one, start) for one in given] if isinstance(given, list | tuple) else given


def cases() -> dict[str, dict[str, Any]]:
    """Changes of the world, by name: one for each policy and planner there is, and what reaches the other machines."""
    promise = {"max_consecutive": 2, "weakly_hard": [{"m": 2, "k": 5}, {"m": 8, "k": 20}]}
    promised = {"apps.images.promise": promise, "apps.images.queries": []}
    equal = {"devices": [{"type": "a100", "count": 2}], "planner.variants_per_device": 4, "traces.qps": [60, 200]}
    rushed = {"policies.routing": "weighted", "traces.qps": [80, 500]}  # where some form larger batches than others may
    found: dict[str, dict[str, Any]] = {
        f"batching {name}": {"policies.batching": {"name": name}, **rushed} for name in BATCHING
    }
    for name in BATCHING:
        found[f"batching {name}"] |= promised if keeps_promises(name) else {}
        found[f"batching {name}"] |= equal if takes(name, "capable") else {}  # known for equal workers
    found["batching table"] |= {"tables": {"grid": 15, "spacing": 0.2}}
    found |= {f"routing {name}": {"policies.routing": name} for name in ROUTING}
    found |= {f"admission {name}": {"policies.admission": name} for name in ADMISSION}
    found |= {f"planner {name}": {"planner.name": name} for name in PLANNERS}
    found |= {f"turns {name}": {"policies.turns": name} for name in STATIONS}
    found |= {f"slices {name}": {"slices.choice": name} for name in ("plan", *STRATEGIES)}
    scaled = {"planner.name": "allocation", "planner.spare": ["whole0"]}
    found |= {f"scaling {name}": {**scaled, "planner.scaling": name} for name in ("greedy", "ilp")}
    found |= {f"geometry {name}": {"planner.geometry": name} for name in ("joint", "protean")}
    spot = {"name": "cheap", "type": "a100", "memory_mb": 40000, "spot": True, "price": 0.5}
    return found | {
        "spare workers": {"scaling": {"spare": ["whole0"]}},
        "spot": {
            "devices.1": spot,
            "procurement": {
                "on_demand_price": 2.0,
                "notices": [{"device": "cheap0", "at_s": 1.0625, "deadline_s": 2.21875}],
            },
        },
        "two planners": {
            "planner.planners": 2,
            "planner.failures": [{"planner": "planner0", "at_s": 1.5}],
            "planner.lease_s": 1.0,
        },
        "faults": {
            "simulation.failures": [{"device": "cut0", "at_s": 1.0, "until_s": 3.0}],
            "simulation.executor_failures": [{"device": "whole0", "at_s": 2.0}],
            "simulation.stragglers": [{"device": "cpu0", "factor": 2.0, "at_s": 1.0, "until_s": 3.0}],
        },
        "a late app": {"apps.notes.at_start": False, "registrations": [{"app": "notes", "at_s": 1.0}]},
    }

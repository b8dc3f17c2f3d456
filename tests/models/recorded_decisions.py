"""What every core decides in many unequal worlds, and what planners and tables answer, as a committed record has it.

    python -m tests.models.recorded_decisions          # writes tests/models/data/recorded_decisions.json anew

A record says that something moved, not that it is wrong: who changes a decision on purpose writes it anew, and the
difference shows where. Counts stand beside digests, so that it can be read. Floats count to six digits, and no
billionth: sums differ in their last digits by machine and by version of Python.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import orjson

from sluicegate.planner.mdp.generate_table import generate
from sluicegate.planner.mdp.mdp_model import Candidate, SelectionModel
from sluicegate.planner.problems.problem import Problem
from sluicegate.planner.registry import PLANNERS, planner
from sluicegate.simulator.engine.system_model import RunResult
from tests.models.cluster_problems import cluster
from tests.models.recorded_cores import Made, noted
from tests.models.unequal import Ended, cases, simulated, unequal

MOVED = "decisions moved; if that is meant: python -m tests.models.recorded_decisions, and say why"
_RECORD = Path(__file__).parent / "data" / "recorded_decisions.json"
_DIGITS = 6
_WORDS = {"steps", "rough", "objective", "bound", "headroom"}
"""Of allocations: how they came about, and what they are worth. Of two that are equal but for rounding either may be
kept."""
_OF_SETS = {"LookUp", "LookedUp"}
"""Events and actions that are sets, written in any order."""
_FLOAT = re.compile(rb"(\d+\.\d+(?:e-?\d+)?)")
_ACTION = re.compile(rb'\{"is":"(\w+)","value":')
_ANY_ORDER = (b'"steps":', b'"is":"LookUp"', b'"is":"LookedUp"')
"""What steps have in them that are more than text with floats in it."""
CLUSTERS = ("as drawn", "several variants", "unlike money")
"""Of ``problems``."""
_ENDED = tuple(field.name for field in fields(Ended))
_PLAIN = {
    "admission deadline",
    "planner greedy-fill",
    "planner allocation-without-placement",
    "turns urgency",
    "slices plan",
    "geometry protean",
}
"""Cases that come to what another of them says."""


@cache
def record() -> dict[str, Any]:
    """What is committed."""
    found: dict[str, Any] = json.loads(_RECORD.read_text())
    return found


def worlds() -> dict[str, dict[str, Any]]:
    """Changes of the unequal world, by name: those of ``cases``, and others under more strain or with more said."""
    ours: dict[str, Any] = {"planner.name": "allocation", "planner.period_s": 1, "planner.quantile": "median"}
    rush = {"traces.qps": [300, 1100], "traces.generator": {"period_s": 2, "spikes": 1}}
    clients = [
        {"share": 0.4, "client": "loud"},
        {"share": 0.1, "client": "quiet", "priority": 2},
        {"share": 0.1, "priority": 1, "rows": 3},
    ]
    promise = {"max_consecutive": 1, "weakly_hard": [{"m": 3, "k": 10}]}
    found: dict[str, dict[str, Any]] = {
        "ours": ours,
        "ours, rush": {**ours, **rush},
        "ours, rush, exclusive loads": {**ours, **rush, "simulation.loads": "exclusive"},
        "ours, rush, largest batches": {**ours, **rush, "planner.capacity": "largest-batch", "planner.headroom": 1.3},
        "ours, p95": {**ours, **rush, "planner.quantile": "p95", "policies.quantile": "median"},
        "ours, free loads": {**ours, **rush, "planner.loads": "free", "planner.max_loads": 1},
        "ours, two variants each": {**ours, **rush, "planner.variants_per_device": 2},
        "ours, three variants each": {**ours, "planner.variants_per_device": 3},
        "ours, least accuracy": {**ours, **rush, "apps.images.min_accuracy": 0.8, "apps.notes.weight": 3.0},
        "ours, money": {
            **ours,
            "planner.money_weight": 0.02,
            "devices.0.price": 3.0,
            "devices.1.price": 5.0,
            "devices.2.price": 0.4,
            "traces.qps": [20, 200],
        },
        "ours, slow plans": {**ours, **rush, "planner.latency_s": 0.75, "planner.patience_s": 0.25},
        "clients and priorities": {**ours, **rush, "apps.images.queries": clients},
        "promises at their bound": {
            "apps.images.promise": promise,
            "apps.images.queries": [],
            "policies.batching": "spread-drop",
            "policies.routing": "weighted",
            "policies.admission": "sustainable",
            **rush,
        },
        "hops that spread": {**ours, "simulation.hop_spread_ms": 12, "policies.batching": "eager"},
        "batches that drag": {
            **ours,
            "simulation.service": "exponential",
            "simulation.slow_batches": {"probability": 0.1, "factor": 5.0},
        },
        "p95 at every batch": {**ours, **rush, "simulation.service": "p95", "policies.batching": "deadline"},
        "shared instances": {
            **ours,
            **rush,
            "slices.executors": {"a100": 2, "a100:4g": 3},
            "simulation.bandwidth": {"images-small": 0.3, "images-large": 0.7, "notes-brief": 0.45},
        },
        "a starved host": {
            **ours,
            "simulation.starved_hosts": [{"device": "whole0", "delay_ms": 400, "at_s": 1.0, "until_s": 3.0}],
        },
        "joint geometry, soon": {**ours, "planner.geometry": "joint", "planner.geometry_patience_s": 0.5},
        "geometry by the rule, rush": {
            **rush,
            "planner.geometry": "protean",
            "planner.geometry_patience_s": 0.5,
            "planner.geometry_rest_s": 1.0,
        },
        "packing, costly goals": {
            **ours,
            "policies.routing": "packing",
            "apps.notes.queries": [{"share": 0.3, "cost": 0.00001}, {"share": 0.2, "accuracy": 0.6}],
        },
        "model-less, rush": {**ours, **rush, "planner.scaling": "plan", "planner.spare": ["whole0"]},
        "registered anew": {
            **ours,
            "registrations": [
                {"app": "images", "at_s": 1.0, "variants": ["images-small"]},
                {"app": "notes", "at_s": 2.0, "retired": True},
            ],
        },
    }
    return {name: changes for name, changes in cases().items() if name not in _PLAIN} | found


def _rounded(noun: Any) -> Any:
    kind = type(noun)
    if kind is float:
        return float(f"{round(noun, 9):.{_DIGITS}g}")
    if kind is dict:
        if noun.get("is") in _OF_SETS and "devices" in noun["value"]:
            return {"is": noun["is"], "devices": sorted(noun["value"]["devices"])}
        return {key: _rounded(value) for key, value in noun.items() if key not in _WORDS}
    return [_rounded(one) for one in noun] if kind in {list, tuple} else noun


def _digest(noun: Any) -> str:
    return hashlib.sha256(orjson.dumps(_rounded(noun), option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _told(step: bytes) -> bytes:
    """A line of a log, as far as it counts."""
    if any(mark in step for mark in _ANY_ORDER):
        return orjson.dumps(_rounded(orjson.loads(step)), option=orjson.OPT_SORT_KEYS)
    parts = _FLOAT.split(step)
    parts[1::2] = map(_shortened, parts[1::2])
    return b"".join(parts)


@lru_cache(maxsize=1 << 16)
def _shortened(number: bytes) -> bytes:
    return b"%.*g" % (_DIGITS, round(float(number), 9))


def of_world(ends: Mapping[str, Ended], result: RunResult, made: Mapping[Any, Made]) -> dict[str, Any]:
    """What came of every query of a run, and what each core heard and said."""
    cores: dict[str, dict[str, Any]] = {}
    for kind in sorted({one.kind.__name__ for one in made.values()}):
        steps = [step for one in made.values() if one.kind.__name__ == kind for step in one.steps]
        actions = Counter(name.decode() for s in steps for name in _ACTION.findall(s.partition(b'"actions":')[2]))
        told = hashlib.sha256(b"\n".join(map(_told, steps)))
        cores[kind] = {
            "steps": len(steps),
            "actions": dict(sorted(actions.items())),
            "digest": told.hexdigest()[:16],
        }
    return {
        "ended": dict(sorted(Counter(f"{e.app} {e.kind} {e.reason}".strip() for e in ends.values()).items())),
        "ends": _digest({query: {name: getattr(one, name) for name in _ENDED} for query, one in ends.items()}),
        "plans": result.epochs,
        "cost": _rounded(dict(result.cost)),
        "cores": cores,
    }


def _in_world(changes: Mapping[str, Any]) -> dict[str, Any]:
    with noted(steps=True, again=False) as made:
        ends, result = simulated(unequal(changes), 0.0)
    return of_world(ends, result, made)


def _part(whole: Problem) -> Problem:
    """Of its first three apps, and of every fourth device."""
    return replace(whole, demands=whole.demands[:3], devices=whole.devices[::4])


def problems() -> tuple[Problem, ...]:
    """Clusters: as drawn, with several variants on a device, and with devices that cost unlike money."""
    plain, several, priced = (_part(cluster(seed)) for seed in range(len(CLUSTERS)))
    devices = tuple(
        replace(d, price=0.1 + 0.3 * (i % 7), spot=i % 5 == 0, memory_bytes=(1 + i % 3) << 30)
        for i, d in enumerate(priced.devices)
    )
    return (
        plain,
        replace(several, variants_per_device=2),
        replace(priced, devices=devices, money_weight=0.002, strict_on_demand=0.4),
    )


def _answer(name: str, problem: Problem) -> dict[str, Any]:
    made = planner(name)
    first = made.allocate(problem)
    moved = tuple(replace(d, qps=1.3 * d.qps if i % 2 else 0.7 * d.qps) for i, d in enumerate(problem.demands))
    stood = {d.app: 3.0 * (i + 1) for i, d in enumerate(problem.demands)}
    again = made.allocate(replace(problem, demands=moved, previous=first.placements, stood=stood))
    return {
        "hosts": [len(first.placements), len(again.placements)],
        "loads": [first.loads, again.loads],
        "objective": [_rounded(first.objective), _rounded(again.objective)],
        "bound": [_rounded(first.bound), _rounded(again.bound)],
        "placed": [_digest([asdict(p) for p in answer.placements]) for answer in (first, again)],
    }


def planned(name: str, cluster: str) -> dict[str, Any]:
    """What the planner of that name answers to a cluster, and once more to other rates."""
    return _answer(name, problems()[CLUSTERS.index(cluster)])


def models() -> dict[str, SelectionModel]:
    """Of selection tables: each choice made otherwise once, and some together."""
    unlike = SelectionModel(
        variants=(
            Candidate("quick", 0.55, (0.011, 0.016, 0.024, 0.03)),
            Candidate("middling", 0.71, (0.019, 0.031, 0.047)),
            Candidate("slow", 0.8, (0.043, 0.071)),
        ),
        slo=0.13,
        workers=3,
        qps=90.0,
        queue=12,
        grid=20,
    )
    changes: dict[str, dict[str, Any]] = {
        "as it is": {},
        "by decision": {"criterion": "decision"},
        "dear misses": {"violation_price": 3.0},
        "bins of the model": {"grid": "model"},
        "bursts": {"arrival_shape": 0.4},
        "even gaps": {"arrival_shape": 3.0, "phases": 4},
        "at random": {"dispatch": "random"},
        "by weight": {"dispatch": "weighted", "share": 0.2},
        "any batch": {"batching": "variable"},
        "dropping": {"late": "drop", "qps": 260.0},
        "any batch, dropping": {"batching": "variable", "late": "drop", "qps": 200.0},
    }
    return {name: replace(unlike, **change) for name, change in changes.items()}


def table_of(model: SelectionModel) -> dict[str, Any]:
    """What it promises, to six digits: it is iterated until it hardly moves; and what it chooses."""
    table = generate(model).table
    chosen = {
        "slacks": table.slacks,
        "actions": [*table.actions],
        "batches": [*table.batches],
        "assumptions": dict(table.assumptions),
    }
    return {"expected": _rounded(asdict(table.expected)), "chosen": _digest(chosen)}


PLANNED = tuple(name for name in PLANNERS if not name.startswith("scaling-"))


def main() -> None:
    """Write the record."""
    found = {
        "worlds": {name: _in_world(changes) for name, changes in worlds().items()},
        "planners": {name: {cluster: planned(name, cluster) for cluster in CLUSTERS} for name in PLANNED},
        "tables": {name: table_of(model) for name, model in models().items()},
    }
    _RECORD.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

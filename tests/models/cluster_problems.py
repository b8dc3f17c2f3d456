"""Problems of whole clusters, drawn from a seed, and a program of their own that solves them to the end.

    python -m tests.models.cluster_problems          # writes tests/models/data/allocation_optima.json, in some minutes

The program knows nothing of the planners: how many devices of each type hold each variant (whole numbers), and the rate
that each answers. First what fraction every app can have; where that is all, the best mean accuracy, each app's over
that of its best variant. HiGHS proves both to ``GAP``.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.problems.problem import AppDemand, Problem
from sluicegate.profiles.catalogue.catalogue import Catalogue

OPTIMA = Path(__file__).parent / "data" / "allocation_optima.json"
SEEDS = range(24)
GAP = 1e-7
SPEEDS = {"cpu": 1.0, "pascal": 4.0, "ampere": 9.0}
COUNTS = {"cpu": 20, "pascal": 10, "ampere": 10}


def cluster(seed: int) -> Problem:
    """Up to nine apps of three to six variants on a part of forty devices of three speeds, at rates near the edge."""
    rng = np.random.default_rng([seed, 3])
    apps, variants, profiles, demands = [], [], [], []
    names = [f"a{i}" for i in range(int(rng.integers(3, 10)))]
    devices = tuple(
        Device(name=f"{kind}-{i:02d}", type=kind)
        for kind, count in COUNTS.items()
        for i in range(int(rng.integers(count // 3, count + 1)))
    )
    level = float(rng.uniform(2.0, 14.0)) * sum(SPEEDS[d.type] for d in devices) / len(names)
    for name in names:
        slo = float(rng.choice([0.15, 0.3, 0.65]))
        apps.append(App(name=name, slo=slo, max_rows=1))
        accuracy, seconds = float(rng.uniform(0.3, 1.0)), float(rng.uniform(0.15, 0.6))
        for v in range(int(rng.integers(3, 7))):
            variants.append(Variant(name=f"{name}v{v}", app=name, accuracy=accuracy))
            for kind, speed in SPEEDS.items():
                first, growth = seconds / speed * float(rng.uniform(0.8, 1.2)), float(rng.uniform(0.3, 0.95))
                points = tuple(BatchLatency(b, s := first * (1 + growth * (b - 1)), s) for b in (1, 2, 4, 8))
                profiles.append(Profile(variant=f"{name}v{v}", device_type=kind, points=points))
            accuracy, seconds = accuracy * float(rng.uniform(0.85, 0.99)), seconds / float(rng.uniform(1.2, 2.2))
        rate = level * float(rng.lognormal(0, 0.7))
        demands.append(AppDemand(app=name, qps=rate, slo=slo, headroom=float(rng.choice([1.0, 1.05, 1.2]))))
    return Problem(demands=tuple(demands), devices=devices, catalogue=Catalogue.of(apps, variants, profiles))


def rate(profile: Profile, slo: float) -> float:
    """Queries/s by the best batch that takes no more than half the SLO."""
    best = 0.0
    for b in range(1, profile.points[-1].batch + 1):
        seconds = float(np.interp(b, [p.batch for p in profile.points], [p.median for p in profile.points]))
        if seconds <= slo / 2:
            best = max(best, b / seconds)
    return best


def solved(problem: Problem) -> dict[str, Any]:
    """The largest fraction that every app can have and, where that is 1, the best accuracy. Raises ValueError."""
    kinds = sorted({d.type for d in problem.devices})
    rows = [
        (a, kind, rate(problem.catalogue.profiles[v.name, kind], demand.slo), v.accuracy)
        for a, demand in enumerate(problem.demands)
        for v in problem.catalogue.of_app(demand.app)
        for kind in kinds
    ]
    count, apps = len(rows), len(problem.demands)
    best = [max(v.accuracy for v in problem.catalogue.of_app(d.app)) for d in problem.demands]
    total = sum(d.qps for d in problem.demands)

    def best_of(cost: np.ndarray[Any, Any], least: float | None) -> float:
        """Columns: devices by row, queries/s by row, the fraction of all."""
        table = lil_array((len(kinds) + count + apps, 2 * count + 1))
        low, high = np.full(table.shape[0], -np.inf), np.zeros(table.shape[0])
        for k, kind in enumerate(kinds):
            high[k] = sum(d.type == kind for d in problem.devices)
        for r, (a, kind, qps, _) in enumerate(rows):
            table[kinds.index(kind), r] = 1.0
            table[len(kinds) + r, r] = -qps / problem.demands[a].headroom
            table[len(kinds) + r, count + r] = 1.0
            table[len(kinds) + count + a, count + r] = 1.0
        for a, demand in enumerate(problem.demands):
            table[len(kinds) + count + a, 2 * count] = -demand.qps
            low[len(kinds) + count + a] = 0.0
        most = np.concatenate([np.full(count, len(problem.devices)), np.full(count, np.inf), [1.0]])
        found = milp(
            -cost,
            constraints=LinearConstraint(table.tocsr(), low, high),
            integrality=np.concatenate([np.ones(count), np.zeros(count + 1)]),
            bounds=Bounds(np.concatenate([np.zeros(2 * count), [least or 0.0]]), most),
            options={"mip_rel_gap": GAP, "time_limit": 300.0},
        )
        if not found.success:
            raise ValueError(found.message)
        return float(-found.fun)

    fair = best_of(np.concatenate([np.zeros(2 * count), [1.0]]), None)
    if fair < 1.0 - 1e-9:
        return {"fair": fair, "accuracy": None}
    gains = np.array([accuracy / best[a] / total for a, _, _, accuracy in rows])
    return {"fair": 1.0, "accuracy": best_of(np.concatenate([np.zeros(count), gains, [0.0]]), 1.0)}


if __name__ == "__main__":
    OPTIMA.write_text(json.dumps([{"seed": seed, **solved(cluster(seed))} for seed in SEEDS], indent=1) + "\n")

"""Scaling as an integer program, solved exactly (INFaaS 5.1, corrected).

    min   sum C (d+ - d-) + lambda C Tload d+        d+, d- integers >= 0
    (1)   for each app a: sum over its variants with Tinf <= S_a of Q (N + d+ - d-) >= slack L_a
    (2)   d+ = 0 where Tinf > S_a
    (3)   for each hardware: sum R (N + d+ - d-) <= R_total, over all apps
    (4)   d- <= N

The paper writes (1) for pairs, counts running variants that break the SLO, and adds what it means to multiply; slack is
a ratio. ``lambda`` is in 1/s: what an hour's cost of an instance that loads is worth a second of loading.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from sluicegate.planner.model_less.scaling_problem import SLACK, Fleet


@dataclass(frozen=True, slots=True)
class Scaled:
    """An optimal change of instances. ``changes``: variant -> instances to add (negative: to remove), none that stay.
    ``cost``: an hour's, after."""

    changes: Mapping[str, int]
    cost: float


def scale_exactly(fleet: Fleet, *, slack: float = SLACK, rate: float = 0.0, time_limit: float = 60.0) -> Scaled | None:
    """The cheapest fleet that answers what is asked, None where none does. ``rate``: lambda, 1/s."""
    # A tenth of a second to import, in the start of every planner, for the one way of scaling that asks for it.
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    variants = fleet.variants
    n = len(variants)
    price = np.array([v.cost for v in variants])
    loading = np.array([v.load for v in variants])
    running = np.array([float(fleet.count(v.name)) for v in variants])
    serves = np.array([v.app in fleet.asked and v.latency <= fleet.asked[v.app].slo for v in variants], bool)
    objective = np.concatenate([price * (1.0 + rate * loading), -price])
    upper = np.concatenate([np.where(serves, inf, 0.0), running])
    rows: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
    low: list[float] = []
    high: list[float] = []
    for app, asked in fleet.asked.items():
        q = np.array([v.capacity if v.app == app and ok else 0.0 for v, ok in zip(variants, serves, strict=True)])
        rows.append(np.concatenate([q, -q]))
        low.append(slack * asked.load - float(q @ running))
        high.append(inf)
    for hardware, total in fleet.resources.items():
        r = np.array([v.resources if v.hardware == hardware else 0.0 for v in variants])
        rows.append(np.concatenate([r, -r]))
        low.append(-inf)
        high.append(total - float(r @ running))
    found = milp(
        objective,
        integrality=np.ones(2 * n, np.int64),
        bounds=Bounds(np.zeros(2 * n), upper),
        constraints=LinearConstraint(
            csr_array(np.array(rows).reshape(len(rows), 2 * n)), np.array(low), np.array(high)
        ),
        options={"time_limit": time_limit, "mip_rel_gap": 0.0},
    )
    if found.x is None:
        return None
    steps = np.round(found.x).astype(int)
    changes = {v.name: int(steps[i] - steps[n + i]) for i, v in enumerate(variants) if steps[i] != steps[n + i]}
    return Scaled(changes, fleet.after(changes).cost())

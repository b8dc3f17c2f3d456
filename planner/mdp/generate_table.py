"""From a question to a table: build the chain, solve it, say what to expect."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController

from sluicegate.domain.table import DROP as DROP_CODE
from sluicegate.domain.table import SelectionTable
from sluicegate.planner.mdp.action_space import DROP
from sluicegate.planner.mdp.guarantees import expectations
from sluicegate.planner.mdp.mdp_model import Array, SelectionModel
from sluicegate.planner.mdp.operators import Chain, build_chain
from sluicegate.planner.mdp.value_iteration import Solution, solve
from sluicegate.planner.policy_tables.fingerprint import fingerprint


@dataclass(frozen=True)
class Generated:
    """A table and how it came about. ``values`` warm the generation for a neighbouring load."""

    table: SelectionTable
    values: Array
    states: int
    sweeps: int


def generate(model: SelectionModel, *, app: str = "", worker_class: str = "", values: Array | None = None) -> Generated:
    """The best table for ``model``. ``values``: of a neighbouring load. Deterministic."""
    with _blas().limit(limits=1, user_api="blas"):
        chain = build_chain(model)
        solution = solve(chain, values)
    return Generated(
        table=_table(chain, solution, app, worker_class),
        values=solution.values,
        states=chain.shape[0] * chain.shape[1] + 1,
        sweeps=solution.sweeps,
    )


@cache
def _blas() -> ThreadpoolController:
    """Products here are too small to share: more threads would only wait for each other, at five times the CPU time."""
    return ThreadpoolController()


def _table(chain: Chain, solution: Solution, app: str, worker_class: str) -> SelectionTable:
    model = chain.model
    variant, batch = np.empty(chain.shape, dtype=np.int64), np.empty(chain.shape, dtype=np.int64)
    for level in range(chain.shape[0]):
        o = chain.options_at(level)
        variant[level] = o.variant[solution.choice[level]]
        batch[level] = o.batch[solution.choice[level]]
    variant[variant == DROP] = DROP_CODE
    maximal = bool((batch == chain.kernel.queued[:, None]).all())
    return SelectionTable(
        app=app,
        worker_class=worker_class,
        variants=tuple(v.name for v in model.variants),
        slo=model.slo,
        qps=model.qps,
        workers=model.workers,
        slacks=tuple(float(t) for t in chain.kernel.slacks),
        actions=variant.astype(np.uint8).tobytes(),
        phases=model.phases,
        batches=b"" if maximal else batch.astype(np.uint8).tobytes(),
        expected=expectations(chain, solution),
        assumptions=assumptions(chain),
        fingerprint=fingerprint(model),
    )


def assumptions(chain: Chain) -> dict[str, str | float]:
    """How the table was made, in words and numbers, for whoever reads or refuses it."""
    model = chain.model
    return {
        "criterion": model.criterion,
        "violation_price": model.violation_price,
        "dispatch": model.dispatch,
        "share": model.share or 1.0 / model.workers,
        "share_error": chain.kernel.arrivals.share_error,
        "arrival_shape": model.arrival_shape,
        "batching": model.batching,
        "late": model.late,
        "grid": str(model.grid),
        "phases": float(model.phases),
    }

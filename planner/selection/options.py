"""What may be decided in each state: a variant for the n queued queries, for the first b of them, or a drop.

Valid where the batch ends within the slack; the fastest variant is always valid for the whole queue (late rather than
never). Dropping the head is offered where nothing else meets the slack, if the model allows it.
"""

from dataclasses import dataclass

import numpy as np

from planner.selection.kernel import Index
from planner.selection.model import Array, SelectionModel

DROP = -1
"""In place of a variant: give the head up."""


@dataclass(frozen=True, slots=True)
class Options:
    """Of one queue length n. Arrays over the O options; ``valid`` and ``satisfied`` are (J, O).

    ``variant``: index into the model's, or DROP. ``batch``: queries that leave the queue. ``tau``: index of the service
    time (0 seconds for a drop).
    """

    variant: Index
    batch: Index
    tau: Index
    accuracy: Array
    valid: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    satisfied: np.ndarray[tuple[int, int], np.dtype[np.bool_]]

    def __len__(self) -> int:
        return len(self.variant)


def enumerate_options(model: SelectionModel) -> tuple[tuple[Options, ...], Array]:
    """Options for n = 1..N, and the service times they use, ascending (T,)."""
    slacks = model.slacks()
    chosen = [_of_length(model, n) for n in range(1, model.longest + 1)]
    taus = np.unique([seconds for options in chosen for _, _, seconds in options])
    built = tuple(_build(model, n, options, taus, slacks) for n, options in enumerate(chosen, 1))
    return built, taus


def _of_length(model: SelectionModel, n: int) -> list[tuple[int, int, float]]:
    """(variant, batch, seconds) worth telling apart with n queued: of equals in time, the most accurate."""
    able = [m for m, v in enumerate(model.variants) if len(v.latency) >= n]
    fastest = min(able, key=lambda m: (model.variants[m].latency[n - 1], -model.variants[m].accuracy))
    best: dict[tuple[int, float], int] = {}
    for m, v in enumerate(model.variants):
        smallest = 1 if model.batching == "variable" else n
        for b in range(smallest, min(n, len(v.latency)) + 1):
            seconds = v.latency[b - 1]
            if seconds <= model.slo or (m == fastest and b == n):
                kept = best.setdefault((b, seconds), m)
                if v.accuracy > model.variants[kept].accuracy:
                    best[b, seconds] = m
    options = [(m, b, seconds) for (b, seconds), m in best.items()]
    if model.late == "drop":
        options.append((DROP, 1, 0.0))
    return options


def _build(model: SelectionModel, n: int, options: list[tuple[int, int, float]], taus: Array, slacks: Array) -> Options:
    variant = np.array([m for m, _, _ in options])
    batch = np.array([b for _, b, _ in options])
    seconds = np.array([t for _, _, t in options])
    served = variant != DROP
    satisfied = (seconds[None, :] <= slacks[:, None] * (1.0 + 1e-12)) & served[None, :]
    whole = np.flatnonzero(served & (batch == n))
    fastest = whole[np.argmin(seconds[whole])]
    valid = satisfied.copy()
    valid[:, fastest] = True
    if not served.all():
        valid[:, ~served] = ~satisfied.any(axis=1)[:, None]
    accuracy = np.array([model.variants[m].accuracy if m != DROP else 0.0 for m in variant])
    return Options(variant, batch, np.searchsorted(taus, seconds), accuracy, valid, satisfied)

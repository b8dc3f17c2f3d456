"""What may be decided in each state: a variant for the n queued queries, for the first b of them, or a drop.

Valid where the batch ends within the slack. Where the whole queue cannot be in time there is, by ``late``: "serve", the
fastest variant for all of it (late rather than never); "drop", the largest part of it with which the fastest variant
has the head in time. With "drop" the head may be given up anywhere: saved by a small batch, it can cost more behind it.
"""

from dataclasses import dataclass

import numpy as np

from sluicegate.planner.mdp.kernel import Index
from sluicegate.planner.mdp.mdp_model import Array, SelectionModel

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
        if model.batching == "maximal":
            options += _rescues(model, n)
        options.append((DROP, 1, 0.0))
    return options


def _rescues(model: SelectionModel, n: int) -> list[tuple[int, int, float]]:
    """Parts of the queue for the fastest variant, which takes the largest that keeps the head in time."""
    parts: list[tuple[int, int, float]] = []
    for b in range(1, n):
        able = [m for m, v in enumerate(model.variants) if len(v.latency) >= b]
        m = min(able, key=lambda m: (model.variants[m].latency[b - 1], -model.variants[m].accuracy))
        if model.variants[m].latency[b - 1] <= model.slo:
            parts.append((m, b, model.variants[m].latency[b - 1]))
    return parts


def _build(model: SelectionModel, n: int, options: list[tuple[int, int, float]], taus: Array, slacks: Array) -> Options:
    variant = np.array([m for m, _, _ in options])
    batch = np.array([b for _, b, _ in options])
    seconds = np.array([t for _, _, t in options])
    served = variant != DROP
    satisfied = (seconds[None, :] <= slacks[:, None] * (1.0 + 1e-12)) & served[None, :]
    whole = np.flatnonzero(served & (batch == n))
    fastest = whole[np.argmin(seconds[whole])]
    valid = satisfied.copy()
    if model.late == "serve":
        valid[:, fastest] = True
    else:
        valid[:, ~served] = True
    if model.late == "drop" and model.batching == "maximal":
        whole_fits = satisfied[:, whole].any(axis=1)
        largest = np.where(satisfied, batch, 0).max(axis=1)
        part = served & (batch < n)
        valid[:, part] = satisfied[:, part] & ~whole_fits[:, None] & (batch[part] == largest[:, None])
    accuracy = np.array([model.variants[m].accuracy if m != DROP else 0.0 for m in variant])
    return Options(variant, batch, np.searchsorted(taus, seconds), accuracy, valid, satisfied)

"""FBR of variants from co-location measurements: bounded least squares with active rows.

Rules:
- A co-location that slows every member by T/solo = r > 1 + eps was saturated: the FBR of its members sum to r.
- One that slows nobody was not: they sum to at most 1. Such a row says something only where the estimate breaks it: it
  is then made active (sum = 1) and the system is solved again, until no row is broken.
- Several copies of one variant must be among the measurements, or sums are known and terms are not; ``identifiable``
  says for whom that holds.

After PROTEAN, section 3.2 (linear system for FBR), with the unsaturated measurements used instead of thrown away.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import lsq_linear

from sluicegate.domain.errors import InvalidInputError

MAX_FBR = 4.0
"""No batch asks for more than this many times a slice's bandwidth."""


@dataclass(frozen=True, slots=True)
class Colocation:
    """Variants that ran together on one slice, copies repeated, and how much slower than alone there (mean).

    ``throughput``: batches ended in the time that one takes alone; ``p95``: 95th percentile of a batch's time over that
    alone. 0 where not measured.
    """

    variants: tuple[str, ...]
    slowdown: float
    throughput: float = 0.0
    p95: float = 0.0


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Estimated shares of bandwidth. ``fbr`` by variant. ``identifiable``: those whose value the measurements pin down.
    ``active``: rows set to 1."""

    fbr: dict[str, float]
    identifiable: frozenset[str]
    active: int


def predicted(fbr: Mapping[str, float], variants: Sequence[str]) -> float:
    """How much slower ``variants`` run together on a slice than each alone there, by the slowdown model."""
    return max(1.0, sum(fbr[name] for name in variants))


def estimate_fbr(measured: Sequence[Colocation], *, saturation: float = 0.02) -> Bandwidth:
    """FBR of every variant that was measured. ``saturation``: slowdown above 1 that counts as such, not as noise.

    Raises InvalidInputError for slowdowns that are not positive and finite.
    """
    names = sorted({name for row in measured for name in row.variants})
    if not names:
        raise InvalidInputError("colocations", "none was measured; run at least several copies of each variant")
    column = {name: i for i, name in enumerate(names)}
    counts = np.zeros((len(measured), len(names)))
    values = np.ones(len(measured))
    for i, row in enumerate(measured):
        if not 0.0 < row.slowdown < float("inf"):
            raise InvalidInputError(f"colocations[{i}].slowdown", f"{row.slowdown} is not a positive finite ratio")
        for name, copies in Counter(row.variants).items():
            counts[i, column[name]] = copies
        values[i] = max(row.slowdown, 1.0)
    saturated = values > 1.0 + saturation
    active = saturated.copy()
    values[~saturated] = 1.0
    fbr = np.zeros(len(names))
    for _ in range(len(measured) + 1):
        fbr = _solve(counts[active], values[active], len(names))
        broken = ~active & (counts @ fbr > 1.0 + 1e-9)
        if not broken.any():
            break
        active |= broken
    return Bandwidth(
        fbr={name: float(fbr[i]) for name, i in column.items()},
        identifiable=frozenset(name for name, i in column.items() if _pinned(counts[active], i)),
        active=int((active & ~saturated).sum()),
    )


def _solve(counts: np.ndarray, values: np.ndarray, names: int) -> np.ndarray:
    # Measurements err in proportion: weigh rows so that relative errors count.
    weight = 1.0 / values
    # Where a sum is all that is known, the smallest terms are taken: an infinitesimal pull to zero.
    pull = 1e-6 * np.eye(names)
    rows = np.vstack((counts * weight[:, None], pull))
    wanted = np.concatenate((values * weight, np.zeros(names)))
    return np.asarray(lsq_linear(rows, wanted, bounds=(0.0, MAX_FBR), method="bvls").x)


def _pinned(counts: np.ndarray, column: int) -> bool:
    """Whether the unit vector of a column lies in the row space: its value does not depend on the others'."""
    unit = np.zeros(counts.shape[1])
    unit[column] = 1.0
    solution, *_ = np.linalg.lstsq(counts.T, unit, rcond=None)
    return bool(np.abs(counts.T @ solution - unit).max() < 1e-8)

"""What a worker can promise as its load grows: pieces of a concave envelope over loads, from the exact chain.

Rules.
- At a load of r queries/s a worker earns r (accuracy of those in time - ``VIOLATION`` x share of those not in time),
  accuracy being that of the app's best variant at 1. The envelope over the loads looked at is concave: each piece of
  load earns less a query than the one before. It ends where more load would earn nothing more, or where no table is
  published any more.
- Loads looked at are parts of what each variant can do alone, the fastest ones' the most; few, since each takes a
  chain. None depends on the demand, so that a curve that is known stays known while demand moves.
- Workers whose queries come in turns see arrivals smoothed by the others. Their number is rounded down to a power of
  two, and to ``_SMOOTHED``: a curve then holds for more of them too.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from sluicegate.planner.mdp.mdp_model import Array, SelectionModel

VIOLATION = 1.0
"""Accuracy (0..1) that a violation costs, beside the answer that it is not."""
GRID = 20
"""Slack bins of a curve: a few thousandths of accuracy below those of tables, at half their time."""
_PARTS = (0.6, 0.85)
_TOP = (0.6, 0.8, 0.92)
_MOST = 6
_SMOOTHED = 8
"""Workers beyond which more smooth arrivals little, and a chain takes long."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A worker at one load, ``qps`` queries/s: ``accuracy`` of those in time, ``violation``: share of the others."""

    qps: float
    accuracy: float
    violation: float


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the curve: ``qps`` queries/s more, each of which earns ``worth`` (0..1)."""

    qps: float
    worth: float


def pieces(model: SelectionModel, *, best: float, max_violation: float) -> tuple[Piece, ...]:
    """Of the worker that ``model`` describes, at any load; none where it can promise nothing. ``best``: accuracy of the
    app's best variant; ``max_violation``: of tables that are published."""
    earned = [(0.0, 0.0)]
    for p in promises(model):
        if p.violation <= max_violation:
            worth = p.accuracy * (1.0 - p.violation) / best - VIOLATION * p.violation
            earned.append((p.qps, p.qps * worth))
    hull: list[tuple[float, float]] = []
    for point in earned:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-2], point):
            hull.pop()
        hull.append(point)
    found = [Piece(b[0] - a[0], _slope(a, b)) for a, b in pairwise(hull)]
    return tuple(piece for piece in found if piece.worth > 0.0)


def promises(model: SelectionModel) -> tuple[Promise, ...]:
    """Of one of the model's workers, by load."""
    workers = min(_SMOOTHED, 1 << (model.workers.bit_length() - 1))
    grid = min(GRID, model.grid) if model.grid != "model" else GRID
    return _promises(replace(model, qps=0.0, workers=workers, grid=grid))


@lru_cache(maxsize=2048)
def _promises(model: SelectionModel) -> tuple[Promise, ...]:
    # Imported where tables are asked for: a planner that makes none starts in two thirds of the time.
    from sluicegate.planner.mdp.generate_table import generate

    values: Array | None = None
    found = []
    for rate in _loads(model):
        made = generate(model.at(rate * model.workers), values=values)
        values = made.values
        found.append(Promise(rate, made.table.expected.accuracy, made.table.expected.violation))
    return tuple(found)


def _loads(model: SelectionModel) -> tuple[float, ...]:
    """Queries/s of one worker, ascending."""
    rates = sorted(
        max((b / s for b, s in enumerate(v.latency, 1) if s <= model.slo), default=0.0) for v in model.variants
    )
    top = rates[-1]
    accurate = sorted({part * r for r in rates for part in _PARTS if 0.0 < part * r < _PARTS[-1] * _TOP[0] * top})
    if len(accurate) > _MOST:
        accurate = [accurate[i * (len(accurate) - 1) // (_MOST - 1)] for i in range(_MOST)]
    return (*accurate, *(part * top for part in _TOP))


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])

"""How much of a worker's best rate may be used: what a table promises to violate decides, not a constant.

A worker that runs the best batch of its fastest variant all the time answers every query too late: batches must be
filled and turns waited for. How far below that rate its load must stay follows from variants, SLO and the number of
workers that smooth the arrivals out: from the exact chain, at the load where a table that values nothing more promises
as many violations as are allowed.
"""

from functools import lru_cache

from sluicegate.planner.mdp.generate_table import generate
from sluicegate.planner.mdp.mdp_model import MAX_WORKERS, Candidate, SelectionModel

_GRID = 50
_PRICE = 50.0
"""Of a violation: what can be held at all is asked, not what accuracy would be worth."""
_STEPS = 7
_EXACT = 8
_RATIO = 1.25


def best_rate(variants: tuple[Candidate, ...], slo: float) -> float:
    """Queries a second of one worker with the best batch of any variant that is within the SLO; 0 where none is."""
    return max((b / s for v in variants for b, s in enumerate(v.latency, 1) if s <= slo), default=0.0)


def tolerable_rate(variants: tuple[Candidate, ...], slo: float, workers: int, violation: float) -> float:
    """Queries a second that each of ``workers`` may get while the best table promises at most ``violation``.

    Found to a hundredth of the best rate, from below. Counts of workers above 8 are rounded down to steps of a quarter.
    """
    steps = min(workers, _EXACT)
    while steps * _RATIO <= min(workers, MAX_WORKERS):
        steps = int(steps * _RATIO)
    return _tolerable(variants, slo, max(1, min(steps, workers)), violation)


@lru_cache(maxsize=512)
def _tolerable(variants: tuple[Candidate, ...], slo: float, workers: int, violation: float) -> float:
    """Bisection over the load: violations grow with it."""
    top = best_rate(variants, slo)
    low, high = 0.0, top
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        model = SelectionModel(
            variants=variants, slo=slo, workers=workers, qps=middle * workers, grid=_GRID, violation_price=_PRICE
        )
        if generate(model).table.expected.violation <= violation:
            low = middle
        else:
            high = middle
    return low

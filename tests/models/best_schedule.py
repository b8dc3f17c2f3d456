"""The best that a few queries can come to on a few devices, by trying every schedule."""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations

Curve = tuple[float, ...]


def best_schedule(
    queries: Sequence[tuple[str, float, float]],
    devices: Sequence[str],
    curves: Mapping[tuple[str, str], Curve],
    values: Mapping[str, Mapping[str, float]],
) -> float:
    """Most value of ``queries`` (app, arrival, deadline) answered in time on ``devices`` (each a type).

    ``curves``: seconds by batch size of (variant, type). ``values``: of an answer, by app and variant. Batches begin as
    early as they can: to wait longer never helps, for all arrivals are known.
    """

    @cache
    def best(number: int, free: float, left: tuple[int, ...]) -> float:
        """Of ``left``, on the device of this ``number`` from ``free`` on and those after it."""
        if number == len(devices):
            return 0.0
        found = best(number + 1, 0.0, left)
        for app, variants in values.items():
            mine = [q for q in left if queries[q][0] == app]
            for variant, value in variants.items():
                curve = curves.get((variant, devices[number]), ())
                for size in range(1, min(len(mine), len(curve)) + 1):
                    for batch in combinations(mine, size):
                        end = max(free, *(queries[q][1] for q in batch)) + curve[size - 1]
                        if all(end <= queries[q][2] for q in batch):
                            rest = tuple(q for q in left if q not in batch)
                            found = max(found, size * value + best(number, end, rest))
        return found

    return best(0, 0.0, tuple(range(len(queries))))

"""PROTEAN's two geometries: which one a GPU should have for the best-effort load it expects.

Rules:
- One slice is 4g for strict batches; the rest is either (2g, 1g) or (3g), chosen by the best-effort batches expected
  to be on the GPU at a time.
- (4g, 2g, 1g) if the expected batches fit into the small slices one by one (First Fit, not the sum of memories: one
  batch of 12 GB fits neither 10 nor 5), and their number lies between two thresholds; else (4g, 3g).
- T_low: the least number at which a strict batch that spills off 4g is no better on a 3g shared with them than on the
  small slices shared with them. T_high: the greatest number that fits and leaves a best-effort batch a slowdown of at
  most the SLO multiplier on the small slices.

After PROTEAN (Middleware 2024), Algorithm 2, corrected.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sluicegate.planner.geometry.mig_tables import Geometry, PlacementTable
from sluicegate.profiles.catalogue.slowdown import SlowdownTable


@dataclass(slots=True)
class _Part:
    """A slice being filled in thought."""

    profile: str
    free_bytes: int
    fbr: float = 0.0
    residents: int = 0


SMALL: Geometry = ("4g", "2g", "1g")
LARGE: Geometry = ("4g", "3g")
_SMALL_PART = ("1g", "2g")
_LARGE_PART = ("3g",)


class BestEffortForecast:
    """Expected best-effort queries of an interval: exponentially weighted, ``alpha`` for the newest."""

    def __init__(self, alpha: float = 0.5) -> None:
        self._alpha = alpha
        self._mean: float | None = None

    def update(self, queries: float) -> float:
        """An interval ended with ``queries``: the forecast for the next."""
        self._mean = queries if self._mean is None else self._mean + self._alpha * (queries - self._mean)
        return self._mean


def desired_geometry(
    table: SlowdownTable,
    placements: PlacementTable,
    *,
    strict: str,
    best_effort: str,
    queries: float,
    multiplier: float = 3.0,
) -> Geometry:
    """The geometry for ``queries`` best-effort queries expected on the GPU at a time, batched by the variant's size."""
    batches = math.ceil(queries / table.demands[best_effort].batch - 1e-9)
    capacity = _capacity(table, placements, best_effort)
    if batches > capacity:
        return LARGE
    low = t_low(table, placements, strict=strict, best_effort=best_effort, capacity=capacity)
    high = t_high(table, placements, best_effort=best_effort, capacity=capacity, multiplier=multiplier)
    return SMALL if low <= batches <= high else LARGE


def t_low(table: SlowdownTable, placements: PlacementTable, *, strict: str, best_effort: str, capacity: int) -> int:
    """Least number of best-effort batches that makes 3g no better than the small slices for a spilled strict batch."""
    for batches in range(capacity + 1):
        on_large = _spilled(table, placements, _LARGE_PART, strict, best_effort, batches)
        on_small = _spilled(table, placements, _SMALL_PART, strict, best_effort, batches)
        if on_large >= on_small:
            return batches
    return capacity + 1


def t_high(
    table: SlowdownTable, placements: PlacementTable, *, best_effort: str, capacity: int, multiplier: float
) -> int:
    """Greatest number of best-effort batches that fits and leaves each a slowdown of at most ``multiplier``."""
    for batches in range(capacity, 0, -1):
        parts = _slices(placements, _SMALL_PART)
        _fill(table, parts, best_effort, batches)
        used = [p for p in parts if p.residents]
        best = min((table.of(best_effort, p.profile).rdf * max(p.fbr, 1.0) for p in used), default=math.inf)
        if best <= multiplier:
            return batches
    return 0


def _spilled(
    table: SlowdownTable,
    placements: PlacementTable,
    part: Sequence[str],
    strict: str,
    best_effort: str,
    batches: int,
) -> float:
    """Least slowdown of a strict batch on ``part`` beside ``batches`` best-effort ones.

    Infinite where it has no room.
    """
    slices = _slices(placements, part)
    _fill(table, slices, best_effort, batches)
    least = math.inf
    for one in slices:
        mine = table.known(strict, one.profile)
        if mine is not None and one.free_bytes >= mine.memory_bytes:
            least = min(least, mine.rdf * max(mine.fbr + one.fbr, 1.0))
    return least


def _capacity(table: SlowdownTable, placements: PlacementTable, variant: str) -> int:
    """Batches that First Fit gets onto the small slices."""
    slices = _slices(placements, _SMALL_PART)
    return _fill(table, slices, variant, 64)


def _fill(table: SlowdownTable, slices: list[_Part], variant: str, batches: int) -> int:
    """Put batches on slices, first fit; how many had room."""
    for placed in range(batches):
        part = next((p for p in slices if _has_room(table, variant, p)), None)
        if part is None:
            return placed
        mine = table.of(variant, part.profile)
        part.free_bytes -= mine.memory_bytes
        part.fbr += mine.fbr
        part.residents += 1
    return batches


def _has_room(table: SlowdownTable, variant: str, part: _Part) -> bool:
    mine = table.known(variant, part.profile)
    return mine is not None and part.free_bytes >= mine.memory_bytes


def _slices(placements: PlacementTable, part: Sequence[str]) -> list[_Part]:
    return [_Part(p, placements.profile(p).memory_bytes) for p in part]

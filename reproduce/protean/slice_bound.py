"""What no system exceeds on these batches: strict queries on time at most, if all were known beforehand.

Rules. All that is left out makes the bound higher, never lower.
- GPUs serve strict batches alone, are cut any way at any moment, and hold every container. Batches are gathered as for
  all systems. One that ends at the deadline of a query began when it was formed, at the earliest.
- On a slice of profile p a batch runs for ``seconds`` there at least, and takes ``FBR`` of the slice's bandwidth for as
  long. No more of them are there at a time than memory holds. So it takes ``seconds * max(FBR, 1 / most at a time)`` of
  the slice's time, and a query its part of that.
- A GPU has at any moment the slices of one geometry. Each facet of the hull of all geometries (weights by profile,
  whose sum over the slices of no geometry exceeds 1) is a resource, of which a GPU has a second in a second.
- What this time is worth at most, prices say (``sluicegate.simulator.bound.priced_time``).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from scipy.spatial import ConvexHull

from reproduce.protean.slices.workload import Batch, Floats
from sluicegate.planner.geometry.mig_tables import PlacementTable
from sluicegate.profiles.catalogue.slowdown import SlowdownTable
from sluicegate.simulator.bound.priced_time import Asked, Way, most_value

_PER_SLO = 16
"""Intervals of an SLO that are told apart; with more the bound hardly falls."""
_SIZES = 8
"""Groups of batches of fewer rows than a full one; in each the cheapest row stands for all."""
_TOLERANCE = 1e-9


def most_on_time(
    batches: Sequence[Batch], table: SlowdownTable, placements: PlacementTable, *, gpus: int, multiplier: float
) -> float:
    """Share of the queries of ``batches``, all of one variant, that any system answers within ``multiplier`` times the
    time alone on a whole GPU; NaN where there are none."""
    if not batches:
        return float("nan")
    facets = facets_of(placements)
    slo = multiplier * table.demands[batches[0].variant].solo
    interval = slo / _PER_SLO
    groups: dict[int, list[Batch]] = {}
    full = table.demands[batches[0].variant].batch
    for batch in batches:
        groups.setdefault(-(-_SIZES * batch.rows // full) if batch.rows < full else _SIZES + 1, []).append(batch)
    asked, ways = [], []
    for alike in groups.values():
        formed = np.concatenate([np.full(b.rows, b.formed) for b in alike])
        until = np.concatenate([b.arrivals for b in alike]) + slo + _TOLERANCE
        able = until > formed
        asked.append(Asked.of(formed[able], until[able], interval))
        least = float((until - formed)[able].max(initial=0.0))
        ways.append(_ways(alike, table, placements, facets, within=least))
    capacity = np.full(len(facets), float(gpus))
    return min(1.0, most_value(asked, ways, capacity, interval) / sum(b.rows for b in batches))


def _ways(
    alike: Sequence[Batch],
    table: SlowdownTable,
    placements: PlacementTable,
    facets: Sequence[Mapping[str, float]],
    *,
    within: float,
) -> list[Way]:
    """Of a query, one for each profile on which the shortest batch is done ``within`` so many seconds."""
    found = []
    work = min(b.work for b in alike)
    of_a_row = min(b.work / b.rows for b in alike)
    for name, part in placements.profiles.items():
        takes = []
        for profile, caps in placements.profiles.items():  # a batch that is held to less of a slice runs as on that
            if caps.compute > part.compute or not table.runs(alike[0].variant, profile):
                continue
            mine = table.of(alike[0].variant, profile)
            most = part.memory_bytes // mine.memory_bytes if mine.memory_bytes else np.inf
            if most and mine.seconds * work <= within:
                takes.append(mine.seconds * max(mine.fbr, 1.0 / most))
        if takes:
            seconds = min(takes) * of_a_row
            found.append(Way(1.0, tuple((i, w[name] * seconds) for i, w in enumerate(facets) if w[name])))
    return found


def facets_of(placements: PlacementTable) -> list[Mapping[str, float]]:
    """Weights by profile: the slices of no geometry, nor of a part of one, weigh more than 1 together."""
    names = list(placements.profiles)
    counts = [Counter(g) for g in placements.undominated]
    points = {p for c in counts for p in product(*(range(c[n] + 1) for n in names))}
    hull = ConvexHull(np.array(sorted(points), dtype=float))
    found: dict[tuple[float, ...], Mapping[str, float]] = {}
    for *normal, offset in hull.equations.tolist():
        if -offset > _TOLERANCE and max(normal) > _TOLERANCE:
            weights = tuple(max(0.0, round(n / -offset, 9)) for n in normal)
            found[weights] = dict(zip(names, weights, strict=True))
    worst: Floats = np.array([[w[n] for n in names] for w in found.values()]) @ np.array(sorted(points)).T
    assert worst.max() <= 1.0 + 1e-6, "a geometry weighs more than 1"
    return list(found.values())

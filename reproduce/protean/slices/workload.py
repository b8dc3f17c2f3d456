"""Queries of two classes gathered into batches for the whole cluster, before a GPU is chosen.

Rules:
- Strict queries are for one variant; best-effort ones for a variant redrawn every so often from those of the opposite
  interference class.
- A batch is full at the variant's batch size, or closed ``max_wait`` after its first query. Gathering before the
  choice of a GPU is what makes batches of 128 possible at all: one GPU of eight would fill them too slowly.
- A batch of fewer rows takes less time: ``fixed`` of the full time, the rest in proportion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluicegate.simulator.arrivals.sampling import ArrivalSource, collect

Floats = npt.NDArray[np.float64]
STRICT, BEST_EFFORT = "strict", "best-effort"
FIXED = 0.2
"""Part of a full batch's time that any batch takes."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Queries that run together. ``formed``: when it may start. ``arrivals``: of its queries, sorted. ``work``: of a
    full batch's time, 0..1."""

    key: int
    variant: str
    strict: bool
    formed: float
    arrivals: Floats
    work: float

    @property
    def rows(self) -> int:
        """Queries in it."""
        return int(self.arrivals.size)


@dataclass(frozen=True, slots=True)
class Workload:
    """Batches in the order in which they are formed; ``best_effort``: (from, variant) of each redraw."""

    batches: tuple[Batch, ...]
    duration: float
    strict: str
    best_effort: tuple[tuple[float, str], ...]


def gather(
    source: ArrivalSource,
    *,
    strict: str,
    redraws: Sequence[tuple[float, str]],
    sizes: Mapping[str, int],
    max_wait: float,
) -> Workload:
    """Batches of ``source``, whose apps are STRICT and BEST_EFFORT. ``redraws``: ascending, the first at 0."""
    duration = source.duration
    times = collect(source)
    found: list[tuple[float, bool, str, Floats]] = []
    periods = [(0.0, strict)] if STRICT in times else []
    for name, is_strict, changes in ((STRICT, True, periods), (BEST_EFFORT, False, list(redraws))):
        ends = [start for start, _ in changes[1:]] + [np.inf]
        for (start, variant), end in zip(changes, ends, strict=True):
            known = times.get(name, np.empty(0))
            part = known[np.searchsorted(known, start) : np.searchsorted(known, end)]
            found += [(at, is_strict, variant, rows) for at, rows in _cut(part, sizes[variant], max_wait)]
    found.sort(key=lambda x: (x[0], not x[1]))
    batches = tuple(
        Batch(i, variant, is_strict, at, rows, FIXED + (1.0 - FIXED) * rows.size / sizes[variant])
        for i, (at, is_strict, variant, rows) in enumerate(found)
    )
    return Workload(batches, duration, strict, tuple(redraws))


def _cut(times: Floats, size: int, max_wait: float) -> list[tuple[float, Floats]]:
    batches: list[tuple[float, Floats]] = []
    at = 0
    while at < times.size:
        closes = float(times[at]) + max_wait
        last = min(at + size, int(np.searchsorted(times, closes, side="right")))
        full = last - at == size
        batches.append((float(times[last - 1]) if full else closes, times[at:last]))
        at = last
    return batches


def redraws(
    candidates: Sequence[str], duration: float, period: float, rng: np.random.Generator
) -> tuple[tuple[float, str], ...]:
    """A variant for each period, never the same twice in a row where there are several."""
    found: list[tuple[float, str]] = []
    last = ""
    for i in range(max(1, int(np.ceil(duration / period)))):
        choice = [c for c in candidates if c != last or len(candidates) == 1]
        last = choice[int(rng.integers(len(choice)))]
        found.append((i * period, last))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Bursts:
    """Queries do not trickle in: what arrives between two bursts comes with the second one, within ``width`` seconds.

    Gaps are Gamma distributed with mean ``gap`` and shape ``shape`` (the larger the more regular).
    """

    gap: float
    width: float
    shape: float

    def moved(self, times: Floats, duration: float, rng: np.random.Generator) -> Floats:
        """The new time of each arrival; order is kept."""
        count = int(2 * duration / self.gap) + 16
        gaps = rng.gamma(self.shape, self.gap / self.shape, count)
        while gaps.sum() <= duration:
            gaps = np.concatenate((gaps, rng.gamma(self.shape, self.gap / self.shape, count)))
        edges = np.concatenate(([0.0], np.cumsum(gaps)))
        at = np.searchsorted(edges, times, side="right")
        return edges[at] + (times - edges[at - 1]) / gaps[at - 1] * np.minimum(self.width, gaps[at])

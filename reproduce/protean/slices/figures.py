"""What a run comes to: compliance, tails, their breakdown, cost.

Rules:
- A query's latency runs from its arrival to the end of its batch: gathering, queueing, container start and service.
- slo_compliance_strict: strict queries on time over all strict queries that arrived after the warm-up; one that was
  never answered would count as late.
- The breakdown is the mean over the strict queries at the 99th percentile (within half a percent of all): gathering,
  queueing, container start, least possible time (alone on a whole GPU), deficiency (the slice is smaller),
  interference.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from reproduce.protean.slices.cluster import Ended
from reproduce.protean.slices.workload import Floats
from sluicegate.profiles.catalogue.slowdown import SlowdownTable

_TOLERANCE = 1e-9
PARTS = ("gathering", "queueing", "cold_start", "least_possible", "deficiency", "interference")


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds of every query of a class. ``parts``: (queries, 6) in the order of PARTS, each row summing to it."""

    seconds: Floats
    parts: Floats

    def quantile(self, q: float) -> float:
        """NaN where there are none."""
        return float(np.quantile(self.seconds, q)) if self.seconds.size else float("nan")

    def within(self, limits: Floats | float) -> float:
        """Share of queries within ``limits`` seconds."""
        return float((self.seconds <= limits + _TOLERANCE).mean()) if self.seconds.size else float("nan")

    def tail(self, q: float = 0.99, width: float = 0.005) -> dict[str, float]:
        """Mean parts of the queries around quantile ``q``, seconds by name."""
        if not self.seconds.size:
            return dict.fromkeys(PARTS, float("nan"))
        low, high = np.quantile(self.seconds, [max(0.0, q - width), min(1.0, q + width)])
        near = (self.seconds >= low) & (self.seconds <= high)
        return dict(zip(PARTS, self.parts[near].mean(axis=0).tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Usage:
    """Shares (0..1) of the time that a GPU runs anything, and of all GPUs' memory that batches hold, on average."""

    gpu: float
    memory: float


def usage(ended: Iterable[Ended], table: SlowdownTable, *, gpus: int, memory_bytes: int, seconds: float) -> Usage:
    """Of ``gpus`` GPUs of ``memory_bytes`` each over ``seconds``: a batch holds its memory while it starts and runs."""
    held = 0.0
    running: dict[int, list[tuple[float, float]]] = {}
    for end in ended:
        held += table.demands[end.batch.variant].memory_bytes * (end.at - end.placed)
        running.setdefault(end.gpu, []).append((end.started, end.at))
    busy = sum(_covered(spans) for spans in running.values())
    return Usage(busy / (gpus * seconds), held / (gpus * memory_bytes * seconds))


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def latencies(ended: Iterable[Ended], table: SlowdownTable, *, strict: bool, warm_up: float) -> Latencies:
    """Of all queries of a class whose batch was formed after ``warm_up``."""
    seconds: list[Floats] = []
    parts: list[Floats] = []
    for end in ended:
        batch = end.batch
        if batch.strict is not strict or batch.formed < warm_up:
            continue
        took = end.at - batch.arrivals
        least = table.demands[batch.variant].solo * batch.work
        served = end.at - end.started
        fixed = (end.placed - batch.formed, end.started - end.placed, least, end.alone - least, served - end.alone)
        rows = np.empty((took.size, len(PARTS)))
        rows[:, 0] = batch.formed - batch.arrivals
        rows[:, 1:] = fixed
        seconds.append(took)
        parts.append(rows)
    if not seconds:
        return Latencies(np.empty(0), np.empty((0, len(PARTS))))
    return Latencies(np.concatenate(seconds), np.vstack(parts))

"""One queue for all workers, first come, first served: what a variant is capable of, as model switching counts on it.

Each worker that is free takes up to ``limit`` queries of the one variant that the rule names at that moment. A pure
function of arrivals, rule and service times: no events but the starts of batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sluicegate.domain.events import Hosted


@dataclass(frozen=True, slots=True)
class Served:
    """What a rule serves with: ``variant`` by name, its ``accuracy`` (0..1), at most ``limit`` queries a batch."""

    variant: str
    accuracy: float
    limit: int


@dataclass(frozen=True, slots=True)
class CentralResult:
    """What a run of one queue came to. ``accuracy``: mean over queries on time (NaN if none); ``violation``: share of
    queries not answered in time."""

    queries: int
    on_time: int
    accuracy: float
    batches: int

    @property
    def violation(self) -> float:
        """1 - on time / all."""
        return 1.0 - self.on_time / self.queries if self.queries else 0.0


def serve_centrally(
    arrivals: NDArray[np.float64],
    *,
    slo: float,
    workers: int,
    rule: Callable[[float], Served],
    service: Callable[[str, int], float],
) -> CentralResult:
    """Serve ``arrivals`` (ascending seconds). ``rule``: of the time; ``service``: seconds of (variant, queries)."""
    times = arrivals.tolist()
    free = [0.0] * workers
    heapify(free)
    head = on_time = batches = 0
    gained = 0.0
    end = len(times)
    while head < end:
        start = max(free[0], times[head])
        served = rule(start)
        size = 1
        while size < served.limit and head + size < end and times[head + size] <= start:
            size += 1
        finish = start + service(served.variant, size)
        good = sum(1 for at in times[head : head + size] if finish - at <= slo)
        on_time += good
        gained += good * served.accuracy
        batches += 1
        head += size
        heapreplace(free, finish)
    return CentralResult(end, on_time, gained / on_time if on_time else float("nan"), batches)


def capable_loads(
    hosted: Sequence[Hosted],
    loads: Sequence[float],
    rng: Generator,
    *,
    slo: float,
    workers: int,
    service: Callable[[str, int], float],
    seconds: float,
    tolerated: float = 0.01,
) -> dict[str, float]:
    """The highest of ``loads`` (ascending) that each variant serves with fewer violations than ``tolerated``.

    ``service``: as for ``serve_centrally``; ``seconds``: of each trial. Found by bisection; 0 where it serves none so.
    """
    capable: dict[str, float] = {}
    for each in hosted:
        served = Served(each.variant, each.accuracy, max(1, each.curve.largest_within(slo / 2)))

        def copes(load: float, served: Served = served) -> bool:
            arrivals = poisson(np.array([load]), seconds, rng)
            result = serve_centrally(arrivals, slo=slo, workers=workers, rule=lambda _: served, service=service)
            return result.violation < tolerated

        low, high = 0, len(loads)  # it copes with loads[:low], not with loads[high:]
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if copes(loads[middle]) else (low, middle)
        capable[each.variant] = loads[low - 1] if low else 0.0
    return capable


def poisson(rates: NDArray[np.float64], step: float, rng: Generator) -> NDArray[np.float64]:
    """Arrivals, ascending, at each of ``rates`` for ``step`` seconds in turn."""
    pieces = [np.sort(rng.uniform(i * step, (i + 1) * step, rng.poisson(r * step))) for i, r in enumerate(rates)]
    return np.concatenate(pieces)

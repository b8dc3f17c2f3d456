"""Cost of a decision, per batching rule: an arrival, and a dispatch with about 100 queries queued.

    python bench/decisions.py

Affine latency (9 + b ms, batches to 41), SLO 100 ms. Each round fills the queue to 100 while a batch runs, then ends
it.
"""

import gc
import platform
from time import perf_counter

import numpy as np

from domain.actions import Run, StationAction
from domain.events import Arrived, Finished, Hosted, HostingChanged
from domain.profile import LatencyCurve
from domain.query import Query
from policies.batching.registry import BATCHING, batching
from policies.batching.station import Station

CURVE = LatencyCurve(tuple(0.009 + 0.001 * b for b in range(1, 42)))
SLO = 0.1
ROUNDS = 400
QUEUED = 100


def ran(actions: list[StationAction]) -> Run | None:
    return next((a for a in actions if isinstance(a, Run)), None)


def measure(rule: str) -> str:
    station = Station(batching(rule))
    station.handle(HostingChanged("app", (Hosted("v", 0.9, CURVE),), SLO), 0.0)
    arrivals: list[float] = []
    dispatches: list[float] = []
    now, served, spread = 0.0, 0, 0.06
    running: Run | None = None
    for _ in range(ROUNDS):
        while station.queued < QUEUED or running is None:
            now += spread / QUEUED
            event = Arrived(Query("", "app", now, now + SLO))
            started = perf_counter()
            actions = station.handle(event, now)
            arrivals.append(perf_counter() - started)
            running = ran(actions) or running
        started = perf_counter()
        actions = station.handle(Finished("app", "v", running.rows, 0.01), now)
        dispatches.append(perf_counter() - started)
        running = ran(actions)
        served += len(running.queries) if running else 0
    p50, p95 = 1e6 * np.percentile(dispatches, [50, 95])
    each = 1e6 * sum(dispatches) / max(1, served)
    return f"{rule:16} {1e6 * np.median(arrivals):8.2f} {p50:10.0f} {p95:8.0f} {each:10.1f}"


def main() -> int:
    print(platform.processor() or platform.machine())
    print(f"{'us':16} {'arrival':>8} {'dispatch':>10} {'p95':>8} {'per served':>10}")
    gc.disable()
    for rule in BATCHING:
        print(measure(rule))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Cost of a decision, per batching rule: an arrival, and a dispatch with about 100 queries queued; and of its log.

    python bench/decisions.py

Affine latency (9 + b ms, batches to 41), SLO 100 ms. Each round fills the queue to 100 while a batch runs, then ends
it. "by length": inputs vary in length, from an eighth to the whole, and so does latency. CPU time of this process.
"""

import gc
import platform
from time import process_time as clock

import numpy as np

from sluicegate.domain.actions import Run, StationAction
from sluicegate.domain.events import Arrived, Finished, Hosted, HostingChanged
from sluicegate.domain.models.profile import LatencyCurve, LengthCurves
from sluicegate.domain.query import Query
from sluicegate.policies.batching.registry import BATCHING, batching
from sluicegate.policies.serving.slice_scheduler import Station
from sluicegate.stages.runtime.decision_log import encode_step

CURVE = LatencyCurve(tuple(0.009 + 0.001 * b for b in range(1, 42)))
LONGEST = 80
BY_LENGTH = LatencyCurve(
    CURVE.seconds,
    LengthCurves(
        tuple(range(10, LONGEST + 1, 10)), tuple(tuple(s * n / 8 for s in CURVE.seconds) for n in range(1, 9))
    ),
)
SLO = 0.1
ROUNDS = 400
QUEUED = 100


def ran(actions: list[StationAction]) -> Run | None:
    return next((a for a in actions if isinstance(a, Run)), None)


def measure(rule: str, curve: LatencyCurve = CURVE) -> str:
    station = Station(batching(rule))
    station.handle(HostingChanged("app", (Hosted("v", 0.9, curve),), SLO), 0.0)
    lengths = np.random.default_rng(0).integers(10, LONGEST + 1, 1000).tolist() if curve.lengths else [0]
    arrived = 0
    arrivals: list[float] = []
    dispatches: list[float] = []
    now, served, spread = 0.0, 0, 0.06
    running: Run | None = None
    for _ in range(ROUNDS):
        while station.queued < QUEUED or running is None:
            now += spread / QUEUED
            event = Arrived(Query("", "app", now, now + SLO, length=lengths[arrived % len(lengths)]))
            arrived += 1
            started = clock()
            actions = station.handle(event, now)
            arrivals.append(clock() - started)
            running = ran(actions) or running
        started = clock()
        actions = station.handle(Finished("app", "v", running.rows, 0.01), now)
        dispatches.append(clock() - started)
        running = ran(actions)
        served += len(running.queries) if running else 0
    p50, p95 = 1e6 * np.percentile(dispatches, [50, 95])
    each = 1e6 * sum(dispatches) / max(1, served)
    name = f"{rule} by length" if curve.lengths else rule
    return f"{name:20} {1e6 * np.median(arrivals):8.2f} {p50:10.0f} {p95:8.0f} {each:10.1f}"


def of_log(queries: int) -> float:
    """Microseconds that a line takes."""
    queue = [Query(f"q{i}", "app", 0.1 * i, 0.1 * i + SLO) for i in range(queries)]
    decided = [Run("v", tuple(queue), queries)] if queries > 1 else []
    event = Arrived(queue[0])
    times = []
    for _ in range(ROUNDS):
        started = clock()
        encode_step(event, 0.1, decided)
        times.append(clock() - started)
    return 1e6 * float(np.median(times))


def main() -> int:
    print(platform.processor() or platform.machine())
    print(f"{'us':20} {'arrival':>8} {'dispatch':>10} {'p95':>8} {'per served':>10}")
    gc.disable()
    for rule in BATCHING:
        print(measure(rule))
        if getattr(BATCHING[rule], "counts_length", False):
            print(measure(rule, BY_LENGTH))
    print(f"{'line of the log':20} {of_log(1):8.2f} {of_log(41):10.0f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

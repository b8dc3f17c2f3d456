"""What one device (or slice) can serve: the largest throughput of a variant whose batches fit the latency budget.

Rules:
- The budget of a batch is half the SLO: a query that just missed a batch waits for it and then for its own. A device
  that is shared by k apps gives each SLO/(k + 1), since it may wait for the others too.
- ``best-batch`` takes the batch of largest throughput b / l(b) among all integer batches. Latency is linear between
  measured sizes, so b / l(b) is monotone there: only measured sizes and the last size within the budget on each segment
  need a look.
- A query of several rows is run whole: batches smaller than the app's largest query count only where no larger one
  fits, since their limit would shut such queries out.
- A slice that runs several batches at a time ends as many in the time of one, which its profile counts beside the
  others.
- ``largest-batch`` is the artifact's rule: the largest measured b of 1, 2, 4, 8 strictly below the budget, and whole
  queries a second. Larger batches are not always better, so it can waste capacity; it is kept for comparison.
"""

import math
from dataclasses import dataclass

from sluicegate.domain.models.profile import Profile, Quantile
from sluicegate.planner.problems.problem import Capacity

_ARTIFACT_BATCHES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Throughput:
    """The largest throughput within a latency. ``qps`` rows/s in batches of ``batch`` rows; (0, 0.0) where no batch
    fits."""

    batch: int
    qps: float


NONE = Throughput(0, 0.0)


def throughput(
    profile: Profile,
    budget: float,
    *,
    capacity: Capacity = "best-batch",
    quantile: Quantile = "median",
    factor: float = 1.0,
    rows: int = 1,
) -> Throughput:
    """Largest throughput of ``profile`` with batches of at most ``budget`` seconds.

    ``factor`` multiplies every latency (what measurements taught about a wrong profile). ``rows``: of the app's largest
    query.
    """
    found = _of_one(profile, budget, capacity, quantile, factor, rows)
    return found if profile.executors == 1 else Throughput(found.batch, profile.executors * found.qps)


def _of_one(
    profile: Profile, budget: float, capacity: Capacity, quantile: Quantile, factor: float, rows: int
) -> Throughput:
    known = [(p.batch, factor * (p.median if quantile == "median" else p.p95)) for p in profile.points]
    if capacity == "largest-batch":
        return _largest(known, budget)
    found = _best(known, budget, rows) if rows > 1 else NONE
    return found if found.batch else _best(known, budget)


def _largest(known: list[tuple[int, float]], budget: float) -> Throughput:
    fitting = [(b, s) for b, s in known if b in _ARTIFACT_BATCHES and s < budget]
    if not fitting:
        return NONE
    batch, seconds = fitting[-1]
    # The artifact divides milliseconds and floors: do the same, or its capacities differ in the last unit.
    qps = float(int(1000.0 * batch / (1000.0 * seconds)))
    return Throughput(batch, qps) if qps > 0 else NONE


def _best(known: list[tuple[int, float]], budget: float, least: int = 1) -> Throughput:
    """The best of all integer batches from ``least`` on, interpolated linearly."""
    batch, best = 0, 0.0
    for i, (b0, s0) in enumerate(known):
        candidates = [(b0, s0)]
        if i + 1 < len(known):
            candidates.append(_last_within(known[i], known[i + 1], budget))
            if b0 < least < known[i + 1][0]:
                b1, s1 = known[i + 1]
                candidates.append((least, s0 + (s1 - s0) * (least - b0) / (b1 - b0)))
        for b, s in candidates:
            if b >= least and s <= budget and b > best * s * (1.0 + 1e-12):
                batch, best = b, b / s
    return Throughput(batch, best) if batch else NONE


def _last_within(left: tuple[int, float], right: tuple[int, float], budget: float) -> tuple[int, float]:
    """Largest integer batch in [left, right) whose interpolated latency is within ``budget``."""
    (b0, s0), (b1, s1) = left, right
    top = b1 - 1
    if s1 > s0 and s1 > budget:
        top = min(top, b0 + math.floor((b1 - b0) * max(0.0, budget - s0) / (s1 - s0) + 1e-9))
    return top, s0 + (s1 - s0) * (top - b0) / (b1 - b0)

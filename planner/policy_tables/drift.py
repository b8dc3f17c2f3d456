"""Whether what is observed still fits what a table promises, and if not, why.

A promise is broken where the observation lies outside it by more than chance allows (one-sided, ``z`` standard errors).
Queries of a batch share their fate, so what is counted is batches. Reasons are looked for in what the table assumed:
load, regularity of arrivals, latency.
"""

import math
from dataclasses import dataclass

from scipy.special import betainc, ndtr

from sluicegate.domain.table import SelectionTable

_FEWEST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Of one worker, over a stretch of time. ``accuracy_sum``, ``accuracy_squares``: over queries on time.

    ``qps``: of the whole app; ``gap_variation``: squared coefficient of variation of gaps between the worker's queries;
    ``latency_ratio``: batch latencies over the profile's p95, their 95th percentile.
    """

    queries: int
    on_time: int
    accuracy_sum: float
    accuracy_squares: float
    qps: float
    gap_variation: float
    latency_ratio: float


@dataclass(frozen=True, slots=True)
class Alarm:
    """A promise that does not hold. ``promise``: accuracy or violation; ``reasons``: assumptions that do not hold, or
    that none was found broken."""

    promise: str
    expected: float
    observed: float
    reasons: tuple[str, ...]


def check(table: SelectionTable, observed: Observed, z: float = 3.0) -> tuple[Alarm, ...]:
    """The promises that ``observed`` breaks."""
    n = observed.queries
    if n == 0:
        return ()
    alarms: list[Alarm] = []
    violation = 1.0 - observed.on_time / n
    batch = max(table.expected.mean_batch, 1.0)
    if surprising((n - observed.on_time) / batch, n / batch, table.expected.violation, z):
        alarms.append(Alarm("violation", table.expected.violation, violation, _reasons(table, observed)))
    if observed.on_time > 1:
        mean = observed.accuracy_sum / observed.on_time
        variance = max(observed.accuracy_squares / observed.on_time - mean**2, 0.0)
        batches = max(observed.on_time / batch, 1.0)
        if mean + z * math.sqrt(variance / batches) < table.expected.accuracy:
            alarms.append(Alarm("accuracy", table.expected.accuracy, mean, _reasons(table, observed)))
    return tuple(alarms)


def surprising(hits: float, trials: float, rate: float, z: float) -> bool:
    """Whether so many hits or more at ``rate`` are rarer than a normal deviate above ``z``; fewer than 3 never are."""
    if hits < _FEWEST:
        return False
    return bool(betainc(hits, trials - hits + 1.0, rate) < ndtr(-z))


def _reasons(table: SelectionTable, observed: Observed) -> tuple[str, ...]:
    reasons: list[str] = []
    if observed.qps > 1.05 * table.qps:
        reasons.append(f"load {observed.qps:.4g} queries/s is above the table's {table.qps:.4g}")
    assumed = _gap_variation(table)
    if observed.gap_variation > 1.5 * assumed + 0.05:
        reasons.append(
            f"gaps vary by {observed.gap_variation:.3g} (squared), assumed {assumed:.3g}: bursts or misrouting"
        )
    if observed.latency_ratio > 1.05:
        reasons.append(f"latency is {observed.latency_ratio:.3g} times the profile's p95; profile again")
    return tuple(reasons) or ("load, arrivals and latency are as assumed; the profile's accuracy or shares may not be",)


def _gap_variation(table: SelectionTable) -> float:
    shape = float(table.assumptions.get("arrival_shape", 1.0))
    if table.assumptions.get("dispatch") == "random":
        return 1.0 / (shape * table.workers) + 1.0 - 1.0 / table.workers
    return table.share / shape

"""Whether the tables in force hold what they promise, from what workers counted; said when it changes.

Rules. Counts of all workers add up, a table at a time. Once a stretch of ``period`` seconds holds ``fewest`` queries of
a table it is judged, and a new stretch begins. A shelf of tables is adrift while any of its tables broke a promise in
its last stretch by more than chance allows; that is said at once, and every minute while it lasts. Tables of another
fingerprint than the one judged last were replaced, and count no more. ``z`` is stricter than for a single look: a
stretch is judged every few seconds, for months.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sluicegate.domain.actions import Announce
from sluicegate.domain.table import SelectionTable, TableObserved
from sluicegate.planner.policy_tables.drift import Alarm, Observed, check

_MOST_RATIOS = 20_000
_AGAIN = 60.0
"""Seconds after which a drift that lasts is told again."""


@dataclass(slots=True)
class _Stretch:
    began: float
    sums: TableObserved


class DriftWatch:
    """Compares running tables with their promises. ``tables``: (fingerprint, qps) -> table, kept up to date by the
    caller."""

    def __init__(
        self,
        tables: Mapping[tuple[str, float], SelectionTable],
        *,
        period: float,
        fewest: int = 200,
        z: float = 4.0,
    ) -> None:
        self._tables = tables
        self._period = period
        self._fewest = fewest
        self._z = z
        self._stretches: dict[tuple[str, str, float, str, float], _Stretch] = {}
        self._adrift: dict[tuple[str, str, float], set[tuple[str, float]]] = {}
        self._told: dict[tuple[str, str, float], float] = {}

    def handle(self, counted: Iterable[TableObserved], now: float) -> list[Announce]:
        """Fold in what a heartbeat told; what has to be said."""
        said: list[Announce] = []
        for o in counted:
            key = (o.app, o.worker_class, o.slo, o.fingerprint, o.qps)
            stretch = self._stretches.get(key)
            if stretch is None:
                self._stretches[key] = _Stretch(now, o)
            else:
                stretch.sums = _bounded(stretch.sums.plus(o))
        for key, stretch in list(self._stretches.items()):
            if now - stretch.began < self._period:
                continue
            if stretch.sums.queries >= self._fewest:
                said += self._judge(stretch.sums, now)
                del self._stretches[key]
            elif now - stretch.began > 30.0 * self._period:
                del self._stretches[key]  # hardly used
        return said

    def _judge(self, sums: TableObserved, now: float) -> list[Announce]:
        name = (sums.fingerprint, sums.qps)
        table = self._tables.get(name)
        if table is None:
            return []  # withdrawn meanwhile
        alarms = check(table, observed(sums), self._z)
        shelf = (sums.app, sums.worker_class, sums.slo)
        before = self._adrift.get(shelf, set())
        adrift = self._adrift[shelf] = {one for one in before if one[0] == sums.fingerprint}
        if not alarms:
            adrift.discard(name)
            if adrift or not before:
                return []
            return [Announce(_subject(shelf), "as_promised", "the selection tables hold what they promise again")]
        adrift.add(name)
        if before and now - self._told.get(shelf, -math.inf) < _AGAIN:
            return []
        self._told[shelf] = now
        promises = ",".join(a.promise for a in alarms)
        data: dict[str, float | str] = {"qps": sums.qps, "queries": float(sums.queries), "promises": promises}
        for a in alarms:
            data |= {f"expected_{a.promise}": a.expected, f"observed_{a.promise}": a.observed}
        return [Announce(_subject(shelf), "drift", describe(alarms), data)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Promises beside what came of them, over all tables by the queries that each served. Ratios 0..1.

    ``standard_error``: of the accuracy, a batch being one observation; ``violation_error``: of violations at the rate
    of bound and delays. ``delayed``: share of queries that came later than the tables assume, which none promised
    anything for.
    """

    queries: int
    expected_accuracy: float
    observed_accuracy: float
    standard_error: float
    expected_violation: float
    observed_violation: float
    violation_error: float
    delayed: float

    @property
    def accuracy_held(self) -> bool:
        """Within 3 standard errors."""
        return self.observed_accuracy >= self.expected_accuracy - 3.0 * self.standard_error

    @property
    def violation_held(self) -> bool:
        """The bound, what the hops took, and 3 standard errors."""
        return self.observed_violation <= self.expected_violation + self.delayed + 3.0 * self.violation_error


def held(counted: Iterable[TableObserved], tables: Mapping[tuple[str, float], SelectionTable]) -> Held | None:
    """Over all of ``counted`` whose table is known; None where no query was answered in time."""
    queries = on_time = delayed = 0
    gained = squares = batches = promised_accuracy = promised_violation = violations_by_chance = 0.0
    for o in counted:
        table = tables.get((o.fingerprint, o.qps))
        if table is None or not o.queries:
            continue
        expected = table.expected
        queries, on_time, delayed = queries + o.queries, on_time + o.on_time, delayed + o.delayed
        gained, squares = gained + o.accuracy_sum, squares + o.accuracy_squares
        batches += o.queries / max(expected.mean_batch, 1.0)
        promised_accuracy += o.on_time * expected.accuracy
        promised_violation += o.queries * expected.violation
        violations_by_chance += o.queries * max(expected.mean_batch, 1.0) * expected.violation
    if not on_time:
        return None
    mean = gained / on_time
    return Held(
        queries=queries,
        expected_accuracy=promised_accuracy / on_time,
        observed_accuracy=mean,
        standard_error=math.sqrt(max(0.0, squares / on_time - mean**2) / max(batches, 1.0)),
        expected_violation=promised_violation / queries,
        observed_violation=1.0 - on_time / queries,
        violation_error=math.sqrt(violations_by_chance + delayed) / queries,
        delayed=delayed / queries,
    )


def observed(sums: TableObserved) -> Observed:
    """What ``check`` asks for, from sums over workers."""
    mean = sums.gap_sum / sums.gaps if sums.gaps else 0.0
    variance = max(0.0, sums.gap_squares / sums.gaps - mean**2) if sums.gaps else 0.0
    ratios = sorted(sums.ratios)
    return Observed(
        queries=sums.queries,
        on_time=sums.on_time,
        accuracy_sum=sums.accuracy_sum,
        accuracy_squares=sums.accuracy_squares,
        qps=sums.arrivals / sums.seconds / sums.share if sums.seconds > 0.0 else 0.0,
        gap_variation=variance / mean**2 if mean > 0.0 else 0.0,
        latency_ratio=ratios[int(0.95 * (len(ratios) - 1))] if ratios else 0.0,
    )


def describe(alarms: Iterable[Alarm]) -> str:
    """One line: promises broken, then why."""
    alarms = tuple(alarms)
    broken = " and ".join(f"{a.promise} {a.observed:.4g} where {a.expected:.4g} was expected" for a in alarms)
    return f"{', '.join(a.promise for a in alarms)}: {broken}; {'; '.join(alarms[0].reasons)}"


def _subject(shelf: tuple[str, str, float]) -> str:
    app, worker_class, slo = shelf
    return f"tables:{app}/{worker_class}/{1e3 * slo:g}ms"


def _bounded(sums: TableObserved) -> TableObserved:
    if len(sums.ratios) <= _MOST_RATIOS:
        return sums
    return replace(sums, ratios=sums.ratios[::2])

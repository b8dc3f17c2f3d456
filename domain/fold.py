"""The metrics of DESIGN section 8: one pure fold over outcomes, for live runs and simulations alike.

Memory is flat in the number of outcomes: latencies go into a histogram of 1 % wide buckets, accuracy into 10-s windows
(one number pair a window and app).
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.query import Query

WINDOW = 10.0
"""Seconds of a window of max_accuracy_drop."""
_GROWTH = math.log(1.01)
_FLOOR = 1e-6
_EMPTY = (0, 0.0)
_NONE: Mapping[str, int] = {}


class LatencyHistogram:
    """Counts in buckets that grow by 1 %, from 1 microsecond. Quantiles are within 1 %."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: defaultdict[int, int] = defaultdict(int)

    def add(self, seconds: float) -> None:
        """Count one latency; below a microsecond is a microsecond."""
        self._counts[int(math.log(seconds / _FLOOR) / _GROWTH) if seconds > _FLOOR else 0] += 1

    @property
    def total(self) -> int:
        """Latencies counted."""
        return sum(self._counts.values())

    def buckets(self) -> list[tuple[float, int]]:
        """(seconds at the middle of the bucket, count), ascending."""
        return [(_FLOOR * math.exp((b + 0.5) * _GROWTH), n) for b, n in sorted(self._counts.items())]

    def quantile(self, q: float) -> float:
        """Seconds below which a share ``q`` (0..1) lies; NaN where nothing was counted."""
        total = self.total
        if not total:
            return math.nan
        rank = q * total
        seen = 0
        bucket = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                break
        return _FLOOR * math.exp((bucket + 0.5) * _GROWTH)


@dataclass(slots=True)
class _AppFold:
    on_time: int = 0
    accuracy_on_time: float = 0.0
    relative_on_time: float = 0.0
    answered: int = 0
    accuracy_answered: float = 0.0
    queries: int = 0
    variants: dict[str, int] = field(default_factory=dict)
    windows: dict[int, tuple[int, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Metrics of a run. Ratios in 0..1, NaN where undefined (no query, none answered).

    ``relative_accuracy``: like ``effective_accuracy``, each app's over that of its best variant, as planners plan.
    """

    queries: int
    answered_on_time: int
    late: int
    expired: int
    dropped: int
    rejected: int
    failed: int
    slo_attainment: float
    violation_ratio: float
    slo_compliance_strict: float
    effective_accuracy: float
    relative_accuracy: float
    accuracy_answered: float
    max_accuracy_drop: float
    goodput_qps: float
    p50_ms: float
    p99_ms: float
    duration_s: float
    variants_used: Mapping[str, Mapping[str, int]]
    per_app: Mapping[str, Mapping[str, float]]

    @property
    def right_in_time(self) -> float:
        """Of all queries, those to be expected right among those answered on time."""
        return self.effective_accuracy * self.slo_attainment if self.answered_on_time else self.slo_attainment

    @property
    def relative_right_in_time(self) -> float:
        """The same, each app's accuracy over that of its best variant."""
        return self.relative_accuracy * self.slo_attainment if self.answered_on_time else self.slo_attainment


class OutcomeFold:
    """The metrics of a stream of outcomes. ``add`` or ``count`` each outcome once, then ``summary``."""

    def __init__(self) -> None:
        self._kinds = dict.fromkeys(OutcomeKind, 0)
        self._late = 0
        self._strict = 0
        self._strict_on_time = 0
        self._apps: dict[str, _AppFold] = {}
        self._latency = LatencyHistogram()
        self._first = math.inf
        self._last = -math.inf

    def add(self, outcome: Outcome) -> None:
        """Fold one terminal outcome in."""
        variant, accuracy, best = outcome.variant or "", outcome.accuracy, outcome.best_accuracy
        self.count((outcome,), outcome.kind, outcome.at, variant, accuracy, best)

    def count(
        self,
        queries: Sequence[Query | Outcome],
        kind: OutcomeKind,
        at: float,
        variant: str,
        accuracy: float,
        best_accuracy: float,
    ) -> None:
        """Fold in that ``queries`` of one app ended together, as their outcomes have it. At least one."""
        self._kinds[kind] += len(queries)
        if at > self._last:
            self._last = at
        name = queries[0].app
        app = self._apps.get(name)
        if app is None:
            app = self._apps[name] = _AppFold()
        app.queries += len(queries)
        answered = kind is OutcomeKind.ANSWERED
        relative = accuracy / (best_accuracy or 1.0)
        add_latency = self._latency.add
        for query in queries:
            arrival = query.arrival
            if arrival < self._first:
                self._first = arrival
            strict = query.query_class is QueryClass.STRICT
            if strict:
                self._strict += 1
            if not answered:
                continue
            add_latency(at - arrival)
            app.answered += 1
            app.accuracy_answered += accuracy
            if at > query.deadline:
                self._late += 1
                continue
            app.on_time += 1
            app.accuracy_on_time += accuracy
            if strict:
                self._strict_on_time += 1
            app.variants[variant] = app.variants.get(variant, 0) + 1
            app.relative_on_time += relative
            window = int(arrival // WINDOW)
            count, total = app.windows.get(window, _EMPTY)
            app.windows[window] = (count + 1, total + relative)

    @property
    def latency(self) -> LatencyHistogram:
        """Latencies of all answers, late ones included."""
        return self._latency

    def summary(self, duration: float | None = None, *, lost: Mapping[str, int] = _NONE) -> Summary:
        """Metrics so far. ``duration``: seconds that rates are over (default: first arrival to last outcome).

        ``lost``: queries without an outcome, by app: not answered within their SLO either. Of which class they were,
        nobody knows.
        """
        apps = {name: self._apps.get(name) or _AppFold() for name in sorted({*self._apps, *lost})}
        queries = sum(self._kinds.values()) + sum(lost.values())
        on_time = sum(a.on_time for a in self._apps.values())
        answered = self._kinds[OutcomeKind.ANSWERED]
        span = duration if duration is not None else max(self._last - self._first, 0.0)
        return Summary(
            queries=queries,
            answered_on_time=on_time,
            late=self._late,
            expired=self._kinds[OutcomeKind.EXPIRED],
            dropped=self._kinds[OutcomeKind.DROPPED],
            rejected=self._kinds[OutcomeKind.REJECTED],
            failed=self._kinds[OutcomeKind.FAILED],
            slo_attainment=_ratio(on_time, queries),
            violation_ratio=1.0 - _ratio(on_time, queries),
            slo_compliance_strict=_ratio(self._strict_on_time, self._strict),
            effective_accuracy=_ratio(sum(a.accuracy_on_time for a in self._apps.values()), on_time),
            relative_accuracy=_ratio(sum(a.relative_on_time for a in self._apps.values()), on_time),
            accuracy_answered=_ratio(sum(a.accuracy_answered for a in self._apps.values()), answered),
            max_accuracy_drop=self._max_drop(),
            goodput_qps=_ratio(on_time, span),
            p50_ms=1e3 * self._latency.quantile(0.50),
            p99_ms=1e3 * self._latency.quantile(0.99),
            duration_s=span,
            variants_used={name: dict(sorted(a.variants.items())) for name, a in sorted(self._apps.items())},
            per_app={
                name: {
                    "queries": a.queries + lost.get(name, 0),
                    "slo_attainment": _ratio(a.on_time, a.queries + lost.get(name, 0)),
                    "effective_accuracy": _ratio(a.accuracy_on_time, a.on_time),
                    "relative_accuracy": _ratio(a.relative_on_time, a.on_time),
                }
                for name, a in apps.items()
            },
        )

    def _max_drop(self) -> float:
        """1 - the worst window's accuracy, over all apps together, each normalised by its best variant."""
        windows: dict[int, tuple[int, float]] = {}
        for app in self._apps.values():
            for window, (count, total) in app.windows.items():
                n, s = windows.get(window, (0, 0.0))
                windows[window] = (n + count, s + total)
        return max((1.0 - s / n for n, s in windows.values()), default=math.nan)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan

"""Whether the tables in force hold what they promise, from what workers counted; said when it changes.

Rules. Counts of all workers add up, a table at a time. Once a stretch of ``period`` seconds holds ``fewest`` queries of
a table it is judged, and a new stretch begins. A shelf of tables is adrift from the first stretch that breaks a promise
by more than chance allows until a stretch in which none does. ``z`` is stricter than for a single look: a stretch is
judged every few seconds, for months.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from domain.actions import Announce
from domain.table import SelectionTable, TableObserved
from planner.selection.drift import Alarm, Observed, check

_MOST_RATIOS = 20_000


@dataclass(slots=True)
class _Stretch:
    began: float
    sums: TableObserved


class DriftWatch:
    """``tables``: (fingerprint, qps) -> table, kept up to date by the caller."""

    def __init__(
        self,
        tables: Mapping[tuple[str, float], SelectionTable],
        *,
        period: float = 10.0,
        fewest: int = 200,
        z: float = 4.0,
    ) -> None:
        self._tables = tables
        self._period = period
        self._fewest = fewest
        self._z = z
        self._stretches: dict[tuple[str, str, float, str, float], _Stretch] = {}
        self._adrift: dict[tuple[str, str, float], str] = {}

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
                said += self._judge(stretch.sums)
                del self._stretches[key]
            elif now - stretch.began > 30.0 * self._period:
                del self._stretches[key]  # hardly used
        return said

    def _judge(self, sums: TableObserved) -> list[Announce]:
        table = self._tables.get((sums.fingerprint, sums.qps))
        if table is None:
            return []  # withdrawn meanwhile
        alarms = check(table, observed(sums), self._z)
        shelf = (sums.app, sums.worker_class, sums.slo)
        was = self._adrift.get(shelf)
        if not alarms:
            if was is None:
                return []
            del self._adrift[shelf]
            return [Announce(_subject(shelf), "as_promised", "the selection tables hold what they promise again")]
        detail = describe(alarms)
        self._adrift[shelf] = detail
        kinds = ",".join(a.promise for a in alarms)
        if was is not None and was.split(":")[0] == detail.split(":")[0]:
            return []
        data: dict[str, float | str] = {"qps": sums.qps, "queries": float(sums.queries), "promises": kinds}
        for a in alarms:
            data |= {f"expected_{a.promise}": a.expected, f"observed_{a.promise}": a.observed}
        return [Announce(_subject(shelf), "drift", detail, data)]


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

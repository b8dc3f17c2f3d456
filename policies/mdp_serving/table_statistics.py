"""Counting what became of queries while a table was in force: sums that add up over workers and time.

Rules. Counts go to the table in force when they are made; what happens while none is, is not counted: nothing was
promised. A query counts once, when its batch ends or when it is given up. Gaps between arrivals are told with every
table: what comes in a burst and the lull after it fall to different ones.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from sluicegate.domain.actions import Run
from sluicegate.domain.events import Hosted
from sluicegate.domain.query import Query
from sluicegate.domain.table import SelectionTable, TableObserved

_MOST_RATIOS = 64
_MOST_GAPS = 4096


@dataclass(slots=True)
class _Sums:
    table: SelectionTable
    seconds: float = 0.0
    arrivals: int = 0
    queries: int = 0
    on_time: int = 0
    accuracy_sum: float = 0.0
    accuracy_squares: float = 0.0
    delayed: int = 0
    ratios: list[float] = field(default_factory=list)


class Observing:
    """Statistics of a table in force. ``under`` says which table is in force; ``take`` gives the sums and starts anew.
    ``began``: of the last batch.

    ``guard``: seconds allowed around an execution.
    """

    __slots__ = ("_gaps", "_guard", "_last", "_now", "_since", "_sums", "began")

    def __init__(self, guard: float) -> None:
        self._guard = guard
        self._sums: dict[tuple[str, float], _Sums] = {}
        self._now: _Sums | None = None
        self._since = 0.0
        self._last: float | None = None
        self._gaps: deque[float] = deque(maxlen=_MOST_GAPS)
        self.began = 0.0

    def under(self, table: SelectionTable | None, now: float) -> None:
        """From now on ``table`` is in force, or none."""
        self._close(now)
        if table is None:
            self._now = None
            return
        self._now = self._sums.setdefault((table.fingerprint, table.qps), _Sums(table))

    def arrived(self, query: Query, now: float) -> None:
        """A query came."""
        if self._last is not None:
            self._gaps.append(now - self._last)
        self._last = now
        if self._now is None:
            return
        self._now.arrivals += query.rows
        if query.deadline - now < self._now.table.slo + self._guard:
            self._now.delayed += query.rows

    def finished(self, run: Run, hosted: Hosted, now: float) -> None:
        """A batch ended."""
        sums = self._now
        if sums is None:
            return
        on_time = sum(q.rows for q in run.queries if now <= q.deadline)
        sums.queries += run.rows
        sums.on_time += on_time
        sums.accuracy_sum += on_time * hosted.accuracy
        sums.accuracy_squares += on_time * hosted.accuracy**2
        seconds, took = hosted.curve.seconds, now - self.began - self._guard
        # An app that was registered again may be hosted for smaller batches than the one that ran.
        if run.rows <= len(seconds) and len(sums.ratios) < _MOST_RATIOS:
            sums.ratios.append(max(took, 0.0) / seconds[run.rows - 1])

    def missed(self, rows: int) -> None:
        """A query was given up or expired."""
        if self._now is not None:
            self._now.queries += rows

    def take(self, now: float) -> tuple[TableObserved, ...]:
        """Of every table that was in force since the last call."""
        self._close(now)
        told = tuple(_told(s, self._gaps) for s in self._sums.values() if s.seconds > 0.0 or s.queries)
        self._sums = {}
        self._gaps.clear()
        if self._now is not None:
            self.under(self._now.table, now)
        return told

    def _close(self, now: float) -> None:
        if self._now is not None:
            self._now.seconds += max(0.0, now - self._since)
        self._since = now


def _told(s: _Sums, gaps: Collection[float]) -> TableObserved:
    t = s.table
    return TableObserved(
        app=t.app,
        worker_class=t.worker_class,
        slo=t.slo_class,
        fingerprint=t.fingerprint,
        qps=t.qps,
        share=t.share,
        seconds=s.seconds,
        arrivals=s.arrivals,
        queries=s.queries,
        on_time=s.on_time,
        accuracy_sum=s.accuracy_sum,
        accuracy_squares=s.accuracy_squares,
        delayed=s.delayed,
        gaps=len(gaps),
        gap_sum=sum(gaps),
        gap_squares=sum(g * g for g in gaps),
        ratios=tuple(s.ratios),
    )

"""Counting what became of queries while a table was in force: sums that add up over workers and time.

Rules. Counts go to the table in force when they are made; what happens while none is, is not counted: nothing was
promised. A query counts once, when its batch ends or when it is given up.
"""

from dataclasses import dataclass, field

from domain.actions import Run
from domain.events import Hosted
from domain.table import SelectionTable, TableObserved

_MOST_RATIOS = 64


@dataclass(slots=True)
class _Sums:
    table: SelectionTable
    seconds: float = 0.0
    arrivals: int = 0
    queries: int = 0
    on_time: int = 0
    accuracy_sum: float = 0.0
    accuracy_squares: float = 0.0
    gaps: int = 0
    gap_sum: float = 0.0
    gap_squares: float = 0.0
    ratios: list[float] = field(default_factory=list)


class Observing:
    """``under`` says which table is in force; ``take`` gives the sums and starts anew. ``began``: of the last batch."""

    __slots__ = ("_last", "_now", "_since", "_sums", "began")

    def __init__(self) -> None:
        self._sums: dict[tuple[str, float], _Sums] = {}
        self._now: _Sums | None = None
        self._since = 0.0
        self._last: float | None = None
        self.began = 0.0

    def under(self, table: SelectionTable | None, now: float) -> None:
        """From now on ``table`` is in force, or none."""
        self._close(now)
        if table is None:
            self._now = None
            return
        self._now = self._sums.setdefault((table.fingerprint, table.qps), _Sums(table))

    def arrived(self, rows: int, now: float) -> None:
        """A query came."""
        last, self._last = self._last, now
        if self._now is None:
            return
        self._now.arrivals += rows
        if last is not None:
            self._now.gaps += 1
            self._now.gap_sum += now - last
            self._now.gap_squares += (now - last) ** 2

    def finished(self, run: Run, hosted: Hosted, now: float, guard: float) -> None:
        """A batch ended; what happens around it is allowed ``guard`` seconds."""
        sums = self._now
        if sums is None:
            return
        on_time = sum(q.rows for q in run.queries if now <= q.deadline)
        sums.queries += run.rows
        sums.on_time += on_time
        sums.accuracy_sum += on_time * hosted.accuracy
        sums.accuracy_squares += on_time * hosted.accuracy**2
        if len(sums.ratios) < _MOST_RATIOS:
            sums.ratios.append(max(now - self.began - guard, 0.0) / hosted.curve.seconds[run.rows - 1])

    def missed(self, rows: int) -> None:
        """A query was given up or expired."""
        if self._now is not None:
            self._now.queries += rows

    def take(self, now: float) -> tuple[TableObserved, ...]:
        """Of every table that was in force since the last call."""
        self._close(now)
        told = tuple(_told(s) for s in self._sums.values() if s.seconds > 0.0 or s.queries)
        self._sums = {}
        if self._now is not None:
            self.under(self._now.table, now)
        return told

    def _close(self, now: float) -> None:
        if self._now is not None:
            self._now.seconds += max(0.0, now - self._since)
        self._since = now


def _told(s: _Sums) -> TableObserved:
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
        gaps=s.gaps,
        gap_sum=s.gap_sum,
        gap_squares=s.gap_squares,
        ratios=tuple(s.ratios),
    )

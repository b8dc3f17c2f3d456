"""Demand by half seconds: what a table of windows holds, what is published of it, and how a reader gets counts back.

Rules.
- A count belongs to the half second in which the middle of its time lies, as in the estimator of demand. A window is a
  second with two halves, since Faust's windows are whole seconds.
- A window remembers the offset up to which it has counted. All counts of an app come from one partition, in order, so
  that a record which is read again after a crash changes nothing: table and offset are one record of the changelog.
- What is published is totals, not changes: the newest record of an app holds its last ``KEPT`` seconds, so that a topic
  compacted by app is enough to start from, and a record that is read twice counts once.
- A reader turns totals into what was not counted before, with the age of each half second.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from sluicegate.domain.events import DemandCounted
from sluicegate.streams.records.bounds import Reader

HALF = 0.5
KEPT = 5
"""Seconds of an app in each record."""
STALE = 60.0
"""Seconds after which a count is of no use: nothing older is counted, and tables forget it."""

Window = dict[str, Any]
"""``through``: offset; ``rows``: of both halves; ``classes``: of both, pairs of SLO (seconds) and rows."""


@dataclass(frozen=True, slots=True)
class HalfSecond:
    """A count of half a second. ``rows`` came in the half second from ``start`` (wall seconds); ``classes``: the same
    by SLO class."""

    start: float
    rows: int
    classes: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class DemandWindows:
    """The newest half seconds of an app, totals. ``at``: wall seconds, end of the newest count."""

    app: str
    halves: tuple[HalfSecond, ...]
    at: float


_windows: Reader[DemandWindows] = Reader(DemandWindows)


def half_of(at: float, window: float) -> int:
    """Number of the half second of a count over the ``window`` seconds that ended ``at``."""
    return math.floor((at - window / 2) / HALF)


def folded(held: Window, offset: int, half: int, counted: DemandCounted) -> Window | None:
    """``held`` ({} where nothing is) with a count of its half second number ``half``; None if it was counted before."""
    if offset <= held.get("through", -1):
        return None
    rows = list(held.get("rows", (0, 0)))
    classes = [dict(map(tuple, one)) for one in held.get("classes", ((), ()))]
    rows[half % 2] += counted.count
    for slo, count in counted.classes:
        classes[half % 2][slo] = classes[half % 2].get(slo, 0) + count
    return {"through": offset, "rows": rows, "classes": [sorted(map(list, one.items())) for one in classes]}


def encode_windows(app: str, seconds: Mapping[int, Window], at: float) -> bytes:
    """For the topic of demand windows, keyed by app. ``seconds``: windows by the second they begin."""
    halves = [
        {"start": second + HALF * i, "rows": rows, "classes": classes}
        for second, held in sorted(seconds.items())
        for i, (rows, classes) in enumerate(zip(held["rows"], held["classes"], strict=True))
    ]
    return orjson.dumps({"app": app, "halves": halves, "at": at})


def decode_windows(value: bytes) -> DemandWindows:
    """From the topic of demand windows. Raises InvalidInputError."""
    return _windows.json("windows", value)


class WindowReader:
    """Totals in, counts out. Keeps what it has given of each half second, as long as that matters."""

    def __init__(self) -> None:
        self._given: dict[str, dict[float, HalfSecond]] = {}

    def read(self, windows: DemandWindows, now: float) -> list[DemandCounted]:
        """What of ``windows`` was not given before, oldest first. Half seconds too old to matter are left out."""
        given = self._given.setdefault(windows.app, {})
        for old in [start for start in given if start < now - 2 * STALE]:
            del given[old]
        counts = []
        for half in sorted(windows.halves, key=lambda h: h.start):
            before = given.get(half.start, HalfSecond(half.start, 0))
            if half.rows <= before.rows or half.start < now - STALE:
                continue
            given[half.start] = half
            # Of a clock that goes fast, a half second of the future counts as the present one.
            age = max(now - half.start - HALF, -HALF)
            classes = tuple(_more(half.classes, before.classes))
            counts.append(DemandCounted(windows.app, half.rows - before.rows, HALF, classes, age))
        return counts


def _more(now: Iterable[tuple[float, int]], before: Iterable[tuple[float, int]]) -> Iterable[tuple[float, int]]:
    known = dict(before)
    for slo, rows in now:
        if rows > known.get(slo, 0):
            yield slo, rows - known.get(slo, 0)

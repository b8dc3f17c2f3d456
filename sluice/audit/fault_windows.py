"""Fault windows: stretches of time in which something was broken, and what the audit found of each.

Rules. A query belongs to a window by the time of its record on the query topic, a broken promise by its last miss.
Windows may overlap: what lies in several counts in each. Windows come from a file, or from what the planner said of
devices on the status topic: from ``MARGIN`` before one was missed until as long after it was back.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.query import QueryKey

MARGIN = 5.0
"""Seconds: a device is missed some time after it fell silent, and queues are worked off after it is back."""

_MOST = 100_000
_YEAR_10000 = 253_402_300_800.0
_GONE, _BACK = {"lost"}, {"joined", "returned", "restarted"}
_REMEDY = 'give a list such as [{"name": "kill d1", "began": 1750000000.0, "ended": "2025-06-15T16:00:00+00:00"}]'


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultWindow:
    """A stretch of time in which something was broken. ``began`` and ``ended``: wall clock, seconds since 1970."""

    name: str
    began: float
    ended: float

    def holds(self, at: float) -> bool:
        """Whether ``at`` lies in it."""
        return self.began <= at <= self.ended


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReport:
    """What went wrong with the queries of one window. ``promises_broken``: announced or not."""

    name: str
    began: float
    ended: float
    queries: int
    lost: int
    duplicates: int
    late_unmarked: int
    promises_broken: int
    promises_unannounced: int = 0


def report_by_window(
    windows: Sequence[FaultWindow],
    asked: Mapping[QueryKey, float],
    *,
    lost: Iterable[QueryKey],
    duplicates: Mapping[QueryKey, int],
    late_unmarked: Iterable[QueryKey],
    broken_at: Iterable[float],
    unannounced_at: Iterable[float],
) -> tuple[WindowReport, ...]:
    """``asked``: query -> time of its record; ``duplicates``: query -> outcomes beyond the first."""
    times = sorted(asked.values())
    lost_at = [asked[key] for key in lost if key in asked]
    late_at = [asked[key] for key in late_unmarked if key in asked]
    copies_at = [(asked[key], n) for key, n in duplicates.items() if key in asked]
    broken, silent = list(broken_at), list(unannounced_at)
    return tuple(
        WindowReport(
            name=window.name,
            began=window.began,
            ended=window.ended,
            queries=bisect_right(times, window.ended) - bisect_left(times, window.began),
            lost=sum(map(window.holds, lost_at)),
            duplicates=sum(n for at, n in copies_at if window.holds(at)),
            late_unmarked=sum(map(window.holds, late_at)),
            promises_broken=sum(map(window.holds, broken)),
            promises_unannounced=sum(map(window.holds, silent)),
        )
        for window in windows
    )


def read_windows(file: Path) -> tuple[FaultWindow, ...]:
    """Windows of a JSON file, by their beginning. Raises ConfigurationError in one line."""
    try:
        listed = orjson.loads(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"windows {file}: {error.strerror}; {_REMEDY}") from error
    except orjson.JSONDecodeError as error:
        raise ConfigurationError(f"windows {file}: not JSON ({error}); {_REMEDY}") from error
    if not isinstance(listed, list) or len(listed) > _MOST:
        raise ConfigurationError(f"windows {file}: not a list of at most {_MOST}; {_REMEDY}")
    windows = (_window(entry, f"windows {file}: entry {number}") for number, entry in enumerate(listed))
    return tuple(sorted(windows, key=lambda w: (w.began, w.name)))


def _window(entry: Any, where: str) -> FaultWindow:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ConfigurationError(f"{where} has no name; {_REMEDY}")
    began, ended = (_moment(entry.get(name), f"{where}: {name}") for name in ("began", "ended"))
    if ended < began:
        raise ConfigurationError(f"{where}: ended lies before began; swap them")
    return FaultWindow(name=entry["name"], began=began, ended=ended)


def _moment(value: Any, where: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value < _YEAR_10000:
            raise ConfigurationError(
                f"{where} is {value!r}, past the year 9999 or before 1970; give seconds, not milliseconds"
            )
        return float(value)
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{where} is {value!r}, neither seconds since 1970 nor a date and time") from error
    if moment.tzinfo is None:
        raise ConfigurationError(f"{where} is {value!r}, without a time zone; add one, such as +00:00")
    return moment.timestamp()


class DevicesMissed:
    """A fold over the status topic: when the planner missed which device. The topic is compacted: of older times only
    the last word on each device may be left."""

    def __init__(self) -> None:
        self._gone: dict[str, float] = {}
        self._windows: list[FaultWindow] = []

    def add(self, said: Announce, at: float) -> None:
        """A record appended ``at``."""
        if not said.subject.startswith("device:"):
            return
        if said.state in _GONE:
            self._gone.setdefault(said.subject, at)
        elif said.state in _BACK and said.subject in self._gone:
            self._windows.append(_missed(said.subject, self._gone.pop(said.subject), at))

    def windows(self, until: float) -> tuple[FaultWindow, ...]:
        """By their beginning; those of devices that stayed away last until ``until``."""
        away = [_missed(subject, since, max(since, until)) for subject, since in self._gone.items()]
        return tuple(sorted([*self._windows, *away], key=lambda w: (w.began, w.name)))


def _missed(subject: str, since: float, until: float) -> FaultWindow:
    return FaultWindow(name=f"{subject.removeprefix('device:')} missed", began=since - MARGIN, ended=until + MARGIN)

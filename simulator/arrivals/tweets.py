"""The archived Twitter stream as a trace: tweets as JSON lines (.json, .bz2, .gz, or a folder), counted per second.

Streaming: only the counts are kept. Deletion notices and other stream messages are not tweets and are skipped; broken
lines and tweets out of place (a day or more away from those around them) are skipped, and it is told how many.
"""

import logging
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from sluicegate.domain.errors import InvalidInputError
from sluicegate.simulator.arrivals.rates import Rates
from sluicegate.simulator.arrivals.trace_files import lines

log = logging.getLogger(__name__)

_DAY = 86_400
_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: i for i, name in enumerate(_NAMES, start=1)}
_SUFFIXES = (".json", ".jsonl", ".bz2", ".gz")


def tweet_files(path: Path) -> tuple[Path, ...]:
    """``path`` itself, or every tweet file below it in name order. Raises InvalidInputError where there is none."""
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise InvalidInputError("trace", f"{path} does not exist; give a file of tweets or a folder of them")
    found = tuple(sorted(f for f in path.rglob("*") if f.is_file() and f.name.endswith(_SUFFIXES)))
    if not found:
        raise InvalidInputError("trace", f"{path} holds no tweets; expected .json, .json.bz2 or .json.gz files")
    return found


def read_tweets(files: Iterable[Path]) -> Rates:
    """Tweets per second from the first to the last. Raises InvalidInputError where no tweet can be understood.

    What was read last is kept, for the runs that compare something on the same arrivals.
    """
    return _read(tuple((path, path.stat().st_mtime_ns if path.exists() else 0) for path in files))


@lru_cache(maxsize=1)
def _read(files: tuple[tuple[Path, int], ...]) -> Rates:
    counts: dict[int, int] = {}
    broken = 0
    names = []
    first = last = 0
    for path, _ in files:
        names.append(str(path))
        for _, content in lines(path):
            if content == b"":
                continue
            second = _second(content)
            if second is None:
                continue
            if second == 0 or (counts and not first - _DAY < second < last + _DAY):
                broken += 1
                continue
            first, last = (min(first, second), max(last, second)) if counts else (second, second)
            counts[second] = counts.get(second, 0) + 1
    tweets = sum(counts.values())
    if tweets <= broken:
        where = ", ".join(names[:3])
        raise InvalidInputError(
            "trace", f"{where}: {tweets} tweets understood, {broken} lines broken; give tweets as JSON lines"
        )
    qps = np.zeros(last - first + 1)
    for second, count in counts.items():
        qps[second - first] = count
    if broken:
        log.warning("trace %s: broken lines skipped: %d; tweets read: %d", ", ".join(names[:3]), broken, tweets)
    return Rates.stepped(qps, 1.0)


def _second(content: bytes | None) -> int | None:
    """Second since the epoch of a tweet; 0 for a broken line, None for a stream message that is no tweet."""
    if content is None:
        return 0
    try:
        message: Any = orjson.loads(content)
    except orjson.JSONDecodeError:
        return 0
    if not isinstance(message, dict):
        return 0
    if "created_at" not in message and "timestamp_ms" not in message:
        return None if "id" not in message and message else 0
    try:
        if "timestamp_ms" in message:
            return int(message["timestamp_ms"]) // 1000
        return _parsed(message["created_at"])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return 0


def _parsed(created_at: str) -> int:
    """Seconds since the epoch of ``Wed Apr 25 00:00:01 +0000 2018`` (always UTC in the stream)."""
    _, month, day, clock, _, year = created_at.split()
    hours, minutes, seconds = clock.split(":")
    days = _days_from_civil(int(year), _MONTHS[month], int(day))
    return days * _DAY + int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def _days_from_civil(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 in the Gregorian calendar (Hinnant, chrono-compatible date algorithms)."""
    if not (1 <= day <= 31 and 2006 <= year <= 9999):
        raise ValueError("no tweet is of that day")
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468

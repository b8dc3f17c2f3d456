"""Logging of the command line: in the terminal's colours, elsewhere plain lines, for machines one JSON object a line.

Rules.
- Where there is no terminal nothing is broken into several lines: what reads a log looks for words in lines.
- A JSON line has ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``message``, and ``error`` with the traceback where
  there is one; lines about queries have ``query_ids``, lines about a record ``record`` (topic/partition/offset).
- What the Kafka client retries by itself, and mends, while topics and groups are made is not shown, unless asked for.
- Of lines of one kind (logger and template) at most ``_LINES`` in ``_WINDOW`` seconds are shown, and how many there
  were besides: whoever sends what is wrong fills no disk. Not so where everything is asked for.
- No setting is ever logged whole: secrets stay where they are.
"""

import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

import orjson
from rich.logging import RichHandler
from typing_extensions import override

from sluicegate.sluice.console import err, visible

_PASSING = ("GroupCoordinatorNotAvailable", "NotLeaderForPartition", "Marking the coordinator dead", "Heartbeat failed")
_ABOUT = ("query_ids", "record")
_LINES = 20
_WINDOW = 10.0
_KINDS = 1000
"""Kinds of lines told apart; where there are more, all are counted anew."""


class _Passing(logging.Filter):
    """Hides what the Kafka client retries by itself, and mends, while a group or topic is new."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to show it."""
        return not any(word in record.getMessage() for word in _PASSING)


class Bounded(logging.Filter):
    """Shows the first lines of a kind in each window of time. ``clock``: seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}  # since when, and how many since

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to show it; the first of a window tells how many of the one before were not."""
        now = self._clock()
        kind = (record.name, str(record.msg))
        begun, count = self._kinds.get(kind, (now, 0))
        untold = 0
        if now - begun >= _WINDOW:
            untold, begun, count = max(0, count - _LINES), now, 0
        if len(self._kinds) >= _KINDS:
            self._kinds.clear()
        self._kinds[kind] = (begun, count + 1)
        if untold:
            record.msg, record.args = f"{record.getMessage()} (and {untold} more like it)", ()
        return count < _LINES


class JsonFormatter(logging.Formatter):
    """One object a line; newlines in messages are escaped, so that nobody can forge a line."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        told |= {name: getattr(record, name) for name in _ABOUT if hasattr(record, name)}
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return orjson.dumps(told, default=str).decode()


class PlainFormatter(logging.Formatter):
    """Time, level and message in one line, whatever is in it; a traceback in lines of its own below it."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        """The lines, without the last one's end."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(sep=" ", timespec="milliseconds")
        told = f"{at} {record.levelname:7} {visible(record.getMessage())}"
        return f"{told}\n{self.formatException(record.exc_info)}" if record.exc_info else told


class _TerminalFormatter(logging.Formatter):
    """The message alone, for a handler that tells the rest."""

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        return visible(record.message)


class _ToStderr(logging.Handler):
    """Writes to what standard error is just now, as the console does."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:  # as every handler has it: a log that is full ends no process
            self.handleError(record)


def show_logs(*, verbose: bool = False, level: str = "warning", as_json: bool = False) -> None:
    """Log to standard error from ``level`` on, or everything worth knowing. A later call replaces an earlier one."""
    handler: logging.Handler
    if as_json:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter())
    elif err.is_terminal:
        handler = RichHandler(console=err, show_path=False)
        handler.setFormatter(_TerminalFormatter())
    else:
        handler = _ToStderr()
        handler.setFormatter(PlainFormatter())
    if not verbose:
        handler.addFilter(_Passing())
        handler.addFilter(Bounded())
    chosen = min(logging.INFO, logging.getLevelNamesMapping()[level.upper()]) if verbose else level.upper()
    logging.basicConfig(level=chosen, handlers=[handler], force=True)

"""Counts over time: CSV ``second,qps``, ``<second> <qps>``, or one count a line; a header line may come first."""

from pathlib import Path

import numpy as np

from sluicegate.domain.errors import InvalidInputError
from sluicegate.simulator.arrivals.rates import MAX_QPS, Rates
from sluicegate.simulator.arrivals.trace_files import lines, shown

MAX_LINES = 20_000_000
_BETWEEN = str.maketrans(",;\"'", "    ")


def read_counts(path: Path, *, step: float | None = None) -> Rates:
    """Rates of ``path``.

    Two columns: each rate holds until the next line's second, the last one as long as the one before (or ``step``).
    One column: each line holds for ``step`` seconds (default 1). Blank lines and lines that start with # are skipped.
    Raises InvalidInputError, naming file, line and content, for anything else.
    """
    rows: list[tuple[float, ...]] = []
    for number, content in lines(path):
        if content == b"" or (content is not None and content.startswith(b"#")):
            continue
        row = _numbers(content)
        if row is None and not rows and (words := _header(content)):
            if len(words) == 2 and words[1].startswith(("sec", "time")):
                raise _refused(path, number, content, "seconds come first, then queries per second")
            continue
        if row is None or not 1 <= len(row) <= 2 or (rows and len(row) != len(rows[0])):
            raise _refused(path, number, content, "give 'second,queries per second', or one count a line")
        if not 0.0 <= row[-1] <= MAX_QPS:
            raise _refused(path, number, content, f"a rate lies within 0..{MAX_QPS:g}")
        if len(row) == 2 and rows and row[0] <= rows[-1][0]:
            raise _refused(path, number, content, "seconds must increase from line to line")
        rows.append(row)
        if len(rows) > MAX_LINES:
            raise _refused(path, number, content, f"more than {MAX_LINES} lines")
    if not rows:
        raise InvalidInputError("trace", f"{path} holds no count; give 'second,queries per second' lines")
    values = np.array(rows, dtype=np.float64)
    if values.shape[1] == 1:
        return Rates.stepped(values[:, 0], step or 1.0)
    return _from_seconds(path, values[:, 0] - values[0, 0], values[:, 1], step)


def _from_seconds(path: Path, starts: np.ndarray, qps: np.ndarray, step: float | None) -> Rates:
    last = step or (starts[-1] - starts[-2] if starts.size > 1 else 1.0)
    if not np.isfinite(starts).all() or starts[-1] > 1e10 or not 0.0 < last < 1e10:
        raise InvalidInputError("trace", f"{path}: seconds must be finite and below 1e10")
    return Rates(np.append(starts, starts[-1] + last), qps)


def _numbers(content: bytes | None) -> tuple[float, ...] | None:
    if content is None:
        return None
    try:
        return tuple(float(word) for word in content.replace(b",", b" ").replace(b";", b" ").split())
    except ValueError:
        return None


def _header(content: bytes | None) -> list[str]:
    """Its words, such as ``second,qps``: letters first, and nothing unprintable; none where it is no header."""
    text = (content or b"").decode("utf-8", "replace").removeprefix("\ufeff")
    if not text.isprintable() or "\ufffd" in text or not text.lstrip("\"'")[:1].isalpha():
        return []
    return text.lower().translate(_BETWEEN).split()


def _refused(path: Path, number: int, content: bytes | None, remedy: str) -> InvalidInputError:
    return InvalidInputError("trace", f"{path} line {number} is {shown(content)}; {remedy}")

"""The load that a queue sees, from the arrivals of a short window.

The rate is that of the gaps between the arrivals in the window, which true round robin makes nearly even, or, once the
next one is overdue, of the time since the first: a lull is noticed at once.
"""

from collections import deque


class LoadWindow:
    """Rows a second over the last ``window`` seconds."""

    __slots__ = ("_arrivals", "_rows", "window")

    def __init__(self, window: float) -> None:
        self.window = window
        self._arrivals: deque[tuple[float, int]] = deque()
        self._rows = 0

    def add(self, now: float, rows: int) -> None:
        """``rows`` came at ``now``."""
        arrivals = self._arrivals
        while arrivals and arrivals[-1][0] > now:  # a clock may be set back
            self._rows -= arrivals.pop()[1]
        arrivals.append((now, rows))
        self._rows += rows
        self._forget(now)

    def rate(self, now: float) -> float:
        """Rows a second; 0 where none came in the window."""
        self._forget(now)
        arrivals = self._arrivals
        if not arrivals:
            return 0.0
        first, rows = arrivals[0]
        since = self._rows / max(now - first, self.window if len(arrivals) == 1 else 0.0, 1e-9)
        span = arrivals[-1][0] - first
        if span <= 0.0:
            return self._rows / self.window
        return min((self._rows - rows) / span, since)

    def _forget(self, now: float) -> None:
        arrivals = self._arrivals
        while arrivals and arrivals[0][0] < now - self.window:
            self._rows -= arrivals.popleft()[1]

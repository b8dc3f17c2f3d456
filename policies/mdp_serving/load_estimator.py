"""The load that a queue sees, from the arrivals of a short window.

The rate is that of the gaps between the arrivals in the window, which true round robin makes nearly even, or, once the
next one is overdue, of the time since the first: a lull is noticed at once.
"""

from sluicegate.policies.recent_arrivals import RecentArrivals


class LoadWindow:
    """Rows a second over the last ``window`` seconds."""

    __slots__ = ("_recent", "window")

    def __init__(self, window: float) -> None:
        self.window = window
        self._recent = RecentArrivals()

    def add(self, now: float, rows: int) -> None:
        """``rows`` came at ``now``."""
        self._recent.add(now, now - self.window, rows)

    def rate(self, now: float) -> float:
        """Rows a second; 0 where none came in the window."""
        recent = self._recent
        recent.forget(now - self.window)
        if not recent:
            return 0.0
        first, rows = recent.came[0]
        since = recent.rows / max(now - first, self.window if len(recent) == 1 else 0.0, 1e-9)
        span = recent.came[-1][0] - first
        if span <= 0.0:
            return recent.rows / self.window
        return min((recent.rows - rows) / span, since)

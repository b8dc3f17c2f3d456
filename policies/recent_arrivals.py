"""The arrivals of a sliding window. A clock may be set back: what came later than now is forgotten then."""

from collections import deque


class RecentArrivals:
    """When how many rows came, the oldest first. ``rows``: of all that is held."""

    __slots__ = ("came", "rows")

    def __init__(self) -> None:
        self.came: deque[tuple[float, int]] = deque()
        self.rows = 0

    def __len__(self) -> int:
        return len(self.came)

    def add(self, now: float, since: float, rows: int = 1) -> None:
        """``rows`` came at ``now``; what came before ``since`` is forgotten."""
        came = self.came
        while came and came[-1][0] > now:
            self.rows -= came.pop()[1]
        came.append((now, rows))
        self.rows += rows
        if came[0][0] < since:
            self.forget(since)

    def forget(self, since: float) -> None:
        """What came before ``since``."""
        came = self.came
        while came and came[0][0] < since:
            self.rows -= came.popleft()[1]

"""Admits at most X queries in any half-open window of S seconds: the premise of every sustainable rate.

A ring of the last X admission times decides exactly, in O(1). A token bucket with the same rate does not: it lets up to
2X pass in one window (a full bucket, then the refill).
"""

from math import inf


class WindowLimiter:
    """At most ``bound`` admissions in any window [t, t + window_s). ``bound`` 0 admits nothing."""

    __slots__ = ("_next", "_stamps", "bound", "window_s")

    def __init__(self, bound: int, window_s: float) -> None:
        self.bound = bound
        self.window_s = window_s
        self._stamps = [-inf] * bound
        self._next = 0

    def would_admit(self, now: float) -> bool:
        """Whether a query that comes at ``now`` fits."""
        return self.bound > 0 and now - self._stamps[self._next] >= self.window_s

    def admit(self, now: float) -> bool:
        """Count a query that comes at ``now`` (never earlier than the last one) where it fits; says whether it did."""
        if not self.would_admit(now):
            return False
        self._stamps[self._next] = now
        self._next = (self._next + 1) % self.bound
        return True

    def resized(self, bound: int, window_s: float) -> "WindowLimiter":
        """A limiter with other limits that remembers the admissions of this one.

        Where windows become longer, admissions that were forgotten count, as late as they can have been.
        """
        other = WindowLimiter(bound, window_s)
        if bound and self.bound:
            kept = sorted(self._stamps)[-bound:]
            forgotten = min(kept[0], kept[-1] - self.window_s)
            other._stamps = [forgotten] * (bound - len(kept)) + kept
        return other

"""Strict queries of an app with a promise, at a share of the bound that is announced for it at the time.

Rules. Never more than the bound in any window; over time ``share`` of it. Stretches of some windows each fall in bursts
of as many as a window bears, at even distances, at random, or all but one just before a window ends: what is worst for
a rule that serves them differs.
"""

from collections import deque
from dataclasses import dataclass
from math import inf, nextafter

from numpy.random import Generator

_KINDS = ("bursts", "even", "random", "edges")
_STRETCH = 20
"""Windows of one kind."""
_UNKNOWN = 0.1
"""Seconds between queries while no bound is announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromisedLoad:
    """Of ``app``: ``queries`` of ``rows`` rows (the least and the most) at ``share`` of its bound."""

    app: str
    queries: int
    rows: tuple[int, int]
    share: float


class PromisedArrivals:
    """One after the other. ``left``: how many are to come."""

    def __init__(self, load: PromisedLoad, rng: Generator) -> None:
        self.load = load
        self.left = load.queries
        self._rng = rng
        self._kind = "even"
        self._sent: deque[float] = deque()
        self._place = 0

    def rows(self) -> int:
        """Of the next query."""
        low, high = self.load.rows
        return low if low == high else int(self._rng.integers(low, high + 1))

    def after(self, now: float, bound: tuple[int, float] | None) -> float:
        """A query comes ``now``. When the next one does, where ``bound`` queries are borne in so many seconds."""
        self.left -= 1
        self._sent.append(now)
        if bound is None or not bound[0]:
            return now + _UNKNOWN
        most, window_s = bound
        self._place += 1
        if self._place % (_STRETCH * most) == 0:
            self._kind = _KINDS[int(self._rng.integers(len(_KINDS)))]
        while len(self._sent) > most:
            self._sent.popleft()
        earliest = now
        if len(self._sent) == most:
            earliest = self._sent[0] + window_s
            while earliest - self._sent[0] < window_s:  # the sum was rounded
                earliest = nextafter(earliest, inf)
        return max(earliest, now + self._gap(most, window_s / self.load.share))

    def _gap(self, most: int, window_s: float) -> float:
        """``most`` of them make up ``window_s`` seconds."""
        place = self._place % most
        match self._kind:
            case "bursts":
                return window_s if place == 0 else 0.0
            case "edges":
                return window_s * 0.999 if place == 1 % most else window_s * 0.001 if place == 0 else 0.0
            case "random":
                return float(self._rng.exponential(window_s / most))
            case _:
                return window_s / most

"""Queries seen of late, so that one asked twice is answered once.

An id is its app's and its source's: two of them may use the same. A record that is read again, by whoever could not
finish it, is no second asking: a query is known by where it was read.
"""

from collections import deque

_GENERATIONS = 8


class DedupeWindow:
    """Queries seen in the last ``seconds``, at most ``entries`` of them.

    They are forgotten a generation at a time, the oldest first: an eighth of the window is a table, dropped as a whole.
    So a query is remembered for ``seconds`` at least and an eighth longer at most, or until newer ones fill the window.
    Memory stays flat, where an entry forgotten for each that comes has one table grow and be copied for ever.
    """

    def __init__(self, seconds: float, entries: int) -> None:
        self._seconds = seconds
        self._span = seconds / _GENERATIONS
        self._share = max(1, entries // (_GENERATIONS + 1))
        self._most = max(1, entries // self._share)
        self._generations: deque[dict[str, int]] = deque()  # newest first
        self._ends: deque[float] = deque()  # of each, the last second at which it took a query

    def add(self, app: str, source: str, query_id: str, place: int, now: float) -> bool:
        """Remember a query; whether it is new, or was read at the same ``place`` before."""
        key = f"{app}\n{source}\n{query_id}"  # of printable texts: no two queries have the same
        generations, ends = self._generations, self._ends
        while ends and ends[-1] < now - self._seconds:
            generations.pop()
            ends.pop()
        for seen in generations:
            known = seen.get(key)
            if known is not None:
                return known == place
        if not ends or now > ends[0] or len(generations[0]) >= self._share:
            self._next(now)
        generations[0][key] = place
        return True

    def _next(self, now: float) -> None:
        if self._ends:
            self._ends[0] = min(self._ends[0], now)
        self._generations.appendleft({})
        self._ends.appendleft(now + self._span)
        if len(self._generations) > self._most:
            self._generations.pop()
            self._ends.pop()

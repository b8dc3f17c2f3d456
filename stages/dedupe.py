"""Ids of queries seen of late, so that one asked twice is answered once."""

from collections import deque

_GENERATIONS = 8


class DedupeWindow:
    """Ids seen in the last ``seconds``, at most ``entries`` of them.

    They are forgotten a generation at a time, the oldest first: an eighth of the window is a set, dropped as a whole.
    So an id is remembered for ``seconds`` at least and an eighth longer at most, or until newer ones fill the window.
    Memory stays flat, where an entry forgotten for each that comes has one table grow and be copied for ever.
    """

    def __init__(self, seconds: float, entries: int) -> None:
        self._seconds = seconds
        self._span = seconds / _GENERATIONS
        self._share = max(1, entries // (_GENERATIONS + 1))
        self._most = max(1, entries // self._share)
        self._generations: deque[set[str]] = deque()  # newest first
        self._ends: deque[float] = deque()  # of each, the last second at which it took an id

    def add(self, query_id: str, now: float) -> bool:
        """Remember ``query_id``; whether it is new."""
        generations, ends = self._generations, self._ends
        while ends and ends[-1] < now - self._seconds:
            generations.pop()
            ends.pop()
        for seen in generations:
            if query_id in seen:
                return False
        if not ends or now > ends[0] or len(generations[0]) >= self._share:
            self._next(now)
        generations[0].add(query_id)
        return True

    def _next(self, now: float) -> None:
        if self._ends:
            self._ends[0] = min(self._ends[0], now)
        self._generations.appendleft(set())
        self._ends.appendleft(now + self._span)
        if len(self._generations) > self._most:
            self._generations.pop()
            self._ends.pop()

"""The misses of a stream, as far back as its promises look: may the next query be missed?

(m, K) holds for ever exactly when any m + 1 successive misses span more than K positions: the next query may be missed
while the m-th last miss lies at least K positions back.
"""

from bisect import insort


class MissHistory:
    """Positions of the last misses of one stream under ``constraints``, a tuple of (m, K).

    ``position`` is that of the next query, counted from 0. All operations take O(sum of m) or less.
    """

    __slots__ = ("_depth", "_latest", "_misses", "constraints", "position")

    def __init__(self, constraints: tuple[tuple[int, int], ...]) -> None:
        self.constraints = constraints
        self.position = 0
        self._latest = -1
        self._depth = 2 * max((m for m, _ in constraints), default=0) + 1  # room to revise
        self._misses: list[int] = []

    def fork(self) -> "MissHistory":
        """A copy to try things on."""
        copy = MissHistory.__new__(MissHistory)
        copy.constraints = self.constraints
        copy.position = self.position
        copy._latest = self._latest
        copy._depth = self._depth
        copy._misses = self._misses.copy()
        return copy

    def may_miss(self) -> bool:
        """Whether every constraint still holds if the next query is missed."""
        misses = self._misses
        count = len(misses)
        position = self.position
        for m, k in self.constraints:  # noqa: SIM110 - all() costs twice as much, for every candidate
            if not m or (count >= m and position - misses[-m] < k):
                return False
        return True

    def record(self, missed: bool) -> None:
        """The next query's fate."""
        if missed:
            self._misses.append(self.position)
            if len(self._misses) > self._depth:
                del self._misses[0]
        self.position += 1

    def spend(self) -> None:
        """What came before is not known: take it for missed, as far back as any constraint looks."""
        for _ in range(max((k for _, k in self.constraints), default=0)):
            self.record(True)

    def is_past(self, sequence: int) -> bool:
        """Whether a query of a later ``sequence`` was asked about before; -1 (unknown) is never past."""
        if sequence > self._latest:
            self._latest = sequence
        return 0 <= sequence < self._latest

    def revise(self, position: int) -> bool:
        """A query that was recorded as served was missed after all. Returns whether every constraint still holds."""
        insort(self._misses, position)
        holds = self._holds()
        while len(self._misses) > self._depth:
            del self._misses[0]
        return holds

    def _holds(self) -> bool:
        misses = self._misses
        return all(misses[i + m] - misses[i] >= k for m, k in self.constraints for i in range(len(misses) - m))

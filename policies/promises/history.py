"""The misses of a stream, as far back as its promises look: may the next query be missed?

(m, K) holds for ever exactly when any m + 1 successive misses span more than K positions: the next query may be missed
while the m-th last miss lies at least K positions back.
"""

from bisect import bisect_left

_TERMS = 8
"""Of before, that are kept beside the newest."""


class MissHistory:
    """Positions of the last misses of one stream under ``constraints``, a tuple of (m, K).

    ``position`` is that of the next query, counted from 0. All operations take O(sum of m) or less, for each
    of the terms that are held.

    One that succeeds another (``succeeded``) knows nothing of its own past, and the other holds beside it for as long
    as that looks back: queries that were sent here by the terms of before may go on to come for a while. So do the
    others before that one, at most eight in all; terms by which nothing was decided leave nothing to hold.
    """

    __slots__ = ("_before", "_before_ends", "_began", "_depth", "_latest", "_misses", "constraints", "position")

    def __init__(self, constraints: tuple[tuple[int, int], ...]) -> None:
        self.constraints = constraints
        self.position = 0
        self._latest = -1
        self._depth = 2 * max((m for m, _ in constraints), default=0) + 1  # room to revise
        self._misses: list[int] = []
        self._before: MissHistory | None = None
        self._before_ends = 0
        self._began = 0

    def succeeded(self, constraints: tuple[tuple[int, int], ...]) -> "MissHistory":
        """The history under other ``constraints`` from here on."""
        after = MissHistory(constraints)
        after.spend()
        after._began = after.position
        after._latest = self._latest
        if self.position > self._began:
            after._before, after._before_ends = self, after.position + self._looks_back
        else:
            after._before, after._before_ends = self._before, after.position + self._before_ends - self.position
        held = after
        for _ in range(_TERMS):
            if held._before is None:
                return after
            held = held._before
        held._before = None
        return after

    @property
    def _looks_back(self) -> int:
        return max((k for _, k in self.constraints), default=0)

    def fork(self) -> "MissHistory":
        """A copy to try things on."""
        copy = MissHistory.__new__(MissHistory)
        copy.constraints = self.constraints
        copy.position = self.position
        copy._latest = self._latest
        copy._depth = self._depth
        copy._misses = self._misses.copy()
        copy._before = self._before.fork() if self._before is not None else None
        copy._before_ends = self._before_ends
        copy._began = self._began
        return copy

    def may_miss(self) -> bool:
        """Whether every constraint still holds if the next query is missed."""
        misses = self._misses
        count = len(misses)
        position = self.position
        for m, k in self.constraints:  # all() costs twice as much, for every candidate
            if not m or (count >= m and position - misses[-m] < k):
                return False
        return self._before is None or self._before.may_miss()

    def record(self, missed: bool) -> None:
        """The next query's fate."""
        if missed:
            self._misses.append(self.position)
            if len(self._misses) > self._depth:
                del self._misses[0]
        self.position += 1
        if self._before is not None:
            self._before.record(missed)
            if self.position >= self._before_ends:
                self._before = None

    def spend(self) -> None:
        """What came before is not known: take it for missed, as far back as any constraint looks."""
        for _ in range(self._looks_back):
            self.record(True)

    def is_past(self, sequence: int) -> bool:
        """Whether a query of a later ``sequence`` was asked about before; -1 (unknown) is never past."""
        if sequence > self._latest:
            self._latest = sequence
        return 0 <= sequence < self._latest

    def revise(self, position: int) -> bool:
        """A query that was recorded as served was missed after all. Returns whether every constraint still holds."""
        place = bisect_left(self._misses, position)
        self._misses.insert(place, position)
        holds = self._holds(place)
        if self._before is not None:
            holds = self._before.revise(position - self.position + self._before.position) and holds
        while len(self._misses) > self._depth:
            del self._misses[0]
        return holds

    def _holds(self, place: int) -> bool:
        """Whether the windows with the miss at ``place`` do: others were judged before, or are of a past unknown."""
        misses = self._misses
        return all(
            misses[i + m] - misses[i] >= k
            for m, k in self.constraints
            for i in range(max(0, place - m), min(place + 1, len(misses) - m))
        )

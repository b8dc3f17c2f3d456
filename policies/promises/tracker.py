"""What a stream lived through: longest run of misses and worst number of misses in any K consecutive queries.

Outcomes are taken in the order of their sequence numbers; completions come out of order, so that a buffer holds those
that are ahead. Rejected queries are not in the sequence. All operations are O(1) for each tracked K.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sluicegate.domain.models.app import Promise


class MissTracker:
    """Longest run of misses, and for each K the most misses seen in K consecutive outcomes.

    ``worst[K]`` is the strictest m for which (m, K) was kept. Windows at the start, shorter than K, count as they are.
    """

    __slots__ = ("_missed", "_recent", "_rings", "_since", "count", "mcd", "misses", "run", "worst")

    def __init__(self, ks: Iterable[int]) -> None:
        self._rings = {k: deque([False] * k, maxlen=k) for k in sorted(set(ks))}
        self._recent = dict.fromkeys(self._rings, 0)
        self.worst = dict.fromkeys(self._rings, 0)
        self.run = 0
        self.mcd = 0
        self.count = 0
        self.misses = 0
        self._since = max(self._rings, default=0)  # outcomes since ``spend``, and misses among them
        self._missed = 0

    def record(self, missed: bool) -> None:
        """The next outcome in sequence."""
        self.count += 1
        self._since += 1
        if missed:
            self.misses += 1
            self._missed += 1
            self.run += 1
            self.mcd = max(self.mcd, self.run)
        else:
            self.run = 0
        for k, ring in self._rings.items():
            recent = self._recent[k] + missed - ring[0]
            ring.append(missed)
            self._recent[k] = recent
            self.worst[k] = max(self.worst[k], recent)

    def continues(self, queries: int, misses: int, mcd: int, worst: Mapping[int, int]) -> None:
        """Count on from what another tracker had counted before the outcomes that this one was given."""
        self.count = queries
        self.misses = misses
        self.mcd = max(self.mcd, mcd)
        for k, m in worst.items():
            if k in self.worst:
                self.worst[k] = max(self.worst[k], m)

    def spend(self) -> None:
        """What came so far counts as missed by what is left: elsewhere, more may have been."""
        self._since = self._missed = 0

    def left(self, promise: Promise) -> tuple[tuple[int, int], ...]:
        """By K, the misses that the next queries may be: what was promised, less those among the last K - 1."""
        since, missed = self._since, self._missed
        known = [
            (m, k, self._recent[k] - self._rings[k][0] if since >= k - 1 else missed + k - 1 - since)
            for m, k in promise.constraints
            if k in self._rings
        ]
        return tuple([(k, max(0, m - recent)) for m, k, recent in known])

    def keeps(self, promise: Promise) -> bool:
        """Whether ``promise`` has held so far. Raises KeyError for a K that is not tracked and was promised."""
        if promise.max_consecutive is not None and self.mcd > promise.max_consecutive:
            return False
        return all(self.worst[w.k] <= w.m for w in promise.weakly_hard)


@dataclass(frozen=True, slots=True)
class StreamState:
    """What moves with a stream: the next sequence number and its last outcomes (True: missed), oldest first."""

    next: int
    recent: tuple[bool, ...]


class StreamTracker:
    """A MissTracker behind a reorder buffer. ``start``: sequence number of the first outcome.

    ``limit``: outcomes held while one before them is missing; beyond it the missing one is counted as a miss, so that
    a lost number cannot stop the count. A number seen before is ignored.
    """

    __slots__ = ("_ahead", "_limit", "_next", "_recent", "_spent", "tracker")

    def __init__(self, ks: Iterable[int], *, start: int = 0, limit: int = 65_536) -> None:
        ks = tuple(ks)
        self.tracker = MissTracker(ks)
        self._recent: deque[bool] = deque(maxlen=max(ks, default=1))
        self._next = start
        self._spent = start
        self._limit = limit
        self._ahead: dict[int, bool] = {}

    @staticmethod
    def for_promise(promise: Promise, *, start: int = 0) -> "StreamTracker":
        """Tracks every K that ``promise`` speaks of."""
        return StreamTracker((k for _, k in promise.constraints), start=start)

    @staticmethod
    def resume(state: StreamState, ks: Iterable[int]) -> "StreamTracker":
        """Go on where another tracker, given the same or larger Ks, left off. Counts begin with what it remembered."""
        tracker = StreamTracker(ks, start=state.next - len(state.recent))
        for offset, missed in enumerate(state.recent):
            tracker.record(state.next - len(state.recent) + offset, missed)
        return tracker

    @property
    def state(self) -> StreamState:
        """What another tracker needs to go on from here."""
        return StreamState(self._next, tuple(self._recent))

    @property
    def held(self) -> int:
        """Outcomes that wait for one before them."""
        return len(self._ahead)

    def spend(self, before: int) -> None:
        """What comes before query ``before`` counts as missed by what is left."""
        self._spent = before
        self.tracker.spend()

    def record(self, sequence: int, missed: bool) -> None:
        """The outcome of query ``sequence``."""
        if sequence < self._next:
            return
        self._ahead.setdefault(sequence, missed)
        while self._next in self._ahead or len(self._ahead) > self._limit:
            self._commit(self._ahead.pop(self._next, True))

    def _commit(self, missed: bool) -> None:
        self._next += 1
        self._recent.append(missed)
        self.tracker.record(missed)
        if self._next <= self._spent:
            self.tracker.spend()

"""Admits in any half-open window of S seconds what the batches of one window bear: the premise of every promise.

Rules. Of the n queries of a window that come to one place, floor(n m / K) may be missed (the least of all pairs). The
others must fit into a batch of B rows whichever they are, so that the missed ones are taken to be the smallest:

    (rows of all) - (rows of the floor(n m / K) smallest)  <=  B

With queries of one row that is the bound of ``sluicegate.domain.models.sustainable_rate``. What fits goes on
fitting with any of it taken away. Every admission of the last S seconds is remembered: a token bucket of the same rate
would let up to twice as much pass in one window (a full bucket, then the refill).

Of an app's own stream, which goes round in turns, a place gets the part that its turns are, and of that the largest.
Queries of other streams come to one place.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluicegate.policies.promises.stream_turns import ALONE, Turns

Place = tuple[str, str]
"""Device and slice."""
_PAST = 4096


@dataclass(frozen=True, slots=True)
class PlaceLimit:
    """What one place bears. ``batch``: rows; ``pairs``: (m, K); ``turns``: which of the own stream's queries come."""

    batch: int
    pairs: tuple[tuple[int, int], ...] = ()
    place: Place = ("", "")
    turns: Turns = ALONE

    def fits(self, own: Mapping[int, int], keyed: Mapping[int, int]) -> bool:
        """Whether a window of these may come: by rows, how many queries of the own stream, and of others."""
        sizes = Counter(keyed)
        left = self.turns.most(sum(own.values()))
        for rows in sorted(own, reverse=True):
            taken = min(own[rows], left)
            sizes[rows] += taken
            left -= taken
        count = sum(sizes.values())
        missed = min((m * count // k for m, k in self.pairs), default=0)
        total = 0
        for rows in sorted(sizes):
            gone = min(sizes[rows], missed)
            missed -= gone
            total += rows * (sizes[rows] - gone)
        return total <= self.batch

    def bound(self, rows: int, *, keyed: bool = False) -> int:
        """The most queries of ``rows`` rows that may come in a window of the own stream; ``keyed``: of others."""
        batch = self.batch // rows
        here = min((k * batch // (k - m) for m, k in self.pairs), default=batch)
        return here if keyed else self.turns.within(here)


class WindowLimiter:
    """Admits what every one of ``limits`` bears in any window [t, t + window_s); without limits nothing."""

    __slots__ = ("_by_place", "_keyed", "_own", "_past", "_queue", "_single", "bound", "limits", "window_s")

    def __init__(self, limits: Sequence[PlaceLimit], window_s: float) -> None:
        self.limits = tuple(dict.fromkeys(limits))
        self.window_s = window_s
        self.bound = self.bound_of(1)
        self._by_place: dict[Place, list[PlaceLimit]] = {}
        for limit in self.limits:
            self._by_place.setdefault(limit.place, []).append(limit)
        self._own: Counter[int] = Counter()
        self._keyed: dict[Place, Counter[int]] = {}
        self._queue: deque[tuple[float, int, Place | None]] = deque()
        self._past: deque[tuple[float, int, Place | None]] = deque(maxlen=_PAST)
        self._single = True  # whether all are queries of one row, of the own stream; then nothing else is counted

    def bound_of(self, rows: int, place: Place | None = None) -> int:
        """The most queries of ``rows`` rows that may come in a window, of streams that go to ``place``; None: of the
        app's own stream."""
        if place is None:
            return min((limit.bound(rows) for limit in self.limits), default=0)
        return min((limit.bound(rows, keyed=True) for limit in self._by_place.get(place, ())), default=0)

    def would_admit(self, now: float, rows: int = 1, place: Place | None = None) -> bool:
        """Whether a query that comes at ``now`` fits. ``place``: where its stream goes; None: it is the app's own."""
        self._forget(now)
        if self._single and rows == 1 and place is None:
            return len(self._queue) < self.bound
        if self._single:
            self._begin_counting()
        if place is None:
            own = self._own + Counter((rows,))
            return bool(self.limits) and all(limit.fits(own, self._keyed.get(limit.place, {})) for limit in self.limits)
        keyed = self._keyed.get(place, Counter()) + Counter((rows,))
        limits = self._by_place.get(place, ())
        return bool(limits) and all(limit.fits(self._own, keyed) for limit in limits)

    def admit(self, now: float, rows: int = 1, place: Place | None = None) -> bool:
        """Count a query that comes at ``now`` (never earlier than the last one) where it fits; says whether it did."""
        if self._single and rows == 1 and place is None:  # most are
            queue, window_s = self._queue, self.window_s
            while queue and now - queue[0][0] >= window_s:
                self._past.append(queue.popleft())
            if len(queue) >= self.bound:
                return False
            queue.append((now, 1, None))
            return True
        if not self.would_admit(now, rows, place):
            return False
        self._queue.append((now, rows, place))
        if not self._single:
            self._count(rows, place)
        return True

    def resized(self, limits: Sequence[PlaceLimit], window_s: float) -> "WindowLimiter":
        """A limiter with other limits that remembers the admissions of this one."""
        other = WindowLimiter(limits, window_s)
        other._queue.extend((*self._past, *self._queue))
        if any(rows != 1 or place is not None for _, rows, place in other._queue):
            other._begin_counting()
        return other

    def _begin_counting(self) -> None:
        self._single = False
        for _, rows, place in self._queue:
            self._count(rows, place)

    def _count(self, rows: int, place: Place | None) -> None:
        if place is None:
            self._own[rows] += 1
        else:
            self._keyed.setdefault(place, Counter())[rows] += 1

    def _forget(self, now: float) -> None:
        queue, window_s = self._queue, self.window_s
        while queue and now - queue[0][0] >= window_s:
            one = queue.popleft()
            self._past.append(one)
            if self._single:
                continue
            counted = self._own if one[2] is None else self._keyed[one[2]]
            counted[one[1]] -= 1
            if not counted[one[1]]:
                del counted[one[1]]
        if not queue and not self._single:
            self._keyed.clear()
            self._single = True

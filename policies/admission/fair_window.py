"""What a promise bears in a window, shared by those who ask: nobody's flood is anybody else's loss.

Rules.
- Two ledgers tell clients apart, by who asks (``ce_source``) and by stream. A query is within its client's share, or
  takes what others leave, in both.
- A client's share of a window is in proportion to its weight among those that asked of late. What is within it is let
  in as far as the promise bears it (``WindowLimiter``), one query a window at least.
- Above its share a client gets what is left when the others have come: what they ask for on average, at most their
  shares, and twice as much as that varies. So much stays free in each window until it is asked for.
- Names cost nothing: those that came within the last ``_KNOWN_S`` seconds are one client, of the weight of all that are
  known for longer. So are those beyond ``_CLIENTS``.
- Each place of the streams has a window of its own, in which what is not told apart by stream counts too.
- What was refused is asked for, but takes nothing of any window.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from math import inf, sqrt

from sluicegate.domain.query import for_source
from sluicegate.policies.promises.window_limiter import Place, PlaceLimit, WindowLimiter

_CLIENTS = 1024
"""Names told apart in a ledger, so that names from outside cost no memory."""
_KNOWN_S = 1.0
_FORGOTTEN_S = 5.0
_AGAIN_S = 0.02
_ONE_S = 1e-3
"""Seconds for which shares are good, at least; and for each client, so that many cost no more than few."""
_DEVIATIONS = 2.0
_QUERIES = 2.0
"""Queries, beside those deviations, that come in a window where few do."""
_SLACK = 1e-9


_Name = tuple[str, Place | None]


class _Client:
    """What one asks for and has, in parts of a window. ``asked``: in the last second about (it fades), until ``at``.

    ``used``: let in within the window; ``own``: of that, what was within its share, which is ``most``. ``kept``: what
    is expected of it in a window, of its share; ``varies``: the variance of that. ``size``: of its last query.
    """

    __slots__ = ("asked", "at", "kept", "most", "own", "place", "size", "used", "varies", "weight")

    def __init__(self, weight: float, place: Place | None, at: float) -> None:
        self.weight = weight
        self.place = place
        self.at = at
        self.asked = self.used = self.own = self.size = self.kept = self.varies = 0.0
        self.most = 1.0

    def asks(self, part: float, now: float) -> None:
        since = now - self.at
        self.asked = self.asked * (1.0 - since) + part if since < 1.0 else part
        self.at = now
        self.size = part


def _most(mean: float, variance: float) -> float:
    """What is hardly ever asked for in a window."""
    return mean + _DEVIATIONS * sqrt(variance) + _QUERIES * variance / mean if mean > _SLACK else 0.0


class _Newcomer:
    """Since when a new name asks, when it did last, and for how many windows in all."""

    __slots__ = ("asked", "last", "since")

    def __init__(self, now: float, part: float) -> None:
        self.since = self.last = now
        self.asked = part


class _Sums:
    """Of all clients at one place: see _Client."""

    __slots__ = ("kept", "own", "varies")

    def __init__(self) -> None:
        self.kept = self.own = self.varies = 0.0


class _Ledger:
    """Clients told apart by one kind of name, at each place for itself."""

    __slots__ = ("_known", "_look_at", "_new", "_newcomers", "_sums", "_weights", "alone")

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._known: dict[_Name, _Client] = {}
        self._new: dict[_Name, _Newcomer] = {}
        self._newcomers: dict[Place | None, _Client] = {}
        self._sums: dict[Place | None, _Sums] = {}
        self._look_at = -inf
        self.alone = True

    def asks(self, name: str, place: Place | None, part: float, now: float, window_s: float) -> _Client:
        """The client that asks for ``part`` of a window."""
        mine = self._known.get((name, place)) or self._newcomer((name, place), part, now)
        mine.asks(part, now)
        if now >= self._look_at:
            self._look(now, window_s)
        return mine

    def within(self, mine: _Client, part: float) -> bool:
        """Whether it has room in its share."""
        return self.alone or mine.used <= _SLACK or mine.used + part <= mine.most + _SLACK

    def left_free(self, mine: _Client, place: Place | None) -> float:
        """Part of a window at ``place`` that is to stay free for all others than ``mine``."""
        kept = varies = own = 0.0
        for sums in [self._sums[each] for each in {place, None} if each in self._sums]:
            kept += sums.kept
            varies += sums.varies
            own += sums.own
        if mine.place is None or mine.place == place:
            kept -= mine.kept
            varies -= mine.varies
            own -= mine.own
        return max(0.0, _most(kept, max(0.0, varies)) - own)

    def take(self, mine: _Client, part: float, own: float) -> None:
        """``part`` of a window was let in, of it ``own`` within its share; below 0: that is past."""
        mine.used += part
        if own:
            mine.own += own
            self._sums.setdefault(mine.place, _Sums()).own += own

    def _newcomer(self, name: _Name, part: float, now: float) -> _Client:
        seen = self._new.get(name)
        if seen is not None:
            seen.last = now
            seen.asked += part
        elif len(self._new) < _CLIENTS:
            self._new[name] = _Newcomer(now, part)
        found = self._newcomers.get(name[1])
        if found is None:
            found = self._newcomers[name[1]] = _Client(1.0, name[1], now)
            self._look_at = -inf
        return found

    def _look(self, now: float, window_s: float) -> None:
        """Who is known, and what belongs to whom."""
        self._tell_apart(now)
        clients = [*self._known.values(), *self._newcomers.values()]
        self.alone = len(clients) <= 1
        self._look_at = now + max(_AGAIN_S, _ONE_S * len(clients))
        weights: dict[Place | None, float] = {}
        for one in self._known.values():
            weights[one.place] = weights.get(one.place, 0.0) + one.weight
        for place, group in self._newcomers.items():
            group.weight = weights.get(place, 1.0)
            weights[place] = weights.get(place, 0.0) + group.weight
        everywhere = weights.pop(None, 0.0)
        most = max(weights.values(), default=0.0)
        for sums in self._sums.values():
            sums.kept = sums.varies = 0.0
        for one in clients:
            share = one.weight / (everywhere + (most if one.place is None else weights[one.place]))
            asked = one.asked * max(0.0, 1.0 - (now - one.at)) * window_s
            one.kept = min(share, asked)
            one.varies = one.kept * one.size
            one.most = max(share, _most(asked, one.varies)) if asked < share else share
            sums = self._sums.setdefault(one.place, _Sums())
            sums.kept += one.kept
            sums.varies += one.varies

    def _tell_apart(self, now: float) -> None:
        for name, seen in list(self._new.items()):
            if seen.last <= now - _KNOWN_S:
                del self._new[name]
            elif seen.since <= now - _KNOWN_S and len(self._known) < _CLIENTS:
                one = self._known[name] = _Client(for_source(name[0], self._weights, 1.0), name[1], now)
                one.asked = seen.asked / (now - seen.since)
                others = self._newcomers[name[1]]
                others.asked = max(0.0, others.asked - one.asked)
                del self._new[name]
        for name, one in list(self._known.items()):
            if one.at <= now - _FORGOTTEN_S:
                del self._known[name]
        told = {place for _, place in self._new}
        for place, others in list(self._newcomers.items()):
            if place not in told and (len(self._new) < _CLIENTS or others.at <= now - _KNOWN_S):
                del self._newcomers[place]


_LetIn = tuple[float, Place | None, float, _Client, float, _Client, float]
"""When, where, what part of a window, and of each ledger the client and what was within its share."""


class FairWindow:
    """A WindowLimiter whose window those who ask share. ``weights``: of sources that have other than 1.

    Times are seconds that do not go back.
    """

    __slots__ = ("_by_source", "_by_stream", "_let_in", "_limiter", "_parts", "_used")

    def __init__(self, limiter: WindowLimiter, weights: Mapping[str, float] | None = None) -> None:
        self._limiter = limiter
        self._by_source = _Ledger(weights or {})
        self._by_stream = _Ledger({})
        self._parts: dict[tuple[int, Place | None], float] = {}
        self._let_in: deque[_LetIn] = deque()
        self._used: dict[Place | None, float] = {}

    @property
    def bound(self) -> int:
        """Queries of one row a window."""
        return self._limiter.bound

    def bound_of(self, rows: int) -> int:
        """Queries of ``rows`` rows a window."""
        return self._limiter.bound_of(rows)

    def admit(self, source: str, stream: str, now: float, rows: int = 1, place: Place | None = None) -> bool:
        """Count a query where it fits, and say whether it did. ``place``: of its stream; None: it is the app's own."""
        part = self._parts.get((rows, place)) or self._part(rows, place)
        if part == inf:
            return False
        window_s = self._limiter.window_s
        if self._let_in:
            self._forget(now - window_s)
        asker = self._by_source.asks(source, place, part, now, window_s)
        one = self._by_stream.asks(stream, place, part, now, window_s)
        if self._by_source.alone and self._by_stream.alone:  # what was let in meanwhile counts for nobody
            return self._limiter.admit(now, rows, place)
        within = self._by_source.within(asker, part), self._by_stream.within(one, part)
        if not all(within) and not self._is_left(part, place, asker, one):
            return False
        if not self._limiter.admit(now, rows, place):
            return False
        owns = part if within[0] else 0.0, part if within[1] else 0.0
        self._by_source.take(asker, part, owns[0])
        self._by_stream.take(one, part, owns[1])
        self._used[place] = self._used.get(place, 0.0) + part
        self._let_in.append((now, place, part, asker, owns[0], one, owns[1]))
        return True

    def resize(self, limits: Sequence[PlaceLimit], window_s: float) -> None:
        """Other limits from now on; what was admitted counts."""
        self._limiter = self._limiter.resized(limits, window_s)
        self._parts.clear()

    def _part(self, rows: int, place: Place | None) -> float:
        """What a query takes of a window; inf: it never fits."""
        if len(self._parts) >= _CLIENTS:
            self._parts.clear()
        bound = self._limiter.bound_of(rows, place)
        part = self._parts[rows, place] = 1.0 / bound if bound else inf
        return part

    def _is_left(self, part: float, place: Place | None, asker: _Client, one: _Client) -> bool:
        """Whether it fits beside all that is kept for others."""
        used = self._used
        everywhere = used.get(None, 0.0)
        for each in used if place is None else (place,):
            kept = max(self._by_source.left_free(asker, each), self._by_stream.left_free(one, each))
            taken = everywhere + (used.get(each, 0.0) if each is not None else 0.0)
            if taken + part + kept > 1.0 + _SLACK:
                return False
        return True

    def _forget(self, since: float) -> None:
        let_in = self._let_in
        while let_in and let_in[0][0] <= since:
            _, place, part, asker, of_asker, one, of_one = let_in.popleft()
            self._by_source.take(asker, -part, -of_asker)
            self._by_stream.take(one, -part, -of_one)
            self._used[place] -= part
        if not let_in:
            self._used.clear()

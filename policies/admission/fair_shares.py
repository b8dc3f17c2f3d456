"""Clients of one app share what the plan in force serves of it: nobody's flood is anybody else's loss.

Rules.
- A client is who asks, as its queries say. Its share is in proportion to its weight, among those that asked within the
  last ``WINDOW_S`` seconds.
- What is within a client's share is let in. Above it a client gets what the others leave: of their shares as much is
  kept for them as they have asked for of late, and a little more. Alone, a client is never limited.
- A front tells its clients apart behind its own name: ``/http/4f21…`` weighs what ``/http`` does.
- A share that is less than a query is nobody's: such shares make up a pool, of which each of their clients gets a query
  at a time, who comes first, until it has had its share. So many clients get together what the plan serves.
- Names cost nothing, so that those that came within the last window weigh together no more than all that are known for
  longer, or than ``_NEW``: who has a new name for each query takes little of those who keep theirs.
- All of it counts in rows against what the plan serves in the window, less a part that keeps queues short (``FILL``).
  Without a plan, or one that serves nothing of the app, nobody is limited.
- Priorities order what one client asks, and nothing between clients: where it asks with several, what is let in of a
  lower one leaves room in its share for what it has asked of late with higher ones. So it is with one that asks alone
  while the plan cannot serve the app in full.
- What was refused is demand all the same, but of a client that asks for more than ``_FLOOD`` times what all others ask
  together: plans would give the flood what belongs to other apps.
- At most ``_CLIENTS`` are told apart, further ones are one client, and ``_LEVELS`` priorities of each: what comes from
  outside costs no memory.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from math import inf

from sluicegate.domain.events import HostedOn
from sluicegate.domain.plan import Plan
from sluicegate.domain.query import for_source

WINDOW_S = 1.0
FILL = 0.85
_CLIENTS = 256
_NEW = 4.0
"""Clients of weight 1 as which all that are new count at most, where no more are known."""
_BRIDGED_S = 0.3
"""Seconds of what a plan serves that may come at once: queues bridge them."""
_AHEAD_S = 0.1
"""Seconds of what higher priorities ask for that lower ones leave."""
_FLOOD = 2.0
_LEVELS = 16
_LITTLE = 1.5
"""Times what a client has asked for in a window that is kept for it, and one query more."""
_AGAIN_S = 0.02
"""Seconds for which the sum of what is kept is good."""
_KNOWN_S = WINDOW_S + 2 * _AGAIN_S
"""Seconds after which a client that still asks is no longer new: one that asked once is forgotten by then."""


def rows_served(parts: Sequence[HostedOn], plan: Plan) -> float:
    """Rows a second that ``parts`` run at most for one app: a part of each slice that ``plan`` gives several."""
    apps: dict[tuple[str, str], set[str]] = {}
    for placement in plan.placements:
        apps.setdefault((placement.device, placement.slice), set()).add(placement.app)
    rates = {
        (part.device, part.slice): max(
            one.executors * b / s for one in part.hosted for b, s in enumerate(one.curve.seconds, 1)
        )
        for part in parts
        if part.hosted
    }
    return sum(rate / len(apps[place]) for place, rate in rates.items())


class Verdict(Enum):
    """Of a query: let in; refused, and to be counted as demand; refused as part of a flood."""

    LET_IN = "let in"
    REFUSED = "refused"
    FLOOD = "flood"


class _Client:
    """What one client asked for. ``asked``, ``used``: rows in the window, the second of those let in.

    ``levels``: the same by priority. ``stamps``: (time, priority, rows, rows let in). ``since``: when it came;
    ``size``: rows of its last query. ``share``: rows a window; ``pooled``: of these, what is in the pool.
    """

    __slots__ = ("asked", "levels", "pooled", "share", "since", "size", "stamps", "used", "weight")

    def __init__(self, weight: float, since: float) -> None:
        self.weight = weight
        self.since = since
        self.size = 1
        self.share = 0.0
        self.pooled = 0.0
        self.asked = 0
        self.used = 0
        self.levels: dict[int, list[int]] = {}
        self.stamps: deque[tuple[float, int, int, int]] = deque()

    def forget(self, since: float) -> None:
        stamps = self.stamps
        while stamps and stamps[0][0] <= since:
            _, priority, asked, used = stamps.popleft()
            self.asked -= asked
            self.used -= used
            level = self.levels[priority]
            level[0] -= asked
            level[1] -= used
            if not level[0]:
                del self.levels[priority]

    def level(self, priority: int) -> int:
        """As what ``priority`` counts: itself, or the nearest below where too many are known."""
        levels = self.levels
        if priority in levels:
            return priority
        if len(levels) >= _LEVELS:
            return max((known for known in levels if known < priority), default=min(levels))
        levels[priority] = [0, 0]
        return priority

    def kept_above(self, priority: int, share: float) -> float:
        """Rows that are kept for what this client asks with higher priorities."""
        return sum(
            max(0.0, min(share, _LITTLE * asked + 1.0) - used)
            for known, (asked, used) in self.levels.items()
            if known > priority
        )

    def note(self, now: float, priority: int, rows: int, *, let_in: bool) -> None:
        used = rows if let_in else 0
        self.stamps.append((now, priority, rows, used))
        self.asked += rows
        self.used += used
        level = self.levels[priority]
        level[0] += rows
        level[1] += used


class FairShares:
    """Of one app. ``weights``: of clients that have other than 1. Times are seconds that do not go back."""

    __slots__ = (
        "_asked", "_clients", "_looked", "_pool", "_refilled", "_room", "_rows", "_short", "_spare", "_weights",
    )  # fmt: skip

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = weights or {}
        self._clients: dict[str, _Client] = {}
        self._rows = inf  # a window
        self._short = inf  # rows a second
        self._spare = 0.0  # of these, by when it was refilled
        self._refilled = 0.0
        self._looked = -inf
        self._asked = 0  # rows in the window, by all; those of others are forgotten a look late
        self._room = 0.0  # above shares, until it is reckoned again
        self._pool = 0.0  # of shares that are less than a query

    def plan(self, qps: float, *, short: bool = False) -> None:
        """The plan in force hosts so many rows a second; 0: it says nothing of the app. ``short``: fewer than are
        asked for."""
        self._rows = FILL * WINDOW_S * qps if qps > 0.0 else inf
        self._short = qps if short and qps > 0.0 else inf
        self._looked = -inf

    def admit(self, client: str, rows: int, now: float, priority: int = 0) -> Verdict:
        """Whether a query of ``client`` is let in; it counts as asked either way. A higher ``priority`` goes first."""
        if now - self._looked >= _AGAIN_S:
            self._look(now)
        mine = self._clients.get(client)
        if mine is None:
            mine = self._new(client, rows, now)
        mine.size = rows
        before = mine.asked
        mine.forget(now - WINDOW_S)
        level = mine.level(priority)
        let_in = self._has_room(mine, level, rows, now)
        mine.note(now, level, rows, let_in=let_in)
        self._asked += mine.asked - before
        if let_in:
            return Verdict.LET_IN
        floods = len(self._clients) > 1 and mine.asked > max(1.0, _FLOOD * (self._asked - mine.asked))
        return Verdict.FLOOD if floods else Verdict.REFUSED

    def _new(self, client: str, rows: int, now: float) -> _Client:
        """One that is told apart from now on, where there is room for more."""
        if len(self._clients) >= _CLIENTS:
            client = ""
        mine = self._clients.get(client)
        if mine is None:
            mine = self._clients[client] = _Client(for_source(client, self._weights, 1.0), now)
            mine.size = rows
            self._reckon(now)
        return mine

    def _has_room(self, mine: _Client, level: int, rows: int, now: float) -> bool:
        several = len(mine.levels) > 1
        if len(self._clients) == 1:
            return not several or self._goes_first(mine, level, rows, now)
        if self._rows == inf:
            return True
        share = mine.share
        kept = mine.kept_above(level, share) if several else 0.0
        # What it has below its share is its own, what is above comes out of what the others leave.
        beyond = max(0.0, mine.used + rows + kept - max(float(mine.used), share))
        in_turn = self._pool if mine.used < share else 0.0
        if beyond and beyond > self._room + max(0.0, in_turn - mine.pooled):
            return False
        self._pool = max(0.0, self._pool - mine.pooled)
        mine.pooled = 0.0
        taken = max(0.0, mine.used + rows - max(float(mine.used), share))
        of_pool = min(taken, self._pool) if in_turn else 0.0
        self._pool -= of_pool
        self._room -= taken - of_pool
        return True

    def _goes_first(self, mine: _Client, level: int, rows: int, now: float) -> bool:
        """Of one client's priorities, at the rate that the plan serves: the highest always does."""
        if self._short == inf:
            return True
        most = _BRIDGED_S * self._short
        self._spare = min(most, self._spare + (now - self._refilled) * self._short)
        self._refilled = now
        higher = sum(asked for known, (asked, _) in mine.levels.items() if known > level)
        if higher and self._spare < rows + _AHEAD_S * higher / WINDOW_S:
            return False
        self._spare = max(-most, self._spare - rows)
        return True

    def _look(self, now: float) -> None:
        """Forget what is past, and reckon what is left above everybody's share."""
        self._looked = now
        since = now - WINDOW_S
        for name, one in list(self._clients.items()):
            one.forget(since)
            if not one.stamps:
                del self._clients[name]
        self._asked = sum(one.asked for one in self._clients.values())
        self._reckon(now)

    def _reckon(self, now: float) -> None:
        self._room = self._pool = 0.0
        if self._rows == inf:
            return
        known = new = 0.0
        for one in self._clients.values():
            if one.since < now - _KNOWN_S:
                known += one.weight
            else:
                new += one.weight
        of_new = min(1.0, max(_NEW, known) / new) if new else 1.0
        of_one = self._rows / (known + of_new * new) if known or new else 0.0
        taken = pool = 0.0
        for one in self._clients.values():
            share = one.share = of_one * one.weight * (1.0 if one.since < now - _KNOWN_S else of_new)
            kept = min(share, _LITTLE * one.asked + 1.0)
            taken += max(float(one.used), kept)
            is_less = one.used < share < one.used + one.size
            one.pooled = max(0.0, kept - one.used) if is_less else 0.0
            pool += one.pooled
        self._room = max(0.0, self._rows - taken)
        self._pool = min(pool, max(0.0, self._rows - (taken - pool)))

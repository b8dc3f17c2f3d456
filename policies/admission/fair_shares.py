"""Clients of one app share what the plan in force serves of it: nobody's flood is anybody else's loss.

Rules.
- A client is who asks, as its queries say. Its share is in proportion to its weight, among those that asked within the
  last ``WINDOW_S`` seconds.
- What is within a client's share is let in. Above it a client gets what the others leave: of their shares as much is
  kept for them as they have asked for of late, and a little more. Alone, a client is never limited.
- A front tells its clients apart behind its own name: ``/http/4f21…`` weighs what ``/http`` does.
- All of it counts in rows against what the plan serves in the window, less a part that keeps queues short (``FILL``).
  Without a plan, or one that serves nothing of the app, nobody is limited.
- At most ``_CLIENTS`` are told apart, further ones are one client: names from outside cost no memory.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from math import inf

from sluicegate.domain.events import HostedOn
from sluicegate.domain.plan import Plan

WINDOW_S = 1.0
FILL = 0.85
_CLIENTS = 256
_LITTLE = 1.5
"""Times what a client has asked for in a window that is kept for it, and one query more."""
_AGAIN_S = 0.02
"""Seconds for which the sum of what is kept is good."""


def rows_served(parts: Sequence[HostedOn], plan: Plan) -> float:
    """Rows a second that ``parts`` run at most for one app: a part of each slice that ``plan`` gives several."""
    apps: dict[tuple[str, str], set[str]] = {}
    for placement in plan.placements:
        apps.setdefault((placement.device, placement.slice), set()).add(placement.app)
    rates = {
        (part.device, part.slice): max((b / s for one in part.hosted for b, s in enumerate(one.curve.seconds, 1)))
        for part in parts
        if part.hosted
    }
    return sum(rate / len(apps[place]) for place, rate in rates.items())


class _Client:
    """What one client asked for. ``asked``, ``used``: rows in the window; ``stamps``: (time, rows, rows let in)."""

    __slots__ = ("asked", "stamps", "used", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.asked = 0
        self.used = 0
        self.stamps: deque[tuple[float, int, int]] = deque()

    def forget(self, since: float) -> None:
        stamps = self.stamps
        while stamps and stamps[0][0] <= since:
            _, asked, used = stamps.popleft()
            self.asked -= asked
            self.used -= used

    def note(self, now: float, rows: int, *, let_in: bool) -> bool:
        used = rows if let_in else 0
        self.stamps.append((now, rows, used))
        self.asked += rows
        self.used += used
        return let_in


class FairShares:
    """Of one app. ``weights``: of clients that have other than 1. Times are seconds that do not go back."""

    __slots__ = ("_clients", "_looked", "_room", "_rows", "_weights")

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = weights or {}
        self._clients: dict[str, _Client] = {}
        self._rows = inf  # a window
        self._looked = -inf
        self._room = 0.0  # above shares, until it is reckoned again

    def plan(self, qps: float) -> None:
        """The plan in force serves so many rows a second; 0: it says nothing of the app."""
        self._rows = FILL * WINDOW_S * qps if qps > 0.0 else inf
        self._looked = -inf

    def admit(self, client: str, rows: int, now: float) -> bool:
        """Whether a query of ``client`` is let in; it counts as asked either way."""
        if now - self._looked >= _AGAIN_S:
            self._look(now)
        mine = self._clients.get(client)
        if mine is None:
            if len(self._clients) >= _CLIENTS:
                client = ""
            mine = self._clients.setdefault(client, _Client(self._weight(client)))
            self._looked = -inf
        mine.forget(now - WINDOW_S)
        if len(self._clients) == 1 or self._rows == inf:
            return mine.note(now, rows, let_in=True)
        if mine.used + rows <= self._share(mine):
            return mine.note(now, rows, let_in=True)
        # What it has below its share is its own, what is above comes out of what the others leave.
        beyond = mine.used + rows - max(float(mine.used), self._share(mine))
        if beyond > self._room:
            return mine.note(now, rows, let_in=False)
        self._room -= beyond
        return mine.note(now, rows, let_in=True)

    def _weight(self, client: str) -> float:
        """Its own, or that of the front through which it asks."""
        front = client.rpartition("/")[0]
        return self._weights.get(client, self._weights.get(front, 1.0) if front else 1.0)

    def _share(self, client: _Client) -> float:
        return self._rows * client.weight / sum(one.weight for one in self._clients.values())

    def _look(self, now: float) -> None:
        """Forget what is past, and reckon what is left above everybody's share."""
        self._looked = now
        since = now - WINDOW_S
        for name, one in list(self._clients.items()):
            one.forget(since)
            if not one.stamps:
                del self._clients[name]
        total = sum(one.weight for one in self._clients.values())
        taken = 0.0
        for one in self._clients.values():
            share = self._rows * one.weight / total if total > 0.0 else 0.0
            taken += max(float(one.used), min(share, _LITTLE * one.asked + 1.0))
        self._room = max(0.0, self._rows - taken) if self._rows != inf else 0.0

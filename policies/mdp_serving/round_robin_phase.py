"""How far this worker's turn is: the queries that went to others since its last one.

The router counts turns. A query brings the count at which it was sent; between queries the router tells the count now
and then. From the newest of these on, the load and the time that has passed say what must have been sent since.
"""


class Turns:
    """What is known. Without any count, only load and time since the last arrival speak."""

    __slots__ = ("_at", "_count", "_mine")

    def __init__(self) -> None:
        self._mine = -1
        self._count = -1
        self._at = 0.0

    def arrived(self, turn: int, now: float) -> None:
        """A query of ours, sent as number ``turn`` (-1: not told). A router that starts anew counts from 1 again."""
        self._mine = self._count = turn
        self._at = now

    def told(self, count: int, at: float) -> None:
        """``count`` turns had been given by ``at``. What is older than what is known changes nothing."""
        if self._mine >= 0 and count > self._count:
            self._count = count
            self._at = max(at, self._at)

    def elsewhere(self, qps: float, now: float) -> int:
        """Queries that went to others since our last one, at ``qps`` queries a second of all."""
        return self._count - self._mine + int(qps * max(0.0, now - self._at))

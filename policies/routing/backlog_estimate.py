"""When a query sent to a slice would be done: a router's own estimate, kept between heartbeats.

Rules. The slice is taken for a work-conserving batch server on its most accurate variant: what waits when a batch ends
forms the next, up to the largest batch. Each query sent joins the queue of the estimate; each heartbeat replaces it by
what the slice reports. A query that would be late is not counted: the slice will drop it. Where a slice runs several
batches at a time, one begins that much more often.
"""

from collections.abc import Sequence

from sluicegate.domain.events import Hosted


class Backlog:
    """One slice. All times absolute seconds, but ``row``: what one row takes alone."""

    __slots__ = ("_every", "_largest", "_seconds", "accuracy", "busy_until", "capacity", "queued", "row")

    def __init__(self, hosted: Sequence[Hosted]) -> None:
        first = hosted[0]
        self._seconds = first.curve.seconds
        self._largest = len(self._seconds)
        self.accuracy = first.accuracy
        self.row = self._seconds[0]
        self._every = 1.0 / first.executors
        self.capacity = first.executors * max(b / s for b, s in enumerate(self._seconds, 1))
        self.busy_until = 0.0
        self.queued = 0

    def advance(self, now: float) -> None:
        """Let the batches that were due by ``now`` begin."""
        while self.queued and self.busy_until <= now:
            batch = min(self.queued, self._largest)
            self.queued -= batch
            self.busy_until += self._seconds[batch - 1] * self._every
        if self.busy_until < now:
            self.busy_until = now

    def done_at(self, rows: int, now: float) -> float:
        """When ``rows`` more would be done if they were sent at ``now``; of none, when what is queued would be."""
        if self.queued and self.busy_until <= now:
            self.advance(now)
        free = self.busy_until if self.busy_until > now else now
        full, rest = divmod(self.queued + rows, self._largest)
        if full:
            free += full * self._seconds[-1] * self._every
        if not rest:
            return free + self._seconds[-1] * (1.0 - self._every) if full else free
        return free + self._seconds[rest - 1]

    def send(self, rows: int, now: float) -> None:
        """``rows`` were sent at ``now``."""
        self.advance(now)
        if self.busy_until <= now and not self.queued:
            self.busy_until = now + self._seconds[min(rows, self._largest) - 1] * self._every
        else:
            self.queued += rows

    def report(self, queued: int, busy_for: float, now: float) -> None:
        """What the slice says of itself."""
        self.queued = queued
        self.busy_until = now + busy_for

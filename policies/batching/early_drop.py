"""Nexus's two ways to drop: early, to keep batches large, and lazily, to save every query that can be saved."""

from domain.actions import Drop, StationAction
from domain.errors import ConfigurationError
from domain.outcome import Reason
from domain.query import Query
from policies.batching.queueing import QueueingPolicy


class HalfSloPolicy(QueueingPolicy):
    """Base of the two: batches whose latency, times ``margin``, is within half the SLO (Nexus: margin 1.15)."""

    __slots__ = ("largest", "margin")

    def __init__(self, *, margin: float = 1.0) -> None:
        super().__init__()
        if not margin > 0.0:
            raise ConfigurationError(f"margin is {margin}; give a positive factor of the latency")
        self.margin = margin
        self.largest = 1

    def hosting_changed(self) -> None:
        """The largest batch within half the SLO, at least 1."""
        if self.hosted:
            curve = self.hosted[0].curve.scaled(self.margin)
            self.seconds = curve.seconds
            self.largest = max(1, curve.largest_within(self.slo / 2))


class EarlyDrop(HalfSloPolicy):
    """Nexus, policy 0: sizes the batch by the queue, then drops every query that would be late in a batch of that size.

    Work-conserving. As queries are dropped and the queue runs short the batch shrinks; what was dropped stays dropped.
    """

    name = "early-drop"
    __slots__ = ()

    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Drop and run."""
        queue = self.queue
        items = queue.items
        seconds = self.seconds
        room = max(self.largest, items[0].rows)
        size = min(room, queue.rows)
        finish = now + seconds[size - 1]
        batch: list[Query] = []
        taken = 0
        while items and taken + items[0].rows <= size:
            query = queue.pop()
            if query.deadline < finish:
                self.missed(query, actions)
                actions.append(Drop(query, Reason.SHED))
            else:
                batch.append(query)
                taken += query.rows
            left = taken + queue.rows
            if 0 < left < size:
                size = left
                finish = now + seconds[size - 1]
        if batch:
            self.run_batch(tuple(batch), taken, actions)


class LazyDrop(HalfSloPolicy):
    """Nexus, policy 1, and Clipper: drops only what is hopeless; the batch is the largest that leaves its head on time.

    Under overload it serves heads about to expire in tiny batches, and throughput collapses.
    """

    name = "lazy-drop"
    __slots__ = ()

    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Run at once."""
        self.run(self.largest_on_time(max(self.largest, self.queue.items[0].rows), now), actions)

"""Nexus's two ways to drop: early, to keep batches large, and lazily, to save every query that can be saved."""

from typing_extensions import override

from sluicegate.domain.actions import StationAction
from sluicegate.domain.outcome import Reason
from sluicegate.policies.batching.latency_capped import LimitedPolicy


class EarlyDrop(LimitedPolicy):
    """Nexus, policy 0: sizes the batch by the queue, then drops every query that would be late in a batch of that size.

    Work-conserving. As queries are dropped and the queue runs short the batch shrinks; what was dropped stays dropped.
    """

    name = "early-drop"
    counts_length = False  # who is dropped changes who is in the batch, which its length was to be predicted for
    __slots__ = ()

    @override
    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Drop and run."""
        queue = self.queue
        items = queue.items
        while items:
            size = min(self.room(), queue.rows)
            rows = queue.fit(size)  # fewer than sized where the next query has several, which may take longer
            if now + max(self.seconds[size - 1], self.seconds[rows - 1]) <= items[0].deadline:
                self.run(rows, actions)
                return
            self.drop_head(Reason.SHED, actions)
            self.prune(now, actions)


class LazyDrop(LimitedPolicy):
    """Nexus, policy 1, and Clipper: drops only what is hopeless; the batch is the largest that leaves its head on time.

    Under overload it serves heads about to expire in tiny batches, and throughput collapses.
    """

    name = "lazy-drop"
    __slots__ = ()

    @override
    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Run at once."""
        self.run(self.largest_on_time(self.room(), now), actions)

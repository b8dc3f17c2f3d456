"""Runs what waits as soon as the executor is free: batches grow by themselves under load."""

from domain.actions import StationAction
from policies.batching.queueing import QueueingPolicy


class EagerBatching(QueueingPolicy):
    """Work-conserving: the longest prefix of the queue with which its head is on time, at once.

    Never idles while a query waits that can still be answered in time, and never runs one that would be late.
    """

    name = "eager"
    __slots__ = ()

    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Run at once."""
        self.run(self.largest_on_time(len(self.seconds), now), actions)

"""Runs what waits as soon as the executor is free: batches grow by themselves under load."""

from typing_extensions import override

from sluicegate.domain.actions import StationAction
from sluicegate.policies.batching.latency_capped import LimitedPolicy


class EagerBatching(LimitedPolicy):
    """Work-conserving: the longest prefix of the queue with which its head is on time, at once.

    Never idles while a query waits that can still be answered in time, and never runs one that would be late. Under
    lasting overload every head is about to expire when the executor is free: batches shrink to one and throughput
    collapses, as that of ``lazy-drop`` does. ``max_latency_share``: batches take at most that share of the SLO.
    """

    name = "eager"
    __slots__ = ()

    def __init__(self, *, max_latency_share: float = 1.0) -> None:
        super().__init__(max_latency_share=max_latency_share)

    @override
    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Run at once."""
        self.run(self.largest_on_time(self.room(), now), actions)

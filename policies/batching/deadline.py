"""Waits for a larger batch until the last moment at which the head of the queue can still wait (Proteus, section 5).

With q rows queued and a head that expires at T, the next arrival is awaited until ``T - latency(q + 1)``; where fewer
rows take longer (measured curves are not monotone), until T less the longest of them: whichever runs, the head is in
time. A queue that reaches the largest batch allowed runs at once, and heads that no batch can save are dropped when the
executor is offered, before a batch is formed: the paper's text leaves both open, its artifact does neither.
"""

from math import inf

from typing_extensions import override

from sluicegate.domain.actions import StationAction
from sluicegate.domain.errors import ConfigurationError
from sluicegate.policies.batching.base import last_start
from sluicegate.policies.batching.latency_capped import LimitedPolicy


class DeadlineBatching(LimitedPolicy):
    """Proteus's proactive batching. ``guard_s``: seconds by which it starts earlier than the last moment.

    A guard of a few milliseconds covers timers that go off late; a simulation needs none. ``max_latency_share``:
    batches take at most that share of the SLO (the paper's half).
    """

    name = "deadline"
    __slots__ = ("guard_s",)

    def __init__(self, *, guard_s: float = 0.0, max_latency_share: float = 0.5) -> None:
        super().__init__(max_latency_share=max_latency_share)
        if not 0.0 <= guard_s < inf:
            raise ConfigurationError(f"deadline: guard_s is {guard_s}; give seconds, 0 or more")
        self.guard_s = guard_s

    @override
    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Run a full batch, or wait until ``T - latency(q + 1)``, or run what is there."""
        rows = self.queue.rows
        largest = self.room()
        if rows < largest:
            until = last_start(self.head_deadline, max(self.seconds[: rows + 1])) - self.guard_s
            if now < until:
                self.wake_by(until, actions)
                return
        self.run(self.largest_on_time(largest, now), actions)

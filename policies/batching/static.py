"""Batches of one fixed size, or what is there when the oldest query has waited long enough (as model servers do)."""

from math import inf

from typing_extensions import override

from sluicegate.domain.actions import StationAction
from sluicegate.domain.errors import ConfigurationError
from sluicegate.policies.batching.base import QueueingPolicy, last_start


class StaticBatching(QueueingPolicy):
    """Runs ``size`` rows (less where the profile ends earlier) as soon as they are there.

    Fewer run ``timeout_s`` seconds after the oldest query arrived (None: at the last moment for a batch of ``size``).
    """

    name = "static"
    counts_length = True
    __slots__ = ("size", "timeout_s")

    def __init__(self, *, size: int = 8, timeout_s: float | None = None) -> None:
        super().__init__()
        if size < 1 or (timeout_s is not None and not 0.0 <= timeout_s < inf):
            raise ConfigurationError(f"static batching: size {size}, timeout_s {timeout_s}; give a size of 1 or more")
        self.size = size
        self.timeout_s = timeout_s

    @override
    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Run a full batch, or wait for the timeout."""
        size = min(self.size, len(self.seconds))
        if self.queue.rows < size:
            head = self.queue.items[0]
            until = last_start(head.deadline, max(self.seconds[:size]))
            if self.timeout_s is not None:
                until = min(until, head.arrival + self.timeout_s)
            if now < until:
                self.wake_by(until, actions)
                return
        self.run(self.largest_on_time(size, now), actions)

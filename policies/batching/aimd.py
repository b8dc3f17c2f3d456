"""The batch limit grows while batches stay below a latency objective and shrinks when one exceeds it (Clipper, 4.3)."""

from typing_extensions import override

from sluicegate.domain.actions import Run, StationAction
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import Finished
from sluicegate.policies.batching.base import QueueingPolicy


class AdditiveIncrease(QueueingPolicy):
    """Clipper's AIMD: what waits runs at once, up to a limit: + ``step`` within the objective, else x ``backoff``.

    ``objective``: the share of the SLO a batch may take. Reactive: only queries whose deadline has passed are given up.
    The limit moves only on batches that filled it, and never beyond what the profile allows.
    """

    name = "aimd"
    __slots__ = ("_variant", "backoff", "limit", "objective", "step")

    def __init__(self, *, step: float = 1.0, backoff: float = 0.9, objective: float = 0.5) -> None:
        super().__init__()
        if not (step > 0.0 and 0.0 < backoff < 1.0 and objective > 0.0):
            raise ConfigurationError(f"aimd: step {step}, backoff {backoff}, objective {objective} are out of range")
        self.step = step
        self.backoff = backoff
        self.objective = objective
        self.limit = 1.0
        self._variant = ""

    @override
    def prune(self, now: float, actions: list[StationAction]) -> None:
        """Give up nothing but what could never run."""
        self.drop_too_large(actions)

    @override
    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Run up to the limit."""
        self.run(max(int(self.limit), self.queue.items[0].rows), actions)

    @override
    def hosting_changed(self) -> None:
        """Start again from one with another variant: its latency is unknown to a reactive rule."""
        variant = self.hosted[0].variant if self.hosted else ""
        if variant != self._variant:
            self.limit = 1.0
        self._variant = variant
        self.limit = min(self.limit, float(max(1, len(self.seconds))))

    @override
    def finished(self, event: Finished, run: Run, now: float, actions: list[StationAction]) -> None:
        """Move the limit."""
        if event.failed:
            return
        if event.execution_s > self.objective * self.slo:
            self.limit = max(1.0, self.limit * self.backoff)
        elif event.rows >= int(self.limit):
            self.limit = min(self.limit + self.step, float(max(1, len(self.seconds))))

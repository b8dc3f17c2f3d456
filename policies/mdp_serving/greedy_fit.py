"""The most accurate variant with which the whole queue is in time for its head, now, whatever comes next."""

from typing_extensions import override

from sluicegate.domain.actions import StationAction
from sluicegate.policies.batching.base import QueueingPolicy
from sluicegate.policies.mdp_serving.jellyfish_model_switching import fastest


class MostAccurateFit(QueueingPolicy):
    """Greedy: spends all the slack there is on accuracy. Where no variant takes the whole queue the fastest does.

    Runs at once. The yardstick for looking ahead: under load it leaves no slack to those that come next.
    """

    name = "most-accurate-fit"
    __slots__ = ()

    @override
    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Run the whole queue, or as much of it as the fastest variant takes in time."""
        rows = self.queue.rows
        deadline = self.queue.items[0].deadline
        for h in self.hosted:  # most accurate first
            if rows <= h.curve.max_batch and now + h.curve.seconds[rows - 1] <= deadline:
                self.run(rows, actions, h)
                return
        self.run(self.largest_on_time(len(self.seconds), now), actions, fastest(self.hosted))

    @override
    def hosting_changed(self) -> None:
        """Heads are given up only where even the fastest variant cannot save them."""
        quickest = fastest(self.hosted)
        self.seconds = quickest.curve.seconds if quickest else ()

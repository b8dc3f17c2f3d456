"""Several apps in turn on one slice: a duty cycle (Nexus, 6.1; spread-drop, 3.5).

Rules.
- The executor is offered round robin: after an app has run, the others come first. An app without work is skipped.
- Where anything was promised on the slice every Station does so, with batches sized for it
  (``sluicegate.policies.promises.keeper``).
"""

from typing_extensions import override

from sluicegate.policies.batching.lane import Lane
from sluicegate.policies.serving.slice_scheduler import Station


class DutyCycleStation(Station):
    """A Station whose apps take turns. See the module's rules."""

    __slots__ = ()

    @override
    def order(self, lanes: list[Lane]) -> list[Lane]:
        """Round robin by name, beginning after the app that ran last; within an app strict queries first."""
        if self.terms.shares:
            return super().order(lanes)
        lanes.sort(key=lambda lane: (lane.app <= self.last_app, lane.app, not lane.strict))
        return lanes

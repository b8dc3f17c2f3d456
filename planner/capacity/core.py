"""The core of elastic capacity: which workers run is a policy's to say; that each is asked for one thing at a time is
seen to here.

Rules. A worker that is being started is stopped only once that is answered, and the other way round; what is wanted
last is what comes of it. An answer that nobody waits for raises.
"""

from collections.abc import Sequence
from typing import Protocol

from sluicegate.domain.errors import IllegalEventError
from sluicegate.planner.capacity.events import (
    CapacityAction,
    CapacityEvent,
    Start,
    Stop,
    WorkerStarted,
    WorkerStopped,
)


class CapacityPolicy(Protocol):
    """Says which workers run: by load, by what instances bear, by notices of the market."""

    def handle(self, event: CapacityEvent, now: float) -> Sequence[CapacityAction]:
        """Decide; what does not concern it is ignored."""
        ...


class CapacityCore:
    """Of one stage, by ``policy``."""

    def __init__(self, policy: CapacityPolicy) -> None:
        self._policy = policy
        self._asked: dict[str, Start | Stop] = {}
        self._next: dict[str, Start | Stop] = {}

    def handle(self, event: CapacityEvent, now: float) -> list[CapacityAction]:
        """Decide. Raises IllegalEventError for an answer that nobody waits for."""
        actions: list[CapacityAction] = []
        if isinstance(event, WorkerStarted | WorkerStopped):
            asked = self._asked.get(event.device)
            if not isinstance(asked, Start if isinstance(event, WorkerStarted) else Stop):
                raise IllegalEventError(f"{event}, where {asked} is under way", (f"under way: {self._asked}",))
            del self._asked[event.device]
        for action in self._policy.handle(event, now):
            if isinstance(action, Start | Stop):
                self._next[action.device] = action
                if type(self._asked.get(action.device)) is type(action):
                    del self._next[action.device]  # it is under way
            else:
                actions.append(action)
        for device in [device for device in self._next if device not in self._asked]:
            self._asked[device] = self._next.pop(device)
            actions.append(self._asked[device])
        return actions

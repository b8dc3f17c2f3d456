"""What became of the queries of a device since its last heartbeat, by app: what planners hold their plans against."""

from collections.abc import Iterable

from sluicegate.domain.events import EndsCounted
from sluicegate.domain.outcome import OutcomeKind
from sluicegate.policies.serving.device_actions import Answer, DeviceAction, End


class EndedQueries:
    """Counts answers and ends among actions. What a model failed at says nothing of the time that there was."""

    __slots__ = ("_missed", "_on_time")

    def __init__(self) -> None:
        self._on_time: dict[str, int] = {}
        self._missed: dict[str, int] = {}

    def count(self, actions: Iterable[DeviceAction]) -> None:
        """These are done."""
        for action in actions:
            if isinstance(action, Answer):
                app, at = action.queries[0].app, action.at
                missed = sum([query.deadline < at for query in action.queries])
                self._on_time[app] = self._on_time.get(app, 0) + len(action.queries) - missed
                if missed:
                    self._missed[app] = self._missed.get(app, 0) + missed
            elif isinstance(action, End) and action.kind is not OutcomeKind.FAILED:
                app = action.query.app
                self._missed[app] = self._missed.get(app, 0) + 1

    def take(self) -> tuple[EndsCounted, ...]:
        """What was counted; counting begins anew."""
        on_time, missed = self._on_time, self._missed
        self._on_time, self._missed = {}, {}
        return tuple(EndsCounted(app, on_time.get(app, 0), missed.get(app, 0)) for app in sorted({**on_time, **missed}))

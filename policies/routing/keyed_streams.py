"""Routing of an app whose streams were promised something: each query goes where its stream's misses are counted
(``sluicegate.policies.promises.stream_places``).

Strict queries alone are promised anything: they take their turns as if there were no others, and others theirs.
"""

from typing import assert_never

from sluicegate.domain.actions import Drop, RoutingAction, Send
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import Arrived, DeviceReported, PartRead, PlanActivated, RoutingEvent
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.outcome import Reason
from sluicegate.domain.plan import Placement
from sluicegate.policies.promises.stream_places import StreamPlaces


class StreamRouting:
    """Routes ``app`` by streams."""

    name = "streams"
    __slots__ = ("_places", "_turns", "app")

    def __init__(self, app: str) -> None:
        self.app = app
        self._places: StreamPlaces | None = None
        self._turns = dict.fromkeys(QueryClass, 0)

    def handle(self, event: RoutingEvent, now: float) -> list[RoutingAction]:
        """Decide. Raises IllegalEventError for a query before the first plan."""
        match event:
            case Arrived(query):
                places = self._places
                if places is None:
                    raise IllegalEventError(f"query {query.id} at {now} before any plan")
                if not places.targets:
                    return [Drop(query, Reason.NO_CAPACITY)]
                own = query.stream in {"", self.app}
                target = self._next(places, query.query_class) if own else places.target(query.stream)
                return [Send(query, target.device, target.slice)]
            case PlanActivated(plan):
                places = StreamPlaces.of(plan, self.app)
                if self._places is None or places.targets != self._places.targets:
                    self._places = places
            case DeviceReported() | PartRead():
                pass
            case _:
                assert_never(event)
        return []

    def _next(self, places: StreamPlaces, of: QueryClass) -> Placement:
        turn = self._turns[of] = (self._turns[of] + 1) % len(places.cycle)
        return places.targets[places.cycle[turn]]

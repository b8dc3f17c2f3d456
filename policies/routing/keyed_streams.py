"""Routing of an app whose streams were promised something: each query goes where its stream's misses are counted.

Rules.
- The app's own stream (queries without a key) goes to all placements in strict turns, each of which keeps its part of
  the promise (``Promise.over``). Turns are equal whatever the plan's shares are: that is what the parts rest on.
- Any other stream has one placement at a time, by rendezvous hashing: when placements come or go, only the streams of
  those move. The hash does not depend on the process, so routers agree and restarts change nothing.
"""

from collections import OrderedDict
from hashlib import blake2b
from typing import assert_never

from sluicegate.domain.actions import Drop, RoutingAction, Send
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import Arrived, DeviceReported, PlanActivated, RoutingEvent
from sluicegate.domain.outcome import Reason
from sluicegate.domain.plan import Placement
from sluicegate.policies.routing.weighted import hosting

_REMEMBERED = 16_384
"""Streams whose place is remembered; others are hashed again, with the same result."""


class StreamRouting:
    """Routes ``app`` by streams. See the module's rules."""

    name = "streams"
    __slots__ = ("_places", "_targets", "_turn", "app")

    def __init__(self, app: str) -> None:
        self.app = app
        self._targets: tuple[Placement, ...] | None = None
        self._places: OrderedDict[str, Placement] = OrderedDict()
        self._turn = 0

    def handle(self, event: RoutingEvent, now: float) -> list[RoutingAction]:
        """Decide. Raises IllegalEventError for a query before the first plan."""
        match event:
            case Arrived(query):
                if self._targets is None:
                    raise IllegalEventError(f"query {query.id} at {now} before any plan")
                if not self._targets:
                    return [Drop(query, Reason.NO_CAPACITY)]
                target = self._next() if query.stream in {"", self.app} else self._place(query.stream)
                return [Send(query, target.device, target.slice)]
            case PlanActivated(plan):
                targets = hosting(plan, self.app)
                if targets != self._targets:
                    self._targets = targets
                    self._places.clear()
            case DeviceReported():
                pass
            case _:
                assert_never(event)
        return []

    def _next(self) -> Placement:
        assert self._targets
        self._turn = (self._turn + 1) % len(self._targets)
        return self._targets[self._turn]

    def _place(self, stream: str) -> Placement:
        place = self._places.get(stream)
        if place is None:
            assert self._targets
            place = max(self._targets, key=lambda p: _score(stream, p))
            if len(self._places) >= _REMEMBERED:
                self._places.popitem(last=False)
            self._places[stream] = place
        return place


def _score(stream: str, placement: Placement) -> bytes:
    return blake2b(f"{stream}\0{placement.device}\0{placement.slice}".encode(), digest_size=8).digest()

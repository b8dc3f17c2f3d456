"""The queue before the slices of a device, where several of them host an app: ``SliceSharing`` chooses among them.

Queries that have ended are told to it once what happened is done with, so that a whole batch makes room at once.
"""

from collections.abc import Collection, Mapping
from typing import assert_never

from typing_extensions import override

from sluicegate.domain.actions import WakeAt
from sluicegate.domain.events import Arrived, HostingChanged, Woke
from sluicegate.domain.query import Query
from sluicegate.policies.placement.slice_queue import (
    BatchEnded,
    BatchStarted,
    GiveBack,
    HostedOnSlice,
    Left,
    Place,
    SharingEvent,
    SliceSharing,
)
from sluicegate.policies.serving.device_actions import DeviceAction, SendBack, WakeMe
from sluicegate.policies.serving.running_batch import Neighbours
from sluicegate.policies.serving.slice import SliceCore

KEY = "/shared"
"""Of its wakes."""


class SharedQueue(Neighbours):
    """The queue that all slices of a device take from.

    ``slices`` by name; ``held``: all queries, with their turns; ``bound``: apps whose queries keep the plan's slice.
    """

    def __init__(
        self,
        sharing: SliceSharing,
        slices: Mapping[str, SliceCore],
        held: dict[Query, int],
        bound: Collection[str],
    ) -> None:
        self._sharing = sharing
        self._slices = slices
        self._held = held
        self._bound = bound
        self._left: list[Query] = []

    @property
    def queued(self) -> int:
        """Queries that wait for room."""
        return self._sharing.queued

    def takes(self, query: Query) -> bool:
        """Whether ``query`` may go to any of several slices."""
        return query.goal is None and query.app not in self._bound and self._sharing.shared(query.app)

    def came(self, query: Query, now: float, actions: list[DeviceAction]) -> None:
        """``query`` is to be put on one of them."""
        self._tell(Arrived(query), now, actions)

    def woke(self, now: float, actions: list[DeviceAction]) -> None:
        """It asked for that."""
        self._tell(Woke(), now, actions)

    def settle(self, now: float, actions: list[DeviceAction]) -> None:
        """Put what waits where others have left."""
        while self._left:
            left, self._left = self._left, []
            for query in left:
                self._tell(Left(query), now, actions)

    def drain(self) -> tuple[Query, ...]:
        """Take out what waits for room."""
        return self._sharing.drain()

    @override
    def hosted(self, part: str, change: HostingChanged, now: float, actions: list[DeviceAction]) -> None:
        self._tell(HostedOnSlice(part, change), now, actions)

    @override
    def started(self, part: str, queries: tuple[Query, ...], now: float, actions: list[DeviceAction]) -> None:
        self._tell(BatchStarted(part, queries), now, actions)

    @override
    def ended(self, part: str, app: str, now: float, actions: list[DeviceAction]) -> None:
        self._tell(BatchEnded(part, app), now, actions)

    @override
    def left(self, query: Query) -> None:
        self._left.append(query)

    def _tell(self, event: SharingEvent, now: float, actions: list[DeviceAction]) -> None:
        for action in self._sharing.handle(event, now):
            match action:
                case Place(query, part):
                    self._slices[part].arrived(Arrived(query, self._held[query]), now, actions)
                case GiveBack(query):
                    del self._held[query]
                    actions.append(SendBack(query))
                case WakeAt(at):
                    actions.append(WakeMe(at, KEY))
                case _ as unreachable:
                    assert_never(unreachable)

"""The slices of one device as it is cut just now: their runners, and the queue before them where queries are shared.

Rules.
- A query goes to the slice that the router named, or to another that serves its app. Where several slices of the device
  host it, ``SliceSharing`` chooses among them, except for queries that are bound to theirs: those with goals of their
  own, and apps that ``bound`` names (promises, SLO classes and tables count on the plan's shares).
- The device acknowledges an epoch once, when every slice has staged it.
- When the device is cut otherwise this is closed, and another takes its place.
"""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from sluicegate.domain.actions import Acknowledge, WakeAt
from sluicegate.domain.clock import Clock
from sluicegate.domain.events import Arrived, HostingChanged, Woke
from sluicegate.domain.query import Query
from sluicegate.policies.placement.ack_barrier import Gathering
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
from sluicegate.stages.runtime.timers import Wakes
from sluicegate.stages.worker.slice_runner import SliceRunner
from sluicegate.streams.records.codec import WorkMessage


class Owner(Protocol):
    """What the slices are parts of."""

    def give_back(self, message: WorkMessage) -> None:
        """The query is for another device."""
        ...


class Parts:
    """``runners``: one for each of the slices ``names``. ``bound``: apps whose queries keep their slice; may change."""

    def __init__(
        self,
        names: Sequence[str],
        runners: Sequence[SliceRunner],
        *,
        clock: Clock,
        owner: Owner,
        sharing: SliceSharing | None = None,
        bound: Collection[str] = (),
    ) -> None:
        self._runners = tuple(runners)
        self._by_name = dict(zip(names, runners, strict=True))
        self._gathering = Gathering(self._by_name)
        self._clock = clock
        self._owner = owner
        self._sharing = sharing
        self._bound = bound
        self._messages: dict[Query, WorkMessage] = {}
        self._wakes = Wakes(clock)
        self._pending: asyncio.Handle | None = None
        self._left: list[Query] = []
        if sharing is not None:
            for runner in self._runners:
                runner.watch = self

    def __iter__(self) -> Iterator[SliceRunner]:
        return iter(self._runners)

    def __len__(self) -> int:
        return len(self._runners)

    def named(self) -> Iterator[tuple[str, SliceRunner]]:
        """(slice, runner)."""
        return iter(self._by_name.items())

    @property
    def queued(self) -> int:
        """Queries that wait or run."""
        return sum(runner.queued for runner in self._runners) + len(self._messages)

    @property
    def idle(self) -> bool:
        """Nothing waits or runs, and nothing is hosted that queries could still come for."""
        return not self.queued and not any(runner.hosts for runner in self._runners)

    def staged(self, part: str, report: Acknowledge) -> Acknowledge | None:
        """A slice has staged an epoch: the device's acknowledgement once it is complete."""
        return self._gathering.staged(part, report)

    def runner_of(self, message: WorkMessage) -> SliceRunner | None:
        """The slice that a query was sent to, or one that serves its app in its place; None where there is none."""
        named = self._by_name.get(message.slice)
        if named is not None:
            return named
        app = message.query.app
        return next((r for r in self._runners if r.serves(app)), self._runners[0] if self._runners else None)

    def arrived(self, message: WorkMessage, runner: SliceRunner) -> None:
        """A query came, for ``runner`` if nothing is chosen here."""
        query = message.query
        sharing = self._sharing
        if sharing is None or query.goal is not None or query.app in self._bound or not sharing.shared(query.app):
            runner.arrived(query, message.tensors, message.epoch, message.turn)
            return
        self._messages[query] = message
        self._tell(Arrived(query))

    def left(self, query: Query) -> None:
        """A query has ended. What waits is put on slices once the batch it was in is done with."""
        if self._sharing is not None:
            self._left.append(query)
            self._soon()

    def abandon(self) -> None:
        """Forget every query: others answer them."""
        if self._sharing is not None:
            self._sharing.drain()
            self._messages.clear()
        for runner in self._runners:
            for query in runner.abandon():
                self.left(query)

    def hand_back(self) -> None:
        """Give back what waits and is not bound to its stream's place; what runs is finished."""
        if self._sharing is not None:
            for query in self._sharing.drain():
                self._owner.give_back(self._messages.pop(query))
        for name, runner in self._by_name.items():
            for query, tensors, epoch in runner.take_waiting(self._bound):
                self.left(query)
                self._owner.give_back(WorkMessage(query, tensors, epoch, name))

    async def close(self) -> None:
        """Stop timers, tasks and executors."""
        self._wakes.cancel()
        if self._pending is not None:
            self._pending.cancel()
        for runner in self._runners:
            await runner.close()

    # -- what runners tell

    def hosted(self, part: str, change: HostingChanged) -> None:
        """A slice hosts other variants of an app."""
        self._tell(HostedOnSlice(part, change))

    def started(self, part: str, queries: tuple[Query, ...]) -> None:
        """A slice runs a batch."""
        self._tell(BatchStarted(part, queries))

    def ended(self, part: str) -> None:
        """A slice's batch has ended."""
        self._tell(BatchEnded(part))

    def _soon(self) -> None:
        if self._pending is None:
            self._pending = asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        self._pending = None
        left, self._left = self._left, []
        for query in left:
            self._tell(Left(query))

    def _tell(self, event: SharingEvent) -> None:
        assert self._sharing is not None
        now = self._clock.wall()
        for action in self._sharing.handle(event, now):
            match action:
                case Place(query, part):
                    message = self._messages.pop(query)
                    self._by_name[part].arrived(query, message.tensors, message.epoch, message.turn)
                case GiveBack(query):
                    self._owner.give_back(self._messages.pop(query))
                case WakeAt(at):
                    self._wakes.wake_at("sharing", at, self._woke)

    def _woke(self) -> None:
        self._tell(Woke())

"""Which slice of a GPU a query goes to, where several host its app: one queue before all of them.

Rules.
- A slice has room for the batches that it runs at a time and the one that forms, as large as two are done within the
  SLO: what waits beyond that is late, and would be in time elsewhere. Memory stands for room, so that every rule of
  ``sluicegate.policies.placement`` applies as it stands: a row takes the same part of each slice's memory.
- A query takes its place when it is put on a slice and gives it back when it ends. What finds no room waits here, in
  the order of the rule (strict first), and is put on a slice as soon as one has room.
- eta counts the batch that a query will be in, those that run, and what waits there, each by the part of the slice's
  bandwidth that it takes: all of it where nobody measured that, so that batches are counted.
- RDF is taken from what the slices host for the app: the time of the largest such batch that all of them can run.
- A query whose deadline passes while it waits goes to a slice all the same, which ends it. One whose app is hosted
  nowhere any more is given back.

After PROTEAN (Middleware 2024), Algorithm 1, with queries for batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import assert_never

from sluicegate.domain.actions import WakeAt
from sluicegate.domain.events import Arrived, HostingChanged, Woke
from sluicegate.domain.fleet.device import Slice
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.query import Query
from sluicegate.policies.placement.slice_choice import SliceLoad, ascending
from sluicegate.policies.placement.slice_queue_port import SlicePlacement, Waiting
from sluicegate.profiles.catalogue.slowdown import SlowdownTable, VariantDemand

_BATCHES = 2
"""Batches in a row that a query is done with within its SLO."""
_OWN = 1.0
"""Of a slice's bandwidth that the batch which a query will be in takes, as long as nothing is hosted there."""


@dataclass(frozen=True, slots=True)
class HostedOnSlice:
    """A slice hosts this for an app from now on."""

    part: str
    change: HostingChanged


@dataclass(frozen=True, slots=True)
class BatchStarted:
    """A slice runs ``queries`` as one batch."""

    part: str
    queries: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """A batch of ``app`` has ended on the slice."""

    part: str
    app: str


@dataclass(frozen=True, slots=True)
class Left:
    """A query that left the queue. ``query`` has ended, or is served elsewhere."""

    query: Query


SharingEvent = Arrived | HostedOnSlice | BatchStarted | BatchEnded | Left | Woke


@dataclass(frozen=True, slots=True)
class Place:
    """Put ``query`` on the slice ``part``."""

    query: Query
    part: str


@dataclass(frozen=True, slots=True)
class GiveBack:
    """No slice hosts the app of ``query`` any more."""

    query: Query


SharingAction = Place | GiveBack | WakeAt


@dataclass(slots=True)
class _Kept:
    """Of an app on a slice: ``curve``, of what is most accurate; ``fbr`` that a batch takes; ``room``: batches at a
    time."""

    curve: LatencyCurve
    fbr: float
    room: int


@dataclass(slots=True)
class _Held:
    """A query on a slice. ``waits``: its part of a batch there, 0 once it runs."""

    part: str
    memory_bytes: int
    waits: float
    strict: bool


class SliceSharing:
    """The queue before the slices of one GPU. ``make``: the rule, for what is hosted just then."""

    def __init__(self, parts: Sequence[Slice], make: Callable[[SlowdownTable], SlicePlacement]) -> None:
        self._make = make
        self._loads = ascending(
            SliceLoad(p.name, p.name, p.memory_bytes, p.memory_bytes, fbr=_OWN) for p in parts if p.memory_bytes
        )
        self._by_name = {load.name: load for load in self._loads}
        self._curves: dict[str, dict[str, _Kept]] = {}  # app -> slice
        self._own = {load.name: _OWN for load in self._loads}
        self._running: dict[str, list[tuple[str, float]]] = {load.name: [] for load in self._loads}  # (app, fbr)
        self._table = SlowdownTable({})
        self._rule = make(self._table)
        self._held: dict[Query, _Held] = {}
        self._queue: dict[int, Query] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._arrivals = 0

    @property
    def queued(self) -> int:
        """Queries that wait for room."""
        return len(self._queue)

    def shared(self, app: str) -> bool:
        """Whether there is something to choose: several slices host ``app``."""
        return len(self._curves.get(app, ())) > 1

    def load(self, part: str) -> SliceLoad:
        """What a slice holds at present."""
        return self._by_name[part]

    def handle(self, event: SharingEvent, now: float) -> list[SharingAction]:
        """Decide."""
        match event:
            case Arrived(query):
                return self._arrived(query, now)
            case Left(query):
                self._left(query)
                return self._next() if self._queue else []
            case BatchStarted(part, queries):
                for query in queries:
                    self._runs(query)
                if part in self._by_name:
                    app = queries[0].app
                    kept = self._curves.get(app, {}).get(part)
                    self._running[part].append((app, kept.fbr if kept is not None else _OWN))
                    self._by_name[part].fbr += self._running[part][-1][1]
                return []
            case BatchEnded(part, app):
                if part in self._by_name:
                    running = self._running[part]
                    ended = next((i for i, (of, _) in enumerate(running) if of == app), 0)
                    self._by_name[part].fbr -= running.pop(ended)[1]
                return self._next() if self._queue else []
            case HostedOnSlice(part, change):
                return self._hosted(part, change)
            case Woke():
                return self._woke(now)
            case _ as unreachable:
                assert_never(unreachable)

    def drain(self) -> tuple[Query, ...]:
        """Take out all that waits; what is on slices stays there."""
        found = tuple(self._queue.values())
        self._forget_queue()
        return found

    def _arrived(self, query: Query, now: float) -> list[SharingAction]:
        self._arrivals += 1
        self._queue[self._arrivals] = query
        self._wait(self._arrivals, query)
        actions = self._next()
        if self._arrivals in self._queue:
            heappush(self._deadlines, (query.deadline, self._arrivals))
            actions.append(WakeAt(max(now, query.deadline)))
        return actions

    def _wait(self, key: int, query: Query) -> None:
        self._rule.arrived(Waiting(key, query.app, query.query_class is QueryClass.STRICT), self._loads)

    def _next(self) -> list[SharingAction]:
        actions: list[SharingAction] = []
        while (assigned := self._rule.next(self._loads)) is not None:
            query = self._queue.pop(assigned.item.key, None)
            if query is not None:  # else it was taken out before
                actions.append(self._place(query, self._loads[assigned.slice]))
        return actions

    def _place(self, query: Query, load: SliceLoad) -> Place:
        demand = self._table.demands[query.app]
        kept = self._curves[query.app][load.name]
        waits = kept.fbr * query.rows / kept.curve.max_batch
        held = _Held(load.name, query.rows * demand.memory_bytes, waits, query.query_class is QueryClass.STRICT)
        self._held[query] = held
        load.free_bytes -= held.memory_bytes
        load.strict_bytes += held.memory_bytes if held.strict else 0
        load.residents += 1
        load.fbr += waits
        return Place(query, load.name)

    def _runs(self, query: Query) -> None:
        held = self._held.get(query)
        if held is not None:
            self._by_name[held.part].fbr -= held.waits
            held.waits = 0.0

    def _left(self, query: Query) -> None:
        self._runs(query)
        held = self._held.pop(query, None)
        if held is not None:
            load = self._by_name[held.part]
            load.free_bytes += held.memory_bytes
            load.strict_bytes -= held.memory_bytes if held.strict else 0
            load.residents -= 1

    def _woke(self, now: float) -> list[SharingAction]:
        actions: list[SharingAction] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            query = self._queue.pop(heappop(self._deadlines)[1], None)
            if query is not None:
                first = next(load for load in self._loads if load.name in self._curves[query.app])
                actions.append(self._place(query, first))
        while self._deadlines and self._deadlines[0][1] not in self._queue:
            heappop(self._deadlines)
        if self._deadlines:
            actions.append(WakeAt(self._deadlines[0][0]))
        return actions

    def _hosted(self, part: str, change: HostingChanged) -> list[SharingAction]:
        if part not in self._by_name:
            return []
        curves = self._curves.setdefault(change.app, {})
        if change.hosted:
            first = change.hosted[0]
            rows = max(1, first.curve.largest_within(change.slo / _BATCHES))
            curves[part] = _Kept(LatencyCurve(first.curve.seconds[:rows]), first.fbr, first.executors)
        else:
            curves.pop(part, None)
        if not curves:
            del self._curves[change.app]
        own = max((on[part].fbr for on in self._curves.values() if part in on), default=_OWN)
        self._by_name[part].fbr += own - self._own[part]
        self._own[part] = own
        self._table = SlowdownTable({app: self._demand(app, on) for app, on in self._curves.items()})
        self._rule = self._make(self._table)
        actions: list[SharingAction] = []
        for key, query in tuple(self._queue.items()):
            if query.app in self._curves:
                self._wait(key, query)
            else:
                del self._queue[key]
                actions.append(GiveBack(query))
        return actions + self._next()

    def _demand(self, app: str, there: dict[str, _Kept]) -> VariantDemand:
        """One row of ``app``; slices are named in the place of their profiles, for they may host other variants."""
        curves = {part: kept.curve for part, kept in there.items()}
        batch = min(curve.max_batch for curve in curves.values())
        solo = min(curve(batch) for curve in curves.values())
        row = min(
            self._by_name[part].memory_bytes / ((kept.room + 1) * kept.curve.max_batch) for part, kept in there.items()
        )
        return VariantDemand(
            name=app,
            solo=solo,
            memory_bytes=max(1, int(row)),
            rdf={part: curve(batch) / solo for part, curve in curves.items()},
            fbr=1.0,
            fbr_by_profile={part: kept.fbr / kept.curve.max_batch for part, kept in there.items()},
            batch=batch,
        )

    def _forget_queue(self) -> None:
        self._queue.clear()
        self._deadlines.clear()
        self._rule = self._make(self._table)

"""The slices of a device as it is cut just now, the queue before them, and how it is cut otherwise.

Rules.
- A query goes to the slice that its router named, or to one that serves its app. Where several slices host it, the
  queue before them chooses, except for queries that are bound to theirs: those with goals of their own, and apps that
  ``bound`` names (promises, SLO classes and tables count on the plan's shares).
- A query of an app that is not served here (any more) goes back to its router, unless it is past its deadline.
- The device acknowledges an epoch once, when every slice has staged it; at once while it has none.
- A device is cut otherwise as plans ask (``sluicegate.policies.placement.repartition``). What is here is finished
  first: apps that leave are retired once their queues are empty, and what waits after ``patience`` seconds goes back to
  the routers, except of apps that are bound. What comes while it is cut goes back.
- What waits on a slice when its batch is found overdue goes back to the routers, once, except of apps that are bound.
- What ends executors is known to the whole device (``sluicegate.policies.routing.known_poison``).
- Slices on which batches take longer than their profiles say are told, and when they no longer do.
- Every query that was read is in one table, ``held``, with its turn, until it ends, goes back or is abandoned.

Illegal: a query that is here already; the end of what was not begun; an event of a slice that is not.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from sluicegate.domain.actions import Acknowledge
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import LatencyMeasured, PlanPublished, TurnsTold
from sluicegate.domain.fleet.device import Device, Slice, executors_of
from sluicegate.domain.plan import Plan
from sluicegate.domain.query import Query
from sluicegate.policies.mdp_serving.known_tables import KnownTables
from sluicegate.policies.placement.ack_barrier import Gathering
from sluicegate.policies.placement.interference import InterferenceDetector
from sluicegate.policies.placement.repartition import (
    Cut,
    CutEnded,
    CutState,
    Drain,
    Drained,
    Recutting,
    RecuttingAction,
    Serve,
    Stay,
)
from sluicegate.policies.placement.slice_queue import SliceSharing
from sluicegate.policies.promises.stream_book import Recall, StreamBook
from sluicegate.policies.protocols import StagingPolicy, StationPolicy
from sluicegate.policies.routing.known_poison import KnownPoison
from sluicegate.policies.serving.batch_times import BatchTimes, RunLimits
from sluicegate.policies.serving.device_actions import DeviceAction, Say, SendBack, SliceReport, WakeMe
from sluicegate.policies.serving.device_events import ContentsTold, QueryCame, TableCame
from sluicegate.policies.serving.kept_executor import KeptExecutor
from sluicegate.policies.serving.shared_queue import KEY as SHARED
from sluicegate.policies.serving.shared_queue import SharedQueue
from sluicegate.policies.serving.slice import SliceCore
from sluicegate.profiles.catalogue.catalogue import Catalogue

_PATIENCE = "/patience"
"""Of the wake that ends a drain's patience."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceParts:
    """What the slices of a device are made of: factories. ``make_sharing``: of the queue before them, if any."""

    make_station: Callable[[], StationPolicy]
    make_staging: Callable[[Device, Slice], StagingPolicy]
    make_sharing: Callable[[Device], SliceSharing | None] = lambda _device: None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRules:
    """Seconds. ``patience``: how long queries may wait on a device that is to be cut before they go to others.

    ``self_fence``: since its last heartbeat, how long a worker may stand still and go on without a look at the newest
    plan: for less than it takes until another has its place. ``bound``: apps whose queries keep the slice of the plan;
    it may change. ``cuttable``: whether plans may have the device cut. ``instances``: whether records of them are
    written. ``executors``: of each slice, by device type or profile of it; one where nothing is said.
    """

    limits: RunLimits = field(default_factory=RunLimits)
    self_fence: float = 1.0
    patience: float = 5.0
    bound: Collection[str] = ()
    cuttable: bool = False
    instances: bool = False
    executors: Mapping[str, int] = field(default_factory=dict)


class DeviceSlices:
    """See the module's rules. ``device``: as it is cut; ``recall``: how promised streams went on, once that is told."""

    def __init__(self, device: Device, parts: DeviceParts, catalogue: Catalogue, rules: DeviceRules) -> None:
        self.device = device
        self.held: dict[Query, int] = {}
        self.by_name: dict[str, SliceCore] = {}
        self.recutting: Recutting | None = None
        self.leaving = False  # the worker ends: no cut is begun
        self.poison = KnownPoison()
        self.settles = False  # whether anything may follow from what is done
        self._parts = parts
        self._catalogue = catalogue
        self._rules = rules
        self._wakes: dict[str, Callable[[float, list[DeviceAction]], None]] = {}
        self._shared: SharedQueue | None = None
        self._interference = InterferenceDetector()
        self._patience_ends = 0.0
        self._impatient = False
        self._tables = KnownTables()
        self._recall: Recall | None = None
        self._plan: Plan | None = None

    def _promised(self, app: str) -> bool:
        known = self._catalogue.apps.get(app)
        return known is not None and known.promise.active

    def named(self, part: str) -> SliceCore:
        """The slice ``part``. Raises IllegalEventError."""
        found = self.by_name.get(part)
        if found is None:
            raise IllegalEventError(f"there is no slice {part}")
        return found

    def came(self, event: QueryCame, now: float, actions: list[DeviceAction]) -> None:
        """A query was read."""
        query = event.query
        app = query.app
        if query in self.held:
            raise IllegalEventError(f"query {query.id} came at {now} and is here already")
        if event.content:
            self.poison.told(query.key, event.content)
        part = self.by_name.get(event.slice) or self._instead(app)
        served = part is not None and (part.staging.wants(app) or query.deadline <= now)
        if part is None or not served or (self._impatient and app not in self._rules.bound):
            actions.append(SendBack(query))
        elif self._shared is not None and not event.flaw and self._shared.takes(query):
            self.held[query] = event.turn
            self._shared.came(query, now, actions)
        else:
            self.held[query] = event.turn
            part.arrived(event, now, actions)

    def contents(self, told: ContentsTold, now: float) -> None:
        """An executor has ended, while these were here."""
        self.poison.watch(now)
        for query, content in told.contents:
            self.poison.told(query, content)

    def purge(self, now: float, actions: list[DeviceAction]) -> None:
        """Queries may have been named: what holds the same ends everywhere on the device, and is told of."""
        fresh, self.poison.fresh = self.poison.fresh, []
        for query in fresh:
            told = f"what query {query.id} of {query.app} holds has ended an executor; it is refused for a while"
            actions.append(Say("poisoned", told))
        for part in self.by_name.values() if fresh else ():
            part.purge(now, actions)

    def woken(self, key: str, now: float, actions: list[DeviceAction]) -> None:
        """A time that was asked for has come."""
        woke = self._wakes.get(key)
        if woke is not None:  # else of a slice that is no more
            woke(now, actions)

    def settle(self, now: float, actions: list[DeviceAction]) -> None:
        """What follows from all that was done."""
        if self._shared is not None:
            self._shared.settle(now, actions)
        cut = self.recutting
        if cut is not None and cut.state is CutState.DRAINING and self._idle and not self.leaving:
            self._decide(cut.handle(Drained()), now, actions)

    def abandon(self) -> tuple[Query, ...]:
        """Forget every query, and how streams went on: all that is others' now. Returns what is forgotten."""
        gone = tuple(self.held)
        for part in self.by_name.values():
            part.abandon(self._catalogue.apps)
        if self._shared is not None:
            self._shared.drain()
            for query in self.held:
                self._shared.left(query)
        self.held.clear()
        self._plan = self._recall = None
        return gone

    @property
    def _idle(self) -> bool:
        """Nothing waits or runs, and nothing is hosted that queries could still come for."""
        return not self.held and not any(part.hosts or any(part.batches) for part in self.by_name.values())

    def _instead(self, app: str) -> SliceCore | None:
        parts = self.by_name.values()
        return next((part for part in parts if part.staging.wants(app)), next(iter(parts), None))

    def plan(self, plan: Plan, now: float, actions: list[DeviceAction]) -> None:
        """A plan counts on this device."""
        self._plan = plan
        self._stage(plan, now, actions)
        if self.recutting is not None:
            self._decide(self.recutting.handle(PlanPublished(plan)), now, actions)
        if not self.by_name:  # while it is cut nothing can be staged, and routers need not wait for it
            actions.append(Acknowledge(plan.epoch, (), ()))

    def reports(self, now: float, actions: list[DeviceAction]) -> tuple[SliceReport, ...]:
        """For a heartbeat; what was measured is told once."""
        reports = tuple([part.report(now) for part in self.by_name.values()])
        for part, report in zip(self.by_name.values(), reports, strict=True):
            if not report.overdue:
                part.left = False
            elif not part.left:
                part.left = True
                self._leave(part, now, actions)
            for one in report.measured:
                normal = self.normal(report.slice, one)
                if normal > 0.0:
                    actions += self._interference.handle(report.slice, one.execution_s, normal)
        return reports

    def _leave(self, part: SliceCore, now: float, actions: list[DeviceAction]) -> None:
        """What waits behind an overdue batch and is not bound to its place is for others, as far as there are any."""
        apps = [app for app in self._catalogue.apps if app not in self._rules.bound]
        actions += [SendBack(query) for query in part.take_waiting(apps, now, actions)]

    def normal(self, part: str, measured: LatencyMeasured) -> float:
        """Median seconds of such a batch on slice ``part`` by its profile, 0 where it has none."""
        return self.by_name[part].times.normal(measured)

    def registered(self) -> None:
        """Profiles may be others from now on."""
        for part in self.by_name.values():
            part.times.registered()

    def recalled(self, recall: Recall) -> None:
        """How promised streams went on until now."""
        self._recall = recall
        for part in self.by_name.values():
            part.book.recalled(recall)

    def turned(self, told: TurnsTold, now: float, actions: list[DeviceAction]) -> None:
        """The router of an app has given so many turns."""
        for part in self.by_name.values():
            part.turned(told, now, actions)

    def table(self, event: TableCame, now: float, actions: list[DeviceAction]) -> None:
        """A selection table came, or goes."""
        change = self._tables.came(event)
        if change is not None:
            for part in self.by_name.values():
                if part.times.kind == event.kind:
                    part.swap(change, now, actions)

    def opened(self, slices: Sequence[Slice], now: float, actions: list[DeviceAction]) -> None:
        """The worker has started, with these."""
        if self._rules.cuttable:
            self.recutting = Recutting(self.device.name, slices)
        self._open(slices, now, actions)

    def was_cut(self, event: CutEnded, now: float, actions: list[DeviceAction]) -> None:
        """A cut has ended, well or not."""
        if self.recutting is None:
            raise IllegalEventError(f"{self.device.name} was cut at {now}, which it cannot be")
        self._decide(self.recutting.handle(event), now, actions)

    def _open(self, slices: Sequence[Slice], now: float, actions: list[DeviceAction]) -> None:
        device = self.device = replace(self.device, slices=tuple(slices))
        gathering = Gathering(part.name for part in slices)
        sharing = self._parts.make_sharing(device)
        self.by_name = {}
        self._shared = None
        self._interference = InterferenceDetector()
        if sharing is not None:
            self._shared = SharedQueue(sharing, self.by_name, self.held, self._rules.bound)
        for part in slices:
            kills: dict[str, deque[float]] = {}
            number = executors_of(self._rules.executors, device.type, part.profile)
            core = self.by_name[part.name] = SliceCore(
                [KeptExecutor(part.name, now, self.poison, seat, kills) for seat in range(number)],
                station=self._parts.make_station(),
                staging=self._parts.make_staging(device, part),
                times=BatchTimes(device, part, self._catalogue, self._rules.limits),
                book=StreamBook((device.name, part.name), self._promised),
                held=self.held,
                gathering=gathering,
                neighbours=self._shared,
            )
            if self._recall is not None:
                core.book.recalled(self._recall)
            for change in self._tables.of(core.times.kind):
                core.swap(change, now, actions)
        self.settles = self._shared is not None or self.recutting is not None
        self._wakes = {_PATIENCE: self._give_back}
        for core in self.by_name.values():
            self._wakes |= {core.name: core.woke, core.staging_key: core.staging_woke}
        if self._shared is not None:
            self._wakes[SHARED] = self._shared.woke
        if self._plan is not None:
            self._stage(self._plan, now, actions)

    def _stage(self, plan: Plan, now: float, actions: list[DeviceAction]) -> None:
        for part in self.by_name.values():
            part.plan(PlanPublished(plan), now, actions)

    def _decide(self, decided: Sequence[RecuttingAction], now: float, actions: list[DeviceAction]) -> None:
        for action in decided:
            match action:
                case Drain():
                    self._patience_ends = now + self._rules.patience
                    actions.append(Say("draining", "a plan cuts it otherwise"))
                    actions.append(WakeMe(self._patience_ends, _PATIENCE))
                case Stay():
                    self._impatient = False
                    actions.append(Say("serving", "the cut was called off"))
                case Cut(profiles):
                    actions += (Say("cutting", " + ".join(profiles)), action)
                    self.by_name, self._shared, self._wakes = {}, None, {}
                case Serve(slices):
                    assert self.recutting is not None
                    fault, shown = self.recutting.fault, ", ".join(part.name for part in slices)
                    self._impatient = False
                    self._open(slices, now, actions)
                    actions.append(Say("cut_failed" if fault else "serving", fault or shown))
                case _ as unreachable:
                    assert_never(unreachable)

    def _give_back(self, now: float, actions: list[DeviceAction]) -> None:
        """The patience of a drain is over: what waits and is not bound to its place is for other devices."""
        if self.recutting is None or self.recutting.state is not CutState.DRAINING:
            return
        if now < self._patience_ends:  # the wake was of a drain that was called off
            actions.append(WakeMe(self._patience_ends, _PATIENCE))
            return
        self._impatient = True
        if self._shared is not None:
            for query in self._shared.drain():
                del self.held[query]
                actions.append(SendBack(query))
        apps = [app for app in self._catalogue.apps if app not in self._rules.bound]
        for part in self.by_name.values():
            actions += [SendBack(query) for query in part.take_waiting(apps, now, actions)]

"""Elastic capacity: a shell around its core (``planner.capacity.core``), whichever rule that goes by.

It tells the core heartbeats, and what its rule hears beside: counts of demand, records of instances, notices of the
market. What the core withdraws is noted on the devices topic, so that plans leave the device out before its worker
ends: nothing is lost, and nothing waits for a timeout. Drivers and providers are asked in tasks: they may take minutes.
One of a name serves a system; workers that it started end with it. What goes by the load alone is told seconds of a
clock that never goes back: counts of demand would not be looked at until one that was set back is where it was.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import SluiceError
from sluicegate.domain.events import InstanceRead, Ticked
from sluicegate.executors.drivers.provider import Notice, NoticeSource, Provider
from sluicegate.executors.drivers.worker_drivers import WorkerDriver
from sluicegate.planner.capacity.events import (
    Bill,
    CallFailed,
    CapacityAction,
    CapacityEvent,
    EndInstance,
    Leading,
    LookUp,
    Ordered,
    Release,
    Released,
    Restore,
    Serving,
    Start,
    Stop,
    Told,
    VariantWanted,
    Wants,
    Wishes,
    Withdraw,
    WorkerReported,
    WorkerStarted,
    WorkerStopped,
)
from sluicegate.planner.capacity.procurement import AskSpot, InstanceUp, Noticed, OrderOnDemand, SpotAnswered
from sluicegate.planner.model_less.wishes import FollowsWishes
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.connections import Connections
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.runtime.background_tasks import BackgroundTasks, beside
from sluicegate.stages.runtime.decision_log import Handle
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.streams.ports import Record
from sluicegate.streams.records import control
from sluicegate.streams.records.instances import decode_instance

log = logging.getLogger(__name__)


_Posted = Withdraw | Restore | Announce | EndInstance | Bill
_Call = Start | Stop | AskSpot | OrderOnDemand | LookUp | Release


@dataclass(frozen=True, slots=True)
class Market:
    """Where notices come from, and who grants instances."""

    source: NoticeSource
    provider: Provider


@dataclass(frozen=True, slots=True)
class BesidePlanner:
    """The planner that scales, in this process, and whether it leads."""

    planner: FollowsWishes
    leads: Callable[[], bool]


class CapacityStage:
    """The shell of a rule of capacity. ``name``: of the role. ``period``: seconds between looks. ``market``,
    ``planner``: where the rule needs them; with neither, counts of demand are followed.
    """

    def __init__(
        self,
        name: str,
        connections: Connections,
        handle: Handle[CapacityEvent, CapacityAction],
        *,
        driver: WorkerDriver,
        period: float = 1.0,
        market: Market | None = None,
        planner: BesidePlanner | None = None,
    ) -> None:
        self.name = name
        self._broker = connections.broker
        self._topics = connections.topics
        by_records = market is not None or planner is not None  # notices and instances say the time by the wall clock
        self._now = connections.clock.wall if by_records else connections.clock.monotonic
        self._meters = connections.telemetry.meters
        self._handle = handle
        self._driver = driver
        self._period = period
        self._market = market
        self._planner = planner
        self._outbox = Outbox(connections.producer, connections.topics.control)
        connections.telemetry.of_outbox(name, self._outbox)
        self._tasks = BackgroundTasks(self.name)
        self._complaint = ""
        self._led = False

    async def registered(self, served: Catalogue) -> None:
        """The registry changed."""
        self._tell(served.registered)

    async def run(self, stop: asyncio.Event) -> None:
        """Look after workers until ``stop``; those that were started are ended then."""
        await self._outbox.start()
        topics = self._topics
        instances = Follower(self._broker, topics.instances, self._on_instance)
        followers = [Follower(self._broker, topics.devices_metrics, self._on_heartbeat, start_at="end")]
        if self._planner is not None:
            followers += [instances, Follower(self._broker, topics.status, self._on_status, start_at="end")]
        elif self._market is None:
            followers.append(
                Follower(self._broker, topics.demand, self._on_demand, start_at="end", every_partition=True)
            )
        try:
            async with beside(follower.run(stop) for follower in followers):
                if self._planner is not None:
                    await instances.ready.wait()
                while not stop.is_set():
                    await self._look()
                    try:
                        await asyncio.wait_for(stop.wait(), self._period)
                    except TimeoutError:
                        continue
        finally:
            self._tasks.cancel()
            await self._tasks.over()
            await self._driver.close()
            await self._outbox.stop()

    async def _look(self) -> None:
        for notice in await self._notices():
            if any(isinstance(action, Withdraw) for action in self._tell(Noticed(notice.node, notice.deadline))):
                self._meters.add("sluice_spot_notices", notice.node)
        self._tell(Ticked())

    async def _notices(self) -> tuple[Notice, ...]:
        if self._market is None:
            return ()
        try:
            return await self._market.source.poll()
        except SluiceError as error:
            if str(error) != self._complaint:
                log.error("%s: %s", self.name, error)
            self._complaint = str(error)
            return ()

    def _on_demand(self, record: Record) -> None:
        if record.value is not None:
            self._tell(control.decode_demand(record.value))

    def _on_heartbeat(self, record: Record) -> None:
        if record.value is None:
            return
        beat = control.decode_heartbeat(record.value)
        if beat.stands_by:
            return
        seen, used = beat.seen, beat.utilisation
        rows = sum(part.queued for part in beat.slices)
        self._tell(WorkerReported(seen.device, seen.type, used, beat.queued, beat.variants, seen.leaving, rows))

    def _on_instance(self, record: Record) -> None:
        key = (record.key or b"").decode(errors="replace")
        instance = None if record.value is None else decode_instance(record.key, record.value)
        self._tell(InstanceRead(key, instance))

    def _on_status(self, record: Record) -> None:
        if record.value is None or record.key == control.LEASE_KEY:
            return
        said = control.decode_announce(record.value)
        if said.state == control.VARIANT_WANTED:
            self._tell(VariantWanted(said.subject.removeprefix("variant:")))

    def _tell(self, event: CapacityEvent) -> Sequence[CapacityAction]:
        if self._planner is not None and self._planner.leads() is not self._led:
            self._led = not self._led
            self._tell(Leading(self._led))
        actions = self._handle(event, self._now())
        for action in actions:
            self._do(action)
        return actions

    def _do(self, action: CapacityAction) -> None:
        match action:
            case Start() | Stop() | AskSpot() | OrderOnDemand() | LookUp() | Release():
                self._tasks.begin(self._call(action))
            case Withdraw() | Restore() | Announce() | EndInstance() | Bill():
                self._post(action)
            case Wants(app, workers):
                self._meters.set("sluice_workers_wanted", workers, app)
            case Serving(devices):
                self._meters.set("sluice_devices_serving", devices)
            case Wishes():
                assert self._planner is not None  # only what runs beside one wishes anything of it
                self._planner.planner.wishes = action
            case Told(text):
                log.warning("%s: %s", self.name, text)
            case _:
                assert_never(action)

    def _post(self, action: _Posted) -> None:
        topics, post = self._topics, self._outbox.post
        match action:
            case Withdraw(device):
                self._note(control.DeviceNote(device=device, by=self.name, withdrawn=True, reason=self.name))
            case Restore(device, price):
                self._note(control.DeviceNote(device=device, by=self.name, withdrawn=False, price=price))
            case EndInstance(key):
                post(topics.instances, None, key=key.encode())
            case Bill(paid):
                for kind, money in paid.items():
                    self._meters.set("sluice_cost_money", money, str(kind))
                data: dict[str, float | str] = {str(kind): money for kind, money in paid.items()}
                detail = f"{sum(paid.values()):.4f} since the start"
                self._post(Announce(control.COST_SUBJECT, "counted", detail, data))
            case Announce(subject, state):
                self._meters.add("sluice_announcements", self.name, state)
                post(topics.status, control.encode_announce(action), key=subject.encode())
            case _:
                assert_never(action)

    def _note(self, note: control.DeviceNote) -> None:
        key = control.note_key(note.device, self.name)
        self._outbox.post(self._topics.devices, control.encode_note(note), key=key)

    async def _call(self, call: _Call) -> None:
        match call:
            case Start(device):
                self._tell(WorkerStarted(device, await self._changed(device, "started", self._driver.start(device))))
            case Stop(device):
                await self._changed(device, "ended", self._driver.stop(device))
                self._tell(WorkerStopped(device))
            case _:
                assert self._market is not None  # only a rule of the market asks it
                await self._trade(call, self._market.provider)

    async def _changed(self, device: str, what: str, work: Coroutine[Any, Any, None]) -> bool:
        """Whether a driver did what it was asked."""
        try:
            await work
        except Exception as error:  # the rule waits to be told, whatever a driver or a worker raises
            log.error("%s: %s", self.name, error, exc_info=None if isinstance(error, SluiceError) else error)
            self._meters.add("sluice_worker_changes", device, "failed")
            return False
        self._meters.add("sluice_worker_changes", device, what)
        return True

    async def _trade(self, call: AskSpot | OrderOnDemand | LookUp | Release, provider: Provider) -> None:
        try:
            match call:
                case AskSpot(node):
                    self._tell(SpotAnswered(node, await provider.request_spot(node)))
                case OrderOnDemand(node):
                    await provider.order(node)
                    self._tell(Ordered(node))
                case LookUp(node, kind):
                    if await provider.up(node, kind):
                        self._tell(InstanceUp(node, kind))
                case Release(node, kind):
                    await provider.release(node, kind)
                    self._tell(Released(node, kind))
        except SluiceError as error:
            log.error("%s: %s: %s", self.name, call.node, error)
            if not isinstance(call, LookUp):
                self._tell(CallFailed(call))

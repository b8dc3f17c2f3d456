"""Model-less scaling, live: beside the planner that scales, in its process.

A thin shell around ``sluicegate.planner.capacity.model_less_control``. It reads the instances topic from its beginning
(so that it knows after a takeover what its predecessor knew), heartbeats and what routers want loaded; once a second
the planner is told what to avoid, load and restore, and a driver what to start and end. Who does not lead listens.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from sluicegate.domain.actions import Announce
from sluicegate.domain.clock import Clock
from sluicegate.domain.errors import SluiceError
from sluicegate.domain.events import Ticked
from sluicegate.executors.drivers.worker_drivers import WorkerDriver
from sluicegate.planner.capacity.model_less_control import (
    InstancesSeen,
    LiveEvent,
    LiveScaling,
    StartWorker,
    StopWorker,
    VariantWanted,
)
from sluicegate.planner.capacity.worker_count import WorkerBeat, WorkerLeft
from sluicegate.planner.model_less.scaling_planners import ScalingPlanner
from sluicegate.policies.model_less.instance_states import LEASE, InstanceIndex
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.runtime.background_tasks import beside
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.telemetry.telemetry import Telemetry
from sluicegate.streams.ports import Broker, Producer, Record
from sluicegate.streams.records import control
from sluicegate.streams.records.instances import decode_instance
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)

_FADE = 0.3
"""Weight of a heartbeat in how much of a worker is used: about the last two seconds."""


class ScalingStage:
    """``leads``: whether the planner beside it does. ``period``: seconds between ticks."""

    name = "scaling"

    def __init__(
        self,
        *,
        broker: Broker,
        producer: Producer,
        topics: Topics,
        clock: Clock,
        planner: ScalingPlanner,
        scaling: LiveScaling,
        driver: WorkerDriver,
        leads: Callable[[], bool],
        period: float = 1.0,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._clock = clock
        self._planner = planner
        self._scaling = scaling
        self._driver = driver
        self._leads = leads
        self._period = period
        telemetry = telemetry or Telemetry()
        self._meters = telemetry.meters
        self._outbox = Outbox(producer)
        telemetry.of_outbox(self.name, self._outbox)
        self._index = InstanceIndex()
        self._used: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Scale until ``stop``; workers that were started are ended then."""
        await self._outbox.start()
        instances = Follower(self._broker, self._topics.instances, self._on_instance)
        followers = (
            instances,
            Follower(self._broker, self._topics.devices_metrics, self._on_heartbeat, start_at="end"),
            Follower(self._broker, self._topics.status, self._on_status, start_at="end"),
        )
        try:
            async with beside(follower.run(stop) for follower in followers):
                await instances.ready.wait()
                while not stop.is_set():
                    self._tick()
                    try:
                        await asyncio.wait_for(stop.wait(), self._period)
                    except TimeoutError:
                        continue
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._driver.close()
            await self._outbox.stop()

    # -- what is heard

    def _on_instance(self, record: Record) -> None:
        key = (record.key or b"").decode(errors="replace")
        self._index.put(key, None if record.value is None else decode_instance(record.key, record.value))

    def _on_heartbeat(self, record: Record) -> None:
        if record.value is None:
            return
        beat = control.decode_heartbeat(record.value)
        device = beat.seen.device
        if beat.seen.leaving:
            self._used.pop(device, None)
            self._tell(WorkerLeft(device))
            return
        used = self._used.get(device, beat.utilisation)
        self._used[device] = used + _FADE * (beat.utilisation - used)
        states = self._index.states(device, self._clock.wall())
        self._tell(WorkerBeat(device, beat.seen.type, self._used[device], states))

    def _on_status(self, record: Record) -> None:
        if record.value is None or record.key == control.LEASE_KEY:
            return
        said = control.decode_announce(record.value)
        if said.state == control.VARIANT_WANTED:
            self._tell(VariantWanted(said.subject.removeprefix("variant:")))

    # -- what is decided

    def _tick(self) -> None:
        now = self._clock.wall()
        seen = self._index.at(now)
        devices = {i.device for i in seen} | set(self._used)
        recorded = {device: tuple(i.variant for i in self._index.on(device)) for device in devices}
        self._tell(InstancesSeen(seen, recorded))
        self._tell(Ticked())
        wishes = self._scaling.wishes(now)
        self._planner.avoided = wishes.avoided
        self._planner.wanted = wishes.wanted
        self._planner.restored = wishes.restored
        if self._leads():
            for key in self._index.expired(now, after=LEASE):  # of workers that died: nobody else will end them
                self._index.put(key, None)
                self._outbox.post(self._topics.instances, None, key=key.encode())

    def _tell(self, event: LiveEvent) -> None:
        now = self._clock.wall()
        if not self._leads():
            self._scaling.listen(event, now)
            return
        for action in self._scaling.handle(event, now):
            match action:
                case StartWorker(device):
                    log.warning("scaling: starts the worker of %s", device)
                    self._spawn(device, "started", self._driver.start(device))
                case StopWorker(device):
                    log.warning("scaling: the worker of %s holds nothing and ends", device)
                    self._spawn(device, "ended", self._driver.stop(device))
                case Announce():
                    log.warning("scaling: %s: %s", action.state, action.detail)
                    self._meters.add("sluice_announcements", self.name, action.state)
                    self._outbox.post(self._topics.status, control.encode_announce(action), key=action.subject.encode())

    def _spawn(self, device: str, what: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._driven(device, what, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _driven(self, device: str, what: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except SluiceError as error:
            log.error("scaling: %s", error)
            what = "failed"
        self._meters.add("sluice_worker_changes", device, what)

"""The scaler: as many workers as the load needs, by the autoscaler's rule, through a driver.

A thin shell. Each period the demand of every app, measured and by its trend for when a worker that is started now
would serve, and what waits, become queries on hand; ``sluicegate.planner.capacity.autoscaling`` says how many workers
that is, kept for a while; ``sluicegate.planner.capacity.spare_pool`` which spare devices start, are withdrawn and end.
What it withdraws it notes on the devices topic, so that plans leave the device out before its worker ends: nothing is
lost, and nothing waits for a timeout. Starting and ending run as tasks: a driver may take minutes. One scaler serves a
system.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from sluicegate.domain.clock import Clock
from sluicegate.domain.errors import SluiceError
from sluicegate.executors.drivers.worker_drivers import WorkerDriver
from sluicegate.planner.capacity.autoscaling import Autoscaler, Observed, Trend, Unit
from sluicegate.planner.capacity.spare_pool import (
    ElasticAction,
    ElasticEvent,
    ElasticFleet,
    Restore,
    Start,
    Stop,
    TimePassed,
    Wanted,
    Withdraw,
    WorkerEnded,
    WorkerHeard,
)
from sluicegate.planner.control.demand_estimate import DemandEstimator
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.runtime.background_tasks import beside
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.telemetry.telemetry import Telemetry
from sluicegate.streams.ports import Broker, Producer, Record
from sluicegate.streams.records import control
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)


class ScalerStage:
    """``units``: what a worker does for each app at a time. ``headroom``: capacity over load.

    ``lead``: seconds that a worker takes to serve once it is started. ``period``: seconds between looks.
    """

    name = "scaler"

    def __init__(
        self,
        *,
        broker: Broker,
        producer: Producer,
        topics: Topics,
        clock: Clock,
        units: Mapping[str, Unit],
        autoscaler: Autoscaler,
        fleet: ElasticFleet,
        driver: WorkerDriver,
        headroom: float = 1.2,
        lead: float = 10.0,
        period: float = 1.0,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._clock = clock
        self._units = dict(units)
        self._autoscaler = autoscaler
        self._fleet = fleet
        self._driver = driver
        self._headroom = headroom
        self._lead = lead
        self._period = period
        telemetry = telemetry or Telemetry()
        self._meters = telemetry.meters
        self._outbox = Outbox(producer)
        telemetry.of_outbox(self.name, self._outbox)
        self._demand = DemandEstimator()
        self._trends: dict[str, Trend] = {app: Trend() for app in units}
        self._queued: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Scale until ``stop``; workers that were started are ended then."""
        await self._outbox.start()
        followers = (
            Follower(self._broker, self._topics.demand, self._on_demand, start_at="end", every_partition=True),
            Follower(self._broker, self._topics.devices_metrics, self._on_heartbeat, start_at="end"),
        )
        try:
            async with beside(follower.run(stop) for follower in followers):
                while not stop.is_set():
                    self._look()
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

    def _on_demand(self, record: Record) -> None:
        if record.value is not None:
            self._demand.handle(control.decode_demand(record.value), self._clock.wall())

    def _on_heartbeat(self, record: Record) -> None:
        if record.value is None:
            return
        beat = control.decode_heartbeat(record.value)
        device = beat.seen.device
        self._queued[device] = 0 if beat.seen.leaving else beat.queued
        idle = not beat.variants and not beat.queued
        self._tell(WorkerHeard(device, idle, beat.seen.leaving))

    # -- what is decided

    def _look(self) -> None:
        now = self._clock.wall()
        rates = {app: self._demand.estimate(app, now).qps for app in self._units}
        everything = sum(rates.values())
        waiting = sum(self._queued.values())
        for app, unit in self._units.items():
            trend = self._trends[app]
            trend.update(rates[app], now)
            backlog = waiting * rates[app] / everything if everything else 0.0
            event = Observed(
                app,
                {unit.variant: unit.on_hand(self._headroom * rates[app], backlog)},
                {unit.variant: unit.on_hand(self._headroom * trend.ahead(self._lead))},
            )
            self._autoscaler.handle(event, now)
            self._meters.set("sluice_workers_wanted", self._autoscaler.target(app), app)
        self._tell(Wanted(sum(self._autoscaler.target(app) for app in self._units)))
        self._tell(TimePassed())

    def _tell(self, event: ElasticEvent) -> None:
        for action in self._fleet.handle(event, self._clock.wall()):
            self._do(action)
        self._meters.set("sluice_devices_serving", self._fleet.serving)

    def _do(self, action: ElasticAction) -> None:
        device = action.device
        match action:
            case Start():
                log.warning("scaler: starts the worker of %s", device)
                self._spawn(self._start(device))
            case Stop():
                self._spawn(self._end(device))
            case Withdraw():
                log.warning("scaler: %s is not needed and will end", device)
                self._note(device, withdrawn=True)
            case Restore():
                self._note(device, withdrawn=False)

    def _note(self, device: str, *, withdrawn: bool) -> None:
        note = control.DeviceNote(device=device, by=self.name, withdrawn=withdrawn, reason="load")
        self._outbox.post(self._topics.devices, control.encode_note(note), key=control.note_key(device, self.name))

    async def _start(self, device: str) -> None:
        try:
            await self._driver.start(device)
        except SluiceError as error:
            log.error("scaler: %s", error)
            self._meters.add("sluice_worker_changes", device, "failed")
            self._tell(WorkerEnded(device, failed=True))
        else:
            self._meters.add("sluice_worker_changes", device, "started")

    async def _end(self, device: str) -> None:
        try:
            await self._driver.stop(device)
        except SluiceError as error:
            log.error("scaler: %s", error)
            self._meters.add("sluice_worker_changes", device, "failed")
        else:
            self._meters.add("sluice_worker_changes", device, "ended")
        self._queued.pop(device, None)
        self._tell(WorkerEnded(device))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

"""Procurement: spot devices come and go by notice, and what they cost is counted.

A thin shell around ``sluicegate.planner.capacity.procurement``. Notices come from a source, instances from a provider;
a device that was noticed is withdrawn (a note on the devices topic), so that plans move its work to others while its
worker finishes what it has; its worker is ended once it holds nothing, and at the deadline at the latest. Once a
replacement is up a worker is started there and the device comes back. Where the provider cannot be reached it is asked
again.

Rules.
- A notice for a device that is unknown, or has no spot instance now, is told and ignored.
- What is not noticed is paid as it is: spot devices from the start, all others on demand.
- Without a driver, workers come and go with their instances by themselves.
"""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from sluicegate.domain.actions import Announce
from sluicegate.domain.clock import Clock
from sluicegate.domain.errors import SluiceError
from sluicegate.executors.drivers.provider import Notice, NoticeSource, Provider
from sluicegate.executors.drivers.worker_drivers import WorkerDriver
from sluicegate.planner.capacity.procurement import (
    AskSpot,
    CostMeter,
    DeadlinePassed,
    InstanceUp,
    IntervalPassed,
    Kind,
    LetGo,
    NodeState,
    Noticed,
    OrderOnDemand,
    Procurement,
    ProcurementAction,
    ProcurementEvent,
    Redirect,
    Requeue,
    SpotAnswered,
    StopSending,
)
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.runtime.background_tasks import beside
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.telemetry.telemetry import Telemetry
from sluicegate.streams.ports import Broker, Producer, Record
from sluicegate.streams.records import control
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)

_LONGEST = 60.0
"""Seconds that a worker is left to finish what it has where no deadline presses."""
_GRACE = 8.0
"""Seconds before a deadline at which a worker is ended whatever it holds."""


@dataclass(slots=True)
class _Drain:
    """A device that plans leave out. ``settled``: when routers have switched; ``done``: its worker holds nothing."""

    settled: float
    done: asyncio.Event = field(default_factory=asyncio.Event)
    ended: "asyncio.Task[None] | None" = None


class ProcurementStage:
    """``spot``: devices whose instances may be taken back; ``always``: the others, for the bill alone.

    ``poll`` and ``interval``: seconds between looks, and between requests for spot. ``meter``: the bill, started and
    stopped as instances come and go. ``settle``: seconds that a withdrawn device keeps its worker at least, for routers
    to switch.
    """

    name = "procurement"

    def __init__(
        self,
        *,
        broker: Broker,
        producer: Producer,
        topics: Topics,
        clock: Clock,
        procurement: Procurement,
        spot: tuple[str, ...],
        always: tuple[str, ...],
        source: NoticeSource,
        provider: Provider,
        meter: CostMeter,
        driver: WorkerDriver | None,
        poll: float = 1.0,
        interval: float = 60.0,
        settle: float = 3.0,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._clock = clock
        self._procurement = procurement
        self._spot = spot
        self._always = always
        self._source = source
        self._provider = provider
        self._meter = meter
        self._driver = driver
        self._poll = poll
        self._interval = interval
        self._settle = settle
        telemetry = telemetry or Telemetry()
        self._meters = telemetry.meters
        self._outbox = Outbox(producer)
        telemetry.of_outbox(self.name, self._outbox)
        self._deadlines: dict[str, float] = {}
        self._ordered: dict[str, Kind] = {}
        self._drains: dict[str, _Drain] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._complaint = ""
        self._next_interval = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Look after the devices until ``stop``; workers that were started are ended then."""
        await self._outbox.start()
        follower = Follower(self._broker, self._topics.devices_metrics, self._on_heartbeat, start_at="end")
        try:
            async with beside([follower.run(stop)]):
                await self._begin()
                while not stop.is_set():
                    await self._look()
                    try:
                        await asyncio.wait_for(stop.wait(), self._poll)
                    except TimeoutError:
                        continue
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._driver is not None:
                await self._driver.close()
            self._bill()
            await self._outbox.stop()

    async def _begin(self) -> None:
        now = self._clock.wall()
        self._next_interval = now + self._interval
        for device in self._always:
            self._meter.start(device, Kind.ON_DEMAND, now)
        for device in self._spot:
            on_demand = self._procurement.state(device) is NodeState.ON_DEMAND
            self._meter.start(device, Kind.ON_DEMAND if on_demand else Kind.SPOT, now)
            self._note(device, withdrawn=False)
            if self._driver is not None:
                await self._driver.start(device)

    # -- what is heard

    def _on_heartbeat(self, record: Record) -> None:
        if record.value is None:
            return
        beat = control.decode_heartbeat(record.value)
        drain = self._drains.get(beat.seen.device)
        idle = not beat.variants and not beat.queued
        if drain is not None and (beat.seen.leaving or (idle and self._clock.wall() >= drain.settled)):
            drain.done.set()

    async def _look(self) -> None:
        for notice in await self._notices():
            self._noticed(notice)
        now = self._clock.wall()
        for node, deadline in tuple(self._deadlines.items()):
            if now >= deadline:
                del self._deadlines[node]
                self._tell(DeadlinePassed(node, deadline))
        for node, kind in tuple(self._ordered.items()):
            if await self._is_up(node, kind):
                del self._ordered[node]
                self._meter.start(node, kind, self._clock.wall())
                self._tell(InstanceUp(node, kind))
        if now >= self._next_interval:
            self._next_interval = now + self._interval
            for node in self._spot:
                self._tell(IntervalPassed(node))
        self._bill()

    async def _notices(self) -> tuple[Notice, ...]:
        try:
            return await self._source.poll()
        except SluiceError as error:
            if str(error) != self._complaint:
                log.error("procurement: %s", error)
            self._complaint = str(error)
            return ()

    def _noticed(self, notice: Notice) -> None:
        if notice.node not in self._spot or self._procurement.state(notice.node) is not NodeState.SPOT:
            log.warning("procurement: a notice for %.70s, which has no spot instance, is ignored", notice.node)
            return
        log.warning("procurement: %s is taken back in %.0f s", notice.node, notice.deadline - self._clock.wall())
        self._meters.add("sluice_spot_notices", notice.node)
        self._deadlines[notice.node] = notice.deadline
        self._tell(Noticed(notice.node, notice.deadline))

    # -- what is decided

    def _tell(self, event: ProcurementEvent) -> None:
        for action in self._procurement.handle(event, self._clock.wall()):
            self._do(action)
        state = self._procurement.state(event.node)
        self._outbox.post(
            self._topics.status,
            control.encode_announce(Announce(f"procurement:{event.node}", str(state), type(event).__name__)),
            key=f"procurement:{event.node}".encode(),
        )

    def _do(self, action: ProcurementAction) -> None:
        node = action.node
        match action:
            case StopSending():
                self._drain(node)
            case AskSpot():
                self._spawn(self._ask(node))
            case OrderOnDemand():
                self._spawn(self._order(node))
            case Redirect(_, kind):
                self._deadlines.pop(node, None)
                self._spawn(self._bring(node, kind, self._drain(node)))
            case LetGo(_, kind):
                # A spot instance that another replaced is taken by the provider; what it costs goes on.
                if self._procurement.state(node) is not NodeState(kind.value):
                    self._spawn(self._release(node, kind, self._drain(node)))
            case Requeue():
                self._drain(node).done.set()

    def _drain(self, node: str) -> "_Drain":
        """Have plans leave it out, and its worker end once it holds nothing; what is under way goes on."""
        drain = self._drains.get(node)
        if drain is None:
            now = self._clock.wall()
            drain = self._drains[node] = _Drain(now + self._settle)
            if self._driver is None and self._procurement.state(node) is not NodeState.EVICTING:
                drain.done.set()  # nobody would end it, and nothing takes it away
            self._note(node, withdrawn=True)
            drain.ended = self._spawn(self._end(node, drain))
        return drain

    async def _end(self, node: str, drain: "_Drain") -> None:
        left = self._deadlines.get(node, self._clock.wall() + _LONGEST) - self._clock.wall() - _GRACE
        try:
            await asyncio.wait_for(drain.done.wait(), max(0.0, left))
        except TimeoutError:
            log.warning("procurement: %s is ended with work in hand", node)
        if self._driver is not None:
            await self._again(node, self._driver.stop(node))

    async def _bring(self, node: str, kind: Kind, drain: "_Drain") -> None:
        """The replacement serves under the node's name, once the old worker has ended."""
        if drain.ended is not None:
            await drain.ended
        if self._driver is not None:
            await self._again(node, self._driver.start(node))
        self._drains.pop(node, None)
        self._note(node, withdrawn=False, kind=kind)

    async def _ask(self, node: str) -> None:
        while (granted := await self._asked(node)) is None:
            await asyncio.sleep(self._poll)
        if granted:
            self._ordered[node] = Kind.SPOT
        self._tell(SpotAnswered(node, granted))

    async def _asked(self, node: str) -> bool | None:
        try:
            return await self._provider.request_spot(node)
        except SluiceError as error:
            log.error("procurement: spot for %s: %s", node, error)
            return None

    async def _order(self, node: str) -> None:
        while not await self._again(node, self._provider.order(node)):
            await asyncio.sleep(self._poll)
        self._ordered[node] = Kind.ON_DEMAND

    async def _is_up(self, node: str, kind: Kind) -> bool:
        try:
            return await self._provider.up(node, kind)
        except SluiceError as error:
            log.error("procurement: %s: %s", node, error)
            return False

    async def _release(self, node: str, kind: Kind, drain: "_Drain") -> None:
        if drain.ended is not None:
            await drain.ended
        await self._again(node, self._provider.release(node, kind))
        self._meter.stop(node, kind, self._clock.wall())

    async def _again(self, node: str, call: Coroutine[Any, Any, None]) -> bool:
        """Whether ``call`` went well; what went wrong is told."""
        try:
            await call
        except SluiceError as error:
            log.error("procurement: %s: %s", node, error)
            return False
        return True

    def _note(self, device: str, *, withdrawn: bool, kind: Kind | None = None) -> None:
        price = None if kind is None else self._meter.price(device, kind)
        note = control.DeviceNote(
            device=device, by=self.name, withdrawn=withdrawn, reason="spot" if withdrawn else "", price=price
        )
        self._outbox.post(self._topics.devices, control.encode_note(note), key=control.note_key(device, self.name))

    def _bill(self) -> None:
        """What everything has cost so far, on the status topic and as metrics."""
        paid = self._meter.by_kind(self._clock.wall())
        for kind, money in paid.items():
            self._meters.set("sluice_cost_money", money, str(kind))
        data: dict[str, float | str] = {str(kind): money for kind, money in paid.items()}
        said = Announce(control.COST_SUBJECT, "counted", f"{sum(paid.values()):.4f} since the start", data)
        self._outbox.post(self._topics.status, control.encode_announce(said), key=control.COST_SUBJECT.encode())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

"""The worker of one device, a shell: reads the work topic, does what the device's core says, writes its heartbeats.

Decided in ``sluicegate.policies.serving``: what is read and answered, where and when it runs, what is loaded, how the
device is cut. Rules of the shell.
- Before work is read, the results topics of apps with a promise are read for the last outcomes of their streams.
- At least once, what was answered of what is read again after a start is looked up among the results, and left.
- What fails beside the reading, heartbeats or a slice's task, ends the worker: its device is dead to the planner, and
  not silently lame.
- Stopping: no more fetching, what is queued is finished within ``drain_s`` and committed, a cut that has begun is
  waited for as long as the supervisor's patience leaves time to clean up, and the last heartbeat says ``leaving``, upon
  which the planner moves what is left.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, assert_never

from sluicegate.domain.actions import Acknowledge, Announce
from sluicegate.domain.errors import SluiceError
from sluicegate.domain.events import PlanAcknowledged, PlanPublished
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.query import Query, QueryKey
from sluicegate.executors.devices.gpu import Gpu
from sluicegate.policies.model_less.instance_states import Recorded
from sluicegate.policies.placement.interference import InterferenceChanged
from sluicegate.policies.placement.repartition import Cut
from sluicegate.policies.serving.device_actions import (
    Abandon,
    Answer,
    Beat,
    CatchUp,
    DeviceAction,
    End,
    LoadVariant,
    Read,
    ReloadVariant,
    Repeated,
    RestartExecutor,
    RunBatch,
    Say,
    Seek,
    SendBack,
    UnloadVariant,
    WakeMe,
)
from sluicegate.policies.serving.device_core import STANDS_BY, DeviceCore
from sluicegate.policies.serving.device_events import (
    BeatDue,
    CaughtUp,
    DeviceEvent,
    Fenced,
    InstancesFound,
    Joined,
    Leaving,
    Opened,
    QueryCame,
    ReadingBegins,
    Recalled,
    Suspended,
    Woken,
)
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.following.answered import answered_by
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.following.served_apps import ServedApps, not_served
from sluicegate.stages.runtime.background_tasks import BackgroundTasks
from sluicegate.stages.runtime.broker_patience import patiently
from sluicegate.stages.runtime.consumer_loop import Intake, topic_seen
from sluicegate.stages.runtime.decision_log import Handle
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.runtime.supervisor import PATIENCE
from sluicegate.stages.runtime.timers import Wakes
from sluicegate.stages.worker.answers import Answers
from sluicegate.stages.worker.device_runtime import Holding
from sluicegate.stages.worker.instance_records import instances_of
from sluicegate.stages.worker.objects import WorkerObjects
from sluicegate.stages.worker.options import WorkerOptions, WorkerPorts
from sluicegate.stages.worker.promise_recovery import recall
from sluicegate.stages.worker.slice_runner import Outputs, SliceRunner
from sluicegate.stages.worker.table_follower import table_came
from sluicegate.streams.ports import BrokerError, Consumer, Record, TopicPartition
from sluicegate.streams.records import codec, control
from sluicegate.streams.records.instances import encode_instance

log = logging.getLogger(__name__)

_Rare = Repeated | Announce | Read | Seek | Abandon | CatchUp | Cut | Say | Beat | Recorded | InterferenceChanged

_CLEANS_UP = 3.0
"""Seconds of the supervisor's patience that are kept, behind what drains and a cut under way, for the rest."""


class WorkerStage:
    """One device. ``decide``: ``core.handle``, or that with a record kept of it.

    ``make_executor`` of a slice as the device is cut then; ``gpu``: what cuts the device and watches it, where it is a
    GPU of this machine. ``catalogue``: everything that is known; it may grow.
    """

    def __init__(
        self,
        device: Device,
        core: DeviceCore,
        decide: Handle[DeviceEvent, DeviceAction],
        *,
        make_runner: "Callable[[WorkerStage, Device, Slice], SliceRunner]",
        catalogue: Catalogue,
        ports: WorkerPorts,
        options: WorkerOptions,
        gpu: Gpu | None = None,
    ) -> None:
        self.device = device
        self.core = core
        self.options = options
        self._decide = decide
        self._ports = ports
        self._broker, self._topics, self._clock = ports.broker, ports.topics, ports.clock
        self._meters = ports.telemetry.meters
        self._outbox = Outbox(ports.producer, ports.topics.control)
        ports.telemetry.of_outbox(self.name, self._outbox)
        ports.telemetry.of_intake(self.name, lambda: self._answers.intake)
        ports.telemetry.of_slices(self.name, device.name, lambda: core.slices.items())
        self._holding = Holding(
            device,
            lambda device, part: make_runner(self, device, part),
            meters=self._meters,
            gpu=gpu,
            first=options.first_cut,
        )
        self._answers = Answers(
            device.name,
            options.policy,
            catalogue=catalogue,
            outbox=self._outbox,
            topics=self._topics,
            telemetry=ports.telemetry,
            objects=WorkerObjects(ports.objects),
            failed=self.failed,
        )
        self._served = ServedApps(self._broker, self._topics, catalogue.apps)
        self._wakes = Wakes(self._clock)
        self._plans = Follower(self._broker, self._topics.plan, self._on_plan)
        self._session = asyncio.Event()  # set: stop reading
        self._naming = asyncio.Event()
        self._again_below = 0  # offset: what may have been read before
        self._answered: frozenset[QueryKey] | None = None
        self._last_beat = self._clock.monotonic()
        self._late = 0.0
        self._tasks = BackgroundTasks(self.name, self.failed)
        self._cutting: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    @property
    def name(self) -> str:
        """Of the stage, for logs."""
        return f"worker {self.device.name}"

    @property
    def runners(self) -> Mapping[str, SliceRunner]:
        """What runs on its slices by name, as it is cut just now."""
        return self._holding.runners

    async def registered(self, served: Catalogue) -> None:
        """The registry changed."""
        self._answers.registered(served)
        self._served.registered(served.apps)
        self.tell(served.registered)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``, then drain."""
        await self._outbox.start()
        waiter = asyncio.create_task(self._end_session_on(stop))
        try:
            slices = await self._holding.begin()
            self._last_beat = self._clock.monotonic()
            self.tell(Opened(tuple(slices)))
            self.tell(Joined(self._ports.new_incarnation()))
            beside = (self._beat_often(), self._outbox.failure(), *self._follow_more(stop), self._find_instances())
            for work in (self._plans.run(stop), *beside):
                self._tasks.begin(work)
            while not stop.is_set():
                await self._serve_while_named(stop)
                if self._failure is not None:
                    raise self._failure
            self._beat(leaving=True)
        finally:
            self._wakes.cancel()
            try:
                if self._cutting is not None:
                    most = max(0.0, PATIENCE - self.options.drain_s - _CLEANS_UP)
                    await asyncio.wait([self._cutting], timeout=most)
            finally:  # also where the others' ends took the time, and this one's is cancelled
                await self._answers.close()
                await self._outbox.stop()
                waiter.cancel()
                self._tasks.cancel()
                await asyncio.gather(waiter, self._tasks.over(), return_exceptions=True)
                self._wakes.cancel()  # plans and ends of batches may have asked for others meanwhile
                await self._holding.end()

    def _follow_more(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        followers = []
        if self.options.tables:
            followers.append(Follower(self._broker, self._topics.policies, self._on_table))
        if self.options.turns:
            followers.append(Follower(self._broker, self._topics.turns, self._on_turns, start_at="end"))
        return [follower.run(stop) for follower in followers]

    def tell(self, event: DeviceEvent) -> None:
        """Something happened: let the core decide, and do it."""
        now = self._clock.wall()
        self._notice_standstill(now)
        self._do(self._decide(event, now), now)

    def inputs(self, query: Query) -> Sequence[Tensor] | None:
        """A query's tensors; None for one that was abandoned meanwhile."""
        return self._answers.inputs(query)

    def contents(self) -> tuple[tuple[QueryKey, str], ...]:
        """Digests of what all queries hold that are here."""
        return self._answers.contents()

    def ran(self, query: Query, outputs: Outputs) -> None:
        """What its batch has put out for a query."""
        self._answers.ran(query, outputs)

    def failed(self, error: BaseException) -> None:
        """What should never fail did: let ``run`` see it, and others answer what is held here."""
        self._failure = error
        self._naming.set()
        self._session.set()

    def _notice_standstill(self, now: float) -> None:
        gap = self._clock.monotonic() - self._last_beat
        if gap > 2 * self.options.heartbeat:
            self._do(self._decide(Suspended(gap), now), now)

    def _do(self, actions: Sequence[DeviceAction], now: float) -> None:
        for action in actions:
            match action:
                case RunBatch(part):
                    self._holding.runners[part].run(action)
                case Answer():
                    self._answers.answered(action)
                case End():
                    self._answers.ended(action)
                case WakeMe(at, key):
                    self._wakes.wake_at(key, at, partial(self._woke, key))
                case SendBack(query):
                    self._answers.sent_back(query)
                case LoadVariant() | ReloadVariant() | RestartExecutor() | UnloadVariant():
                    self._holding.runners[action.part].do(action)
                case Acknowledge(epoch, variants, failed):
                    message = PlanAcknowledged(self.device.name, epoch, variants, failed)
                    self._post(self._topics.acks, control.encode_acknowledged(message), self.device.name)
                case _:
                    self._do_rarely(action, now)

    def _do_rarely(self, action: _Rare, now: float) -> None:
        match action:
            case Announce():
                self._announce(action, now)
            case Repeated(query):
                self._answers.repeated(query)
            case Read():
                self._naming.set()
            case Abandon(why):
                log.warning("%s %s; joining again", self.device.name, why)
                self._meters.add("sluice_declared_dead", self.device.name)
                self._answers.abandon()
                self._naming.clear()
                self._session.set()
                self.tell(Joined(self._ports.new_incarnation()))
            case CatchUp():
                self._tasks.begin(self._catch_up())
            case Cut(profiles):
                self._cutting = self._tasks.begin(self._cut(profiles))
            case Say():
                self._say(action)
            case Beat():
                self._write_beat(action)
            case Recorded(key, instance):
                value = encode_instance(instance) if instance is not None else None
                self._outbox.post(self._topics.instances, value, key=key.encode())
            case InterferenceChanged(part, on, ratio):
                log.info("%s: batches on %s run %.2f times as long as profiled", self.device.name, part, ratio)
                self._meters.set("sluice_slice_interference", ratio if on else 0.0, self.device.name, part)
            case Seek():
                raise AssertionError("asked for only where reading begins")
            case _ as unreachable:
                assert_never(unreachable)

    def _woke(self, key: str) -> None:
        self.tell(Woken(key))

    def _say(self, action: Say) -> None:
        if action.state == STANDS_BY:
            log.warning("%s: %s", self.device.name, action.detail)
        said = Announce(f"device:{self.device.name}", action.state, action.detail)
        self._meters.add("sluice_announcements", self.name, action.state)
        self._post(self._topics.status, control.encode_announce(said), f"{said.subject}@worker")
        self._beat()

    def _announce(self, said: Announce, at: float) -> None:
        """A batching policy spoke of a promise, ``at``; one line a subject and device stays on the status topic."""
        self._meters.add("sluice_announcements", self.name, said.state)
        self._meters.set("sluice_safe_mode", float(said.state == "safe_mode"), said.subject, self.name)
        self._post(self._topics.status, control.encode_announce(said, at), f"{said.subject}@{self.device.name}")

    def _post(self, topic: str, value: bytes, key: str) -> None:
        self._outbox.post(topic, value, key=key.encode())

    async def _catch_up(self) -> None:
        try:
            await self._plans.catch_up()
        except BrokerError as error:  # no plans are followed by who ends: what is held here is for others
            log.warning("%s stood still before it was told to end: %s", self.name, error)
            self.tell(Fenced())
            return
        self._notice_standstill(self._clock.wall())
        self._last_beat = self._clock.monotonic()
        self.tell(CaughtUp())

    async def _find_instances(self) -> None:
        self.tell(InstancesFound(await instances_of(self.device.name, self._broker, self._topics)))

    async def _cut(self, profiles: tuple[str, ...]) -> None:
        ended = await self._holding.cut(profiles)
        if self.core.named:
            await self._recall()
        self.tell(ended)

    async def _recall(self) -> None:
        if self.options.promised:
            read = partial(recall, self._broker, self._topics, self.options.promised)
            found = await patiently(read, self.name, self._session)
            if found is not None:
                self.tell(Recalled(found.streams))

    async def _serve_while_named(self, stop: asyncio.Event) -> None:
        """One session of reading: from being named in a plan until that ends."""
        naming = asyncio.create_task(self._naming.wait())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((naming, stopping), return_when=asyncio.FIRST_COMPLETED)
        naming.cancel()
        stopping.cancel()
        if stop.is_set() or self._failure is not None:
            return
        self._session.clear()
        if not self.core.named:  # a later plan, read in the same breath, did not
            return
        await self._recall()
        await patiently(self._read, self.name, self._session)

    async def _read(self) -> None:
        """Until the session ends. Raises BrokerError where it could not begin."""
        group = self._topics.worker_group(self.device.name)
        intake = self._answers.intake = Intake(
            self._make_consumer,
            limit=self.options.max_in_flight,
            drain_s=self.options.drain_s,
            exactly_once=self._ports.exactly_once and self._ports.exactly_once(group),
            on_fenced=lambda: self.tell(Fenced()),
            answers=topic_seen(self._broker, self._topics.status),
            bury=lambda record, error: self._answers.buried(record, error, self._clock.wall()),
        )
        try:
            await intake.run(self._take, self._session, after_start=self._seek_to_fence)
        except BrokerError as error:
            if intake.read:  # what came is held here, and would come again
                raise SluiceError(f"{self.name}: {error}") from error
            raise

    def _make_consumer(self, intake: Intake) -> Consumer:
        work = TopicPartition(self._topics.work(self.device.name), 0)
        group = self._topics.worker_group(self.device.name)
        return self._broker.consumer(partitions=[work], group=group, start_at="committed", listener=intake)

    async def _seek_to_fence(self, consumer: Consumer) -> None:
        work = TopicPartition(self._topics.work(self.device.name), 0)
        swept = await self._broker.admin().committed(self._topics.swept_group, work) or 0
        begins = ReadingBegins(await consumer.position(work), (await consumer.end_offsets([work]))[work], swept)
        for action in self._decide(begins, now := self._clock.wall()):
            if isinstance(action, Seek):
                await consumer.seek(work, action.offset)
            else:
                self._do([action], now)
        self._answered = None
        self._again_below = 0 if self._ports.exactly_once is not None else begins.end

    async def _take(self, records: Sequence[Record]) -> None:
        joined = self.core.incarnation
        answered = await self._answered_before(records)
        if self.core.incarnation != joined:  # abandoned meanwhile: others answer what was read
            return
        unknown: list[tuple[codec.WorkMessage, Record]] = []
        for record in records:
            message = self._answers.read(record, self._clock.wall())
            if message is None:
                continue
            if message.query.key in answered:
                self._answers.repeated(message.query)
            elif message.query.app in self._served:
                self._take_one(message, record)
            else:
                unknown.append((message, record))
        if unknown:
            await self._tell_apart(unknown)

    async def _answered_before(self, records: Sequence[Record]) -> frozenset[QueryKey]:
        """Queries that the worker before this one has answered. ``records``: some of what may be read again."""
        if records[0].offset >= self._again_below:
            self._answered = None
            return frozenset()
        if self._answered is None:
            now = self._clock.wall()
            self._answered = await answered_by(
                self.device.name, records, now, broker=self._broker, topics=self._topics, apps=self._served
            )
        return self._answered

    async def _tell_apart(self, unknown: Sequence[tuple[codec.WorkMessage, Record]]) -> None:
        """Queries of apps that this process has not heard of yet, and what a stranger wrote."""
        strangers = await self._served.strangers([message.query.app for message, _ in unknown])
        for message, record in unknown:
            query = message.query
            if not self._answers.holds(query):
                continue
            if query.app in strangers:
                self._answers.refused(query, not_served(query.app), self._clock.wall())
            else:
                self._take_one(message, record)

    def _take_one(self, message: codec.WorkMessage, record: Record) -> None:
        if message.claims:
            self._tasks.begin(self._fetch(message, record))
        else:
            self._came(message, record)

    async def _fetch(self, message: codec.WorkMessage, record: Record) -> None:
        """A query comes once what it refers to is here, or cannot be had."""
        flaw = await self._answers.fetch(message.query, self._clock.wall())
        if flaw is not None:
            self._came(message, record, flaw)

    def _came(self, message: codec.WorkMessage, record: Record, flaw: str = "") -> None:
        if not self.core.named:  # fetched while it ends: the planner moves what is left
            return
        content = codec.content_of(record, message.claims) if self.core.watches else ""
        came = QueryCame(message.query, message.turn, message.slice, record.offset, content=content, flaw=flaw)
        self.tell(came)

    def _on_plan(self, record: Record) -> None:
        if record.value is not None:
            self.tell(PlanPublished(control.decode_plan(record.value)))

    def _on_table(self, record: Record) -> None:
        self.tell(table_came(record))

    def _on_turns(self, record: Record) -> None:
        if record.value is not None:
            self.tell(control.decode_turns(record.value))

    async def _end_session_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._session.set()

    async def _beat_often(self) -> None:
        while True:
            self._beat()
            await asyncio.sleep(self.options.heartbeat)
            self._late = max(0.0, self._clock.monotonic() - self._last_beat - self.options.heartbeat)

    def _beat(self, *, leaving: bool = False) -> None:
        self.tell(Leaving() if leaving else BeatDue(self._late))
        self._last_beat = self._clock.monotonic()

    def _write_beat(self, said: Beat) -> None:
        parts = said.slices
        self._meters.set("sluice_plan_term", said.epoch.term, self.name)
        self._meters.set("sluice_plan_number", said.epoch.number, self.name)
        beat = control.Heartbeat(
            seen=said.seen,
            at=self._clock.wall(),
            epoch=said.epoch,
            queued=said.queued,
            utilisation=min(1.0, said.busy_s / self.options.heartbeat),
            variants=tuple(v for part in parts for v in part.loaded),
            measured=tuple(m for part in parts for m in part.measured),
            observed=tuple(o for part in parts for o in part.observed),
            late=said.late,
            ended=said.ended,
            slices=tuple(control.SliceState(p.slice, p.rows, p.busy_for, p.age, p.overdue, p.margins) for p in parts),
            poison=said.poison,
            stands_by=said.stands_by,
        )
        self._post(self._topics.devices_metrics, control.encode_heartbeat(beat), self.device.name)

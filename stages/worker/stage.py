"""The worker of one device: reads its work topic, serves it with its slices, follows plans, sends heartbeats.

Rules.
- Each start has an incarnation. Only while the newest plan names it does the worker read work, from the plan's fence or
  the committed offset, whichever is later.
- A plan that names another incarnation, or none, after ours was named says that the planner has declared us dead and
  moved our queries to others: everything waiting is abandoned, and the worker joins again under a new incarnation.
- A worker that finds it was stopped for longer than ``self_fence`` reads the newest plan before it answers anything.
- A plan that names variants which the registry, as read here, does not have yet is followed once it has.
- A query of an app that is not served here (any more) goes back to the admitted topic.
- A GPU is cut otherwise as plans ask (``sluicegate.stages.worker.gpu_repartition``): what is here is finished first,
  what comes while it is cut goes back to the admitted topic, and heartbeats state the slices that there are.
- Before it reads work, the results topics of apps with a promise are read for the last outcomes of their streams.
- What fails beside the reading, heartbeats or a slice's task, ends the worker: its device is dead to the planner, and
  not silently lame.
- Stopping: no more fetching, what is queued is finished within ``drain_s`` and committed, and the last heartbeat says
  ``leaving``, upon which the planner moves what is left.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from sluicegate.domain.actions import Acknowledge, Announce
from sluicegate.domain.clock import Clock
from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.events import DeviceSeen, LatencyMeasured, PlanAcknowledged
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App
from sluicegate.domain.outcome import Outcome, OutcomeKind, Reason
from sluicegate.domain.plan import NO_EPOCH, Epoch, Plan, follows
from sluicegate.domain.query import Query
from sluicegate.executors.devices.gpu import Gpu
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.runtime.consumer_loop import Intake, raise_failures
from sluicegate.stages.runtime.exactly_once import ExactlyOnce, Instead
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.telemetry.telemetry import Telemetry
from sluicegate.stages.worker.device_runtime import Holding, HoldingOptions
from sluicegate.stages.worker.instance_writer import InstanceWriter
from sluicegate.stages.worker.promise_recovery import recall
from sluicegate.stages.worker.slice_runner import Outputs, SliceRunner
from sluicegate.stages.worker.slice_set import Parts
from sluicegate.streams.ports import Broker, Consumer, Letter, Producer, Record, TopicPartition
from sluicegate.streams.records import codec, control
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Seconds, and records in flight."""

    heartbeat: float = 0.5
    drain_s: float = 5.0
    max_in_flight: int = 4000
    self_fence: float = 1.5


class WorkerStage:
    """One device. ``make_slices`` builds its slice runners, one a slice, with this stage's callbacks.

    ``gpu``: what cuts the device and watches it, where it is a GPU of this machine; ``holding``: how.
    ``catalogue``: everything that is known; it may grow.
    """

    def __init__(
        self,
        device: Device,
        *,
        broker: Broker,
        producer: Producer,
        topics: Topics,
        clock: Clock,
        new_incarnation: Callable[[], str],
        make_slices: Callable[["WorkerStage", Device], Sequence[SliceRunner]],
        catalogue: Catalogue,
        promised: Mapping[str, App] = MappingProxyType({}),
        exactly_once: Callable[[str], ExactlyOnce] | None = None,
        options: WorkerOptions | None = None,
        telemetry: Telemetry | None = None,
        gpu: Gpu | None = None,
        holding: HoldingOptions | None = None,
    ) -> None:
        self.device = device
        telemetry = telemetry or Telemetry()
        self._meters, self._tracing = telemetry.meters, telemetry.tracing
        self._broker = broker
        self._topics = topics
        self._clock = clock
        self._new_incarnation = new_incarnation
        self._promised = promised
        self._exactly_once = exactly_once
        self._options = options or WorkerOptions()
        self._outbox = Outbox(producer)
        telemetry.of_outbox(self.name, self._outbox)
        telemetry.of_intake(self.name, lambda: self._intake)
        telemetry.of_slices(device.name, lambda: self._slices.named())
        self._holding = Holding(
            device,
            owner=self,
            clock=clock,
            meters=telemetry.meters,
            make_slices=lambda device: make_slices(self, device),
            opened=self._opened,
            say=self._say,
            gpu=gpu,
            options=holding,
        )
        self._origins: dict[Query, Record] = {}
        self._catalogue = catalogue
        self._instances = InstanceWriter(
            device.name,
            broker=broker,
            topics=topics,
            clock=clock,
            catalogue=catalogue,
            outbox=self._outbox,
            meters=telemetry.meters,
        )
        self._plan: Plan | None = None
        self._unknown: Plan | None = None
        self._plans = Follower(broker, topics.plan, self._on_plan)
        self._incarnation = new_incarnation()
        self._named = False
        self._session: asyncio.Event = asyncio.Event()  # set: stop reading
        self._naming = asyncio.Event()
        self._intake: Intake | None = None
        self._last_beat = clock.monotonic()
        self._held: list[Callable[[], None]] | None = None
        self._recheck: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self.followers: list[Follower] = []  # of further control topics, beside the plans

    @property
    def name(self) -> str:
        """Of the stage, for logs."""
        return f"worker {self.device.name}"

    @property
    def options(self) -> WorkerOptions:
        """What was set of it."""
        return self._options

    @property
    def slices(self) -> Mapping[str, SliceRunner]:
        """Its slices by name, as it is cut just now."""
        return dict(self._slices.named())

    async def registered(self, served: Catalogue) -> None:
        """The registry changed: a plan that was held because of it can be followed now."""
        for runner in self._slices:
            runner.registered(served)
        held, self._unknown = self._unknown, None
        if held is not None:
            self._follow(held)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``, then drain."""
        await self._outbox.start()
        await self._holding.begin(self._on_broken)
        helpers = [asyncio.create_task(self._plans.run(stop)), asyncio.create_task(self._beat_often())]
        helpers += [asyncio.create_task(follower.run(stop)) for follower in self.followers]
        helpers.append(asyncio.create_task(self._instances.read()))
        for helper in helpers:
            helper.add_done_callback(self._on_ended)
        waiter = asyncio.create_task(self._end_session_on(stop))
        try:
            while not stop.is_set() and not self._holding.broken:
                await self._serve_while_named(stop)
                raise_failures(helpers)
                if self._failure is not None:
                    raise self._failure
            self._named = False  # what the planner does about us from now on is for the others
            self._beat(leaving=True)
            self._instances.ended()
        finally:
            waiter.cancel()
            await self._outbox.stop()
            for task in helpers:
                task.cancel()
            await asyncio.gather(waiter, *helpers, return_exceptions=True)
            await self._holding.end()

    def turned(self, record: Record) -> None:
        """The topic of turns: what the router of an app has counted."""
        if record.value is not None:
            told = control.decode_turns(record.value)
            for runner in self._slices:
                runner.turned(told)

    # -- the slices

    @property
    def _slices(self) -> Parts:
        return self._holding.parts

    async def _opened(self, parts: Parts) -> None:
        """These slices are ready."""
        if self._named and self._promised:
            past = await recall(self._broker, self._topics, self._promised)
            for runner in parts:
                runner.recalled(past)
        if self._named and self._plan is not None:
            for runner in parts:
                runner.plan(self._plan)

    def _on_ended(self, helper: "asyncio.Task[None]") -> None:
        """Let ``run`` see what went wrong beside it: a worker without heartbeats would be dead and not know it."""
        if not helper.cancelled() and helper.exception() is not None:
            self._on_broken()

    def failed(self, error: BaseException) -> None:
        """A slice met what should never happen, and may stand still with all that it holds: others answer that."""
        self._failure = error
        self._on_broken()

    def _on_broken(self) -> None:
        """Let ``run`` see it."""
        self._naming.set()
        self._session.set()

    def give_back(self, message: codec.WorkMessage) -> None:
        """A query that waited here is for another device."""
        record = self._origins.pop(message.query, None)
        if record is not None:
            self._send_back(record, replace(message, traceparent=codec.traceparent_of_hop(record)))

    def _say(self, state: str, detail: str) -> None:
        said = Announce(f"device:{self.device.name}", state, detail)
        self._meters.add("sluice_announcements", self.name, state)
        key = f"{said.subject}@worker".encode()
        self._outbox.post(self._topics.status, control.encode_announce(said), key=key)
        self._beat()

    # -- callbacks of the slices

    def ends(self, query: Query, outcome: Outcome, outputs: Outputs) -> None:
        """Write a query's outcome; its record is done once that is acknowledged."""
        self._slices.left(query)
        self._unless_fenced(lambda: self._write(query, outcome, outputs))

    def acknowledge(self, part: str, report: Acknowledge) -> None:
        """A slice has staged an epoch; once all have, tell planner and routers."""
        staged = self._slices.staged(part, report)
        if staged is not None:
            self._post_staged(staged.epoch, staged.variants, staged.failed)

    def _post_staged(self, epoch: Epoch, variants: tuple[str, ...] = (), failed: tuple[str, ...] = ()) -> None:
        message = PlanAcknowledged(self.device.name, epoch, variants, failed)
        key = self.device.name.encode()
        self._outbox.post(self._topics.acks, control.encode_acknowledged(message), key=key)

    def announce(self, said: Announce, at: float) -> None:
        """A batching policy spoke of a promise, ``at``; one line a subject and device stays on the status topic."""
        self._meters.add("sluice_announcements", self.name, said.state)
        self._meters.set("sluice_safe_mode", float(said.state == "safe_mode"), said.subject, self.name)
        key = f"{said.subject}@{self.device.name}".encode()
        self._outbox.post(self._topics.status, control.encode_announce(said), key=key, timestamp=at)

    def _write(self, query: Query, outcome: Outcome, outputs: Outputs) -> None:
        record = self._origins.pop(query, None)
        if record is None:
            return  # abandoned
        self._meters.ended(self.name, outcome)
        traceparent = codec.traceparent_of_hop(record) if self._tracing is None else self._tracing.served(outcome)
        message = codec.encode_outcome(outcome, outputs, traceparent=traceparent)

        def instead(error: InvalidInputError) -> Letter:
            return self._failed(outcome, Reason.RESULT_TOO_LARGE, error, traceparent)

        self._answer(record, self._topics.results(query.app), message, instead)

    def _failed(self, outcome: Outcome, reason: Reason, error: InvalidInputError, traceparent: str | None) -> Letter:
        """What is said in the place of a record that its topic does not take."""
        detail = error.problem[:500]
        failed = replace(outcome, kind=OutcomeKind.FAILED, reason=reason, detail=detail, accuracy=0.0)
        log.warning("%s: %s", reason, error.problem, extra={"query_ids": [outcome.query_id]})
        self._meters.ended(self.name, failed)
        message = codec.encode_outcome(failed, (), traceparent=traceparent)
        return Letter(self._topics.results(outcome.app), message.value, message.key, message.headers)

    def _answer(self, record: Record, topic: str, message: codec.Message, instead: Instead | None = None) -> None:
        if self._intake is not None:
            letter = Letter(topic, message.value, message.key, message.headers)
            self._intake.answer(record, self._outbox, letter, instead)

    # -- reading work

    async def _serve_while_named(self, stop: asyncio.Event) -> None:
        """One session of reading: from being named in a plan until that ends."""
        if not self._named:
            self._naming.clear()
            naming = asyncio.create_task(self._naming.wait())
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait((naming, stopping), return_when=asyncio.FIRST_COMPLETED)
            naming.cancel()
            stopping.cancel()
            if not self._named:
                return
        self._session.clear()
        if stop.is_set():
            return
        if self._promised:
            past = await recall(self._broker, self._topics, self._promised)
            for runner in self._slices:
                runner.recalled(past)
        self._intake = Intake(
            self._make_consumer,
            limit=self._options.max_in_flight,
            drain_s=self._options.drain_s,
            exactly_once=self._exactly_once and self._exactly_once(self._topics.worker_group(self.device.name)),
            on_fenced=self._on_fenced,
        )
        await self._intake.run(self._take, self._session, after_start=self._seek_to_fence)

    def _make_consumer(self, intake: Intake) -> Consumer:
        work = TopicPartition(self._topics.work(self.device.name), 0)
        return self._broker.consumer(
            partitions=[work], group=self._topics.worker_group(self.device.name), start_at="committed", listener=intake
        )

    async def _seek_to_fence(self, consumer: Consumer) -> None:
        fence = self._plan.fences.get(self.device.name, 0) if self._plan else 0
        work = TopicPartition(self._topics.work(self.device.name), 0)
        end = (await consumer.end_offsets([work]))[work]
        if fence > end:
            log.warning("%s: fence %d is beyond the end of its work, %d; not heeded", self.device.name, fence, end)
        elif await consumer.position(work) < fence:
            await consumer.seek(work, fence)

    async def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            self._take_one(record)

    def _take_one(self, record: Record) -> None:
        try:
            message = codec.decode_work(record)
        except InvalidInputError as error:
            self._meters.add("sluice_dead_letters", self.name, codec.letter_reason(error, record))
            log.info("dead letter: %s", error, extra={"record": record.place})
            letter = codec.dead_letter(record, error, stage=self.name, now=self._clock.wall())
            self._answer(record, self._topics.dead_letters, letter)
            return
        runner = self._slices.runner_of(message)
        query = message.query
        if runner is None or (not runner.serves(query.app) and self._clock.wall() < query.deadline):
            self._send_back(record, message)
            return
        self._origins[query] = record
        if self._tracing is not None:
            self._tracing.arrived(query.key, message.traceparent)
        self._slices.arrived(message, runner)

    def _send_back(self, record: Record, message: codec.WorkMessage) -> None:
        self._meters.add("sluice_queries_sent_back", self.device.name)
        back = codec.encode_admitted(codec.QueryMessage(message.query, message.tensors, message.traceparent))

        def instead(error: InvalidInputError) -> Letter:
            now = self._clock.wall()
            waited = max(0.0, now - message.query.arrival)
            outcome = Outcome.of(message.query, OutcomeKind.FAILED, now, device=self.device.name, queue_s=waited)
            return self._failed(outcome, Reason.TOO_LARGE, error, message.traceparent)

        self._answer(record, self._topics.admitted(message.query.app), back, instead)

    # -- plans and incarnations

    def _on_plan(self, record: Record) -> None:
        if record.value is None:
            return
        self._follow(control.decode_plan(record.value))

    def _follow(self, plan: Plan) -> None:
        if not follows(plan.epoch, self._plan.epoch if self._plan is not None else NO_EPOCH):
            return
        if not all(v in self._catalogue.variants for p in plan.of_device(self.device.name) for v in p.variants):
            log.info("%s: plan %s is ahead of the registry; it waits", self.device.name, plan.epoch)
            self._unknown = plan
            return
        self._unknown = None
        self._plan = plan
        self._meters.set("sluice_plan_term", plan.epoch.term, self.name)
        self._meters.set("sluice_plan_number", plan.epoch.number, self.name)
        named = plan.incarnations.get(self.device.name) == self._incarnation
        if self._named and not named:
            self._abandon("was declared dead")
            return
        if named:
            if not self._named:
                self._named = True
                self._naming.set()
            self._holding.plan(plan)
            if not self._slices:  # while it is cut nothing can be staged, and routers need not wait for it
                self._post_staged(plan.epoch)

    def _on_fenced(self) -> None:
        """The planner took our transactions before its plan came to us, or one was open for too long."""
        if self._named:
            self._abandon("was fenced")

    def _abandon(self, why: str) -> None:
        """We are taken for dead, or must be: our queries are others' now."""
        log.warning("%s %s; joining again", self.device.name, why)
        self._meters.add("sluice_declared_dead", self.device.name)
        if self._tracing is not None:
            self._tracing.abandon()
        if self._intake is not None:
            self._intake.abandon()
        self._slices.abandon()
        self._origins.clear()
        if self._held is not None:
            self._held.clear()
        self._named = False
        self._incarnation = self._new_incarnation()
        self._session.set()

    async def _end_session_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._session.set()

    def _unless_fenced(self, write: Callable[[], None]) -> None:
        """Write now; after having been stopped for long, only once the newest plan was read."""
        if self._held is None and self._clock.monotonic() - self._last_beat > self._options.self_fence:
            self._held = []
            self._recheck = asyncio.create_task(self._release_when_known())
        if self._held is None:
            write()
        else:
            self._held.append(write)

    async def _release_when_known(self) -> None:
        await self._plans.catch_up()
        held, self._held = self._held or [], None
        self._last_beat = self._clock.monotonic()
        for write in held:
            write()

    # -- heartbeats

    async def _beat_often(self) -> None:
        while True:
            self._beat()
            await asyncio.sleep(self._options.heartbeat)

    def _beat(self, *, leaving: bool = False) -> None:
        device = self.device
        if self._held is None and not leaving:
            stopped = self._clock.monotonic() - self._last_beat > self._options.self_fence
            if stopped:
                self._held = []
                self._recheck = asyncio.create_task(self._release_when_known())
            else:
                self._last_beat = self._clock.monotonic()
        seen = DeviceSeen(
            device.name, device.type, self._incarnation, device.memory_bytes, device.price, device.spot, leaving
        )
        beat = control.Heartbeat(
            seen=self._holding.seen(seen),
            at=self._clock.wall(),
            epoch=self._plan.epoch if self._plan else NO_EPOCH,
            queued=self._slices.queued,
            utilisation=min(1.0, sum(r.take_busy() for r in self._slices) / self._options.heartbeat),
            variants=tuple(v for r in self._slices for v in r.loaded),
            measured=tuple(self._measured()),
            observed=tuple(o for r in self._slices for o in r.take_observed()),
            slices=tuple(control.SliceState(n, r.queued, r.busy_for) for n, r in self._slices.named()),
        )
        self._outbox.post(self._topics.devices_metrics, control.encode_heartbeat(beat), key=device.name.encode())
        if not leaving:
            self._instances.look([(name, r.kind, v) for name, r in self._slices.named() for v in r.loaded])

    def _measured(self) -> Iterator[LatencyMeasured]:
        for name, runner in self._slices.named():
            measured = runner.take_measured()
            self._instances.measured(name, measured)
            yield from measured

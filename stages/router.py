"""The router of one app as a stage: reads admitted queries and puts each on the work topic that its core names.

What is decided, ``sluicegate.policies.serving.router`` decides. What is held counts as in flight, so that no more is
read than the limit. Twice a second it tells that it lives, also one that stands by: what nobody would read is not let
in.

Chained: what admission of the same process lets in comes here without the topic between them, where this router would
read it there, has nothing older left to read, and does not hold it. Then it is answered in admission's place: the
query's own record is committed with what the router made of it, at once in one transaction or behind one
acknowledgement.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, assert_never

from sluicegate.domain.actions import Activate, Announce, End, Send, TellTurns, WakeAt
from sluicegate.domain.clock import Clock
from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.events import (
    Arrived,
    DeviceReported,
    InstanceRead,
    Overlapped,
    PartRead,
    PlanPublished,
    PoisonTold,
    TooLarge,
    Woke,
    WorkTopicGone,
)
from sluicegate.domain.outcome import Outcome
from sluicegate.domain.plan import NO_EPOCH
from sluicegate.domain.query import Query
from sluicegate.policies.serving.router import Ignore, LookedUp, LookUp, RouterAction, RouterCore, RouterEvent, Want
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.following.work_topics import WorkTopics
from sluicegate.stages.runtime.broker_patience import patiently
from sluicegate.stages.runtime.consumer_loop import Intake, Overlaps, Reading, topic_seen
from sluicegate.stages.runtime.decision_log import Handle
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.runtime.read_up import ReadUp
from sluicegate.stages.runtime.timers import Wakes
from sluicegate.stages.telemetry.telemetry import Telemetry, buried
from sluicegate.stages.telemetry.tracing import Tracing
from sluicegate.streams.memory.partitioner import partition_of
from sluicegate.streams.ports import Broker, Consumer, Headers, Letter, Producer, Record, TopicPartition
from sluicegate.streams.records import codec, control
from sluicegate.streams.records.instances import decode_instance
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)

_ALIVE_EVERY = 0.5


class _Came(NamedTuple):
    """A query, ``since`` when it is here, and the record that is answered with what becomes of it."""

    message: codec.QueryMessage
    record: Record
    intake: Intake
    since: float


class RouterStage:
    """Shell of a RouterCore; ``handle`` is that core's, recorded where that is asked for.

    Routers of an app scale out as members of one group; of ``exclusive`` ones all but one stand by: strict turns over
    workers, which selection tables count on, are kept by one router alone.
    """

    def __init__(
        self,
        core: RouterCore,
        handle: Handle[RouterEvent, RouterAction],
        *,
        broker: Broker,
        producer: Producer,
        topics: Topics,
        clock: Clock,
        reading: Reading,
        telemetry: Telemetry | None = None,
    ) -> None:
        app = self.app = core.app.name
        self.core = core
        self._handle = handle
        telemetry = telemetry or Telemetry()
        self._meters, self._tracing = telemetry.meters, telemetry.tracing
        self._broker = broker
        self._topics = topics
        self._clock = clock
        self._topic = topics.admitted(app)
        self._reading = reading
        self._outbox = Outbox(producer, topics.control)
        once = reading.exactly_once(topics.router_group(app)) if reading.exactly_once is not None else None
        self._intake = Intake(
            self._make_consumer,
            limit=reading.max_in_flight,
            exactly_once=once,
            overlaps=Overlaps(self._overlapped, clock.wall),
            answers=topic_seen(broker, topics.status),
            bury=self._buried,
        )
        self._epoch = NO_EPOCH
        self._works = WorkTopics(broker, topics, clock)
        self._asked_for: set[str] = set()
        self._letters: dict[Query, _Came] = {}
        """Of the queries that the core has."""
        self._consumer: Consumer | None = None
        self._partitions = 0
        self._read_up = ReadUp()
        self._wakes = Wakes(clock)
        telemetry.of_outbox(self.name, self._outbox)
        telemetry.of_intake(self.name, lambda: self._intake)
        self._meters.read("sluice_held_queries", lambda: [((app,), float(core.held))])

    @property
    def name(self) -> str:
        """Of the stage, for logs."""
        return f"router {self.app}"

    async def registered(self, served: Catalogue) -> None:
        """The registry changed."""
        self._tell(served.only({self.app}).registered)

    async def run(self, stop: asyncio.Event) -> None:
        """Route until ``stop``, then drain."""
        await self._outbox.start()
        await self._works.look()
        followers = [
            Follower(self._broker, self._topics.plan, self._on_plan),
            Follower(self._broker, self._topics.acks, self._on_acknowledged),
            Follower(self._broker, self._topics.devices_metrics, self._on_heartbeat, start_at="end"),
            Follower(self._broker, self._topics.instances, self._on_instance),
        ]
        tasks = [asyncio.create_task(f.run(stop)) for f in followers]
        tasks += [asyncio.create_task(self._tell_alive()), asyncio.create_task(self._outbox.failure())]
        try:
            counts = await patiently(lambda: self._broker.admin().partitions([self._topic]), self.name, stop)
            if counts is None:
                return
            self._partitions = counts.get(self._topic, 0)
            if self._reading.chained:
                tasks.append(asyncio.create_task(self._watch_read_up()))
            await self._intake.run(self._take, stop, beside=tasks)
        finally:
            self._wakes.cancel()
            await self._works.close()
            await self._outbox.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _make_consumer(self, _: Intake) -> Consumer:
        self._consumer = self._broker.consumer(
            topics=[self._topic],
            group=self._topics.router_group(self.app),
            member=self._reading.member,
            listener=self,
            exclusive=self._reading.exclusive,
        )
        return self._consumer

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Others read these from now on."""
        self._read_up.forget(partitions)
        await self._intake.on_revoked(partitions)

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """These are read here from now on."""
        self._read_up.forget(partitions)
        await self._intake.on_assigned(partitions)
        if self._partitions and self._consumer is not None and (held := len(self._consumer.assignment())):
            self._tell(PartRead(min(1.0, held / self._partitions)))

    async def _watch_read_up(self) -> None:
        await self._read_up.watch(self._intake.consumer)

    def takes(self, query: Query) -> bool:
        """Whether ``query``, which is let in by this process now, may come without its topic."""
        if not self._reading.chained or not self._partitions or not self.core.at_once or self._consumer is None:
            return False
        held = self._consumer.assignment()
        if len(held) == len(self._read_up) == self._partitions:
            return True
        place = TopicPartition(self._topic, partition_of(codec.admitted_key(query), self._partitions))
        return place in self._read_up and place in held

    def take(self, message: codec.QueryMessage, record: Record, intake: Intake) -> None:
        """Route a query that was let in by this process: ``intake`` has read its ``record``, and is answered."""
        now = self._clock.wall()
        self._letters[message.query] = _Came(message, record, intake, now)
        content = codec.content_of_query(message) if self.core.refuses else ""
        try:
            self._tell(Arrived(message.query, content=content))
        except Exception:  # admission tells of it, once
            self._letters.pop(message.query, None)
            raise

    async def _tell_alive(self) -> None:
        """Admission takes queries in for those who read them."""
        while True:
            self._outbox.post(self._topics.routers, control.encode_router(self.app), key=self.app.encode())
            await asyncio.sleep(_ALIVE_EVERY)

    async def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                message = codec.decode_admitted(record)
                if message.query.app != self.app:
                    raise InvalidInputError("app", f"{message.query.app!r:.100} is not {self.app}, whose topic this is")
            except InvalidInputError as error:
                self._intake.answer(record, self._outbox, self._buried(record, error))
                continue
            self._letters[message.query] = _Came(message, record, self._intake, record.timestamp)
            content = codec.content_of(record, message.claims) if self.core.refuses else ""
            self._tell(Arrived(message.query, content=content))

    def _buried(self, record: Record, error: InvalidInputError) -> Letter:
        now = self._clock.wall()
        return buried(record, error, stage=self.name, now=now, topics=self._topics, meters=self._meters)

    def _on_plan(self, record: Record) -> None:
        if record.value is not None:
            self._tell(PlanPublished(control.decode_plan(record.value)))

    def _on_acknowledged(self, record: Record) -> None:
        if record.value is not None:
            self._tell(control.decode_acknowledged(record.value))

    def _on_heartbeat(self, record: Record) -> None:
        if record.value is None:
            return
        beat = control.decode_heartbeat(record.value)
        self._tell(beat.seen)
        if beat.poison:
            self._tell(PoisonTold(beat.poison))
        for part in beat.slices:
            self._tell(DeviceReported(beat.seen.device, part.slice, part.queued, part.busy_for, part.overdue))

    def _on_instance(self, record: Record) -> None:
        key = (record.key or b"").decode(errors="replace")
        instance = None if record.value is None else decode_instance(record.key, record.value)
        self._tell(InstanceRead(key, instance))

    def _overlapped(self) -> None:
        self._tell(Overlapped())

    def _woke(self) -> None:
        self._tell(Woke())

    def _looked_up(self) -> None:
        asked, self._asked_for = self._asked_for, set()
        self._tell(LookedUp(self._works.among(asked)))

    def _tell(self, event: RouterEvent) -> None:
        now = self._clock.wall()
        for action in self._handle(event, now):
            self._do(action, now)

    def _do(self, action: RouterAction, now: float) -> None:
        match action:
            case Send():
                self._send(action, now)
            case End(query):
                message, record, intake, _ = self._letters.pop(query)
                intake.answer(record, self._outbox, self._outcome(action, message.carried, now))
            case TellTurns(told):
                self._outbox.post(self._topics.turns, control.encode_turns(told), key=self.app.encode())
            case Activate(plan):
                self._epoch = plan.epoch
                self._meters.set("sluice_plan_term", plan.epoch.term, self.name)
                self._meters.set("sluice_plan_number", plan.epoch.number, self.name)
            case Announce():
                self._announce(action, now)
            case Want(variant):
                why = f"a query of {self.app} can be answered by nothing else"
                said = Announce(f"variant:{variant}", control.VARIANT_WANTED, why)
                self._outbox.post(self._topics.status, control.encode_announce(said), key=said.subject.encode())
            case LookUp(devices):
                self._asked_for.update(devices)
                if self._works.among(devices) == devices:
                    self._looked_up()
                else:
                    self._works.look_soon(self._looked_up)
            case Ignore(epoch, devices):
                log.warning("%s: plan %s is not followed: %s have no work topic", self.name, epoch, devices[:5])
            case WakeAt(at):
                self._wakes.wake_at("core", at, self._woke)
            case _:
                assert_never(action)

    def _send(self, sent: Send, now: float) -> None:
        query = sent.query
        message, record, intake, since = self._letters.pop(query)
        if self._tracing is not None:
            message = self._traced(self._tracing, message, since, sent.device, now)
        work = codec.encode_work(message, epoch=self._epoch, slice=sent.slice, turn=sent.turn)
        letter = Letter(self._topics.work(sent.device), work.value, work.key, work.headers, 0)

        def too_large(error: InvalidInputError) -> Letter:
            return self._not_sent(message, TooLarge(query, error.problem[:500]))

        def gone(error: InvalidInputError) -> Letter:
            return self._not_sent(message, WorkTopicGone(query, error.problem[:500]))

        intake.answer(record, self._outbox, letter, too_large, elsewhere=gone)

    def _not_sent(self, message: codec.QueryMessage, event: TooLarge | WorkTopicGone) -> Letter:
        """How a query ends whose record its work topic does not take."""
        now = self._clock.wall()
        *said, end = self._handle(event, now)
        for action in said:
            self._do(action, now)
        assert isinstance(end, End)
        return self._outcome(end, message.carried, now)

    def _outcome(self, end: End, carried: Headers, now: float) -> Letter:
        outcome = Outcome.of(
            end.query,
            end.kind,
            now,
            reason=end.reason,
            detail=end.detail,
            policy=self.core.policy.name,
            epoch=self._epoch if self._epoch != NO_EPOCH else None,
            queue_s=now - end.query.arrival,
        )
        self._meters.ended(self.name, outcome)
        message = codec.encode_outcome(outcome, (), carried=carried)
        return Letter(self._topics.results(self.app), message.value, message.key, message.headers)

    def _announce(self, said: Announce, now: float) -> None:
        """Of the app's promise. Dated as the outcomes that it is said before."""
        self._meters.add("sluice_announcements", self.name, said.state)
        self._meters.set("sluice_safe_mode", float(said.state == "safe_mode"), said.subject, self.name)
        key = f"{said.subject}@router".encode()
        self._outbox.post(self._topics.status, control.encode_announce(said, now), key=key)

    def _traced(
        self, tracing: Tracing, message: codec.QueryMessage, since: float, device: str, now: float
    ) -> codec.QueryMessage:
        query = message.query
        told = {"sluice.query_id": query.id, "sluice.app": query.app, "sluice.device": device}
        started = min(now, since)
        hop = tracing.hop("route", codec.traceparent_in(message.carried), started, now, told)
        return replace(message, carried=codec.with_traceparent(message.carried, hop))

"""Admission as a stage, the door: validates each query, stamps class and deadline, and does as its core decides.

What is decided, ``policies.serving.admission`` decides. What can be attributed to a query (its id is readable) and is
wrong gets a rejected outcome; what cannot, a dead letter. Demand is told twice a second.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol, assert_never

from sluicegate.domain.actions import Accept, Announce, End, WakeAt
from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.events import DemandCounted, MarginsTold, Overlapped, PlanPublished, TooLarge
from sluicegate.domain.models.app import App
from sluicegate.domain.outcome import Outcome
from sluicegate.domain.query import Query
from sluicegate.policies.serving.admission import (
    AdmissionCore,
    AdmissionCoreAction,
    AdmissionEvent,
    Came,
    DemandAsked,
    Duplicate,
    Flaw,
    Looked,
    PartHeld,
    RouterHeard,
    Serve,
)
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.connections import Connections
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.runtime.consumer_loop import Intake, Overlaps, Reading, topic_seen
from sluicegate.stages.runtime.decision_log import Handle
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.runtime.timers import Wakes
from sluicegate.stages.telemetry.telemetry import buried
from sluicegate.streams.ports import Consumer, Headers, Letter, Record, TopicPartition
from sluicegate.streams.records import codec, control
from sluicegate.streams.source_proofs import SourceKeys

log = logging.getLogger(__name__)

_TELL_EVERY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What queries may be like (``limits``), how they are read, and who counts them (``source``).

    ``sources``: who must prove to be who he says; None: nobody.
    """

    limits: codec.Limits
    reading: Reading
    source: str
    sources: SourceKeys | None = None


class NextHop(Protocol):
    """The router of an app, in this process."""

    def takes(self, query: Query) -> bool:
        """Whether ``query`` may come to it now without the topic between."""
        ...

    def take(self, message: codec.QueryMessage, record: Record, intake: Intake) -> None:
        """Go on with a query; ``intake`` is told what its ``record`` has led to."""
        ...


class AdmissionStage:
    """Shell of an AdmissionCore; ``handle`` is that core's, recorded where that is asked for.

    Reads the query topics of what is ``served`` as a member of one group. ``routers``: of this process by app, which
    may become more.
    """

    name = "admission"

    def __init__(
        self,
        connections: Connections,
        core: AdmissionCore,
        handle: Handle[AdmissionEvent, AdmissionCoreAction],
        *,
        served: Catalogue,
        door: Door,
        routers: Mapping[str, NextHop] = MappingProxyType({}),
    ) -> None:
        self.core = core
        self._handle = handle
        topics, telemetry = connections.topics, connections.telemetry
        self._meters, self._tracing = telemetry.meters, telemetry.tracing
        self._served = served
        self._apps: dict[str, App] = {}
        """By topic, also those that were retired: what is written to theirs is read."""
        self._several: dict[str, int] = {}
        """Partitions of those topics of apps with a promise that have several."""
        self._consumer: Consumer | None = None
        self._broker = connections.broker
        self._topics = topics
        self._clock = connections.clock
        self._door = door
        self._routers = routers
        self._outbox = Outbox(connections.producer, connections.topics.control)
        reading = door.reading
        once = reading.exactly_once(topics.admission_group) if reading.exactly_once is not None else None
        self._intake = Intake(
            self._make_consumer,
            limit=reading.max_in_flight,
            exactly_once=once,
            overlaps=Overlaps(self._overlapped, connections.clock.wall),
            answers=topic_seen(self._broker, topics.status),
            bury=self._buried,
        )
        self._letters: dict[Query, tuple[codec.QueryMessage | None, Record]] = {}
        """Of the queries that the core has; None: of one that is wrong."""
        self._wakes = Wakes(connections.clock)
        telemetry.of_outbox(self.name, self._outbox)
        telemetry.of_intake(self.name, lambda: self._intake)

    async def run(self, stop: asyncio.Event) -> None:
        """Admit until ``stop``, then drain."""
        self.serve(self._served)
        await self._outbox.start()
        await self._count_partitions()
        topics = self._topics
        followers = [Follower(self._broker, topics.routers, self._on_router, start_at="end")]
        if self.core.follows_plans or self.core.shares_out:
            followers.append(Follower(self._broker, topics.plan, self._on_plan))
        if self.core.follows_plans:
            followers += [
                Follower(self._broker, topics.acks, self._on_acknowledged),
                Follower(self._broker, topics.devices_metrics, self._on_heartbeat, start_at="end"),
            ]
        work = (self._tell_demand(), self._outbox.failure(), *(f.run(stop) for f in followers))
        tasks = [asyncio.create_task(one) for one in work]
        try:
            await self._intake.run(self._take, stop, beside=tasks)
        finally:
            self._wakes.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._outbox.stop()

    def _make_consumer(self, _: Intake) -> Consumer:
        self._consumer = self._broker.consumer(
            topics=sorted(self._apps),
            group=self._topics.admission_group,
            member=self._door.reading.member,
            listener=self,
        )
        return self._consumer

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Others read these from now on; they let in what is of them."""
        await self._intake.on_revoked(partitions)
        self._tell_parts(gone=partitions)

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """These are read here from now on."""
        await self._intake.on_assigned(partitions)
        self._tell_parts(come=partitions)

    def _tell_parts(
        self, *, come: frozenset[TopicPartition] = frozenset(), gone: frozenset[TopicPartition] = frozenset()
    ) -> None:
        """Where an app has several partitions: how many of them are read here."""
        held = Counter(p.topic for p in ((self._consumer.assignment() if self._consumer else set()) | come) - gone)
        for topic, count in self._several.items():
            self.tell(PartHeld(self._apps[topic].name, held[topic] / count), self._clock.wall())

    async def _count_partitions(self) -> None:
        """Which of the apps with a promise have several."""
        promised = [topic for topic, app in self._apps.items() if app.promise.active]
        counts = await self._broker.admin().partitions(promised) if promised else {}
        self._several = {topic: count for topic, count in counts.items() if count > 1}

    def serve(self, served: Catalogue) -> None:
        """These apps, and no others, are served from now on."""
        self._served = served
        for name in self.core.chosen(served.apps):
            self._apps[self._topics.queries(name)] = served.apps[name]
        self.tell(Serve(served.registered, self._clock.monotonic()), self._clock.wall())

    async def registered(self, served: Catalogue) -> None:
        """These apps, and no others, are served from now on. Queries of one that was retired are refused."""
        self.serve(served)
        await self._count_partitions()
        await self._intake.subscribe(sorted(self._apps))

    async def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            now = self._clock.wall()
            try:
                self._came(record, now)
            except codec.UnattributableError as error:
                self._dead_letter(record, error)
            except Exception as error:  # a defect of ours must not stop the door for everybody behind
                log.exception("a record could not be admitted", extra={"record": record.place})
                told = InvalidInputError("record", f"could not be admitted: {type(error).__name__}; please report it")
                self._dead_letter(record, told)

    def _came(self, record: Record, now: float) -> None:
        app = self._apps[record.topic]
        message, flaw = None, None
        try:
            message = codec.decode_query(record, app, self._door.limits, now)
            query = message.query
            if record.topic in self._several and query.stream == app.name:
                query.stream = f"{app.name}#{record.partition}"  # the order of several is nobody's
        except codec.RejectedQueryError as error:
            query, flaw = error.query, Flaw(error.reason, str(error)[:500])
        if self._door.sources is not None and (why := self._door.sources.flaw(record, query.source, query.id)):
            raise codec.UnattributableError("ce_source", f"{query.source!r:.80} {why}")
        place = hash((record.topic, record.partition, record.offset))
        self._letters[query] = (message, record)
        try:
            self.tell(Came(query, place, self._clock.monotonic(), flaw), now)
        except Exception:
            self._letters.pop(query, None)
            raise

    def _on_router(self, record: Record) -> None:
        if record.value is not None:
            app = control.decode_router(record.value)
            self.tell(RouterHeard(app, self._clock.monotonic()), self._clock.wall())

    def _on_plan(self, record: Record) -> None:
        if record.value is not None:
            self.tell(PlanPublished(control.decode_plan(record.value)), self._clock.wall())

    def _on_acknowledged(self, record: Record) -> None:
        if record.value is not None:
            self.tell(control.decode_acknowledged(record.value), self._clock.wall())

    def _on_heartbeat(self, record: Record) -> None:
        if record.value is not None:
            beat, now = control.decode_heartbeat(record.value), self._clock.wall()
            self.tell(beat.seen, now)
            for part in beat.slices:
                if part.margins:
                    self.tell(MarginsTold(beat.seen.device, part.slice, part.margins), now)

    def _overlapped(self) -> None:
        self.tell(Overlapped(), self._clock.wall())

    def _woke(self) -> None:
        self.tell(Looked(self._clock.monotonic()), self._clock.wall())

    async def _tell_demand(self) -> None:
        before = self._clock.monotonic()
        while True:
            await asyncio.sleep(_TELL_EVERY)
            now = self._clock.monotonic()
            window, before = now - before, now
            self.tell(DemandAsked(window), self._clock.wall())

    def tell(self, event: AdmissionEvent, now: float) -> None:
        """Something happened at ``now``, wall seconds: the core decides, and it is carried out."""
        for action in self._handle(event, now):
            match action:
                case Accept(query):
                    self._pass_on(query, now)
                case End(query):
                    message, record = self._letters.pop(query)
                    if message is not None:
                        self._traced(message, now)
                    carried = codec.carried_if_it_can_be(record, self._door.limits)
                    self._intake.answer(record, self._outbox, self._outcome(action, carried, now))
                case Duplicate(query):
                    told = f"duplicate_id {query.id!r} of source {query.source!r}; give each query its own"
                    self._dead_letter(self._letters.pop(query)[1], InvalidInputError("ce_id", told))
                case DemandCounted(app, count):
                    self._meters.add("sluice_demand_rows", app, by=count)
                    value = control.encode_demand(action, source=self._door.source, at=now)
                    self._outbox.post(self._topics.demand, value, key=app.encode())
                case Announce(subject, state, detail):
                    log.warning("%s %s: %s", subject, state, detail)
                    self._meters.add("sluice_announcements", self.name, state)
                    self._outbox.post(
                        self._topics.status,
                        control.encode_announce(action, now),
                        key=f"{subject}@admission".encode(),
                    )
                case WakeAt(at):
                    self._wakes.wake_at("core", at, self._woke)
                case _:
                    assert_never(action)

    def _pass_on(self, query: Query, now: float) -> None:
        message, record = self._letters.pop(query)
        assert message is not None  # what is wrong is not let in
        self._meters.add("sluice_queries_admitted", query.app)
        message = self._traced(message, now)
        router = self._routers.get(query.app)
        if router is not None and router.takes(query):
            router.take(message, record, self._intake)
            return
        admitted = codec.encode_admitted(message)
        letter = Letter(self._topics.admitted(query.app), admitted.value, admitted.key, admitted.headers)
        self._intake.answer(record, self._outbox, letter, lambda error: self._too_large(query, message.carried, error))

    def _too_large(self, query: Query, carried: Headers, error: InvalidInputError) -> Letter:
        """How a query ends whose record the next topic does not take."""
        now = self._clock.wall()
        (end,) = self._handle(TooLarge(query, error.problem[:500]), now)
        assert isinstance(end, End)
        return self._outcome(end, carried, now)

    def _outcome(self, end: End, carried: Headers, now: float) -> Letter:
        policy = self.core.policy
        outcome = Outcome.of(
            end.query,
            end.kind,
            now,
            reason=end.reason,
            detail=end.detail,
            policy=policy.name if policy is not None else None,
            queue_s=max(0.0, now - end.query.arrival),
        )
        self._meters.ended(self.name, outcome)
        message = codec.encode_outcome(outcome, (), carried=carried)
        return Letter(self._topics.results(outcome.app), message.value, message.key, message.headers)

    def _dead_letter(self, record: Record, error: InvalidInputError) -> None:
        self._intake.answer(record, self._outbox, self._buried(record, error))

    def _buried(self, record: Record, error: InvalidInputError) -> Letter:
        now = self._clock.wall()
        return buried(record, error, stage=self.name, now=now, topics=self._topics, meters=self._meters)

    def _traced(self, message: codec.QueryMessage, now: float) -> codec.QueryMessage:
        """``message`` with the hop that it took here, where hops are told."""
        if self._tracing is None:
            return message
        query = message.query
        told = {"sluice.query_id": query.id, "sluice.app": query.app}
        started = min(now, query.arrival)
        hop = self._tracing.hop("admit", codec.traceparent_in(message.carried), started, now, told)
        return replace(message, carried=codec.with_traceparent(message.carried, hop))

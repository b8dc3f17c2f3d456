"""Admission: the door. Validates each query, stamps class and deadline, lets it in or ends it with a reason.

Rules.
- What can be attributed to a query (its id is readable) and is wrong gets a rejected outcome; what cannot, a dead
  letter. An id that its source has used for the app within the dedupe window gets a dead letter ``duplicate_id`` and no
  second outcome; the same record read again (after a rebalance that did not wait for its end) is let in again, or it
  might have no end at all.
- A query that expired on its way here ends here; one of an app with a promise goes on to the worker, where the misses
  of its stream are counted.
- Apps come and go while it runs (``registered``); of a retired one every query is refused, none is left without an end.
- ``activated`` is told of each plan whose capacity is ready, for policies that depend on what is hosted.
- What nobody would read is not let in: ``routed`` says which apps have a router
  (``sluicegate.stages.following.routed_apps``). That an app has none is logged and announced, and its queries are
  rejected (``nothing_routes``).
- Demand is counted here in rows, the unit of batches and capacity, whatever becomes of the query later, and told twice
  a second.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from sluicegate.domain.actions import Accept, Activate, Announce, Expire, Reject, WakeAt
from sluicegate.domain.clock import Clock
from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.events import ActivationEvent, Arrived, DemandCounted, PlanPublished, Woke
from sluicegate.domain.models.app import App, slo_class
from sluicegate.domain.outcome import Outcome, OutcomeKind, Reason
from sluicegate.domain.plan import Plan
from sluicegate.domain.query import Query
from sluicegate.policies.protocols import AdmissionPolicy
from sluicegate.policies.routing.activation import Activation
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.following.routed_apps import RoutedApps, advice
from sluicegate.stages.runtime.consumer_loop import Intake
from sluicegate.stages.runtime.dedupe import DedupeWindow
from sluicegate.stages.runtime.exactly_once import ExactlyOnce
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.runtime.timers import Wakes
from sluicegate.stages.telemetry.telemetry import Telemetry
from sluicegate.stages.telemetry.tracing import Tracing
from sluicegate.streams.ports import Broker, Consumer, Letter, Producer, Record
from sluicegate.streams.records import codec, control
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)

_TELL_EVERY = 0.5
_LOOK_EVERY = 0.1
"""Seconds between looks for queries that were held for long enough, and for apps that nothing routes."""


class AdmissionStage:
    """Reads the query topics of ``apps`` as a member of one group."""

    def __init__(
        self,
        apps: Mapping[str, App],
        *,
        broker: Broker,
        producer: Producer,
        topics: Topics,
        clock: Clock,
        policy: AdmissionPolicy,
        limits: codec.Limits,
        dedupe: DedupeWindow,
        source: str,
        member: str | None = None,
        max_in_flight: int = 4000,
        exactly_once: Callable[[str], ExactlyOnce] | None = None,
        activated: Callable[[str, Plan], None] | None = None,
        routed: RoutedApps | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        telemetry = telemetry or Telemetry()
        self._routed = routed
        self._meters, self._tracing = telemetry.meters, telemetry.tracing
        self._apps = {topics.queries(name): app for name, app in apps.items()}
        self._broker = broker
        self._topics = topics
        self._clock = clock
        self._policy = policy
        self._limits = limits
        self._dedupe = dedupe
        self._source = source
        self._member = member
        self._outbox = Outbox(producer)
        once = exactly_once(topics.admission_group) if exactly_once is not None else None
        self._retired: frozenset[str] = frozenset()
        self._intake = Intake(self._make_consumer, limit=max_in_flight, exactly_once=once)
        telemetry.of_outbox(self.name, self._outbox)
        telemetry.of_intake(self.name, lambda: self._intake)
        self._counts = dict.fromkeys(apps, 0)
        self._classes: dict[str, Counter[float]] = {name: Counter() for name in apps}
        self._activated = activated
        self._activations = {name: Activation(name) for name in apps} if activated is not None else {}
        self._wakes = Wakes(clock)

    @property
    def name(self) -> str:
        """Of the stage, for logs."""
        return "admission"

    @property
    def policy(self) -> AdmissionPolicy:
        """What lets queries in."""
        return self._policy

    async def run(self, stop: asyncio.Event) -> None:
        """Admit until ``stop``, then drain."""
        await self._outbox.start()
        tasks = [asyncio.create_task(self._tell_demand())]
        if self._routed is not None:
            routers = Follower(self._broker, self._topics.routers, self._on_router, start_at="end")
            tasks += [asyncio.create_task(work) for work in (routers.run(stop), self._look(self._routed))]
        if self._activations:
            plans = Follower(self._broker, self._topics.plan, self._on_plan)
            acks = Follower(self._broker, self._topics.acks, self._on_acknowledged)
            tasks += [asyncio.create_task(f.run(stop)) for f in (plans, acks)]
        try:
            await self._intake.run(self._take, stop, beside=tasks)
        finally:
            self._wakes.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._outbox.stop()

    def _make_consumer(self, intake: Intake) -> Consumer:
        return self._broker.consumer(
            topics=sorted(self._apps), group=self._topics.admission_group, member=self._member, listener=intake
        )

    async def registered(self, served: Catalogue) -> None:
        """These apps, and no others, are served from now on. Queries of one that was retired are refused."""
        for name, app in served.apps.items():
            self._apps[self._topics.queries(name)] = app
            self._counts.setdefault(name, 0)
            self._classes.setdefault(name, Counter())
            if self._activated is not None:
                self._activations.setdefault(name, Activation(name))
        if self._routed is not None:
            self._routed.watch(served.apps, self._clock.monotonic())
        self._retired = frozenset(app.name for app in self._apps.values() if app.name not in served.apps)
        await self._intake.subscribe(sorted(self._apps))

    async def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                self._admit(record)
            except Exception as error:  # a defect of ours must not stop the door for everybody behind
                log.exception("a record could not be admitted", extra={"record": record.place})
                told = InvalidInputError("record", f"could not be admitted: {type(error).__name__}; please report it")
                self._dead_letter(record, told, self._clock.wall())

    def _admit(self, record: Record) -> None:
        now = self._clock.wall()
        app = self._apps[record.topic]
        try:
            message = codec.decode_query(record, app, self._limits, now)
        except codec.UnattributableError as error:
            self._dead_letter(record, error, now)
            return
        except codec.RejectedQueryError as error:
            if self._new(record, app.name, error.source, error.query_id, now):
                self._write_outcome(record, error.outcome(now))
            return
        query = message.query
        if not self._new(record, app.name, query.source, query.id, now):
            return
        if app.name in self._retired:
            told = f"{app.name} is served no more; register it again"
            self._end(record, query, OutcomeKind.REJECTED, now, Reason.UNKNOWN_APP, told)
            return
        self._judge(record, app, message, now)

    def _judge(self, record: Record, app: App, message: codec.QueryMessage, now: float) -> None:
        query = message.query
        self._count(app, query)
        if self._tracing is not None:
            message = self._traced(self._tracing, message, now)
        for action in self._policy.handle(Arrived(query), now):
            match action:
                case Accept():
                    self._let_in(record, app, message, now)
                case Reject(_, reason, detail):
                    self._end(record, query, OutcomeKind.REJECTED, now, reason, detail)
                case Announce(subject, state):
                    self._meters.add("sluice_announcements", self.name, state)
                    self._outbox.post(self._topics.status, control.encode_announce(action), key=subject.encode())
                case Expire() if app.promise.active:
                    self._pass_on(record, app, message)
                case Expire():
                    self._end(record, query, OutcomeKind.EXPIRED, now)

    def _let_in(self, record: Record, app: App, message: codec.QueryMessage, now: float) -> None:
        query = message.query

        def go() -> None:
            self._meters.add("sluice_queries_admitted", app.name)
            self._pass_on(record, app, message)

        def give_up(nothing_routes: bool) -> None:
            at = self._clock.wall()
            if at >= query.deadline and not nothing_routes:
                self._end(record, query, OutcomeKind.EXPIRED, at)
            else:
                self._end(record, query, OutcomeKind.REJECTED, at, Reason.NOTHING_ROUTES, advice(app.name))

        if self._routed is None:
            go()
        else:
            self._routed.offer(app.name, self._clock.monotonic(), query.deadline - now, go, give_up)

    def _pass_on(self, record: Record, app: App, message: codec.QueryMessage) -> None:
        def too_large(error: InvalidInputError) -> Letter:
            now = self._clock.wall()
            outcome = self._outcome(message.query, OutcomeKind.REJECTED, now, Reason.TOO_LARGE, error.problem[:500])
            return self._told(outcome)

        admitted = codec.encode_admitted(message)
        letter = Letter(self._topics.admitted(app.name), admitted.value, admitted.key, admitted.headers)
        self._intake.answer(record, self._outbox, letter, too_large)

    def _count(self, app: App, query: Query) -> None:
        self._counts[app.name] += query.rows
        self._meters.add("sluice_demand_rows", app.name, by=query.rows)
        if app.slo_classes:
            asked = slo_class(app.slo_classes, query.deadline - query.arrival)
            self._classes[app.name][asked] += query.rows

    def _end(
        self,
        record: Record,
        query: Query,
        kind: OutcomeKind,
        now: float,
        reason: str | None = None,
        detail: str | None = None,
    ) -> None:
        self._write_outcome(record, self._outcome(query, kind, now, reason, detail))

    def _outcome(self, query: Query, kind: OutcomeKind, now: float, reason: str | None, detail: str | None) -> Outcome:
        return Outcome.of(
            query,
            kind,
            now,
            reason=reason,
            detail=detail,
            policy=self._policy.name,
            queue_s=max(0.0, now - query.arrival),
        )

    def _new(self, record: Record, app: str, source: str, query_id: str, now: float) -> bool:
        if self._dedupe.add(app, source, query_id, hash((record.topic, record.partition, record.offset)), now):
            return True
        told = f"duplicate_id {query_id!r} of source {source!r}; give each query its own"
        self._dead_letter(record, InvalidInputError("ce_id", told), now)
        return False

    def _write_outcome(self, record: Record, outcome: Outcome) -> None:
        self._intake.answer(record, self._outbox, self._told(outcome))

    def _told(self, outcome: Outcome) -> Letter:
        self._meters.ended(self.name, outcome)
        message = codec.encode_outcome(outcome, ())
        return Letter(self._topics.results(outcome.app), message.value, message.key, message.headers)

    def _dead_letter(self, record: Record, error: InvalidInputError, now: float) -> None:
        reason = codec.letter_reason(error, record)
        self._meters.add("sluice_dead_letters", self.name, reason)
        log.info("dead letter (%s): %s", reason, error, extra={"record": record.place})
        self._post(self._topics.dead_letters, codec.dead_letter(record, error, stage=self.name, now=now), record)

    def _traced(self, tracing: Tracing, message: codec.QueryMessage, now: float) -> codec.QueryMessage:
        query = message.query
        told = {"sluice.query_id": query.id, "sluice.app": query.app}
        started = min(now, query.arrival)
        return replace(message, traceparent=tracing.hop("admit", message.traceparent, started, now, told))

    def _post(self, topic: str, message: codec.Message, record: Record) -> None:
        letter = Letter(topic, message.value, message.key, message.headers)
        self._intake.answer(record, self._outbox, letter)

    async def _tell_demand(self) -> None:
        before = self._clock.monotonic()
        while True:
            await asyncio.sleep(_TELL_EVERY)
            now = self._clock.monotonic()
            window, before = now - before, now
            for app, count in self._counts.items():
                counted = DemandCounted(app, count, window, tuple(sorted(self._classes[app].items())))
                value = control.encode_demand(counted, source=self._source, at=self._clock.wall())
                self._outbox.post(self._topics.demand, value, key=app.encode())
                self._counts[app] = 0
                self._classes[app].clear()

    # -- who routes

    def _on_router(self, record: Record) -> None:
        if record.value is not None and self._routed is not None:
            self._routed.heard(control.decode_router(record.value), self._clock.monotonic())

    async def _look(self, routed: RoutedApps) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            for said in routed.looked(self._clock.monotonic()):
                log.warning("%s", said.detail)
                self._meters.add("sluice_announcements", self.name, said.state)
                self._outbox.post(self._topics.status, control.encode_announce(said), key=said.subject.encode())

    # -- plans, for policies that depend on what is hosted

    def _on_plan(self, record: Record) -> None:
        if record.value is not None:
            self._tell_all(PlanPublished(control.decode_plan(record.value)))

    def _on_acknowledged(self, record: Record) -> None:
        if record.value is not None:
            self._tell_all(control.decode_acknowledged(record.value))

    def _tell_all(self, event: ActivationEvent) -> None:
        for app in self._activations:
            self._tell(app, event)

    def _tell(self, app: str, event: ActivationEvent) -> None:
        for action in self._activations[app].handle(event, self._clock.wall()):
            match action:
                case Activate(plan):
                    if self._activated is not None:
                        self._activated(app, plan)
                case WakeAt(at):
                    self._wakes.wake_at(app, at, partial(self._tell, app, Woke()))

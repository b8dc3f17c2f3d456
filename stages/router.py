"""The router of one app: reads admitted queries and puts each on the work topic of the device that the plan gives it.

Rules.
- Routes by the newest plan whose capacity is ready (Activation decides that, the routing policy the device).
- Until a plan that speaks of the app is active (it may have been registered just now), queries are held, and expire by
  a timer; what is held counts as in flight, so that no more is read than the limit.
- Twice a second it tells that it lives, also one that stands by: what nobody would read is not let in.
- A query past its deadline gets its outcome here. Not so one of an app with a promise: it goes on to the worker, where
  its stream's misses are counted; what must be missed here all the same (no capacity, no plan) is announced first.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from domain.actions import Activate, Announce, Drop, Send, TellTurns, WakeAt
from domain.app import QueryClass
from domain.clock import Clock
from domain.device import Slice
from domain.errors import InvalidInputError
from domain.events import ActivationEvent, Arrived, DeviceReported, PlanActivated, PlanPublished, RoutingEvent, Woke
from domain.outcome import Outcome, OutcomeKind, Reason
from domain.plan import NO_EPOCH, Plan
from domain.query import Query
from policies.protocols import ActivationPolicy, RoutingPolicy
from profiles.catalogue import Catalogue
from stages.control import Follower
from stages.exactly_once import ExactlyOnce, Instead
from stages.intake import Intake
from stages.outbox import Outbox
from stages.telemetry import Telemetry
from stages.tracing import Tracing
from stages.wakes import Wakes
from stages.work_topics import WorkTopics
from streams import codec, control
from streams.ports import Broker, Consumer, Letter, Producer, Record
from streams.topics import Topics

log = logging.getLogger(__name__)

_SWEEP = 0.05
"""Seconds between looks for held queries that expire."""
_ASK_AGAIN = 1.0
"""Seconds after which a variant that is still missing is asked for again."""
_ALIVE_EVERY = 0.5


Wanted = Callable[[Query], str | None]


@dataclass(frozen=True, slots=True)
class Routes:
    """How an app is routed. ``promised``: by streams, which were promised something.

    ``wanted``: the variant to load for a query that nothing hosted can answer, where that is done on demand: such
    queries are held until it runs.
    """

    policy: RoutingPolicy
    promised: bool = False
    wanted: Wanted | None = None


class RouterStage:
    """Routers of an app scale out as members of one group; of ``exclusive`` ones all but one stand by.

    ``recut`` is told what slices a worker states, before the plan in force is looked at anew.
    ``routes`` is asked at the start, and again when the app is registered with a promise, or without the one it had.
    Strict turns over workers, which selection tables count on, are kept by one router alone.
    """

    def __init__(
        self,
        app: str,
        *,
        broker: Broker,
        producer: Producer,
        topics: Topics,
        clock: Clock,
        routes: Callable[[], Routes],
        activation: ActivationPolicy,
        activated: Callable[[Plan], PlanActivated] = PlanActivated,
        member: str | None = None,
        max_in_flight: int = 4000,
        exactly_once: Callable[[str], ExactlyOnce] | None = None,
        exclusive: bool = False,
        telemetry: Telemetry | None = None,
        recut: Callable[[str, tuple[Slice, ...]], None] = lambda _device, _slices: None,
    ) -> None:
        self.app = app
        self._recut = recut
        self._cuts: dict[str, tuple[Slice, ...]] = {}
        telemetry = telemetry or Telemetry()
        self._meters, self._tracing = telemetry.meters, telemetry.tracing
        self._announced = False
        self._broker = broker
        self._topics = topics
        self._clock = clock
        self._make_routes = routes
        self._routes = routes()
        self._activation = activation
        self._activated = activated
        self._member = member
        self._exclusive = exclusive
        self._outbox = Outbox(producer)
        once = exactly_once(topics.router_group(app)) if exactly_once is not None else None
        self._intake = Intake(self._make_consumer, limit=max_in_flight, exactly_once=once)
        self._epoch = NO_EPOCH
        self._plan: Plan | None = None
        self._works = WorkTopics(broker, topics, clock)
        self._unproven: list[Plan] = []
        self._asked: dict[str, float] = {}
        self._planned = False
        self._held: deque[tuple[codec.QueryMessage, Record]] = deque()
        self._wakes = Wakes(clock)
        telemetry.of_outbox(self.name, self._outbox)
        telemetry.of_intake(self.name, lambda: self._intake)
        self._meters.read("sluice_held_queries", lambda: [((app,), float(len(self._held)))])

    @property
    def name(self) -> str:
        """Of the stage, for logs."""
        return f"router {self.app}"

    @property
    def policy(self) -> RoutingPolicy:
        """What chooses devices."""
        return self._routes.policy

    async def registered(self, served: Catalogue) -> None:
        """The registry changed: what the plan in force hosts may be known by now, and what was promised may differ."""
        app = served.apps.get(self.app)
        if app is None:
            return
        if app.promise.active is not self._routes.promised:
            self._routes = self._make_routes()
        elif self._routes.promised:
            return
        if self._plan is not None:
            self._tell_routing(self._activated(self._plan))

    async def run(self, stop: asyncio.Event) -> None:
        """Route until ``stop``, then drain."""
        await self._outbox.start()
        await self._works.look()
        followers = [
            Follower(self._broker, self._topics.plan, self._on_plan),
            Follower(self._broker, self._topics.acks, self._on_acknowledged),
            Follower(self._broker, self._topics.devices_metrics, self._on_heartbeat, start_at="end"),
        ]
        tasks = [asyncio.create_task(f.run(stop)) for f in followers]
        tasks += [asyncio.create_task(work) for work in (self._expire_held(), self._tell_alive())]
        try:
            await self._intake.run(self._take, stop, beside=tasks)
        finally:
            self._wakes.cancel()
            await self._works.close()
            await self._outbox.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _make_consumer(self, intake: Intake) -> Consumer:
        return self._broker.consumer(
            topics=[self._topics.admitted(self.app)],
            group=self._topics.router_group(self.app),
            member=self._member,
            listener=intake,
            exclusive=self._exclusive,
        )

    # -- queries

    async def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                message = codec.decode_admitted(record)
            except InvalidInputError as error:
                self._meters.add("sluice_dead_letters", self.name, codec.letter_reason(error, record))
                log.info("dead letter: %s", error, extra={"record": record.place})
                letter = codec.dead_letter(record, error, stage=self.name, now=self._clock.wall())
                self._post(self._topics.dead_letters, letter, record)
                continue
            if self._planned:
                self._route(message, record)
            else:
                self._held.append((message, record))

    def _route(self, message: codec.QueryMessage, record: Record) -> None:
        now = self._clock.wall()
        query = message.query
        if query.deadline <= now and not self._routes.promised:
            self._end(query, record, OutcomeKind.EXPIRED, now)
            return
        for action in self._routes.policy.handle(Arrived(query), now):
            match action:
                case Send(_, device, part, turn):
                    if self._tracing is not None:
                        message = self._traced(self._tracing, message, record, device, now)
                    work = codec.encode_work(message, epoch=self._epoch, slice=part, turn=turn)
                    self._post(self._topics.work(device), work, record, partition=0, instead=self._refused(query))
                case Drop(_, reason):
                    if reason is Reason.NO_CAPACITY and self._asks_for_a_variant(query, now):
                        self._held.append((message, record))
                        continue
                    self._end(query, record, OutcomeKind.DROPPED, now, reason)
                case TellTurns(told):
                    self._outbox.post(self._topics.turns, control.encode_turns(told), key=self.app.encode())

    def _asks_for_a_variant(self, query: Query, now: float) -> bool:
        """Have what this query needs loaded, where that is done on demand; it is said once a second."""
        wanted = self._routes.wanted
        name = wanted(query) if wanted is not None else None
        if name is None:
            return False
        if now - self._asked.get(name, 0.0) >= _ASK_AGAIN:
            self._asked[name] = now
            why = f"a query of {self.app} can be answered by nothing else"
            said = Announce(f"variant:{name}", control.VARIANT_WANTED, why)
            self._outbox.post(self._topics.status, control.encode_announce(said), key=said.subject.encode())
        return True

    def _end(self, query: Query, record: Record, kind: OutcomeKind, now: float, reason: Reason | None = None) -> None:
        letter = self._ended(query, kind, now, reason)
        self._intake.answer(record, self._outbox, letter)

    def _refused(self, query: Query) -> Instead:
        """How a query ends whose record is too large for a work topic."""
        return lambda error: self._ended(
            query, OutcomeKind.FAILED, self._clock.wall(), Reason.TOO_LARGE, error.problem[:500]
        )

    def _ended(
        self, query: Query, kind: OutcomeKind, now: float, reason: Reason | None = None, detail: str | None = None
    ) -> Letter:
        if self._routes.promised and query.query_class is QueryClass.STRICT:
            self._say("safe_mode", "queries are missed before any worker gets them: no capacity is ready")
            now = max(now, self._clock.wall())
        outcome = Outcome.of(
            query,
            kind,
            now,
            reason=reason,
            detail=detail,
            policy=self._routes.policy.name,
            epoch=self._epoch if self._epoch != NO_EPOCH else None,
            queue_s=now - query.arrival,
        )
        self._meters.ended(self.name, outcome)
        message = codec.encode_outcome(outcome, ())
        return Letter(self._topics.results(query.app), message.value, message.key, message.headers)

    def _say(self, state: str, detail: str) -> None:
        """Speak of the promise of the app, once until that changes."""
        if self._announced is (state == "safe_mode"):
            return
        self._announced = state == "safe_mode"
        said = Announce(f"app:{self.app}", state, detail)
        self._meters.add("sluice_announcements", self.name, state)
        self._meters.set("sluice_safe_mode", float(self._announced), said.subject, self.name)
        key = f"{said.subject}@router".encode()
        self._outbox.post(self._topics.status, control.encode_announce(said), key=key, timestamp=self._clock.wall())

    def _traced(
        self, tracing: Tracing, message: codec.QueryMessage, record: Record, device: str, now: float
    ) -> codec.QueryMessage:
        query = message.query
        told = {"sluice.query_id": query.id, "sluice.app": query.app, "sluice.device": device}
        started = min(now, record.timestamp)
        return replace(message, traceparent=tracing.hop("route", message.traceparent, started, now, told))

    def _post(
        self,
        topic: str,
        message: codec.Message,
        record: Record,
        *,
        partition: int | None = None,
        instead: Instead | None = None,
    ) -> None:
        letter = Letter(topic, message.value, message.key, message.headers, partition)
        self._intake.answer(record, self._outbox, letter, instead)

    async def _tell_alive(self) -> None:
        """Admission takes queries in for those who read them."""
        while True:
            self._outbox.post(self._topics.routers, control.encode_router(self.app), key=self.app.encode())
            await asyncio.sleep(_ALIVE_EVERY)

    async def _expire_held(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            now = self._clock.wall()
            for _ in range(len(self._held)):
                message, record = self._held.popleft()
                if message.query.deadline <= now:
                    self._end(message.query, record, OutcomeKind.EXPIRED, now)
                else:
                    self._held.append((message, record))

    # -- plans

    def _on_plan(self, record: Record) -> None:
        if record.value is None:
            return
        plan = control.decode_plan(record.value)
        if self._works.lacking(p.device for p in plan.of_app(self.app)):
            self._unproven.append(plan)
            self._works.look_soon(self._prove)
        else:
            self._tell(PlanPublished(plan))

    def _prove(self) -> None:
        """Work topics were looked up: a plan that named devices without one is followed now, or is a stranger's."""
        plans, self._unproven = self._unproven, []
        for plan in plans:
            if lacking := self._works.lacking(p.device for p in plan.of_app(self.app)):
                log.warning("%s: plan %s is not followed: %s have no work topic", self.name, plan.epoch, lacking[:5])
            else:
                self._tell(PlanPublished(plan))

    def _on_acknowledged(self, record: Record) -> None:
        if record.value is not None:
            self._tell(control.decode_acknowledged(record.value))

    def _on_heartbeat(self, record: Record) -> None:
        if record.value is None:
            return
        beat = control.decode_heartbeat(record.value)
        seen = beat.seen
        if seen.slices and seen.slices != self._cuts.get(seen.device):
            self._cuts[seen.device] = seen.slices
            self._recut(seen.device, seen.slices)
            if self._plan is not None and not self._routes.promised:
                self._tell_routing(self._activated(self._plan))
        for part in beat.slices:
            self._tell_routing(DeviceReported(beat.seen.device, part.slice, part.queued, part.busy_for))

    def _tell_routing(self, event: RoutingEvent) -> None:
        self._routes.policy.handle(event, self._clock.wall())

    def _tell(self, event: ActivationEvent) -> None:
        for action in self._activation.handle(event, self._clock.wall()):
            match action:
                case Activate(plan):
                    self._epoch, self._plan = plan.epoch, plan
                    self._meters.set("sluice_plan_term", plan.epoch.term, self.name)
                    self._meters.set("sluice_plan_number", plan.epoch.number, self.name)
                    self._tell_routing(self._activated(plan))
                    self._planned = self.app in plan.demand or bool(plan.of_app(self.app))
                    if not self._planned:
                        continue
                    self._say("promise_kept", "capacity is ready")
                    for _ in range(len(self._held)):
                        self._route(*self._held.popleft())
                case WakeAt(at):
                    self._wakes.wake_at("activation", at, self._woke)

    def _woke(self) -> None:
        self._tell(Woke())

"""The router of one app: which device answers each query, when a plan is followed, what waits and what ends here.

Rules.
- Routes by the newest plan whose capacity is ready (``sluicegate.policies.routing.activation``); the routing policy
  names the device, that for goals where a query has some. Streams that were promised something are routed by stream.
- A plan is followed once every device that it gives the app is known to have a work topic. Of the others it is asked
  (``LookUp``); a plan that names one without was written by a stranger and is ignored.
- Until a plan that speaks of the app is in force (it may have been registered just now), queries are held, as is one
  that nothing hosted can answer while the variant that could is asked for, once in ``ASK_AGAIN`` seconds.
- A plan that hosts nothing at all ends no wait: it is what a system that was stopped in good order leaves behind. Plans
  before it that were followed before any query came were read as history, and do not count, unless variants are loaded
  on demand: there a query asks for what is lacking.
- A slice whose batch is overdue gets nothing while others host the app, unless streams are bound to it.
- What ends executors, as devices tell, fails here: the same input for the app, ``POISON_S`` seconds since it was told
  last. Not of an app with a promise, as below.
- What is held is routed in its order when a plan takes force, and expires at its deadline.
- A query that comes past its deadline ends here. Not so one of an app with a promise: it goes on to the worker, where
  its stream's misses are counted. What must be missed here all the same (no capacity, no plan) is announced first,
  until a plan brings capacity; what cannot be sent (too large, no topic) is, too, until two SLOs after the last.
- Where another router may send what this one sends (``Overlapped``), devices get copies, and each counts its own: the
  promise is announced as not to be counted on until two SLOs later, when all of them have ended.

Illegal: a query that is held already. Records of control topics may come in any order and more than once.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf
from typing import assert_never

from sluicegate.domain.actions import Activate, Announce, Drop, End, RoutingAction, Send, TellTurns, WakeAt
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import (
    ActivationEvent,
    Arrived,
    DeviceReported,
    DeviceSeen,
    InstanceRead,
    Overlapped,
    PartRead,
    PlanAcknowledged,
    PlanActivated,
    PlanPublished,
    PoisonTold,
    Registered,
    RoutingEvent,
    TooLarge,
    Woke,
    WorkTopicGone,
)
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.models.profile import Quantile
from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.query import Query
from sluicegate.policies.model_less.deployment import goal_variants, highest_costs
from sluicegate.policies.model_less.goal_variants import GoalVariant
from sluicegate.policies.placement.hosted_variants import Hosting
from sluicegate.policies.promises.notices import COPIES, SENT_TWICE, PromiseNotices
from sluicegate.policies.protocols import RoutingPolicy
from sluicegate.policies.routing.activation import Activation
from sluicegate.policies.routing.goal_filter import GoalRouting
from sluicegate.policies.routing.keyed_streams import StreamRouting
from sluicegate.policies.routing.known_poison import REFUSED
from sluicegate.profiles.catalogue.catalogue import Catalogue

ASK_AGAIN = 1.0
"""Seconds after which a variant that is still missing is asked for again."""
POISON_S = 60.0
MOST_POISON = 1000
_MISSED = "queries are missed here"
_UNSENT = "queries are lost on their way"
_NOT_SENT = {TooLarge: Reason.TOO_LARGE, WorkTopicGone: Reason.DEVICE_LOST}


@dataclass(frozen=True, slots=True)
class LookedUp:
    """Of the devices that were asked for, these have a work topic."""

    devices: tuple[str, ...]


_Told = DeviceReported | InstanceRead | PartRead
_Asked = LookedUp | Overlapped | TooLarge | Woke | WorkTopicGone
_News = _Told | _Asked | DeviceSeen | PlanAcknowledged | PlanPublished | PoisonTold | Registered
RouterEvent = Arrived | _News


@dataclass(frozen=True, slots=True)
class LookUp:
    """Find out which of these devices have a work topic; answer with LookedUp."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ignore:
    """The plan of ``epoch`` is not followed: these devices of it have no work topic."""

    epoch: Epoch
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Want:
    """Have ``variant`` loaded: a query of the app can be answered by nothing else."""

    variant: str


RouterAction = Activate | Announce | End | Ignore | LookUp | Send | TellTurns | WakeAt | Want


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRules:
    """How apps are routed. ``make_policy``: of apps without a promise, by name.

    ``quantile``: of the latencies that are counted on. ``packing``: of queries with goals. ``on_demand``: variants are
    loaded when a query can be answered by nothing else.
    """

    make_policy: Callable[[str], RoutingPolicy]
    quantile: Quantile = "p95"
    packing: bool = False
    on_demand: bool = False


class RouterCore:
    """Router of ``app``, as first registered with ``catalogue``. ``devices``: all that plans may name."""

    __slots__ = (
        "_activation",
        "_asked",
        "_begun",
        "_catalogue",
        "_due",
        "_goals",
        "_held",
        "_holds",
        "_hosting",
        "_notices",
        "_overdue",
        "_part",
        "_plan",
        "_planned",
        "_poison",
        "_policy",
        "_proven",
        "_story",
        "_unproven",
        "app",
        "rules",
    )

    def __init__(self, app: App, *, catalogue: Catalogue, devices: Iterable[Device], rules: RouterRules) -> None:
        self.app = app
        self.rules = rules
        self._catalogue = catalogue.only({app.name})
        self._hosting = Hosting(self._catalogue, devices, rules.quantile)
        self._activation = Activation(app.name, self._stays)
        self._plan: Plan | None = None
        self._planned = False
        self._begun = False
        self._part: PartRead | None = None
        self._poison: dict[str, float] = {}
        self._overdue: set[tuple[str, str]] = set()
        self._held: dict[Query, None] = {}
        self._holds = 0
        self._due: list[tuple[float, int, Query]] = []
        self._asked: dict[str, float] = {}
        self._proven: set[str] = set()
        self._unproven: list[Plan] = []
        self._notices = PromiseNotices()
        self._story: deque[str] = deque(maxlen=8)
        self._choose_policy(0.0)

    @property
    def policy(self) -> RoutingPolicy:
        """What chooses devices, of queries without goals."""
        return self._policy

    @property
    def refuses(self) -> bool:
        """Whether it is to be told what queries hold."""
        return bool(self._poison)

    @property
    def at_once(self) -> bool:
        """Whether what comes now goes on or ends at once, and is not held."""
        return self._planned and not self.rules.on_demand

    @property
    def held(self) -> int:
        """Queries that wait here."""
        return len(self._held)

    def handle(self, event: RouterEvent, now: float) -> Sequence[RouterAction]:
        """Decide. Raises IllegalEventError for a query that is held."""
        if not isinstance(event, Arrived):
            return self._heard(event, now)
        query = event.query
        goals = self._goals
        self._begun = True
        if not self._planned or (query.deadline <= now and goals is not None) or (self._held and query in self._held):
            return self._unroutable(query, now)
        if self._poison and goals is not None and self._poison.get(event.content, 0.0) > now:
            return self._end(query, OutcomeKind.FAILED, Reason.EXECUTOR_KILLED, REFUSED)
        policy = self._policy if query.goal is None or goals is None else goals
        decided = policy.handle(event, now)
        if type(decided[0]) is Send:
            return decided  # type: ignore[return-value]  # a query that is sent is not dropped
        return self._dropped(decided, now)

    def _heard(self, event: _News, now: float) -> Sequence[RouterAction]:
        if isinstance(event, _Told):
            self._reported(event, now)
            return ()
        self._story.append(f"{now:.6f} {type(event).__name__}")
        match event:
            case PoisonTold(contents):
                self._told_poison(contents, now)
                return ()
            case PlanPublished(plan):
                return self._published(plan, now)
            case PlanAcknowledged():
                return self._follow(event, now)
            case Woke():
                return [*self._follow(event, now), *self._expired(now), *self._over(now)]
            case Overlapped():
                return self._overlapped(now)
            case DeviceSeen():
                if self._hosting.cut(event.device, event.slices):
                    self._host_anew(now)
                return ()
            case LookedUp(devices):
                return self._looked_up(devices, now)
            case Registered():
                self._registered(event, now)
                return ()
            case TooLarge(query, problem) | WorkTopicGone(query, problem):
                end = End(query, OutcomeKind.FAILED, _NOT_SENT[type(event)], problem)
                return self._missed(end, _UNSENT, problem, now + 2.0 * self.app.slo)
            case _:
                assert_never(event)

    def _reported(self, event: _Told, now: float) -> None:
        if isinstance(event, InstanceRead):
            if self._goals is not None:
                self._goals.handle(event, now)
            return
        if isinstance(event, PartRead):
            self._part = event
            self._tell(event, now)
            return
        place = (event.device, event.slice)
        if (event.overdue > 0.0) is not (place in self._overdue):
            self._overdue ^= {place}
            self._host_anew(now)
        if self._poison:
            self._poison = {content: until for content, until in self._poison.items() if until > now}
        self._tell(event, now)

    def _told_poison(self, contents: Iterable[tuple[str, str]], now: float) -> None:
        self._poison |= {content: now + POISON_S for app, content in contents if app == self.app.name}
        while len(self._poison) > MOST_POISON:
            del self._poison[next(iter(self._poison))]

    def _unroutable(self, query: Query, now: float) -> Sequence[RouterAction]:
        if query in self._held:
            raise IllegalEventError(f"query {query.id} comes again at {now}, and is held", tuple(self._story))
        if query.deadline <= now:
            return self._end(query, OutcomeKind.EXPIRED)
        return self._hold(query)

    def _dropped(self, decided: Sequence[RoutingAction], now: float) -> Sequence[RouterAction]:
        actions: list[RouterAction] = []
        for action in decided:
            if not isinstance(action, Drop):
                actions.append(action)
            elif (variant := self._wanted(action)) is None:
                actions += self._end(action.query, OutcomeKind.DROPPED, action.reason, _lacking(action))
            else:
                if now - self._asked.get(variant, -inf) >= ASK_AGAIN:
                    self._asked[variant] = now
                    actions.append(Want(variant))
                actions += self._hold(action.query)
        return actions

    def _wanted(self, drop: Drop) -> str | None:
        """The variant to be loaded for a query that nothing hosted can answer, where that is done on demand."""
        if drop.reason is Reason.NO_CAPACITY and self.rules.on_demand and self._goals is not None:
            return self._goals.wanted(drop.query)
        return None

    def _hold(self, query: Query) -> Sequence[RouterAction]:
        self._held[query] = None
        first = not self._due or query.deadline < self._due[0][0]
        self._holds += 1
        heappush(self._due, (query.deadline, self._holds, query))
        return [WakeAt(query.deadline)] if first else ()

    def _release(self, now: float) -> list[RouterAction]:
        held, self._held, self._due = self._held, {}, []
        return [action for query in held for action in self.handle(Arrived(query), now)]

    def _expired(self, now: float) -> list[RouterAction]:
        actions: list[RouterAction] = []
        while self._due and self._due[0][0] <= now:
            query = heappop(self._due)[2]
            del self._held[query]
            actions += self._end(query, OutcomeKind.EXPIRED)
        return [*actions, WakeAt(self._due[0][0])] if self._due else actions

    def _end(
        self, query: Query, kind: OutcomeKind, reason: Reason | None = None, detail: str | None = None
    ) -> list[RouterAction]:
        return self._missed(End(query, kind, reason, detail), _MISSED, "no capacity is ready")

    def _missed(self, end: End, cause: str, why: str | None, until: float = inf) -> list[RouterAction]:
        """It ends here; where a promise is broken by that, ``cause`` holds ``until`` then and is announced before."""
        if self._goals is not None or end.query.query_class is not QueryClass.STRICT:
            return [end]
        told = f"queries are missed before any worker gets them: {why}"
        said = self._notices.begin(self.app.name, cause, told, until)
        return [*said, WakeAt(until), end] if until < inf else [*said, end]

    def _overlapped(self, now: float) -> list[RouterAction]:
        if not self.app.promise.active:
            return []
        until = now + 2.0 * self.app.slo
        return [*self._notices.begin(self.app.name, SENT_TWICE, COPIES, until), WakeAt(until)]

    def _over(self, now: float) -> list[RouterAction]:
        said = self._notices.over(now)
        due = self._notices.due
        return [*said, WakeAt(due)] if due < inf else [*said]

    def _published(self, plan: Plan, now: float) -> Sequence[RouterAction]:
        lacking = {p.device for p in plan.of_app(self.app.name)} - self._proven
        if not lacking:
            return self._follow(PlanPublished(plan), now)
        self._unproven.append(plan)
        return [LookUp(tuple(sorted(lacking)))]

    def _looked_up(self, devices: Sequence[str], now: float) -> Sequence[RouterAction]:
        self._proven.update(devices)
        plans, self._unproven = self._unproven, []
        actions: list[RouterAction] = []
        for plan in plans:
            if lacking := {p.device for p in plan.of_app(self.app.name)} - self._proven:
                actions.append(Ignore(plan.epoch, tuple(sorted(lacking))))
            else:
                actions += self._follow(PlanPublished(plan), now)
        return actions

    def _follow(self, event: ActivationEvent, now: float) -> list[RouterAction]:
        actions: list[RouterAction] = []
        for action in self._activation.handle(event, now):
            actions.append(action)
            if isinstance(action, Activate):
                actions += self._activated(action.plan, now)
        return actions

    def _stays(self, held: Placement, coming: Sequence[Placement]) -> bool:
        """Whether a slice goes on with ``held`` while it loads: a promised stream's turns go by the newest plan."""
        leaves = all(p.app != self.app.name for p in coming)
        return self._hosting.fit(held, coming) and not (leaves and self.app.promise.active)

    def _activated(self, plan: Plan, now: float) -> list[RouterAction]:
        self._plan = plan
        self._host_anew(now)
        serves = self._planned and (self._begun or self.rules.on_demand)
        speaks = self.app.name in plan.demand and (bool(plan.placements) or serves)
        self._planned = speaks or bool(plan.of_app(self.app.name))
        if not self._planned:
            return []
        kept = self._notices.end(self.app.name, _MISSED, "capacity is ready")
        return [*kept, *self._release(now)]

    def _registered(self, event: Registered, now: float) -> None:
        """What the plan in force hosts may be known by now, and what was promised may differ."""
        app = next((app for app in event.apps if app.name == self.app.name), None)
        if app is None:
            return
        changed, self.app = app.promise.active is not self.app.promise.active, app
        self._catalogue = Catalogue.of(event.apps, event.variants, event.profiles).only({app.name})
        self._hosting.catalogue.add(self._catalogue)
        if changed:
            self._choose_policy(now)
        elif self._goals is not None:
            self._goals.registered(*self._goal_variants())
        self._host_anew(now)

    def _choose_policy(self, now: float) -> None:
        name, promised = self.app.name, self.app.promise.active
        self._policy = StreamRouting(name) if promised else self.rules.make_policy(name)
        self._goals = None if promised else GoalRouting(*self._goal_variants(), packing=self.rules.packing)
        """None: by streams."""
        if self._part is not None:
            self._policy.handle(self._part, now)

    def _goal_variants(self) -> tuple[Mapping[str, float], Sequence[GoalVariant]]:
        """Costs of all that may still run, and what is served."""
        devices = self._hosting.devices
        found = goal_variants(self._catalogue, devices)
        return highest_costs(self._hosting.catalogue, devices), found.get(self.app.name, ())

    def _host_anew(self, now: float) -> None:
        if self._plan is not None:
            plan = self._advancing(self._plan)
            self._tell(PlanActivated(plan, self._hosting.of(self.app.name, plan)), now)

    def _advancing(self, plan: Plan) -> Plan:
        """``plan`` without placements of the app whose slices are overdue, where others are left."""
        if not self._overdue or self._goals is None:
            return plan
        kept = tuple(p for p in plan.placements if (p.device, p.slice) not in self._overdue or p.app != self.app.name)
        return replace(plan, placements=kept) if any(p.app == self.app.name for p in kept) else plan

    def _tell(self, event: RoutingEvent, now: float) -> None:
        self._policy.handle(event, now)
        if self._goals is not None:
            self._goals.handle(event, now)


def _lacking(drop: Drop) -> str | None:
    """What no device hosts now, of what the query asked for."""
    goal = drop.query.goal
    if goal is None or drop.reason is not Reason.NO_CAPACITY:
        return None
    asked = [f"with accuracy {goal.accuracy:.4g}"] if goal.accuracy else []
    asked += [f"at cost {goal.cost:.4g}"] if goal.cost is not None else []
    return f"no device hosts {' '.join([goal.model or 'a variant', *asked])} now, which the plan decides"

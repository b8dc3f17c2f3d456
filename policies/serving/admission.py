"""Admission: which queries go on to the routers, which end at the door, and what was asked for.

Rules.
- A query whose app and source have used its id within the window of ids gets a dead letter and no second outcome; the
  same record read again is no second asking (``sluicegate.policies.admission.dedupe``).
- What can be attributed to a query and is wrong is rejected. So is every query of an app that was retired.
- All others count as demand, in rows, whatever becomes of them; what was counted is told when that is asked for.
- The admission policy lets queries in, behind it stands what their goals could be met by. A query that expired on its
  way here ends here; one of an app with a promise goes on to the worker, where the misses of its stream are counted.
- What nobody would read is not let in but held for a while (``sluicegate.policies.serving.routed``). Where a query of
  an app with a promise expires so, safe mode is announced before; it ends two SLOs after a router of the app is heard,
  when those outcomes are written.
- Where another door may let in what this one does (``Overlapped``), devices get copies, and each counts its own: so is
  it of every app with a promise, until two SLOs later, when all of them have ended.
- Where bounds follow plans, they change with each plan. From its publication until ``SETTLED`` seconds after its
  capacity is ready, when no device holds to the one before any more, what both sustain is let in.
- Where what is in force lets none in of the larger queries that an app with a promise declares to take, that is said
  (``sluicegate.policies.admission.rows_taken``).
- Where clients have shares (``sluicegate.policies.admission.fair_shares``), what is over its client's is rejected.

Illegal: a query of an app that was never registered. Records of control topics may come in any order.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import assert_never

from sluicegate.domain.actions import Accept, Activate, Announce, End, Expire, Reject, WakeAt
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import (
    ActivationEvent,
    Arrived,
    DemandCounted,
    DeviceSeen,
    MarginsTold,
    Overlapped,
    PlanAcknowledged,
    PlanPublished,
    Registered,
    TooLarge,
    Woke,
)
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, QueryClass, slo_class
from sluicegate.domain.models.profile import Quantile
from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.domain.plan import NO_EPOCH, Plan, follows
from sluicegate.domain.query import Query
from sluicegate.policies.admission.dedupe import DedupeWindow
from sluicegate.policies.admission.fair_shares import FairShares, Verdict, rows_served
from sluicegate.policies.admission.known_goals import GoalAdmission
from sluicegate.policies.admission.rows_taken import RowsTold
from sluicegate.policies.admission.sustainable import SustainableAdmission
from sluicegate.policies.admission.sustained_rates import limits, sustained
from sluicegate.policies.model_less.deployment import goal_variants
from sluicegate.policies.placement.hosted_variants import Hosting
from sluicegate.policies.promises.keeper import Hops
from sluicegate.policies.promises.notices import COPIES, SENT_TWICE, PromiseNotices
from sluicegate.policies.protocols import AdmissionPolicy
from sluicegate.policies.routing.activation import Activation
from sluicegate.policies.serving.routed import GivenUp, RoutedApps, advice
from sluicegate.profiles.catalogue.catalogue import Catalogue

SETTLED = 3.0
"""Seconds; devices serve what a plan takes from them for a little less."""
_SERVED = 0.999
"""Of an app's demand, below which a plan is short of it."""
_SOON = 0.001
"""Seconds that are at least waited for: two clocks are not precise enough to be asked again and again."""
_UNREAD = "queries are missed here"
_NOTHING = Catalogue({}, {}, {})


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why a query that is known by its id is wrong."""

    reason: Reason
    problem: str


@dataclass(slots=True)
class Came:
    """A query came. ``place``: a number for where it was read, the same when that is read again.

    ``steady``: seconds of a clock that does not jump. Treat as frozen: creation is on the hot path.
    """

    query: Query
    place: int
    steady: float
    flaw: Flaw | None = None


@dataclass(frozen=True, slots=True)
class Serve:
    """From now on these apps, and no others. ``steady``: seconds of a clock that does not jump."""

    registered: Registered
    steady: float


@dataclass(frozen=True, slots=True)
class RouterHeard:
    """A router of ``app`` lives. ``steady``: seconds of a clock that does not jump."""

    app: str
    steady: float


@dataclass(frozen=True, slots=True)
class Looked:
    """A time asked for by WakeAt has come (or an earlier one). ``steady``: seconds of a clock that does not jump."""

    steady: float


@dataclass(frozen=True, slots=True)
class PartHeld:
    """Of the partitions of ``app`` this door reads a ``part`` (0..1); others read the rest."""

    app: str
    part: float


@dataclass(frozen=True, slots=True)
class DemandAsked:
    """Tell what was counted in the last ``window`` seconds."""

    window: float


_News = (
    DemandAsked
    | DeviceSeen
    | Looked
    | MarginsTold
    | Overlapped
    | PartHeld
    | PlanAcknowledged
    | PlanPublished
    | RouterHeard
    | Serve
    | TooLarge
)
AdmissionEvent = Came | _News


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The id of ``query`` was asked before: a dead letter tells of it."""

    query: Query


AdmissionCoreAction = Accept | Announce | DemandCounted | Duplicate | End | WakeAt


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """How queries are let in. ``make_policy``: None lets everything in.

    ``by_plan``: the bounds of a SustainableAdmission are what the plan in force sustains; ``hops``: how long queries
    are on their way to a slice. ``dedupe_entries``: ids remembered for ``dedupe_s`` seconds; 0: ids are known to be
    unique. ``only``: of what is registered these apps, () all. ``shares``: an app's clients share what the plan hosts
    for it, by these weights (1 where none is given); None: they do not. Not where promises are made, which have
    bounds of their own.
    """

    make_policy: Callable[[], AdmissionPolicy] | None = None
    by_plan: bool = False
    hops: Hops = field(default_factory=Hops)
    quantile: Quantile = "p95"
    dedupe_s: float = 600.0
    dedupe_entries: int = 0
    most_held: int = 1000
    only: frozenset[str] = frozenset()
    shares: Mapping[str, float] | None = None


class _Known:
    """An app that was registered. ``app``: None where it is served no more; ``rows`` and ``classes``: not told yet.

    ``refused``: rows of floods; ``shares``: of its clients.
    """

    __slots__ = ("app", "classes", "refused", "rows", "shares")

    def __init__(self, weights: Mapping[str, float] | None) -> None:
        self.app: App | None = None
        self.rows = self.refused = 0
        self.classes: Counter[float] = Counter()
        self.shares = FairShares(weights) if weights is not None else None


class AdmissionCore:
    """Serves nothing until Serve says what. ``devices``: all that plans may name."""

    __slots__ = (
        "_activations",
        "_dedupe",
        "_door",
        "_hosting",
        "_known",
        "_looks_at",
        "_newest",
        "_notices",
        "_parts",
        "_policy",
        "_promised",
        "_routed",
        "_rows",
        "_settling",
        "_story",
        "rules",
    )

    def __init__(self, devices: Iterable[Device], rules: AdmissionRules) -> None:
        self.rules = rules
        self._policy = rules.make_policy() if rules.make_policy is not None else None
        self._promised: set[str] = set()
        self._rows = RowsTold()
        self._notices = PromiseNotices()
        self._door = GoalAdmission(self._policy, {}, self._promised) if self._policy is not None else None
        self._dedupe = DedupeWindow(rules.dedupe_s, rules.dedupe_entries) if rules.dedupe_entries else None
        self._routed = RoutedApps(most=rules.most_held)
        self._hosting = Hosting(_NOTHING, devices, rules.quantile)
        self._known: dict[str, _Known] = {}
        self._activations: dict[str, Activation] = {}
        self._settling: dict[str, tuple[float, Plan]] = {}
        self._looks_at = inf
        self._newest = NO_EPOCH
        self._parts: dict[str, float] = {}  # of each app's partitions, what is read here where that is not all
        self._story: deque[str] = deque(maxlen=8)

    @property
    def policy(self) -> AdmissionPolicy | None:
        """What lets queries in; None: nothing keeps them out."""
        return self._policy

    @property
    def shares_out(self) -> bool:
        """Whether plans are to be told."""
        return self.rules.shares is not None

    @property
    def follows_plans(self) -> bool:
        """Whether plans, acknowledgements and heartbeats are to be told."""
        return self.rules.by_plan

    def chosen(self, apps: Iterable[str]) -> list[str]:
        """Of ``apps`` those that are served here where they are registered."""
        only = self.rules.only
        return [app for app in apps if not only or app in only]

    def handle(self, event: AdmissionEvent, now: float) -> Sequence[AdmissionCoreAction]:
        """Decide. Raises IllegalEventError for a query of an app that nobody knows."""
        if not isinstance(event, Came):
            return self._heard(event, now)
        query = event.query
        name = query.app
        if self._dedupe is not None and not self._dedupe.add(name, query.source, query.id, event.place, now):
            return (Duplicate(query),)
        known = self._known.get(name)
        if known is None or known.app is None or event.flaw is not None:
            return (self._refused(query, event.flaw, now),)
        app = known.app
        verdict = self._share_of(known, app, query, event.steady)
        if verdict is Verdict.FLOOD:
            known.refused += query.rows
        else:
            known.rows += query.rows
            if app.slo_classes:
                known.classes[slo_class(app.slo_classes, query.deadline - query.arrival)] += query.rows
        if verdict is not Verdict.LET_IN:
            who = query.source or "who gives no source"
            told = f"{who} asks for more than its share: others, or higher priorities, ask too"
            return (End(query, OutcomeKind.REJECTED, Reason.OVER_SHARE, told),)
        if self._door is not None:
            return self._judged(app, event, self._door, now)
        if self._routed.reads(name, event.steady):
            return (Accept(query),)
        return self._let_in(query, event.steady, now)

    def _share_of(self, known: _Known, app: App, query: Query, steady: float) -> Verdict:
        shares = known.shares
        if shares is None or app.promise.active:
            return Verdict.LET_IN
        return shares.admit(query.source, query.rows, steady, query.priority)

    def _heard(self, event: _News, now: float) -> Sequence[AdmissionCoreAction]:
        self._story.append(f"{now:.6f} {type(event).__name__}")
        match event:
            case DemandAsked(window):
                return self._counted(window)
            case RouterHeard(app, steady):
                released, said = self._routed.heard(app, steady)
                looks = self._look(steady, now) if said else ()
                return [*(Accept(query) for query in released), *said, *looks, *self._read_again(app, now)]
            case Looked(steady):
                return self._looked(steady, now)
            case Overlapped():
                return self._overlapped(now)
            case DeviceSeen():
                self._hosting.cut(event.device, event.slices)
                return ()
            case MarginsTold() | PartHeld():
                return self._bounds_told(event, now)
            case PlanPublished(plan):
                self._share_out(plan)
                return self._follow(event, now)
            case PlanAcknowledged():
                return self._follow(event, now)
            case Serve(registered, steady):
                return self._serve(registered, steady, now)
            case TooLarge(query, problem):
                return (End(query, OutcomeKind.REJECTED, Reason.TOO_LARGE, problem),)
            case _:
                assert_never(event)

    def _refused(self, query: Query, flaw: Flaw | None, now: float) -> End:
        if flaw is not None:
            return End(query, OutcomeKind.REJECTED, flaw.reason, flaw.problem)
        if query.app not in self._known:
            problem = f"query {query.id} of {query.app} at {now}: no such app was ever registered"
            raise IllegalEventError(problem, tuple(self._story))
        told = f"{query.app} is served no more; register it again"
        return End(query, OutcomeKind.REJECTED, Reason.UNKNOWN_APP, told)

    def _judged(self, app: App, event: Came, policy: AdmissionPolicy, now: float) -> Sequence[AdmissionCoreAction]:
        actions: list[AdmissionCoreAction] = []
        for action in policy.handle(Arrived(event.query), now):
            match action:
                case Accept(query):
                    actions += self._let_in(query, event.steady, now)
                case Reject(query, reason, detail):
                    actions.append(End(query, OutcomeKind.REJECTED, reason, detail))
                case Expire(query):
                    actions.append(Accept(query) if app.promise.active else End(query, OutcomeKind.EXPIRED))
                case Announce():
                    actions.append(action)
                case _:
                    assert_never(action)
        return actions

    def _let_in(self, query: Query, steady: float, now: float) -> Sequence[AdmissionCoreAction]:
        if self._routed.reads(query.app, steady):
            return (Accept(query),)
        given_up = self._routed.hold(query, steady, query.deadline - now)
        return self._gave_up([given_up]) if given_up is not None else self._look(steady, now)

    def _counted(self, window: float) -> list[AdmissionCoreAction]:
        told: list[AdmissionCoreAction] = []
        for app, known in self._known.items():
            # Of a flood as much counts as is let in: plans grow with it, but not to all of it at once.
            rows = known.rows + min(known.refused, known.rows)
            told.append(DemandCounted(app, rows, window, tuple(sorted(known.classes.items()))))
            known.rows = known.refused = 0
            known.classes.clear()
        return told

    def _looked(self, steady: float, now: float) -> list[AdmissionCoreAction]:
        given_up, said = self._routed.looked(steady)
        self._looks_at = inf
        again = self._follow(Woke(), now)
        kept = self._notices.over(now)
        if (due := self._notices.due) < inf:
            again.append(WakeAt(due))
        return [*said, *self._gave_up(given_up), *kept, *again, *self._look(steady, now)]

    def _overlapped(self, now: float) -> list[AdmissionCoreAction]:
        actions: list[AdmissionCoreAction] = []
        for name in sorted(self._promised):
            if (known := self._known.get(name)) is not None and known.app is not None:
                until = now + 2.0 * known.app.slo
                actions += [*self._notices.begin(name, SENT_TWICE, COPIES, until), WakeAt(until)]
        return actions

    def _read_again(self, app: str, now: float) -> Sequence[WakeAt]:
        """A router of ``app`` lives; what was given up before is still to be written."""
        until = now + 2.0 * self._hosting.catalogue.apps[app].slo if app in self._promised else now
        return (WakeAt(until),) if self._notices.lasts(app, _UNREAD, until) else ()

    def _look(self, steady: float, now: float) -> Sequence[WakeAt]:
        """Be woken when something is due, where that is before the time that was asked for."""
        due = self._routed.due
        if due >= self._looks_at:
            return ()
        self._looks_at = due
        return (WakeAt(now + max(_SOON, due - steady)),)

    def _follow(self, event: ActivationEvent, now: float) -> list[AdmissionCoreAction]:
        actions: list[AdmissionCoreAction] = []
        for app, activation in self._activations.items():
            for action in activation.handle(event, now):
                match action:
                    case Activate(plan):
                        actions += self._bound(app, plan, both=True)
                        self._settling[app] = (now + SETTLED, plan)
                        actions.append(WakeAt(now + SETTLED))
                    case WakeAt():
                        actions.append(action)
                    case _:
                        assert_never(action)
            if not isinstance(event, PlanPublished) or activation.active is None:
                continue
            if activation.pending is event.plan:  # else it is not followed
                actions += self._bound(app, event.plan, both=True)
        for app in [app for app, (at, _) in self._settling.items() if at <= now]:
            _, plan = self._settling.pop(app)
            pending = self._activations[app].pending
            if pending is None or pending.epoch == plan.epoch:  # else both count until that one has settled
                actions += self._bound(app, plan, both=False)
        return actions

    def _bounds_told(self, event: MarginsTold | PartHeld, now: float) -> Sequence[AdmissionCoreAction]:
        """What the slice sustains, or what may be let in here of it, may be another."""
        if isinstance(event, PartHeld):
            if self._parts.get(event.app, 1.0) == event.part or event.part <= 0.0:
                return ()
            self._parts[event.app] = event.part
            return self._bound_anew([event.app], now)
        return self._bound_anew(self._activations, now, event.device) if self._hosting.margins(event) else ()

    def _bound_anew(self, apps: Iterable[str], now: float, device: str = "") -> Sequence[AdmissionCoreAction]:
        """Keep to other bounds, and for a while to those until now. ``device``: only of apps that are there."""
        actions: list[AdmissionCoreAction] = []
        for app in apps:
            plan = self._activations[app].active if app in self._activations else None
            if plan is not None and (not device or any(p.device == device for p in plan.of_app(app))):
                actions += self._bound(app, plan, both=True)
                self._settling[app] = (now + SETTLED, plan)
                actions.append(WakeAt(now + SETTLED))
        return actions

    def _share_out(self, plan: Plan) -> None:
        """The clients of each app share what ``plan`` hosts for it, a part of each slice that hosts several apps."""
        if self.rules.shares is None or not follows(plan.epoch, self._newest):
            return
        self._newest = plan.epoch
        for name, known in self._known.items():
            if known.shares is not None:
                short = plan.served.get(name, 1.0) < _SERVED
                known.shares.plan(rows_served(self._hosting.of(name, plan), plan), short=short)

    def _bound(self, app: str, plan: Plan, *, both: bool) -> Sequence[Announce]:
        """Keep to what ``plan`` sustains of ``app`` from now on; ``both``: and to what it was kept to until now.

        Says which of the queries that the app declares to take are none that may come.
        """
        if not isinstance(self._policy, SustainableAdmission):
            return ()
        known = self._hosting.catalogue.apps[app]
        slices = sustained(known, self._hosting, plan, self.rules.hops)
        found = limits(known, slices, plan)
        if found is not None and app in self._parts:
            found = found.part(self._parts[app])
        before = self._policy.limits_of(app)
        if found is not None:
            self._policy.resize(app, found if not both or before is None else before.beside(found))
        why = next((one.share.refused for one in slices if one.share.refused), "")
        said = self._rows.now(known, self._policy.taken(app, known.max_rows), why)
        return () if said is None else (said,)

    def _serve(self, event: Registered, steady: float, now: float) -> Sequence[AdmissionCoreAction]:
        catalogue = Catalogue.of(event.apps, event.variants, event.profiles)
        self._hosting.catalogue.add(catalogue)
        served = self.chosen(catalogue.apps)
        for known in self._known.values():
            known.app = None
        for name in served:
            self._known.setdefault(name, _Known(self.rules.shares)).app = catalogue.apps[name]
            if self.rules.by_plan:
                self._activations.setdefault(name, Activation(name, self._hosting.fit))
        for app in event.apps:
            self._promised.discard(app.name)
            if app.promise.active:
                self._promised.add(app.name)
        self._rows.registered({name: catalogue.apps[name] for name in served})
        if self._door is not None:
            self._door.registered(goal_variants(catalogue, self._hosting.devices))
        given_up = self._routed.watch(served, steady)
        return [*self._gave_up(given_up), *self._look(steady, now)]

    def _gave_up(self, given_up: Iterable[GivenUp]) -> list[Announce | End]:
        said: list[Announce | End] = []
        for one in given_up:
            end, app = _given_up(one), one.query.app
            counts = end.kind is OutcomeKind.EXPIRED and one.query.query_class is QueryClass.STRICT
            if counts and app in self._promised:
                said += self._notices.begin(app, _UNREAD, "queries are missed before any router reads them")
            said.append(end)
        return said


def _given_up(one: GivenUp) -> End:
    if one.due and not one.nobody:
        return End(one.query, OutcomeKind.EXPIRED)
    return End(one.query, OutcomeKind.REJECTED, Reason.NOTHING_ROUTES, advice(one.query.app))

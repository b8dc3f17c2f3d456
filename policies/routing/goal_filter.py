"""Routes queries that ask something of their own (goals) within what the plan offers; those without go by other rules.

Rules. A query that names a model goes to slices that host it and nothing else for the app; one that asks for accuracy
or cost, to slices all of whose variants meet that, since the slice chooses among them. Of these the one that would be
done first takes it, by the router's own estimate (see ``backlog``), in time or not: batching decides that. Where the
plan in force hosts no such slice the query is dropped (NO_CAPACITY): the plan fills what goals leave open, and is not
made for single queries. Where variants are loaded on demand, ``wanted`` says which, and the query waits for it instead.
Queries without goals count in the estimates only by what slices report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from sluicegate.domain.actions import Drop, RoutingAction, Send
from sluicegate.domain.events import Arrived, DeviceReported, PlanActivated, RoutingEvent
from sluicegate.domain.outcome import Reason
from sluicegate.domain.query import Goal, Query
from sluicegate.policies.model_less.goal_variants import GoalVariant
from sluicegate.policies.routing.backlog_estimate import Backlog
from sluicegate.policies.routing.packing import fullest

_NONE = Goal()


@dataclass(frozen=True, slots=True)
class _Slice:
    device: str
    name: str
    variants: frozenset[str]
    accuracy: float
    cost: float
    backlog: Backlog

    def meets(self, goal: Goal) -> bool:
        if goal.model is not None and self.variants != {goal.model}:
            return False
        if goal.accuracy is not None and self.accuracy < goal.accuracy:
            return False
        return goal.cost is None or self.cost <= goal.cost


class GoalRouting:
    """Routes queries with goals of one app. ``costs``: variant -> cost, in the unit that queries name theirs in.

    ``known``: what is registered, for those that have it loaded on demand. ``packing``: of slices that meet the goals
    the fullest that is in time is taken, not the first to be done.
    """

    __slots__ = ("_costs", "_known", "_packing", "_places", "_slices")

    def __init__(self, costs: Mapping[str, float], known: Sequence[GoalVariant] = (), *, packing: bool = False) -> None:
        self.registered(costs, known)
        self._packing = packing
        self._slices: list[_Slice] = []
        self._places: dict[tuple[str, str], _Slice] = {}

    def registered(self, costs: Mapping[str, float], known: Sequence[GoalVariant]) -> None:
        """These are the costs, and the variants, from now on."""
        self._costs = costs
        self._known = known

    def handle(self, event: RoutingEvent, now: float) -> list[RoutingAction]:
        """Decide."""
        match event:
            case Arrived(query):
                return [self._route(query, query.goal or _NONE, now)]
            case PlanActivated():
                self._follow(event, now)
            case DeviceReported():
                found = self._places.get((event.device, event.slice))
                if found is not None:
                    found.backlog.report(event.queued, event.busy_for, now)
            case _:
                assert_never(event)
        return []

    def wanted(self, query: Query) -> str | None:
        """Of what nothing runs and would do, the variant that is loaded and has run soonest; None where none would."""
        goal = query.goal
        if goal is None:
            return None
        able = [
            v
            for v in self._known
            if goal.model in {None, v.name}
            and v.accuracy >= (goal.accuracy or 0.0)
            and (goal.cost is None or v.cost <= goal.cost)
        ]
        return min(able, key=lambda v: (v.load + v.latency, v.name)).name if able else None

    def _route(self, query: Query, goal: Goal, now: float) -> RoutingAction:
        able = [(place, place.backlog) for place in self._slices if place.meets(goal)]
        if self._packing:
            best = fullest(able, query, now)
        else:
            best = min((place for place, _ in able), key=lambda p: p.backlog.done_at(query.rows, now), default=None)
        if best is None:
            return Drop(query, Reason.NO_CAPACITY)
        best.backlog.send(query.rows, now)
        return Send(query, best.device, best.name)

    def _follow(self, event: PlanActivated, now: float) -> None:
        before = self._places
        self._slices = [
            _Slice(
                on.device,
                on.slice,
                frozenset(h.variant for h in on.hosted),
                min(h.accuracy for h in on.hosted),
                max(self._costs.get(h.variant, 0.0) for h in on.hosted),
                Backlog(on.hosted),
            )
            for on in sorted(event.curves, key=lambda on: (on.device, on.slice))
            if on.hosted
        ]
        self._places = {(s.device, s.name): s for s in self._slices}
        for at, place in self._places.items():
            if at in before:
                old = before[at].backlog
                place.backlog.report(old.queued, old.busy_until - now, now)

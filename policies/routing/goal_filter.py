"""Routes queries that ask something of their own (goals) within what the plan offers; those without go by other rules.

Rules. A query that names a model goes to slices that host it and nothing else for the app; one that asks for accuracy
or cost, to slices all of whose variants meet that, since the slice chooses among them. Of these the one that would be
done first with a row more takes it, by the router's own estimate (see ``backlog``), in time or not: batching decides
that. A slice that hosts an instance recorded as interfered or overloaded is passed over for as long as the record
counts, where another one meets the goals (INFaaS, ATC 2021, 4.2). Where the plan in force hosts no slice that meets
them the query is dropped (NO_CAPACITY): the plan fills what goals leave open, and is not made for single queries. Where
variants are loaded on demand, ``wanted`` says which, and the query waits for it instead. Queries without goals count in
the estimates only by what slices report.

Slices are looked at all at once, as arrays in the order of their accuracy: a decision hardly takes longer with a
thousand of them than with ten, and does not depend on how many variants there are.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import assert_never

import numpy as np
import numpy.typing as npt

from sluicegate.domain.actions import Drop, RoutingAction, Send
from sluicegate.domain.events import Arrived, DeviceReported, InstanceRead, PartRead, PlanActivated, RoutingEvent
from sluicegate.domain.fleet.instance import Instance, InstanceState
from sluicegate.domain.outcome import Reason
from sluicegate.domain.query import Goal, Query
from sluicegate.policies.model_less.goal_variants import AppGoals, GoalVariant
from sluicegate.policies.routing.backlog_estimate import Backlog
from sluicegate.policies.routing.packing import MARGIN

_NONE = Goal()
_LOOKS = 4
"""Slices whose estimate is brought up to date for a query, at most."""
_AVOIDED = (InstanceState.INTERFERED, InstanceState.OVERLOADED)


@dataclass(frozen=True, slots=True)
class _Slice:
    device: str
    name: str
    variants: frozenset[str]
    accuracy: float
    cost: float
    backlog: Backlog


class _Slices:
    """Slices as arrays, the most accurate first. ``done``: when one row more would be done at the earliest, infinite
    for those that are ``avoided`` (place -> until when)."""

    __slots__ = ("_costs", "_done", "_losses", "_ready", "_single", "all", "avoided", "of_model", "places")

    def __init__(self, slices: Sequence[_Slice]) -> None:
        self.all = sorted(slices, key=lambda s: (-s.accuracy, s.device, s.name))
        self.places = {(s.device, s.name): i for i, s in enumerate(self.all)}
        self.avoided: dict[int, float] = {}
        self._losses = [-s.accuracy for s in self.all]
        self._costs = np.array([s.cost for s in self.all])
        self._single = np.array([s.backlog.row for s in self.all])
        self._done = np.zeros(len(self.all))
        self._ready = np.empty(len(self.all))  # room to reckon in: what is allocated once costs no query
        of_model: dict[str, list[int]] = {}
        for i, one in enumerate(self.all):
            if len(one.variants) == 1:
                of_model.setdefault(next(iter(one.variants)), []).append(i)
        self.of_model: dict[str, npt.NDArray[np.intp]] = {m: np.array(found) for m, found in of_model.items()}

    def first_done(self, goal: Goal, now: float) -> int:
        """Place of the slice that meets ``goal`` and is done first; -1 where none does, or only ones avoided."""
        place = -1
        for _ in range(_LOOKS):
            ready, of = self._ready_at(goal, now)
            if not len(ready):
                break
            at = int(ready.argmin())
            if (self.avoided or goal.cost is not None) and ready[at] == inf:
                break
            place = at if of is None else int(of[at])
            backlog = self.all[place].backlog
            if not backlog.queued or backlog.busy_until > now:
                break
            self.changed(place, now)  # batches were begun meanwhile: they may take longer than was thought
        return place

    def fullest(self, goal: Goal, query: Query, now: float) -> int:
        """Place of the slice that meets ``goal`` and has most to do, of those in time with a margin, else as above."""
        ready, of = self._ready_at(goal, now)
        if not len(ready):
            return -1
        latest = query.deadline - MARGIN * (query.deadline - query.arrival)
        free = self._done - self._single
        work = np.maximum((free[: len(ready)] if of is None else free[of]) - now, 0.0)
        work = np.where(ready <= latest, work, -1.0)
        at = int(work.argmax())
        if work[at] < 0.0:
            return self.first_done(goal, now)
        return at if of is None else int(of[at])

    def changed(self, place: int, now: float) -> None:
        """Something was sent there, or reported."""
        self._done[place] = inf if place in self.avoided else self.all[place].backlog.done_at(1, now)

    def avoid(self, place: int, until: float, now: float) -> None:
        """Pass over a slice until then; not any more where that is over."""
        if until > now:
            self.avoided[place] = until
        else:
            self.avoided.pop(place, None)
        self.changed(place, now)

    def meeting(self, goal: Goal, places: Sequence[int]) -> list[int]:
        """Of some."""
        return [i for i in places if _meets(self.all[i], goal)]

    def _ready_at(self, goal: Goal, now: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.intp] | None]:
        """When those that ``goal`` leaves would be done with a row more, and which these are (None: the first)."""
        end = len(self.all) if goal.accuracy is None else bisect_right(self._losses, -goal.accuracy)
        if goal.model is not None:
            of = self.of_model.get(goal.model, _NOBODY)
            of = of[of < end] if goal.accuracy is not None else of
            ready = np.maximum(self._done[of], self._single[of] + now)
            if goal.cost is not None:
                ready[self._costs[of] > goal.cost] = inf
            return ready, of
        ready = self._ready[:end]
        np.add(self._single[:end], now, out=ready)
        np.maximum(ready, self._done[:end], out=ready)
        if goal.cost is not None:
            ready[self._costs[:end] > goal.cost] = inf
        return ready, None


_NOBODY = np.empty(0, dtype=np.intp)


def _meets(one: _Slice, goal: Goal) -> bool:
    if goal.model is not None and one.variants != {goal.model}:
        return False
    if goal.accuracy is not None and one.accuracy < goal.accuracy:
        return False
    return goal.cost is None or one.cost <= goal.cost


class GoalRouting:
    """Routes queries with goals of one app. ``costs``: variant -> cost, in the unit that queries name theirs in.

    ``known``: what is registered, for those that have it loaded on demand. ``packing``: of slices that meet the goals
    the fullest that is in time is taken, not the first to be done.
    """

    __slots__ = ("_costs", "_index", "_instances", "_known", "_lift", "_on", "_packing", "_slices")

    def __init__(self, costs: Mapping[str, float], known: Sequence[GoalVariant] = (), *, packing: bool = False) -> None:
        self.registered(costs, known)
        self._packing = packing
        self._slices = _Slices(())
        self._instances: dict[str, Instance] = {}  # those to be avoided, by key
        self._on: dict[tuple[str, str], set[str]] = {}
        self._lift = inf
        """When the first slice that is passed over is so no longer."""

    def registered(self, costs: Mapping[str, float], known: Sequence[GoalVariant]) -> None:
        """These are the costs, and the variants, from now on."""
        self._costs = costs
        self._known = known
        self._index: AppGoals | None = None

    def handle(self, event: RoutingEvent | InstanceRead, now: float) -> list[RoutingAction]:
        """Decide."""
        if isinstance(event, Arrived):
            return [self._route(event.query, event.query.goal or _NONE, now)]
        match event:
            case PlanActivated():
                self._follow(event, now)
            case DeviceReported():
                place = self._slices.places.get((event.device, event.slice))
                if place is not None:
                    self._slices.all[place].backlog.report(event.queued, event.busy_for, now)
                    self._slices.changed(place, now)
            case InstanceRead(key, instance):
                self._read(key, instance, now)
            case PartRead():
                pass
            case _:
                assert_never(event)
        return []

    def wanted(self, query: Query) -> str | None:
        """Of what nothing runs and would do, the variant that is loaded and has run soonest; None where none would."""
        goal = query.goal
        if goal is None:
            return None
        if self._index is None:
            self._index = AppGoals(self._known)
        found = self._index.soonest(goal.model, goal.accuracy or 0.0, inf if goal.cost is None else goal.cost)
        return found.name if found is not None else None

    def _route(self, query: Query, goal: Goal, now: float) -> RoutingAction:
        slices = self._slices
        if now >= self._lift:
            self._lifted(now)
        place = slices.fullest(goal, query, now) if self._packing else slices.first_done(goal, now)
        if place < 0:
            able = slices.meeting(goal, tuple(slices.avoided))
            if not able:
                return Drop(query, Reason.NO_CAPACITY)
            place = min(able, key=lambda i: slices.all[i].backlog.done_at(query.rows, now))
        best = slices.all[place]
        best.backlog.send(query.rows, now)
        slices.changed(place, now)
        return Send(query, best.device, best.name)

    def _follow(self, event: PlanActivated, now: float) -> None:
        before = self._slices
        self._slices = slices = _Slices(
            [
                _Slice(
                    on.device,
                    on.slice,
                    frozenset(h.variant for h in on.hosted),
                    min(h.accuracy for h in on.hosted),
                    max(self._costs.get(h.variant, 0.0) for h in on.hosted),
                    Backlog(on.hosted),
                )
                for on in event.curves
                if on.hosted
            ]
        )
        for at, place in slices.places.items():
            if at in before.places:
                old = before.all[before.places[at]].backlog
                slices.all[place].backlog.report(old.queued, old.busy_until - now, now)
                slices.changed(place, now)
        for device, name in self._on:
            self._judge(device, name, now)

    def _read(self, key: str, instance: Instance | None, now: float) -> None:
        """Of another app's too, which are not hosted here."""
        before = self._instances.pop(key, None)
        if before is not None:
            self._forget(before)
        if instance is not None and instance.state in _AVOIDED:
            self._instances[key] = instance
            self._on.setdefault((instance.device, instance.slice), set()).add(key)
        for one in (before, instance):
            if one is not None:
                self._judge(one.device, one.slice, now)

    def _forget(self, instance: Instance) -> None:
        keys = self._on[instance.device, instance.slice]
        keys.discard(instance.key)
        if not keys:
            del self._on[instance.device, instance.slice]

    def _judge(self, device: str, name: str, now: float) -> None:
        """Pass over a slice for as long as an instance there is to be avoided."""
        place = self._slices.places.get((device, name))
        if place is None:
            return
        there = [self._instances[key] for key in self._on.get((device, name), ())]
        hosted = self._slices.all[place].variants
        self._slices.avoid(place, max((i.expires for i in there if i.variant in hosted), default=now), now)
        self._lift = min(self._lift, self._slices.avoided.get(place, inf))

    def _lifted(self, now: float) -> None:
        """Records that no longer count."""
        for key in [key for key, i in self._instances.items() if i.expires <= now]:
            gone = self._instances.pop(key)
            self._forget(gone)
            self._judge(gone.device, gone.slice, now)
        self._lift = min(self._slices.avoided.values(), default=inf)

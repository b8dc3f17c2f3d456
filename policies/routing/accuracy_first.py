"""Sends a query to the most accurate slice that still answers it in time, by the router's own estimate of completion.

Rules.
- Slices are tried from the most accurate down; among equally accurate ones the earliest completion counts, and of idle
  equals the next in turn: none of them waits for work that never comes. A query goes to the first whose estimated
  completion leaves a margin to its deadline.
- ``AccuracyFirst`` keeps no margin; where no slice is in time the query goes where it is done first. Best with capacity
  to spare; under scarcity it fills accurate slices up to the deadline, and any error of the estimate is a miss.
- ``SlackBlend`` lets the margin grow with the load, to ``share`` of the SLO at full load, where load is the rate of
  rows over the capacity of what the plan hosts. Where no slice keeps the margin the plan's shares decide, if the
  slice they name is in time, and else the earliest completion. So it turns from accuracy-first into weighted routing.
- Where the plan says no latencies, both route by its shares.
- Of many equally accurate slices the next ``LOOKED_AT`` in turn are compared, so that a query costs no more in a large
  fleet than in a small one.
- A router that reads a part of its app's queries counts each of them, and each it sends, as if the others had one too.
"""

from collections import deque
from itertools import groupby
from typing import assert_never

from typing_extensions import override

from sluicegate.domain.actions import Drop, RoutingAction, Send
from sluicegate.domain.errors import ConfigurationError, IllegalEventError
from sluicegate.domain.events import Arrived, DeviceReported, PartRead, PlanActivated, RoutingEvent
from sluicegate.domain.outcome import Reason
from sluicegate.domain.plan import Placement
from sluicegate.domain.query import Query
from sluicegate.policies.recent_arrivals import RecentArrivals
from sluicegate.policies.routing.backlog_estimate import Backlog
from sluicegate.policies.routing.weighted import ProportionalSequence, hosting

RATE_WINDOW = 0.5
"""Seconds over which arrivals are counted."""
LOOKED_AT = 8
"""Equally accurate slices of which a query goes to the one that is done first."""


class Target:
    """A placement, with its backlog where its latencies are known."""

    __slots__ = ("backlog", "device", "slice")

    def __init__(self, placement: Placement, backlog: Backlog | None) -> None:
        self.device = placement.device
        self.slice = placement.slice
        self.backlog = backlog


class AccuracyFirst:
    """Routes ``app`` to the most accurate slice in time, else to the earliest completion.

    ``part``: of the app's queries, that this router reads.
    """

    name = "accuracy-first"
    __slots__ = ("_by_accuracy", "_by_place", "_capacity", "_sequence", "_story", "_targets", "_turn", "app", "part")

    def __init__(self, app: str) -> None:
        self.app = app
        self._targets: list[Target] = []
        self._by_place: dict[tuple[str, str], Target] = {}
        self._by_accuracy: list[list[tuple[Target, Backlog]]] = []
        self._capacity = 0.0
        self.part = 1.0
        self._turn = -1
        self._sequence: ProportionalSequence | None = None
        self._story: deque[str] = deque(maxlen=8)

    def handle(self, event: RoutingEvent, now: float) -> list[RoutingAction]:
        """Decide. Raises IllegalEventError for a query before the first plan."""
        match event:
            case Arrived():
                query = event.query
                if self._sequence is None:
                    raise IllegalEventError(f"query {query.id} at {now} before any plan", tuple(self._story))
                if not self._targets:
                    return [Drop(query, Reason.NO_CAPACITY)]
                target = self._route(query, now)
                return [Send(query, target.device, target.slice)]
            case PlanActivated():
                self._follow(event, now)
            case DeviceReported():
                reporting = self._by_place.get((event.device, event.slice))
                if reporting is not None and reporting.backlog is not None:
                    reporting.backlog.report(event.queued, event.busy_for, now)
            case PartRead(part):
                self.part = part
            case _:
                assert_never(event)
        return []

    def margin(self, query: Query, now: float) -> float:
        """Seconds that must be left between completion and deadline."""
        return 0.0

    def _rows(self, query: Query) -> int:
        """Rows of ``query``, with those of others."""
        return query.rows if self.part == 1.0 else max(1, round(query.rows / self.part))

    def _route(self, query: Query, now: float) -> Target:
        if not self._by_accuracy:
            return self._by_share()
        latest = query.deadline - self.margin(query, now)
        earliest: tuple[Target, Backlog] | None = None
        earliest_at = 0.0
        rows = self._rows(query)
        self._turn += 1
        for equals in self._by_accuracy:
            if len(equals) > 1:
                equals = self._in_turn(equals)
            best, best_at = equals[0], equals[0][1].done_at(rows, now)
            for other in equals[1:]:
                at = other[1].done_at(rows, now)
                if at < best_at:
                    best, best_at = other, at
            if best_at <= latest:
                best[1].send(rows, now)
                return best[0]
            if earliest is None or best_at < earliest_at:
                earliest, earliest_at = best, best_at
        assert earliest is not None
        return self._otherwise(query, rows, now, *earliest, earliest_at)

    def _in_turn(self, equals: list[tuple[Target, Backlog]]) -> list[tuple[Target, Backlog]]:
        """The next ``LOOKED_AT`` of them, or all; each time round begins one further on."""
        count = len(equals)
        passed = self._turn * min(LOOKED_AT, count)
        start = (passed + passed // count) % count
        some = equals[start : start + LOOKED_AT]
        return some if len(some) == LOOKED_AT else some + equals[: min(start, LOOKED_AT - len(some))]

    def _otherwise(
        self, query: Query, rows: int, now: float, target: Target, backlog: Backlog, done_at: float
    ) -> Target:
        """None keeps the margin; ``target`` would be done first, at ``done_at``. ``rows``: with those of others."""
        if done_at <= query.deadline:
            backlog.send(rows, now)
        return target

    def _by_share(self) -> Target:
        assert self._sequence is not None
        return self._targets[self._sequence.next()]

    def _follow(self, event: PlanActivated, now: float) -> None:
        placements = hosting(event.plan, self.app)
        self._story.append(f"{now:.6f} PlanActivated {tuple(event.plan.epoch)}: {len(placements)} of {self.app}")
        hosted = {(on.device, on.slice): on.hosted for on in event.curves if on.hosted}
        targets = []
        for placement in placements:
            at = (placement.device, placement.slice)
            backlog = Backlog(hosted[at]) if at in hosted else None
            before = self._by_place.get(at)
            if backlog is not None and before is not None and before.backlog is not None:
                backlog.report(before.backlog.queued, before.backlog.busy_until - now, now)
            targets.append(Target(placement, backlog))
        self._targets = targets
        self._by_place = {(t.device, t.slice): t for t in targets}
        self._sequence = ProportionalSequence([p.share for p in placements])
        known = [(t, t.backlog) for t in targets if t.backlog is not None]
        self._capacity = sum(backlog.capacity for _, backlog in known)
        self._by_accuracy = []
        if len(known) == len(targets):
            known.sort(key=lambda pair: -pair[1].accuracy)
            self._by_accuracy = [list(same) for _, same in groupby(known, key=lambda pair: pair[1].accuracy)]


class SlackBlend(AccuracyFirst):
    """Accuracy-first with a margin: ``share`` of the SLO times the load to the power of ``steepness``."""

    name = "slack-blend"
    __slots__ = ("_recent", "share", "steepness")

    def __init__(self, app: str, *, steepness: float = 1.5, share: float = 0.7) -> None:
        super().__init__(app)
        if not (steepness > 0.0 and 0.0 <= share < 1.0):
            raise ConfigurationError(f"slack-blend: steepness {steepness}, share {share}; give > 0 and 0 <= share < 1")
        self.steepness = steepness
        self.share = share
        self._recent = RecentArrivals()

    @override
    def margin(self, query: Query, now: float) -> float:
        """``share`` of the SLO times a power of the load."""
        self._recent.add(now, now - RATE_WINDOW, query.rows)
        load = min(1.0, self._recent.rows / (RATE_WINDOW * self._capacity * self.part))
        part: float = self.share * load**self.steepness
        return part * (query.deadline - query.arrival)

    @override
    def _otherwise(
        self, query: Query, rows: int, now: float, target: Target, backlog: Backlog, done_at: float
    ) -> Target:
        named = self._by_share()
        if named.backlog is not None and named.backlog.done_at(rows, now) <= query.deadline:
            named.backlog.send(rows, now)
            return named
        return super()._otherwise(query, rows, now, target, backlog, done_at)

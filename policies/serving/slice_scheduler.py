"""One slice: a batching policy for each app and class it serves, and one executor that runs one batch at a time.

Rules.
- A query goes to the policy of its app and class. An app that is not hosted (yet, or any more) keeps its queue, which
  only expires until hosting comes back or ``drain`` takes it out.
- While the executor is idle it is offered after every event to those who have queries waiting: strict ones first, then
  by the deadline of the most urgent query, until one runs a batch. Best effort is offered it only where no strict query
  waits; but a strict batch with places left takes best-effort queries of its app along, where that makes nobody late.
  Where anything was promised, best effort may run before (``sluicegate.policies.promises.keeper``).
- Finished goes to the policy whose batch it was, and frees the executor.
- Promises are about strict queries; best-effort ones are not in the sequence. Where anything hosted was promised, apps
  take turns, and all batches are as short as the ``Terms`` of the slice ask (``sluicegate.policies.promises.keeper``).
- There what a batch takes at most goes by what those before it took (``sluicegate.policies.promises.margins``).
- A wake is asked for only where none is outstanding that comes as early. A shell may send Woke for each WakeAt, or keep
  one timer, the earliest asked for. Woke before its time asks again, once for each time asked for.

Illegal: Finished while idle, or for another batch than the one that runs.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import assert_never

from sluicegate.domain.actions import Run, StationAction, WakeAt
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import (
    Arrived,
    Finished,
    HostingChanged,
    Offered,
    StationEvent,
    StreamResumed,
    TurnsTold,
    Woke,
)
from sluicegate.domain.models.app import NO_PROMISE, QueryClass
from sluicegate.domain.query import Query
from sluicegate.domain.table import TableObserved, TablesChanged
from sluicegate.policies.batching.lane import Lane, shorter, shown
from sluicegate.policies.batching.spread import SpreadBatching
from sluicegate.policies.promises.keeper import FREE, NO_HOPS, Hops, terms
from sluicegate.policies.promises.margins import UNKNOWN, Margins
from sluicegate.policies.protocols import BatchingPolicy

_OFFERED = Offered()
_Change = Woke | HostingChanged | StreamResumed | TablesChanged
_STORY = 24
_CALM = 20.0
"""Turns since one that was more than full, after which best effort may be in the way of strict queries."""


class Station:
    """StationPolicy over one batching policy an app and class; ``make_policy`` is called for each.

    ``hops``: how long queries are on their way here.
    """

    __slots__ = (
        "_asked_again",
        "_began",
        "_hops",
        "_lanes",
        "_lent",
        "_loose",
        "_make",
        "_margins",
        "_running",
        "_running_lane",
        "_story",
        "_strict",
        "_tables",
        "_wake",
        "last_app",
        "terms",
    )

    def __init__(self, make_policy: Callable[[], BatchingPolicy], hops: Hops = NO_HOPS) -> None:
        self._make = make_policy
        self._hops = hops
        self.terms = FREE
        self._margins = Margins()
        self._began = 0.0
        self._lent: Run | None = None  # a batch that its policy did not choose
        self._strict: dict[str, Lane] = {}
        self._loose: dict[str, Lane] = {}
        self._lanes: list[Lane] = []
        self._running: Run | None = None
        self._running_lane: Lane | None = None
        self.last_app = ""
        self._tables: dict[str, TablesChanged] = {}
        self._wake = inf
        self._asked_again = False
        self._story: deque[tuple[float, StationEvent | StationAction]] = deque(maxlen=_STORY)

    @property
    def busy(self) -> bool:
        """A batch is running."""
        return self._running is not None

    @property
    def queued(self) -> int:
        """Queries waiting, of all apps."""
        return sum([lane.policy.queued for lane in self._lanes])

    def queued_of(self, app: str) -> int:
        """Queries of ``app`` waiting."""
        return sum(lane.policy.queued for lane in self._lanes if lane.app == app)

    @property
    def margins(self) -> tuple[tuple[str, float], ...]:
        """How long batches take at most, where anything was promised, for those who let queries in."""
        if not self.terms.shares:
            return ()
        told = self._margins.told
        return tuple(
            [(h.variant, told.get(h.variant, UNKNOWN)) for lane in self._lanes if lane.strict for h in lane.hosted]
        )

    @property
    def policies(self) -> dict[tuple[str, str], BatchingPolicy]:
        """(app, class) -> the policy that batches its queries, of all that came or is hosted so far."""
        classes = {True: QueryClass.STRICT, False: QueryClass.BEST_EFFORT}
        return {(lane.app, classes[lane.strict].value): lane.policy for lane in self._lanes}

    def handle(self, event: StationEvent, now: float) -> list[StationAction]:
        """Decide. Raises IllegalEventError, with the last events and runs, for a Finished that nothing runs for."""
        actions: list[StationAction] = []
        if isinstance(event, Arrived):
            query = event.query
            lanes = self._strict if query.query_class is QueryClass.STRICT else self._loose
            lane = lanes.get(query.app) or self._lane(query.app, query.query_class)
            if now < lane.since:
                lane.since = now
            if self.terms.shares and lane.in_turn and (share := self.terms.shares.get(lane.app)) is not None:
                lane.came(query.rows, share, now)
            if decided := lane.policy.handle(event, now):
                self._absorb(lane, decided, now, actions)
        elif isinstance(event, Finished):
            self._finish(event, now, actions)
        elif isinstance(event, TurnsTold):
            for lane in self._lanes:
                if lane.app == event.app and lane.follows is not None:
                    lane.follows.turned(event)
            return actions  # hundreds a second, and nothing to decide
        else:
            self._change(event, now, actions)
        self._story.append((now, event))
        if self._running is None:
            self._offer(now, actions)
        return actions

    def _change(self, event: _Change, now: float, actions: list[StationAction]) -> None:
        match event:
            case Woke():
                self._woke(event, now, actions)
            case HostingChanged():
                self._host(event, now, actions)
            case StreamResumed():
                self._lane(event.app, QueryClass.STRICT).policy.handle(event, now)
            case TablesChanged():
                self._tables[event.app] = event
                for lane in self._lanes:
                    _tell_tables(lane, event)
            case _:
                assert_never(event)

    def drain(self, app: str) -> tuple[Query, ...]:
        """Take out what waits for ``app``; the caller routes it anew or ends it. A batch that runs goes on."""
        return tuple(q for lane in self._lanes if lane.app == app for q in lane.policy.drain())

    def take_observed(self, now: float) -> tuple[TableObserved, ...]:
        """What became of strict queries under selection tables since the last call."""
        lanes = [lane.follows for lane in self._strict.values() if lane.follows is not None and lane.hosted]
        return tuple([seen for follows in lanes for seen in follows.take_observed(now)])

    def order(self, lanes: list[Lane]) -> list[Lane]:
        """Who is offered the executor, in this order; ``lanes`` have queries waiting and are more than one."""
        if self.terms.shares:
            return in_turn(lanes, self.last_app)
        lanes.sort(key=Lane.urgency)
        return [lane for lane in lanes if lane.strict is lanes[0].strict]

    def _lane(self, app: str, query_class: QueryClass) -> Lane:
        strict = query_class is QueryClass.STRICT
        lanes = self._strict if strict else self._loose
        lane = lanes.get(app)
        if lane is None:
            lane = lanes[app] = Lane(app, strict, self._make())
            twin = (self._loose if strict else self._strict).get(app)
            self._lanes.append(lane)
            if app in self._tables:
                _tell_tables(lane, self._tables[app])
            if twin is not None and twin.hosted:
                lane.asked = twin.asked
                lane.told = self._allowed(lane)
                lane.policy.handle(lane.told, 0.0)
        return lane

    def _host(self, event: HostingChanged, now: float, actions: list[StationAction]) -> None:
        self._lane(event.app, QueryClass.STRICT)
        for lane in self._lanes:
            if lane.app == event.app:
                lane.asked = event
                lane.told = None
        self._share_out(now, actions)

    def _share_out(self, now: float, actions: list[StationAction]) -> None:
        """Allot turns, and tell what changed."""
        before, margins = self.terms, self._margins.in_force
        strict = [lane for lane in self._lanes if lane.in_turn and lane.hosted]
        loose = any(lane.asked.loose and lane.hosted and not lane.asked.aside for lane in self._lanes)
        self.terms = terms({lane.app: lane.party(margins) for lane in strict}, self._hops, loose=loose)
        for lane in self._lanes:
            share = self.terms.shares.get(lane.app)
            if lane.strict and isinstance(lane.policy, SpreadBatching):
                lane.policy.allot(share)
            told = self._allowed(lane)
            if told != lane.told or (lane.strict and share != before.shares.get(lane.app)):
                lane.told = told
                self._absorb(lane, lane.policy.handle(told, now), now, actions)

    def _allowed(self, lane: Lane) -> HostingChanged:
        """What a lane may run, in batches as large as the slice's terms allow."""
        share, asked = self.terms.shares.get(lane.app), lane.asked
        if self.terms.shares:
            asked = replace(asked, hosted=shown(asked.hosted, self._margins.in_force))
        if not lane.strict or (self.terms.shares and not lane.in_turn):
            hosted = shorter(asked.hosted, self.terms.blocking_s)
            return replace(asked, hosted=hosted, promise=NO_PROMISE, part=None)
        if share is not None and not asked.promise.active:
            return replace(asked, hosted=shorter(asked.hosted, share.processing_s))
        return asked

    def _finish(self, event: Finished, now: float, actions: list[StationAction]) -> None:
        lane, running = self._running_lane, self._running
        if lane is None or running is None:
            raise IllegalEventError(f"{event} at {now} while nothing runs", self._told())
        if (event.app, event.variant) != (lane.app, running.variant):
            raise IllegalEventError(f"{event} at {now} while {running.variant} runs for {lane.app}", self._told())
        decided = [] if self._lent is running else lane.policy.handle(event, now)
        self._running = self._running_lane = self._lent = None
        if decided:
            self._absorb(lane, decided, now, actions)
        if self.terms.shares and not event.failed:
            self._ran(lane, running, now, actions)

    def _ran(self, lane: Lane, run: Run, now: float, actions: list[StationAction]) -> None:
        """Learn from how long it took."""
        hosted = next((h for h in lane.hosted if h.variant == run.variant), None)
        share = self.terms.shares.get(lane.app)
        turn_s = self.terms.blocking_s if share is None or not lane.in_turn else share.processing_s
        if hosted is not None and run.rows <= hosted.curve.max_batch:
            self._margins.ran(hosted, run.rows, now - self._began, turn_s, now)
        if self._margins.adopt(now):
            self._share_out(now, actions)

    def _woke(self, event: Woke, now: float, actions: list[StationAction]) -> None:
        if now < self._wake:
            if self._wake < inf and not self._asked_again:
                self._asked_again = True
                actions.append(WakeAt(self._wake))
            return
        self._wake = -inf  # one wake is asked for below, for all
        for lane in self._lanes:
            if lane.wake <= now:
                lane.wake = inf
                self._absorb(lane, lane.policy.handle(event, now), now, actions)
        self._wake = inf
        self._wake_by(min((lane.wake for lane in self._lanes), default=inf), actions)

    def _offer(self, now: float, actions: list[StationAction]) -> None:
        lanes = self._lanes
        if len(lanes) > 1:
            lanes = [lane for lane in lanes if lane.policy.queued]
            if len(lanes) > 1:
                if self.terms.shares and self._runs_first(lanes, now, actions):
                    return
                lanes = self.order(lanes)
        elif not (lanes and lanes[0].policy.queued):
            return
        for lane in lanes:
            self._absorb(lane, lane.policy.handle(_OFFERED, now), now, actions)
            if self._running is not None:
                if not lane.policy.queued:
                    lane.since = inf
                if lane.strict and lane.app in self._loose:
                    self._fill(self._running, self._loose[lane.app], now, actions)
                self._story.append((now, self._running))
                return

    def _runs_first(self, lanes: list[Lane], now: float, actions: list[StationAction]) -> bool:
        """Whether best effort runs before those that take turns: it ends as early as if it had begun when they came."""
        shares = self.terms.shares
        waiting = [lane for lane in lanes if lane.in_turn and lane.app in shares]
        others = [lane for lane in lanes if not lane.in_turn]
        if not waiting or not others:
            return False
        room = min([lane.since for lane in waiting]) + self.terms.blocking_s - now
        if room <= 0.0 or any(now - lane.crowded < _CALM * shares[lane.app].window_s for lane in waiting):
            return False
        loose = min(others, key=Lane.urgency)
        run = loose.lent_within(room, now)
        if run is None:
            return False
        self._lent = self._running = run
        self._running_lane = loose
        self._began = now
        self._story.append((now, run))
        actions.append(run)
        return True

    def _fill(self, run: Run, loose: Lane, now: float, actions: list[StationAction]) -> None:
        """Best-effort queries in the places that a strict batch leaves."""
        hosted = next(h for h in loose.hosted if h.variant == run.variant)
        hosted = hosted.times(self._margins.in_force.get(run.variant, 1.0))
        seconds = hosted.curve.seconds
        if self.terms.shares:
            share = self.terms.shares.get(loose.app)
            turn_s = self.terms.blocking_s if share is None else share.processing_s
            seconds = next(iter(shorter((hosted,), turn_s)), hosted.within(1)).longest
        deadline = min(q.deadline for q in run.queries)
        rows = len(seconds)
        while rows > run.rows and now + seconds[rows - 1] > deadline:
            rows -= 1
        along = loose.policy.lend(rows - run.rows, now + seconds[rows - 1]) if rows > run.rows else ()
        taken = run.rows + sum(q.rows for q in along)
        if along:
            self._running = Run(run.variant, run.queries + along, taken)
            actions[actions.index(run)] = self._running

    def _absorb(self, lane: Lane, decided: list[StationAction], now: float, actions: list[StationAction]) -> None:
        for action in decided:
            if isinstance(action, WakeAt):
                lane.wake = min(lane.wake, action.at)
                self._wake_by(action.at, actions)
                continue
            if isinstance(action, Run):
                self._running = action
                self._running_lane = lane
                self._began = now
                self.last_app = lane.app
            actions.append(action)

    def _wake_by(self, at: float, actions: list[StationAction]) -> None:
        if at < self._wake:
            self._wake = at
            self._asked_again = False
            actions.append(WakeAt(at))

    def _told(self) -> tuple[str, ...]:
        return tuple(f"{at:.6f} {_brief(what)}" for at, what in self._story)


def in_turn(lanes: list[Lane], last_app: str) -> list[Lane]:
    """Those that take turns, round robin by name, from after the app that ran last; others where there are none."""
    lanes.sort(key=lambda lane: (not lane.in_turn, lane.app <= last_app, lane.app, not lane.strict))
    return [lane for lane in lanes if lane.in_turn is lanes[0].in_turn]


def _tell_tables(lane: Lane, event: TablesChanged) -> None:
    if lane.app == event.app and lane.follows is not None:
        lane.follows.use(event.tables)


def _brief(what: StationEvent | StationAction) -> str:
    match what:
        case Arrived():
            return f"Arrived {what.query.id} ({what.query.app}, deadline {what.query.deadline:.6f})"
        case Run():
            return f"Run {what.variant}, {what.rows} rows"
        case TablesChanged():
            return f"TablesChanged {what.app}: {len(what.tables)}"
        case HostingChanged():
            return f"HostingChanged {what.app}: {', '.join(h.variant for h in what.hosted) or 'none'}"
        case _:
            return str(what)

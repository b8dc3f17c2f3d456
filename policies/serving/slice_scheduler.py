"""One slice: a batching policy for each app and class it serves, and the executors that run a batch each.

Rules.
- A query goes to the policy of its app and class. An app that is not hosted (yet, or any more) keeps its queue, which
  only expires until hosting comes back or ``drain`` takes it out.
- While an executor is idle it is offered after every event to those who have queries waiting: strict ones first, then
  by the deadline of the most urgent query, until one runs a batch. Best effort is offered it only where no strict query
  waits; but a strict batch with places left takes best-effort queries of its app along, where that makes nobody late.
  Where anything was promised, best effort may run before (``sluicegate.policies.promises.keeper``).
- What is hosted says how many executors there are (``Hosted.executors``), and what a batch takes while all of them run:
  whoever starts beside it, it ends in time. While strict queries wait for company, best effort may start where another
  executor stays idle for them. Where anything was promised one batch runs at a time.
- Finished goes to the policy whose batch it was, and frees its executor. Batches of one app, variant and size are
  alike.
- Promises are about strict queries; best-effort ones are not in the sequence. Where anything hosted was promised, apps
  take turns, and all batches are as short as the ``Terms`` of the slice ask (``sluicegate.policies.promises.keeper``).
- There what a batch takes at most goes by what those before it took (``sluicegate.policies.promises.margins``).
- A wake is asked for only where none is outstanding that comes as early. A shell may send Woke for each WakeAt, or keep
  one timer, the earliest asked for. Woke before its time asks again, once for each time asked for.

Illegal: Finished while idle, or for another batch than those that run.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from math import inf
from typing import NamedTuple, assert_never

from sluicegate.domain.actions import Run, StationAction, WakeAt
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import (
    Arrived,
    Finished,
    HostingChanged,
    Offered,
    Refused,
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
_Change = Offered | Woke | HostingChanged | StreamResumed | TablesChanged | Refused
_STORY = 24
_CALM = 20.0
"""Turns since one that was more than full, after which best effort may be in the way of strict queries."""


class _Running(NamedTuple):
    """A batch that runs. ``lent``: its policy did not choose it."""

    run: Run
    lane: Lane
    began: float
    lent: bool = False


class Station:
    """StationPolicy over one batching policy an app and class; ``make_policy`` is called for each.

    ``hops``: how long queries are on their way here. ``away``: executors that are being started again, and hold no
    batch.
    """

    __slots__ = (
        "_asked_again",
        "_hops",
        "_lanes",
        "_loose",
        "_make",
        "_margins",
        "_running",
        "_seats",
        "_story",
        "_strict",
        "_tables",
        "_wake",
        "away",
        "last_app",
        "terms",
    )

    def __init__(self, make_policy: Callable[[], BatchingPolicy], hops: Hops = NO_HOPS) -> None:
        self._make = make_policy
        self._hops = hops
        self.terms = FREE
        self._margins = Margins()
        self._strict: dict[str, Lane] = {}
        self._loose: dict[str, Lane] = {}
        self._lanes: list[Lane] = []
        self._running: list[_Running] = []
        self._seats = 1
        self.away = 0
        self.last_app = ""
        self._tables: dict[str, TablesChanged] = {}
        self._wake = inf
        self._asked_again = False
        self._story: deque[tuple[float, StationEvent | StationAction]] = deque(maxlen=_STORY)

    @property
    def busy(self) -> bool:
        """A batch is running."""
        return bool(self._running)

    @property
    def queued(self) -> int:
        """Queries waiting, of all apps."""
        return sum([lane.policy.queued for lane in self._lanes])

    @property
    def rows(self) -> int:
        """Rows waiting, of all apps."""
        return sum([lane.policy.rows for lane in self._lanes])

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
                actions += lane.came(query, share, now)
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
        if not self._running:
            self._offer(now, actions)
        if self._seats > 1 and self._running:
            while len(self._running) < self._seats - self.away and self._offer(now, actions):
                pass
        return actions

    def _change(self, event: _Change, now: float, actions: list[StationAction]) -> None:
        match event:
            case Offered():
                pass  # it is offered after every event
            case Woke():
                self._woke(event, now, actions)
            case HostingChanged():
                self._host(event, now, actions)
            case StreamResumed():
                self._lane(event.app, QueryClass.STRICT).policy.handle(event, now)
            case Refused(query):
                lane = self._lane(query.app, query.query_class)
                self._absorb(lane, lane.policy.handle(event, now), now, actions)
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
        executors = [h.executors for lane in self._lanes for h in lane.hosted]
        self._seats = 1 if self.terms.shares else max(executors, default=1)
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
        if not self._running:
            raise IllegalEventError(f"{event} at {now} while nothing runs", self._told())
        ended = self._ended(event)
        if ended is None:
            runs = ", ".join(f"{run.variant} runs for {lane.app}" for run, lane, _, _ in self._running)
            raise IllegalEventError(f"{event} at {now} while {runs}", self._told())
        self._running.remove(ended)
        lane = ended.lane
        decided = [] if ended.lent else lane.policy.handle(event, now)
        if decided:
            self._absorb(lane, decided, now, actions)
        if self.terms.shares and not event.failed:
            self._ran(ended, now, actions)

    def _ended(self, event: Finished) -> _Running | None:
        """The batch that has; of equal size where there is one."""
        found = None
        for one in self._running:
            if one.lane.app == event.app and one.run.variant == event.variant:
                if one.run.rows == event.rows:
                    return one
                found = found or one
        return found

    def _ran(self, ended: _Running, now: float, actions: list[StationAction]) -> None:
        """Learn from how long it took."""
        lane, run = ended.lane, ended.run
        hosted = next((h for h in lane.hosted if h.variant == run.variant), None)
        share = self.terms.shares.get(lane.app)
        turn_s = self.terms.blocking_s if share is None or not lane.in_turn else share.processing_s
        if hosted is not None and run.rows <= hosted.curve.max_batch:
            self._margins.ran(hosted, run.rows, now - ended.began, turn_s, now)
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

    def _offer(self, now: float, actions: list[StationAction]) -> bool:
        """Offer an executor to those who have queries waiting; whether one runs a batch."""
        lanes = self._lanes
        waiting = len(lanes)
        if len(lanes) > 1:
            lanes = [lane for lane in lanes if lane.policy.queued]
            waiting = len(lanes)
            if len(lanes) > 1:
                if self.terms.shares and self._runs_first(lanes, now, actions):
                    return True
                first = self.order(lanes)
                if len(first) < len(lanes) and self._seats - self.away - len(self._running) > 1:
                    first = first + [lane for lane in lanes if lane not in first]
                lanes = first
        elif not (lanes and lanes[0].policy.queued):
            return False
        running = len(self._running)
        for lane in lanes:
            self._absorb(lane, lane.policy.handle(_OFFERED, now), now, actions)
            if len(self._running) > running:
                if not lane.policy.queued:
                    lane.since = inf
                if lane.strict and lane.app in self._loose:
                    self._fill(self._running[-1], self._loose[lane.app], actions)
                self._story.append((now, self._running[-1].run))
                return True
        if len(lanes) < waiting and not any(lane.policy.queued for lane in lanes):
            return self._offer(now, actions)  # they gave up all that they had: nobody is left to come before the others
        return False

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
        self._running.append(_Running(run, loose, now, lent=True))
        self._story.append((now, run))
        actions.append(run)
        return True

    def _fill(self, begun: _Running, loose: Lane, actions: list[StationAction]) -> None:
        """Best-effort queries in the places that a strict batch leaves."""
        run, now = begun.run, begun.began
        hosted = next(h for h in loose.hosted if h.variant == run.variant)
        hosted = hosted.times(self._margins.in_force.get(run.variant, 1.0))
        seconds = hosted.curve.seconds
        if self.terms.shares:
            share = self.terms.shares.get(loose.app)
            turn_s = self.terms.blocking_s if share is None else share.processing_s
            seconds = next(iter(shorter((hosted,), turn_s)), hosted.within(1)).longest
        deadline = min(q.deadline for q in run.queries)
        upto = list(accumulate(seconds[run.rows :], max))  # fewer than there is room for may take longer
        while upto and now + upto[-1] > deadline:
            upto.pop()
        along = loose.policy.lend(len(upto), now + upto[-1]) if upto else ()
        taken = run.rows + sum(q.rows for q in along)
        if along:
            filled = Run(run.variant, run.queries + along, taken)
            self._running[-1] = begun._replace(run=filled)
            actions[actions.index(run)] = filled

    def _absorb(self, lane: Lane, decided: list[StationAction], now: float, actions: list[StationAction]) -> None:
        for action in decided:
            if isinstance(action, WakeAt):
                lane.wake = min(lane.wake, action.at)
                self._wake_by(action.at, actions)
                continue
            if isinstance(action, Run):
                self._running.append(_Running(action, lane, now))
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

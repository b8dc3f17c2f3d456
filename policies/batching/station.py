"""One slice: a batching policy for each app it serves, and one executor that runs one batch at a time.

Rules.
- A query goes to the policy of its app. An app that is not hosted (yet, or any more) keeps its queue, which only
  expires until hosting comes back or ``drain`` takes it out.
- While the executor is idle it is offered after every event to the apps that have queries waiting: those with strict
  queries first, then by the deadline of the most urgent query, until one runs a batch.
- Finished goes to the policy whose batch it was, and frees the executor.
- A wake is asked for only where none is outstanding that comes as early. A shell may send Woke for each WakeAt, or keep
  one timer, the earliest asked for. Woke before its time asks again, once for each time asked for.

Illegal: Finished while idle, or for another batch than the one that runs.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import assert_never

from domain.actions import Run, StationAction, WakeAt
from domain.app import QueryClass
from domain.errors import IllegalEventError
from domain.events import Arrived, Finished, HostingChanged, Offered, StationEvent, Woke
from domain.query import Query
from policies.protocols import BatchingPolicy

_OFFERED = Offered()
_STORY = 24


class _Lane:
    """An app on this slice. ``strict``: it has had a strict query. ``wake``: when its policy wants to be woken."""

    __slots__ = ("app", "policy", "strict", "wake")

    def __init__(self, app: str, policy: BatchingPolicy) -> None:
        self.app = app
        self.policy = policy
        self.strict = False
        self.wake = inf

    def urgency(self) -> tuple[bool, float, str]:
        return (not self.strict, self.policy.head_deadline, self.app)


class Station:
    """StationPolicy over one batching policy an app. ``make_policy`` is called once for each app."""

    __slots__ = ("_asked_again", "_lanes", "_make", "_running", "_running_lane", "_story", "_wake")

    def __init__(self, make_policy: Callable[[], BatchingPolicy]) -> None:
        self._make = make_policy
        self._lanes: dict[str, _Lane] = {}
        self._running: Run | None = None
        self._running_lane: _Lane | None = None
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
        return sum(lane.policy.queued for lane in self._lanes.values())

    def queued_of(self, app: str) -> int:
        """Queries of ``app`` waiting."""
        lane = self._lanes.get(app)
        return lane.policy.queued if lane else 0

    def policy_of(self, app: str) -> BatchingPolicy:
        """The policy that batches ``app``."""
        return self._lane(app).policy

    def handle(self, event: StationEvent, now: float) -> list[StationAction]:
        """Decide. Raises IllegalEventError, with the last events and runs, for a Finished that nothing runs for."""
        actions: list[StationAction] = []
        match event:
            case Arrived():
                query = event.query
                lane = self._lanes.get(query.app) or self._lane(query.app)
                if query.query_class is QueryClass.STRICT:
                    lane.strict = True
                self._absorb(lane, lane.policy.handle(event, now), actions)
            case Finished():
                self._finish(event, now, actions)
            case Woke():
                self._woke(event, now, actions)
            case HostingChanged():
                lane = self._lane(event.app)
                self._absorb(lane, lane.policy.handle(event, now), actions)
            case _:
                assert_never(event)
        self._story.append((now, event))
        if self._running is None:
            self._offer(now, actions)
        return actions

    def drain(self, app: str) -> tuple[Query, ...]:
        """Take out what waits for ``app``; the caller routes it anew or ends it. A batch that runs goes on."""
        lane = self._lanes.get(app)
        return lane.policy.drain() if lane else ()

    def _lane(self, app: str) -> _Lane:
        lane = self._lanes.get(app)
        if lane is None:
            lane = self._lanes[app] = _Lane(app, self._make())
        return lane

    def _finish(self, event: Finished, now: float, actions: list[StationAction]) -> None:
        lane, running = self._running_lane, self._running
        if lane is None or running is None:
            raise IllegalEventError(f"{event} at {now} while nothing runs", self._told())
        if (event.app, event.variant) != (lane.app, running.variant):
            raise IllegalEventError(f"{event} at {now} while {running.variant} runs for {lane.app}", self._told())
        decided = lane.policy.handle(event, now)
        self._running = self._running_lane = None
        self._absorb(lane, decided, actions)

    def _woke(self, event: Woke, now: float, actions: list[StationAction]) -> None:
        if now < self._wake:
            if self._wake < inf and not self._asked_again:
                self._asked_again = True
                actions.append(WakeAt(self._wake))
            return
        self._wake = -inf  # one wake is asked for below, for all
        for lane in self._lanes.values():
            if lane.wake <= now:
                lane.wake = inf
                self._absorb(lane, lane.policy.handle(event, now), actions)
        self._wake = inf
        self._wake_by(min((lane.wake for lane in self._lanes.values()), default=inf), actions)

    def _offer(self, now: float, actions: list[StationAction]) -> None:
        lanes: list[_Lane] = [lane for lane in self._lanes.values() if lane.policy.queued]
        if len(lanes) > 1:
            lanes.sort(key=_Lane.urgency)
        for lane in lanes:
            self._absorb(lane, lane.policy.handle(_OFFERED, now), actions)
            if self._running is not None:
                self._story.append((now, self._running))
                return

    def _absorb(self, lane: _Lane, decided: list[StationAction], actions: list[StationAction]) -> None:
        for action in decided:
            if isinstance(action, WakeAt):
                lane.wake = min(lane.wake, action.at)
                self._wake_by(action.at, actions)
                continue
            if isinstance(action, Run):
                self._running = action
                self._running_lane = lane
            actions.append(action)

    def _wake_by(self, at: float, actions: list[StationAction]) -> None:
        if at < self._wake:
            self._wake = at
            self._asked_again = False
            actions.append(WakeAt(at))

    def _told(self) -> tuple[str, ...]:
        return tuple(f"{at:.6f} {_brief(what)}" for at, what in self._story)


def _brief(what: StationEvent | StationAction) -> str:
    match what:
        case Arrived():
            return f"Arrived {what.query.id} ({what.query.app}, deadline {what.query.deadline:.6f})"
        case Run():
            return f"Run {what.variant}, {what.rows} rows"
        case HostingChanged():
            return f"HostingChanged {what.app}: {', '.join(h.variant for h in what.hosted) or 'none'}"
        case _:
            return str(what)

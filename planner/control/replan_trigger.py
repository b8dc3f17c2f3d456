"""When a plan is asked for, and which question is out.

Rules:
- At most one Solve is out. What happens meanwhile is remembered and asked for again once it is answered. An answer
  that comes after ``solve_timeout`` is ignored, as is one to an older question.
- A plan is asked for when something wants one; every ``plan_period``; on a burst, at most every ``burst_interval``, and
  ``burst_period`` after it.
- While a host is starved, what load alone asks for (bursts, misses, other latencies, the period) waits: for ``rest``
  times what the last answer took, or twice what it waited for before, up to ``plan_period``. Solving takes the machine.
- A question is urgent where capacity is missing: a burst, or a device that is gone.
"""

from dataclasses import dataclass

from sluicegate.planner.control.controller_settings import ControllerSettings
from sluicegate.planner.problems.problem import Allocation, Problem

_BURST = "burst of"
MEASURED = "latency of"
_FEW = 3


@dataclass(frozen=True, slots=True)
class Solve:
    """Give ``problem`` to the planner and send Solved. ``urgent``: capacity is missing now; a fast answer is better."""

    problem: Problem
    reason: str
    urgent: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class Solved:
    """What the planner answered, after ``solve_s`` seconds. ``number``: of the Solve (0: the one that is out).

    ``provisional``: a stand-in while the planner is still at work: published, but the Solve stays out.
    """

    allocation: Allocation
    reason: str
    solve_s: float
    number: int
    provisional: bool = False


def _briefly(reasons: list[str]) -> list[str]:
    """Many measured latencies in one word: on a machine that is short they all move at once."""
    moved = {reason.split(" is ")[0] for reason in reasons if reason.startswith(MEASURED)}
    if len(moved) < _FEW:
        return reasons
    rest = [reason for reason in reasons if not reason.startswith(MEASURED)]
    return sorted([*rest, f"{MEASURED} {len(moved)} variants otherwise than profiled"])


@dataclass(slots=True)
class Pending:
    """The Solve that is out: what was asked, when, and whether its answer is published though it changes nothing."""

    number: int
    asked: float
    problem: Problem
    publish_anyway: bool


class Asking:
    """Decides when to request a new plan, and tracks the outstanding request. ``urgent``: the next one must not wait.
    ``publish_anyway``: devices or the registry changed since the last one. ``damped``: a host is starved."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings
        self._pending: Pending | None = None
        self._solves = 0
        self._last: float | None = None
        self._wanted: dict[str, float] = {}
        self._by_load: set[str] = set()
        self._after_burst = False
        self._took = 0.0
        self._wait = 0.0
        self.urgent = False
        self.publish_anyway = False
        self.damped = False

    def begin(self) -> None:
        """A term begins: nothing is out, and no device was planned on in it."""
        self.drop()
        self._last = None
        self._wanted.clear()
        self._by_load.clear()
        self.urgent = self._after_burst = False
        self.publish_anyway = True

    def want(self, reason: str, at: float, *, by_load: bool = False) -> None:
        """A plan should be asked for then, for this reason. ``by_load``: it may wait where a host is starved."""
        self._wanted.setdefault(reason, at)
        if by_load:
            self._by_load.add(reason)

    def drop(self) -> None:
        """Whatever is out, its answer is of no use any more; what changed before it was asked still has."""
        pending, self._pending = self._pending, None
        self.publish_anyway = self.publish_anyway or (pending is not None and pending.publish_anyway)

    def late(self, now: float) -> bool:
        """Whether what is out was not answered in time; it is then given up and asked for again."""
        pending = self._pending
        if pending is None or now - pending.asked <= self._settings.solve_timeout:
            return False
        self.drop()
        self.want("the planner did not answer", now)
        return True

    def expects_bursts(self, now: float) -> bool:
        """Whether a burst would be answered now."""
        return self._last is not None and now - self._last >= self._settings.burst_interval

    def burst(self, app: str, now: float) -> None:
        """``app`` gets more than its plan covers."""
        self.want(f"{_BURST} {app}", now, by_load=True)
        self.urgent = True

    def due(self, now: float) -> bool:
        """Whether to ask now."""
        s = self._settings
        period = min(s.burst_period, s.plan_period) if self._after_burst else s.plan_period
        if self._last is not None and now - self._last >= period:
            self.want("period", now, by_load=True)
        if self._pending is not None:
            return False
        rested = not self.damped or self._last is None or now - self._last >= self._wait
        return any(at <= now and (rested or reason not in self._by_load) for reason, at in self._wanted.items())

    def ask(self, problem: Problem, now: float) -> Solve:
        """``problem`` goes out."""
        s = self._settings
        reasons = _briefly(sorted(self._wanted))
        self._solves += 1
        self._pending = Pending(self._solves, now, problem, self.publish_anyway)
        self._after_burst = any(reason.startswith(_BURST) for reason in reasons)
        solve = Solve(problem, "; ".join(reasons), self.urgent, self._solves)
        longer = max(s.burst_interval, 2.0 * self._wait, s.strain.rest * self._took)
        self._wait = min(s.plan_period, longer) if self.damped else 0.0
        self._wanted.clear()
        self._by_load.clear()
        self.urgent = self.publish_anyway = False
        self._last = now
        return solve

    def answered(self, event: Solved) -> Pending | None:
        """What ``event`` answers; None where that is out no more."""
        pending = self._pending
        if pending is None or (event.number and event.number != pending.number):
            return None
        if not event.provisional:
            self._pending = None
            self._took = event.solve_s
        return pending

"""Questions to the planner that are out: which may be answered, and which is so late that a heuristic stands in.

Rules. Each question is answered once, in any order, whether or not it still matters; until then a stand-in may come
once it was asked for. A stand-in is asked for after ``patience`` seconds where capacity is missing (or nothing is in
force), after ``CALM`` times that otherwise: it would only cost loads.
"""

from dataclasses import dataclass

from sluicegate.domain.errors import IllegalEventError
from sluicegate.planner.control.events import StandIn
from sluicegate.planner.control.replan_trigger import Solve, Solved

CALM = 10
"""Times the patience where a plan is in force and nothing is urgent."""
STANDS_IN = "greedy-fill stands in"
"""Ends the reason of a plan that a heuristic made while the planner's own was awaited."""


@dataclass(slots=True)
class _Out:
    solve: Solve
    late_at: float
    stood_in: bool = False


class Questions:
    """The questions that solvers are at. ``patience``: seconds that an urgent answer may take."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._out: dict[int, _Out] = {}

    def asked(self, solve: Solve, now: float) -> None:
        """It goes out."""
        urgent = solve.urgent or not solve.problem.previous
        self._out[solve.number] = _Out(solve, now + self._patience * (1 if urgent else CALM))

    def drop(self) -> None:
        """Who acts no more hears no answer."""
        self._out.clear()

    def late(self, now: float) -> list[StandIn]:
        """What a heuristic is to answer in the meantime."""
        found = []
        for number, out in self._out.items():
            if not out.stood_in and now >= out.late_at:
                out.stood_in = True
                reason = f"{out.solve.reason}; the planner is late, {STANDS_IN}"
                found.append(StandIn(out.solve.problem.merged(), reason, number))
        return found

    def answered(self, event: Solved) -> Solve:
        """What ``event`` answers. Raises IllegalEventError where nobody asked for it."""
        out = self._out.get(event.number)
        if out is None or (event.provisional and not out.stood_in):
            kind = "a stand-in" if event.provisional else "an answer"
            story = tuple(f"{n} ({o.solve.reason}), stood in: {o.stood_in}" for n, o in self._out.items())
            raise IllegalEventError(f"{kind} to question {event.number}, which nobody asked for", story)
        if not event.provisional:
            del self._out[event.number]
        return out.solve

"""Questions to the planner that are out: which may be answered, and which is so late that a heuristic stands in.

Rules. Each question is answered once, in any order, whether or not it still matters; until then a stand-in may come
once it was asked for. A stand-in is asked for after ``patience`` seconds where capacity is missing (or nothing is in
force), after ``CALM`` times that otherwise: it would only cost loads.
"""

from dataclasses import dataclass

from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.plan import STANDS_IN
from sluicegate.planner.control.events import StandIn
from sluicegate.planner.control.replan_trigger import Solve, Solved

CALM = 10
"""Times the patience where a plan is in force and nothing is urgent."""


@dataclass(slots=True)
class _Out:
    solve: Solve
    late_at: float
    stood_in: bool = False
    standing_in: bool = False
    """A heuristic is at it now."""


class Questions:
    """The questions that solvers are at. ``patience``: seconds that an urgent answer may take."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._out: dict[int, _Out] = {}
        self._overtaken: set[tuple[int, bool]] = set()
        """Answers, provisional or not, that are still to come and of no use any more."""

    def asked(self, solve: Solve, now: float) -> None:
        """It goes out."""
        urgent = solve.urgent or not solve.problem.previous
        self._out[solve.number] = _Out(solve, now + self._patience * (1 if urgent else CALM))

    def drop(self) -> None:
        """Who acts no more hears no answer."""
        for number, out in self._out.items():
            self._overtaken.add((number, False))
            if out.standing_in:
                self._overtaken.add((number, True))
        self._out.clear()

    def late(self, now: float) -> list[StandIn]:
        """What a heuristic is to answer in the meantime."""
        found = []
        for number, out in self._out.items():
            if not out.stood_in and now >= out.late_at:
                out.stood_in = out.standing_in = True
                reason = f"{out.solve.reason}; the planner is late, {STANDS_IN}"
                found.append(StandIn(out.solve.problem.merged(), reason, number))
        return found

    def ignore(self, event: Solved) -> None:
        """An answer that nobody waits for any more."""
        self._overtaken.discard((event.number, event.provisional))
        if event.provisional and event.number in self._out:
            self._out[event.number].standing_in = False
        elif not event.provisional:
            self._out.pop(event.number, None)

    def answered(self, event: Solved) -> Solve | None:
        """What ``event`` answers; None where it comes too late. Raises IllegalEventError where nobody asked for it.

        A stand-in may come behind the answer that it was to stand in for, and both behind the end of a term.
        """
        if (event.number, event.provisional) in self._overtaken:
            self._overtaken.remove((event.number, event.provisional))
            return None
        out = self._out.get(event.number)
        if out is None or (event.provisional and not out.standing_in):
            kind = "a stand-in" if event.provisional else "an answer"
            story = tuple(f"{n} ({o.solve.reason}), stood in: {o.stood_in}" for n, o in self._out.items())
            raise IllegalEventError(f"{kind} to question {event.number}, which nobody asked for", story)
        if event.provisional:
            out.standing_in = False
        else:
            del self._out[event.number]
            if out.standing_in:
                self._overtaken.add((event.number, True))
        return out.solve

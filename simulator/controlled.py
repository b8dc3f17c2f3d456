"""The control plane of the live planner stage: its controller, with a named planner behind it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from domain.actions import Announce, ControllerAction, Publish, Reclaim
from domain.events import ControllerEvent, Ticked
from planner.asking import Solve, Solved
from planner.controller import Controller
from planner.fallback import answered
from planner.problem import Planner
from simulator.control import Plant

TICK_S = 0.1
"""Seconds between Ticked events, as live."""


@dataclass(frozen=True, slots=True)
class PlanLatency:
    """Seconds from asking for a plan to having it: fixed, or as long as this solve took (then runs differ)."""

    seconds: float | Literal["measured"] = 0.0


class Controlled:
    """The live controller with a planner behind it. ``timer``: wall seconds, to measure solves."""

    def __init__(
        self,
        controller: Controller,
        planner: Planner,
        *,
        latency: PlanLatency,
        timer: Callable[[], float],
    ) -> None:
        self._controller = controller
        self._planner = planner
        self._latency = latency.seconds
        self._timer = timer
        self.solve_s: list[float] = []
        self.epochs = 0
        self.nondeterministic = 0

    def start(self, plant: Plant, now: float) -> None:
        """Begin to tick."""
        self._plant = plant
        self._ticked(None, now)

    def heard(self, event: ControllerEvent | Solved, now: float) -> None:
        """Let the controller decide, and do it."""
        for action in self._controller.handle(event, now):
            self._do(action, now)

    def _ticked(self, _: object, now: float) -> None:
        self._plant.timeline.at(now + TICK_S, self._ticked)
        self.heard(Ticked(), now)

    def _do(self, action: ControllerAction | Solve, now: float) -> None:
        match action:
            case Publish(plan):
                self.epochs += 1
                self._plant.publish(plan, now)
            case Solve():
                self._solve(action, now)
            case Reclaim(device, _):
                self._plant.reclaim(device, now)
            case Announce():
                pass

    def _solve(self, solve: Solve, now: float) -> None:
        started = self._timer()
        allocation = answered(self._planner, solve.problem)
        took = self._timer() - started
        self.solve_s.append(took)
        self.nondeterministic += allocation.nondeterministic
        latency = took if self._latency == "measured" else self._latency
        # A plan carries the latency it was given: the wall time of this machine would make equal runs differ.
        self._plant.timeline.at(now + latency, self._solved, Solved(allocation, solve.reason, latency, solve.number))

    def _solved(self, solved: Solved, now: float) -> None:
        self.heard(solved, now)

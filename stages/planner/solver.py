"""Where plans are solved: in this process, or in one of its own, which can be ended when it hangs.

Rules of the second.
- The first plan is solved here, beside the start of that process, which would hold it up.
- Where the process ends, another is asked the same once; where that ends too, a heuristic answers. Until then the plan
  in force stays.
- A question that comes while another is out says that nobody waits for that any more: its process is ended.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from typing_extensions import override

from sluicegate.domain.errors import SluiceError
from sluicegate.planner.control.solve_or_fallback import answered
from sluicegate.planner.geometry.joint_planner import JointGeometry
from sluicegate.planner.problems.problem import Allocation, Planner, Problem
from sluicegate.planner.registry import planner
from sluicegate.stages.planner.asked_process import AskedProcess
from sluicegate.stages.planner.solver_process import decode_answer, encode_question
from sluicegate.stages.runtime.malloc_trim import release_freed
from sluicegate.stages.telemetry.metrics import Meters

log = logging.getLogger(__name__)

PROCESS = "sluicegate.stages.planner.solver_process"


class Solver(Protocol):
    """Answers questions with ``planner``."""

    planner: Planner

    async def solve(self, problem: Problem) -> Allocation:
        """What it allocates, or the best stand-in. Never raises."""
        ...

    async def close(self) -> None:
        """End what there is beside this process."""
        ...


class SolvesHere(Solver):
    """In a thread of this process. A solver that hangs is left there."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner

    @override
    async def solve(self, problem: Problem) -> Allocation:
        return await asyncio.to_thread(_solved, self.planner, problem)

    @override
    async def close(self) -> None:
        """Nothing."""


class SolvesApart(Solver):
    """In a process of its own, by the planner of that name. ``joint``: geometry and hosting together.

    ``say``: state and detail, when the process ended.
    """

    def __init__(self, name: str, meters: Meters, say: Callable[[str, str], None], *, joint: bool = False) -> None:
        self.planner = JointGeometry(planner(name)) if joint else planner(name)
        self._name = name
        self._joint = joint
        self._meters = meters
        self._say = say
        self._process = AskedProcess(PROCESS, self._ended)
        self._here = SolvesHere(self.planner)
        self._started = False
        self._number = 0
        self._out = 0

    @property
    def pid(self) -> int | None:
        """Of the process, None while there is none."""
        return self._process.pid

    @override
    async def solve(self, problem: Problem) -> Allocation:
        if not self._started:
            self._started = True
            try:
                return await self._here.solve(problem)
            finally:
                self._process.start()
        if self._out:
            self._process.kill()
        self._number += 1
        self._out += 1
        try:
            return await self._asked(encode_question(self._name, problem, joint=self._joint), self._number)
        except SluiceError as error:
            return await asyncio.to_thread(_solved, _Fallen(self.planner.name, str(error)), problem)
        finally:
            self._out -= 1

    @override
    async def close(self) -> None:
        await self._process.close()

    async def _asked(self, question: bytes, number: int) -> Allocation:
        try:
            return decode_answer(await self._process.ask(question))
        except SluiceError as error:
            if number != self._number:
                raise
            log.warning("planner: %s; asking again", error)
        return decode_answer(await self._process.ask(question))

    def _ended(self, why: str) -> None:
        self._meters.add("sluice_solver_restarts")
        self._say("solver_ended", f"the process that solves {why}; the plan in force stays, another process is started")


class _Fallen:
    """In the place of a planner whose process has ended."""

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        self._why = why

    def allocate(self, problem: Problem) -> Allocation:
        """Raises SluiceError."""
        raise SluiceError(f"{self._why}, for {len(problem.demands)} demands")


def _solved(planner: Planner, problem: Problem) -> Allocation:
    """What ``planner`` allocates; its solver's memory goes back at once."""
    try:
        return answered(planner, problem)
    finally:
        release_freed()

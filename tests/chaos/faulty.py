"""A stage's process that breaks where it is told to: ``python -m tests.chaos.faulty POINT up worker …``.

Rules. SIGUSR1 arms the point, SIGUSR2 disarms it; until then the process is like any other. Points named ``kill-…`` end
the process by SIGKILL the next time it comes there; those named ``hang-…`` are armed from the start. Sessions of group
members time out after six seconds.
"""

import asyncio
import logging
import os
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from sluicegate.domain.errors import ExecutionError, LoadError
from sluicegate.executors.emulated import EmulatedExecutor
from sluicegate.sluice.main import run
from sluicegate.stages.runtime.consumer_loop import Intake
from sluicegate.stages.runtime.system_clock import SystemClock
from sluicegate.stages.worker.answers import Answers
from sluicegate.stages.worker.stage import WorkerStage

armed = False
stood: list[Any] = []
DIES = b"dies at its point\n"
CRASHES, HANGS = 1e6, 2e6
"""First elements of inputs."""


def die() -> None:
    """As the kernel would, when memory runs out. Told first: who never comes here is killed where it stands."""
    os.write(sys.stderr.fileno(), DIES)
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: type, method: str, act: Callable[[], None]) -> None:
    """Call ``act`` whenever ``owner.method`` is called while armed."""
    plain = getattr(owner, method)

    def broken(self: Any, *args: Any, **options: Any) -> Any:
        if armed:
            act()
        return plain(self, *args, **options)

    setattr(owner, method, broken)


def kill_before_produce() -> None:
    """The batch has run, nothing of it is written."""
    before(Answers, "_write", die)


def kill_before_commit() -> None:
    """A result is acknowledged, its record is not committed."""
    before(Intake, "done", die)


def kill_mid_batch() -> None:
    """The executor is at work."""
    plain = EmulatedExecutor.run

    async def broken(self: EmulatedExecutor, *args: Any, **options: Any) -> Any:
        if armed:
            asyncio.get_running_loop().call_later(0.002, die)
        return await plain(self, *args, **options)

    EmulatedExecutor.run = broken  # type: ignore[assignment, method-assign]


def kill_mid_plan() -> None:
    """The solver is at work."""
    from sluicegate.stages.planner.stage import PlannerStage  # other stages are to start as fast as they do without us

    plain = PlannerStage._solve

    async def broken(self: PlannerStage, *args: Any, **options: Any) -> None:
        if armed:
            asyncio.get_running_loop().call_later(0.001, die)
        await plain(self, *args, **options)

    PlannerStage._solve = broken  # type: ignore[method-assign]


def load_failure() -> None:
    """No variant can be loaded."""
    plain = EmulatedExecutor.load

    async def broken(self: EmulatedExecutor, variant: Any, **options: Any) -> Any:
        if armed:
            raise LoadError(f"{variant.name}: the model is gone")
        return await plain(self, variant, **options)

    EmulatedExecutor.load = broken  # type: ignore[method-assign]


def slow_consumer() -> None:
    """Work is taken at a tenth of the pace."""
    plain = WorkerStage._take

    async def broken(self: WorkerStage, records: Any) -> None:
        if armed:
            await asyncio.sleep(0.2)
        await plain(self, records)

    WorkerStage._take = broken  # type: ignore[method-assign]


def reader_stands() -> None:
    """The client of a reader stands still for ever: of whichever asks first."""
    from sluicegate.stages.following.control_follower import Follower

    plain = Follower._read

    async def broken(self: Follower, *reading: Any) -> None:
        if armed and not stood:
            stood.append(self)
            await asyncio.Event().wait()
        await plain(self, *reading)

    Follower._read = broken  # type: ignore[method-assign]


def few_descriptors() -> None:
    """As many as 64 files may be open at a time."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def poisonable() -> None:
    """Inputs from CRASHES on end the process that runs models, those from HANGS on never end."""
    plain = EmulatedExecutor.run

    async def broken(self: EmulatedExecutor, variant: str, inputs: Any, *args: Any, **options: Any) -> Any:
        poison = max(struct.unpack_from("<f", tensors[0].data)[0] for tensors in inputs)
        if poison < CRASHES:
            return await plain(self, variant, inputs, *args, **options)
        apart = options.get("apart", False)
        await asyncio.sleep(options.get("within") or 60.0 if poison >= HANGS else 0.005)
        if not apart:
            await self.close()
            self._on_end()
        raise ExecutionError(f"{variant}: its process ended", fatal=not apart, apart=apart)

    EmulatedExecutor.run = broken  # type: ignore[assignment, method-assign]


def clock_skew() -> None:
    """This process's clock is wrong by as much as $CHAOS_SKEW says."""
    skew = float(os.environ.get("CHAOS_SKEW", "1.0"))
    plain = SystemClock.wall
    SystemClock.wall = lambda self: plain(self) + (skew if armed else 0.0)  # type: ignore[method-assign]


def full_disk() -> None:
    """Files of this process can no longer grow: decision logs, program logs."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def hang_solver() -> None:
    """A solver that never answers, and that nobody can stop."""
    from sluicegate.stages.planner import solver

    def hung(*_: Any) -> Any:
        sys.stderr.write("the solver hangs\n")
        threading.Event().wait()

    solver.answered = hung  # type: ignore[assignment]


def hang_solver_process() -> None:
    """A solver that never answers, in the process that is asked for all plans but the first."""
    from sluicegate.stages.planner import solver

    solver.PROCESS = "tests.models.slow_solver"


def hang_loop() -> None:
    """The event loop stands still for ever, in the middle of something."""
    from sluicegate.stages.planner.stage import PlannerStage

    def hung(*_: Any) -> Any:
        sys.stderr.write("the loop hangs\n")
        while True:
            time.sleep(0.1)

    PlannerStage._catch_up = hung  # type: ignore[method-assign]


POINTS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "kill-before-produce": kill_before_produce,
    "kill-before-commit": kill_before_commit,
    "kill-mid-batch": kill_mid_batch,
    "kill-mid-plan": kill_mid_plan,
    "load-failure": load_failure,
    "slow-consumer": slow_consumer,
    "reader-stands": reader_stands,
    "few-descriptors": few_descriptors,
    "clock-skew": clock_skew,
    "poisonable": poisonable,
    "full-disk": full_disk,
    "hang-solver": hang_solver,
    "hang-solver-process": hang_solver_process,
    "hang-loop": hang_loop,
}


def main() -> None:
    """Break in, then be a stage."""
    point = sys.argv.pop(1)
    POINTS[point]()

    def arm(on: bool) -> None:
        global armed
        armed = on
        stood.clear()
        logging.getLogger(__name__).warning("%s is %s", point, "armed" if on else "disarmed")
        if point == "full-disk":
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (0 if on else hard, hard))

    signal.signal(signal.SIGUSR1, lambda *_: arm(True))
    signal.signal(signal.SIGUSR2, lambda *_: arm(False))
    run()


if __name__ == "__main__":
    main()

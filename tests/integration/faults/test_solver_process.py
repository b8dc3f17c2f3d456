"""The process that solves: the same plans as here; dead, stopped or hanging it is replaced, and the system goes on."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import sluicegate.stages.planner.solver
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.plan import Placement
from sluicegate.planner.greedy_fill import GreedyFill
from sluicegate.planner.problems.problem import AppDemand, Problem
from sluicegate.planner.registry import PLANNERS
from sluicegate.stages.planner.solver import SolvesApart, SolvesHere
from sluicegate.stages.telemetry.metrics import Meters
from tests.harness import PATIENCE_S, toy_catalogue
from tests.models.slow_solver import FOLDER, Waits

NOTICED, REPAIRED = 1.0, 3.0
ROOT = Path(__file__).resolve().parents[3]


def problem(qps: float = 300.0) -> Problem:
    """Two apps on two unequal devices, over which no plan is obvious."""
    devices = (Device(name="d0", type="cpu"), Device(name="d1", type="cpu", memory_bytes=1 << 30))
    demands = (
        AppDemand(app="toy", qps=qps, slo=0.25, spread=0.3),
        AppDemand(app="other", qps=0.4 * qps, slo=0.25, spread=0.2),
    )
    known = toy_catalogue(("toy", "other"))
    return Problem(
        demands=demands,
        devices=devices,
        catalogue=known,
        latency_factor=dict.fromkeys(list(known.profiles)[:2], 1.5),
        previous=(Placement("d0", "toy", ("toy-v0",), 1.0, 8),),
        stood={"toy": 12.5, "other": 1 / 3},
        variants_per_device=2,
    )


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Waits:
    """What its process asks, too."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(sluicegate.stages.planner.solver, "PROCESS", "tests.models.slow_solver")
    monkeypatch.setattr(sluicegate.stages.planner.solver, "planner", lambda name: Waits(tmp_path, name))
    return Waits(tmp_path)


@asynccontextmanager
async def apart(name: str, *, joint: bool = False) -> AsyncIterator[tuple[SolvesApart, list[str]]]:
    """Warm."""
    said: list[str] = []
    solver = SolvesApart(name, Meters(), lambda state, detail: said.append(f"{state}: {detail}"), joint=joint)
    try:
        await solver.solve(problem())
        await there(solver)
        yield solver, said
    finally:
        await solver.close()


async def there(solver: SolvesApart, *before: int | None) -> int:
    """Another process than those, ready."""
    async with asyncio.timeout(PATIENCE_S):
        while (pid := solver.pid) is None or pid in before or not solver._process.ready:
            await asyncio.sleep(0.01)
    return pid


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in {"allocation", "clipper-ht"} else pytest.mark.thorough)
        for name in sorted(set(PLANNERS) - {"scaling-greedy", "scaling-ilp"})
    ],
)
async def test_plans_are_the_same_as_those_solved_here(name: str) -> None:
    here = SolvesHere(PLANNERS[name]())
    async with apart(name) as (solver, said):
        for qps in (50.0, 300.0, 2000.0):
            found = await solver.solve(problem(qps))
            assert found == await here.solve(problem(qps))
            assert not any("instead" in step for step in found.steps)
        assert not said


async def test_a_planner_of_geometries_is_sent_too() -> None:
    async with apart("allocation", joint=True) as (solver, _):
        assert await solver.solve(problem()) == await SolvesHere(solver.planner).solve(problem())


@pytest.mark.timing
@pytest.mark.parametrize(
    "number", [signal.SIGSTOP, *(pytest.param(n, marks=pytest.mark.thorough) for n in (signal.SIGKILL, signal.SIGSEGV))]
)
async def test_an_idle_process_that_dies_is_noticed_within_a_second_and_there_within_three(
    number: signal.Signals, measured: Callable[[str, str], None]
) -> None:
    loop = asyncio.get_running_loop()
    async with apart("allocation") as (solver, said):
        pid = await there(solver)
        await asyncio.sleep(1.1)  # one that lived for less is started again more slowly
        began = loop.time()
        os.kill(pid, number)
        while not said:
            await asyncio.sleep(0.01)
        noticed = loop.time() - began
        await there(solver, pid)
        repaired = loop.time() - began
        measured(f"a solver gets {number.name}", f"noticed after {noticed:.2f} s, another there after {repaired:.2f} s")
        assert (noticed <= NOTICED, repaired <= REPAIRED) == (True, True), (noticed, repaired)
        (told,) = said
        assert told.startswith("solver_ended: ")
        assert ("stood still" in told) is (number == signal.SIGSTOP)
        assert await solver.solve(problem()) == await SolvesHere(solver.planner).solve(problem())


async def test_what_it_was_asked_when_it_died_is_asked_again_once(tmp_path: Path, slow: Waits) -> None:
    async with apart("waits") as (solver, _):
        pid = await there(solver)
        (tmp_path / "hangs").touch()
        solving = asyncio.create_task(solver.solve(problem()))
        await asked(slow, 2)
        os.kill(pid, signal.SIGKILL)
        await asked(slow, 3)
        (tmp_path / "hangs").unlink()
        assert (await solving).steps == GreedyFill().allocate(problem()).steps
        (tmp_path / "hangs").touch()
        solving = asyncio.create_task(solver.solve(problem()))
        for number in (3, 4):  # the same process, and another
            await asked(slow, number)
            os.kill(await there(solver), signal.SIGKILL)
        found = await solving
        assert "the process ended" in found.steps[0] and "greedy-fill instead" in found.steps[0]
        assert found.placements == GreedyFill().allocate(problem()).placements


async def asked(slow: Waits, times: int) -> None:
    """By so many processes, this one among them; what is asked has begun."""
    async with asyncio.timeout(PATIENCE_S):
        while slow.asked < times:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)


async def test_a_question_behind_one_that_hangs_is_answered_by_another_process(tmp_path: Path, slow: Waits) -> None:
    async with apart("waits") as (solver, said):
        pid = await there(solver)
        (tmp_path / "hangs").touch()
        hanging = asyncio.create_task(solver.solve(problem()))
        await asked(slow, 2)
        (tmp_path / "hangs").unlink()
        os.kill(pid, signal.SIGSTOP)  # it stays where it is
        found = await solver.solve(problem(50.0))
        assert found.steps == GreedyFill().allocate(problem(50.0)).steps
        assert "greedy-fill instead" in (await hanging).steps[0]
        assert said
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_closing_ends_a_process_that_hangs_and_cancelling_starts_another(tmp_path: Path, slow: Waits) -> None:
    async with apart("waits") as (solver, said):
        pid = await there(solver)
        (tmp_path / "hangs").touch()
        solving = asyncio.create_task(solver.solve(problem()))
        await asked(slow, 2)
        solving.cancel()
        await asyncio.gather(solving, return_exceptions=True)
        second = await there(solver, pid)
        assert not said
        solving = asyncio.create_task(solver.solve(problem()))
        await asked(slow, 3)
        solving.cancel()
    for one in (pid, second):
        with pytest.raises(ProcessLookupError):
            os.kill(one, 0)


@pytest.mark.parametrize("program", ["/bin/false", "/nowhere/python"])
async def test_where_no_process_can_be_started_a_heuristic_answers_until_one_can(
    program: str, slow: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = SolvesApart("waits", Meters(), lambda state, detail: None)
    with monkeypatch.context() as missing:
        missing.setattr(sys, "executable", program)
        await solver.solve(problem())  # here
        async with asyncio.timeout(PATIENCE_S):
            found = await solver.solve(problem(50.0))
        assert "could not be asked" in found.steps[0] and "greedy-fill instead" in found.steps[0]
        assert found.placements == GreedyFill().allocate(problem(50.0)).placements
    assert slow.asked == 1
    try:
        await there(solver)
        assert (await solver.solve(problem())).steps == GreedyFill().allocate(problem()).steps
        assert slow.asked == 2
    finally:
        await solver.close()

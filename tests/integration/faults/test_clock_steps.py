"""A clock that is set while batches run: a device goes on serving, and what fails beside a stage is seen."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from sluicegate.domain.outcome import OutcomeKind
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.runtime.system_clock import SystemClock
from sluicegate.stages.worker.slice_runner import SliceRunner
from sluicegate.stages.worker.stage import WorkerStage
from sluicegate.streams.memory.broker import MemoryBroker
from tests.harness import PATIENCE_S, ROLES, Running, running, settings_for, toy_catalogue

pytestmark = pytest.mark.virtual


class SetClock(SystemClock):
    """Wrong by ``by`` seconds; ``stood``: for how long the process stood still."""

    by = 0.0
    stood = 0.0

    def wall(self) -> float:
        return super().wall() + self.by

    def monotonic(self) -> float:
        return super().monotonic() + self.stood


def workers(run: Running) -> list[WorkerStage]:
    return [stage for stage in run.stages if isinstance(stage, WorkerStage)]


@pytest.mark.parametrize("by", [-0.8, 0.8])
async def test_a_clock_set_while_batches_run_costs_no_device(tmp_path: Path, by: float) -> None:
    clock = SetClock()

    def set_clock(system: System) -> None:
        system.clock = clock

    async with running(settings_for("memory://", tmp_path), MemoryBroker(), change=set_clock) as run:
        await run.planned()
        named = [worker.core.incarnation for worker in workers(run)]
        for step in range(300):
            await run.ask(parameters={"latency_ms": 500})
            await asyncio.sleep(0.01)
            if step % 60 == 30:
                clock.by = by if clock.by == 0.0 else 0.0
        clock.by = 0.0
        report = await run.settled()
        assert report.lost == 0
        assert [worker.core.incarnation for worker in workers(run)] == named


async def test_a_worker_that_ends_after_it_stood_still_answers_nothing_and_the_next_one_does(tmp_path: Path) -> None:
    """It follows no plans any more: whether others have its queries by now it cannot know."""
    clock, broker = SetClock(), MemoryBroker()

    def set_clock(system: System) -> None:
        system.clock = clock

    settings, catalogue = settings_for("memory://", tmp_path, devices=1), toy_catalogue(times=60.0)
    async with running(settings, broker, catalogue=catalogue, change=set_clock, close=False) as run:
        await run.planned()
        (worker,) = workers(run)
        asked = await run.ask(parameters={"latency_ms": 30_000})
        async with asyncio.timeout(PATIENCE_S):
            while not tuple(worker.core.queries):
                await asyncio.sleep(0.01)
            run.stop.set()
            await asyncio.sleep(0.3)
            assert tuple(worker.core.queries)  # else nothing is left to be decided
            clock.stood = 5.0
            await run.task
        assert await run.outcomes() == {}
    async with running(settings, broker, catalogue=catalogue) as again:
        again.sent = 1
        report = await again.settled()
        assert (report.lost, report.duplicates) == (0, 0)
        assert (await again.outcomes())[asked].kind is OutcomeKind.ANSWERED


async def test_a_worker_that_stands_still_while_it_reads_the_newest_plan_reads_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SetClock()

    def set_clock(system: System) -> None:
        system.clock = clock

    def stand_still() -> None:
        clock.stood += 5.0
        clock.by += 5.0

    async with running(settings_for("memory://", tmp_path, devices=1), MemoryBroker(), change=set_clock) as run:
        await run.planned()
        (worker,) = workers(run)
        read, times = worker._plans.catch_up, 0

        async def catch_up() -> None:
            nonlocal times
            times += 1
            await read()
            if times == 1:
                stand_still()

        monkeypatch.setattr(worker._plans, "catch_up", catch_up)
        stand_still()
        async with asyncio.timeout(PATIENCE_S):
            while worker.core._withheld is not None or not times:
                await asyncio.sleep(0.01)
        assert times == 2


async def test_a_worker_whose_heartbeats_fail_ends_with_what_they_failed_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with running(settings_for("memory://", tmp_path), MemoryBroker()) as run:
            await run.planned()

            def failing(**_: object) -> None:
                raise ZeroDivisionError

            monkeypatch.setattr(workers(run)[0], "_beat", failing)
            async with asyncio.timeout(PATIENCE_S):
                await run.task


async def test_a_worker_whose_slice_fails_ends_with_what_it_failed_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with running(settings_for("memory://", tmp_path), MemoryBroker()) as run:
            await run.planned()

            async def failing(*_: object) -> None:
                raise ZeroDivisionError

            monkeypatch.setattr(SliceRunner, "_run", failing)
            await run.ask()
            async with asyncio.timeout(PATIENCE_S):
                await run.task


@pytest.mark.parametrize("role", ROLES)
async def test_a_stage_that_fails_of_a_record_that_was_sent_ends_with_it(tmp_path: Path, role: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with running(settings_for("memory://", tmp_path, devices=1), MemoryBroker()) as run:
            await run.planned()
            (stage,) = (stage for stage in run.stages if stage.name.startswith(role))
            outbox: Outbox = stage._outbox  # type: ignore[attr-defined]
            post = partial(outbox.post, run.topics.status, b"{}", key=b"k", done=partial(divmod, 1, 0))
            asyncio.get_running_loop().call_soon(post)
            async with asyncio.timeout(PATIENCE_S):
                await run.task

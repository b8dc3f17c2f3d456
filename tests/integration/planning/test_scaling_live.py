"""Model-less scaling of a running system: loaded on demand, moved off what interferes, workers started and replaced."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sluicegate.domain.fleet.instance import Instance, InstanceState
from sluicegate.domain.outcome import OutcomeKind
from sluicegate.domain.plan import Plan
from sluicegate.executors.drivers.worker_drivers import WorkerProcesses
from sluicegate.executors.emulated import EmulatedExecutor
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.stages.capacity.stage import CapacityStage
from sluicegate.stages.runtime.supervisor import Stage
from sluicegate.stages.worker.stage import WorkerStage
from sluicegate.streams import connect
from sluicegate.streams.records import control
from sluicegate.streams.records.instances import decode_instance
from tests.harness import PATIENCE_S, Running, running, settings_for, toy_catalogue

pytestmark = pytest.mark.virtual


@asynccontextmanager
async def scaled(
    folder: Path,
    *,
    devices: int,
    spare: tuple[str, ...] = (),
    scaling: str = "greedy",
    url: str = "memory://",
    **changes: Any,
) -> AsyncIterator[Running]:
    """A system that scales."""
    planner = {"scaling": scaling, "spare": spare, "headroom": 1.05}
    settings = settings_for(url, folder, devices=devices, planner=planner, **changes)
    async with running(settings, connect(url)) as run:
        await until(lambda: plan_of(run))
        yield run


async def newest(run: Running) -> Plan | None:
    found = [control.decode_plan(r.value) for r in await run._control(run.topics.plan) if r.value]
    return max(found, key=lambda p: p.epoch, default=None)


async def plan_of(run: Running) -> bool:
    plan = await newest(run)
    return plan is not None and bool(plan.placements)


async def instances(run: Running) -> list[Instance]:
    found: dict[bytes, Instance | None] = {}
    for record in await run._control(run.topics.instances):
        key = record.key or b""
        found[key] = decode_instance(key, record.value) if record.value else None
    return [i for i in found.values() if i is not None]


async def until(condition: Callable[[], Awaitable[bool]]) -> float:
    """Seconds until it held."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.05)
    return loop.time() - began


@asynccontextmanager
async def load(run: Running, qps: float) -> AsyncIterator[None]:
    async def ask() -> None:
        while True:
            await run.ask(parameters={})
            await asyncio.sleep(1.0 / qps)

    asking = asyncio.create_task(ask())
    try:
        yield
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


def executor_of(stages: tuple[Stage, ...], device: str) -> EmulatedExecutor:
    """What runs the variants of a device."""
    (worker,) = [s for s in stages if isinstance(s, WorkerStage) and s.device.name == device]
    (runner,) = worker.runners.values()
    (executor,) = runner.executors
    assert isinstance(executor, EmulatedExecutor)
    return executor


@pytest.mark.parametrize("scaling", ["greedy", "plan"])
async def test_a_variant_that_nothing_runs_is_loaded_for_the_query_that_names_it(scaling: str, tmp_path: Path) -> None:
    async with scaled(tmp_path, devices=2, scaling=scaling) as run:
        plan = await newest(run)
        assert plan is not None
        held = {v for p in plan.placements for v in p.variants}
        missing = sorted({"toy-v0", "toy-v1", "toy-v2"} - held)[-1]
        asked = await run.ask(parameters={"model": missing, "latency_ms": 30_000})
        report = await run.settled()
        outcome = (await run.outcomes())[asked]
        assert (outcome.kind, outcome.variant) == (OutcomeKind.ANSWERED, missing)
        assert not report.lost


@pytest.mark.parametrize("scaling", ["greedy", "ilp", "plan"])
async def test_an_interfered_instance_is_moved_and_its_record_says_why(scaling: str, tmp_path: Path) -> None:
    async with scaled(tmp_path, devices=2, scaling=scaling) as run, load(run, 40.0):
        plan = await newest(run)
        assert plan is not None
        (hosting,) = {p.device for p in plan.placements}

        async def recorded() -> bool:
            return any(i.device == hosting and i.qps > 0.0 for i in await instances(run))

        async def told() -> bool:
            return any(i.device == hosting and i.state is InstanceState.INTERFERED for i in await instances(run))

        async def moved() -> bool:
            plan = await newest(run)
            return plan is not None and hosting not in {p.device for p in plan.placements}

        await until(recorded)
        executor_of(run.stages, hosting)._slowdown = 4.0
        await until(told)
        assert await until(moved) < 2.0 + 2.0  # two ticks, and what a busy machine adds
        executor_of(run.stages, hosting)._slowdown = 1.0


async def test_a_dead_worker_is_replaced_by_a_spare_one_that_holds_the_same(
    tmp_path: Path,
) -> None:
    async with scaled(tmp_path, devices=2, spare=("d1",)) as run:

        async def recorded() -> bool:
            return bool(await instances(run))

        await until(recorded)
        (first,) = await instances(run)
        assert first.device == "d0"  # the spare's worker does not run
        (worker,) = [s for s in run.stages if isinstance(s, WorkerStage) and s.device.name == "d0"]
        worker._beat = lambda *, leaving=False: None  # type: ignore[method-assign]  # it is heard of no more

        async def replaced() -> bool:
            plan = await newest(run)
            return plan is not None and [(p.device, p.variants) for p in plan.placements] == [("d1", (first.variant,))]

        await until(replaced)

        async def answered() -> bool:
            asked = await run.ask(parameters={"latency_ms": 30_000})
            await run.settled()
            return (await run.outcomes())[asked].device == "d1"

        await until(answered)


@pytest.mark.kafka
@pytest.mark.thorough
async def test_workers_are_processes_started_when_one_dies_and_again_when_they_are_killed(
    kafka_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the program, on Apache Kafka, with the driver ``processes``."""
    save_catalogue(tmp_path / "catalogue", toy_catalogue(), {})
    places = {"catalogue": tmp_path / "catalogue", "drivers": {"name": "processes"}}
    async with scaled(tmp_path, devices=2, spare=("d1",), scaling="ilp", url=kafka_url, **places) as run:
        (stage,) = [s for s in run.stages if isinstance(s, CapacityStage)]
        driver = stage._driver
        assert isinstance(driver, WorkerProcesses)
        assert driver.running() == frozenset()
        (worker,) = [s for s in run.stages if isinstance(s, WorkerStage) and s.device.name == "d0"]
        async with load(run, 10.0):
            await asyncio.sleep(1.0)
            worker._beat = lambda *, leaving=False: None  # type: ignore[method-assign]  # it is heard of no more

            async def answered() -> bool:
                asked = await run.ask(parameters={"latency_ms": 30_000})
                async with asyncio.timeout(PATIENCE_S):
                    while (outcome := (await run.outcomes()).get(asked)) is None:
                        await asyncio.sleep(0.5)  # each look reads all there is
                return outcome.device == "d1"

            async def recorded() -> bool:
                return any(i.device == "d1" for i in await instances(run))

            await until(answered)
            await until(recorded)
            first = driver._started["d1"]
            os.kill(first.pid, signal.SIGKILL)
            await first.wait()
            asked = set(run.ids)
            await until(answered)
        assert "d1 is dead; another is to hold toy-" in caplog.text
        assert driver._started["d1"].pid != first.pid
        report = await run.settled()
        assert not report.lost, report.examples
        # Who is killed between answer and commit answers again, what it had and nothing else.
        assert set(report.examples["duplicates"]) <= asked
        assert report.max_copies <= 2
    assert driver.running() == frozenset()  # ended with the planner that started them

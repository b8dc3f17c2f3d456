"""Stages in processes of their own on Apache Kafka: a worker killed in mid-run costs nothing but its device."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sluicegate.domain.plan import Epoch, Plan
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.sluice.settings.settings import Settings
from sluicegate.streams import connect
from sluicegate.streams.records import control
from tests.harness import PATIENCE_S, Running, running, settings_for, toy_catalogue

pytestmark = pytest.mark.kafka

STAGES = (
    ["admission"],
    ["planner"],
    ["router", "--app", "toy"],
    ["worker", "--device", "d0"],
    ["worker", "--device", "d1"],
)


def spawned_settings(url: str, folder: Path) -> Settings:
    save_catalogue(folder / "catalogue", toy_catalogue(slo=1.0), {})
    return settings_for(url, folder, catalogue=folder / "catalogue")


@asynccontextmanager
async def processes(settings: Settings, folder: Path) -> AsyncIterator[dict[str, asyncio.subprocess.Process]]:
    """One process a stage, killed at the end if they do not stop."""
    file = folder / "settings.yaml"
    file.write_text(json.dumps(settings.model_dump(mode="json", exclude={"http"})))
    started = {}
    log = (folder / "processes.log").open("wb")
    for arguments in STAGES:
        started[arguments[-1]] = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sluicegate.sluice.main", "up", *arguments, "--settings", str(file)),
            stdout=log,
            stderr=log,
        )
    try:
        yield started
    finally:
        for process in started.values():
            if process.returncode is None:
                process.terminate()
        for process in started.values():
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        log.close()


async def newest_plan(run: Running) -> Plan | None:
    plans = [control.decode_plan(r.value) for r in await run._control(run.topics.plan) if r.value]
    return max(plans, key=lambda p: p.epoch, default=None)


async def test_a_worker_that_was_away_is_let_in_one_that_is_killed_leaves_the_plan_and_nothing_is_lost(
    kafka_url: str, tmp_path: Path
) -> None:
    settings = spawned_settings(kafka_url, tmp_path)
    sink = running(settings, connect(kafka_url), catalogue=toy_catalogue(slo=1.0), roles=("sink",))
    async with sink as run, processes(settings, tmp_path) as started:
        await run.planned()
        os.kill(started["d0"].pid, signal.SIGSTOP)
        asking = asyncio.create_task(ask_on(run, 20.0))
        try:
            before = await planned(run, Epoch(0, 0), d0=False)
        finally:
            os.kill(started["d0"].pid, signal.SIGCONT)
        back = await planned(run, before, d0=True)
        await answered(run, {"d0", "d1"}, since=len(run.ids))
        os.kill(started["d0"].pid, signal.SIGKILL)
        await planned(run, back, d0=False)
        await answered(run, {"d1"}, since=len(run.ids))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        report = await run.settled()
        assert report.lost == 0, report.examples
        assert report.unknown == 0
        assert report.late_unmarked == 0


async def planned(run: Running, after: Epoch, *, d0: bool) -> Epoch:
    """That of the first plan beyond ``after`` that has d0, or has it not."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            plan = await newest_plan(run)
            if plan is not None and plan.epoch > after and d0 == ("d0" in {p.device for p in plan.placements}):
                return plan.epoch
            await asyncio.sleep(0.5)


async def answered(run: Running, devices: set[str], *, since: int = 0) -> None:
    """Wait until each of them has answered something that was asked later."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            outcomes = await run.outcomes()
            if {o.device for o in map(outcomes.get, run.ids[since:]) if o is not None and o.on_time} >= devices:
                return
            await asyncio.sleep(0.5)


async def ask_on(run: Running, qps: float) -> None:
    while True:
        await run.ask()
        await asyncio.sleep(1.0 / qps)

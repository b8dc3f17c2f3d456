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

from sluicegate.domain.plan import Plan
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.sluice.settings.settings import Settings
from sluicegate.streams import connect
from sluicegate.streams.records import control
from tests.harness import Running, running, settings_for, toy_catalogue

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

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
                async with asyncio.timeout(20.0):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        log.close()


async def newest_plan(run: Running) -> Plan | None:
    plans = [control.decode_plan(r.value) for r in await run._control(run.topics.plan) if r.value]
    return max(plans, key=lambda p: p.epoch, default=None)


async def test_a_killed_worker_leaves_the_plan_and_nothing_is_lost(kafka_url: str, tmp_path: Path) -> None:
    settings = spawned_settings(kafka_url, tmp_path)
    sink = running(settings, connect(kafka_url), catalogue=toy_catalogue(slo=1.0), roles=("sink",))
    async with sink as run, processes(settings, tmp_path) as started:
        await run.planned(within=60.0)
        asking = asyncio.create_task(ask_for(run, seconds=8.0, qps=100))
        await asyncio.sleep(3.0)
        os.kill(started["d0"].pid, signal.SIGKILL)
        killed = asyncio.get_running_loop().time()
        gone = None
        while gone is None:
            plan = await newest_plan(run)
            if plan is not None and "d0" not in {p.device for p in plan.placements}:
                gone = asyncio.get_running_loop().time() - killed
            await asyncio.sleep(0.1)
        assert gone < settings.planner.device_timeout_s + 2.0
        await asking
        report = await run.settled(within=30.0)
        assert report.lost == 0, report.examples
        assert report.unknown == 0
        assert report.late_unmarked == 0
        outcomes = await run.outcomes()
        answered_after = [o for o in outcomes.values() if o.on_time and o.device == "d1"]
        assert len(answered_after) > 100


@pytest.mark.timing
async def test_a_worker_started_again_is_let_in_and_serves(kafka_url: str, tmp_path: Path) -> None:
    settings = spawned_settings(kafka_url, tmp_path)
    sink = running(settings, connect(kafka_url), catalogue=toy_catalogue(slo=1.0), roles=("sink",))
    async with sink as run, processes(settings, tmp_path) as started:
        await run.planned(within=60.0)
        os.kill(started["d0"].pid, signal.SIGSTOP)
        try:
            await ask_for(run, seconds=5.0, qps=40)
        finally:
            os.kill(started["d0"].pid, signal.SIGCONT)
        before = (await newest_plan(run) or pytest.fail("no plan")).epoch
        async with asyncio.timeout(20.0):
            while True:
                plan = await newest_plan(run)
                if plan is not None and plan.epoch > before and "d0" in {p.device for p in plan.placements}:
                    break
                await asyncio.sleep(0.1)
        await asyncio.sleep(2.0)
        ids = set(run.ids)
        await ask_for(run, seconds=3.0, qps=40)
        report = await run.settled(within=30.0)
        assert report.lost == 0, report.examples
        fresh = [o for i, o in (await run.outcomes()).items() if i not in ids]
        assert {o.device for o in fresh if o.on_time} == {"d0", "d1"}


async def ask_for(run: Running, *, seconds: float, qps: float) -> None:
    for _ in range(int(seconds * qps)):
        await run.ask(parameters={})
        await asyncio.sleep(1.0 / qps)

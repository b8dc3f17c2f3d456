"""Planners in processes of their own on Apache Kafka: the active one stands still, ends, is killed, all under load."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from sluicegate.domain.lease import Lease
from sluicegate.domain.plan import Plan
from sluicegate.sluice.settings.settings import Settings
from sluicegate.streams import connect
from sluicegate.streams.records import control
from tests.harness import PATIENCE_S, Running, running, toy_catalogue
from tests.integration.faults.test_processes import ask_on, newest_plan, spawned_settings

pytestmark = pytest.mark.kafka

LEASE = 2.0

Planners = dict[Path, asyncio.subprocess.Process]
"""By the file of its log."""


@asynccontextmanager
async def planners(settings: Settings, folder: Path, *names: str) -> AsyncIterator[Planners]:
    """Some of them."""
    (folder / "settings.json").write_text(json.dumps(settings.model_dump(mode="json", exclude={"http"})))
    found: Planners = {}
    for name in names:
        file = folder / f"{name}.log"
        with file.open("wb") as log:
            found[file] = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-m",
                    "sluicegate.sluice.main",
                    "up",
                    "planner",
                    "--settings",
                    str(folder / "settings.json"),
                ),
                stdout=log,
                stderr=log,
            )
    try:
        yield found
    finally:
        for process in found.values():
            if process.returncode is None:
                process.terminate()
        await asyncio.gather(*(process.wait() for process in found.values()))


def text(file: Path) -> str:
    """What a process has written, on one line."""
    return " ".join(file.read_text().split())


async def told(file: Path, line: str) -> None:
    """Wait until a process has written ``line``."""
    async with asyncio.timeout(PATIENCE_S):
        while line not in text(file):
            await asyncio.sleep(0.05)


async def leases(run: Running) -> list[Lease]:
    records = await run._control(run.topics.status)
    return [control.decode_lease(r.value) for r in records if r.value and r.key == control.LEASE_KEY]


async def plan_above(run: Running, term: int) -> Plan:
    """The newest plan once it is of a higher term."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            plan = await newest_plan(run)
            if plan is not None and plan.epoch.term > term:
                return plan
            await asyncio.sleep(0.3)  # each look opens a consumer


async def who_leads(found: Planners, term: int) -> asyncio.subprocess.Process:
    """Which of them says that it leads since ``term``."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for file, process in found.items():
                if f"leads: term {term} " in text(file):
                    return process
            await asyncio.sleep(0.05)


async def test_planners_follow_one_another_while_every_query_is_answered(kafka_url: str, tmp_path: Path) -> None:
    settings = spawned_settings(kafka_url, tmp_path).model_copy()
    changes = {"lease_s": LEASE, "device_timeout_s": 10.0}  # on a busy machine heartbeats come late
    settings = settings.model_copy(update={"planner": settings.planner.model_copy(update=changes)})
    roles = ("admission", "router", "worker", "sink")
    serving = running(settings, connect(kafka_url), catalogue=toy_catalogue(slo=1.0), roles=roles)
    async with serving as run, planners(settings, tmp_path, "first") as leader, AsyncExitStack() as stack:
        await run.planned()
        others = await stack.enter_async_context(planners(settings, tmp_path, "second", "third"))
        for file in others:
            await told(file, "Ctrl-C stops")
        asking = asyncio.create_task(ask_on(run, 30.0))
        async with asyncio.timeout(PATIENCE_S):
            while len(await run.outcomes()) < 30:  # they have heard demand and devices
                await asyncio.sleep(0.5)
        first = await newest_plan(run)
        assert first is not None
        assert {lease.term for lease in await leases(run)} == {first.epoch.term}  # who stands by has claimed nothing

        # Standing still: another leads, and it leads no more when it comes back.
        (stopped,) = leader.values()
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            second = await plan_above(run, first.epoch.term)
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        await asyncio.sleep(1.0)
        newest = await newest_plan(run)
        assert newest is not None
        assert newest.epoch.term == second.epoch.term
        assert stopped.returncode is None

        # In good order: it says so, and the next one leads.
        ends = await who_leads(others, second.epoch.term)
        ends.terminate()
        await ends.wait()
        third = await plan_above(run, second.epoch.term)
        assert any(lease.released for lease in await leases(run))

        # Killed.
        os.kill((await who_leads(leader | others, third.epoch.term)).pid, signal.SIGKILL)
        await plan_above(run, third.epoch.term)

        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        report = await run.settled()
        assert report.balanced, report.examples
        outcomes = await run.outcomes()
        assert len(outcomes) > 100
        assert sum(o.on_time for o in outcomes.values()) > 0.95 * len(outcomes)

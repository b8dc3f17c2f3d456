"""Two planners in processes of their own on Apache Kafka: the active one is killed, or stands still, under load."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from domain.lease import Lease
from streams import connect, control
from tests.harness import Running, running, toy_catalogue
from tests.integration.test_processes import ask_for, newest_plan, processes, spawned_settings

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

BUSY = 2.0
"""Seconds allowed beyond the lease and one second: processes here share few cores with the rest of the suite."""


@asynccontextmanager
async def standby(run: Running, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A second planner under the settings of ``processes``, once the first one leads."""
    await run.planned(within=60.0)
    with (folder / "standby.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sluice.main", "up", "planner", "--settings", str(folder / "settings.yaml")),
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            process.terminate()
            await process.wait()


async def leases(run: Running) -> list[Lease]:
    records = await run._control(run.topics.status)
    return [control.decode_lease(r.value) for r in records if r.value and r.key == control.LEASE_KEY]


async def term_above(run: Running, term: int, *, within: float) -> float:
    """Seconds until a plan of a higher term is on the topic."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(within):
        while True:
            plan = await newest_plan(run)
            if plan is not None and plan.epoch.term > term:
                return loop.time() - began
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_standby_plans_within_the_lease_while_queries_are_answered(
    how: signal.Signals, kafka_url: str, tmp_path: Path
) -> None:
    settings = spawned_settings(kafka_url, tmp_path)
    allowed = settings.planner.lease_s + 1.0 + BUSY
    sink = running(settings, connect(kafka_url), catalogue=toy_catalogue(slo=1.0), roles=("sink",))
    async with sink as run, processes(settings, tmp_path) as started, standby(run, tmp_path) as second:
        asking = asyncio.create_task(ask_for(run, seconds=12.0, qps=80))
        await asyncio.sleep(5.0)  # the standby is up and hears
        before = await newest_plan(run)
        assert before is not None
        terms = {lease.term for lease in await leases(run)}
        assert terms == {before.epoch.term}  # the standby has claimed nothing
        already = set(run.ids)
        os.kill(started["planner"].pid, how)
        try:
            took = await term_above(run, before.epoch.term, within=allowed + 5.0)
            assert settings.planner.lease_s - 1.5 < took < allowed
            await asking
        finally:
            if how is signal.SIGSTOP:
                os.kill(started["planner"].pid, signal.SIGCONT)
        after = await newest_plan(run)
        assert after is not None
        await ask_for(run, seconds=2.0, qps=40)
        report = await run.settled(within=30.0)
        assert report.balanced, report.examples
        outcomes = await run.outcomes()
        during = [outcome for query, outcome in outcomes.items() if query not in already]
        assert len(during) > 300
        assert sum(o.on_time for o in during) > 0.95 * len(during)
        assert second.returncode is None
        newest = await newest_plan(run)
        assert newest is not None
        assert newest.epoch.term == after.epoch.term  # who stood still has come back and leads no more


async def test_who_ends_in_good_order_is_followed_at_once(kafka_url: str, tmp_path: Path) -> None:
    settings = spawned_settings(kafka_url, tmp_path)
    sink = running(settings, connect(kafka_url), catalogue=toy_catalogue(slo=1.0), roles=("sink",))
    async with sink as run, processes(settings, tmp_path) as started, standby(run, tmp_path):
        await asyncio.sleep(4.0)
        before = await newest_plan(run)
        assert before is not None
        started["planner"].terminate()
        await started["planner"].wait()
        assert await term_above(run, before.epoch.term, within=10.0) < 1.0
        assert any(lease.released for lease in await leases(run))

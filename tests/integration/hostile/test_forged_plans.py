"""Plans that a stranger makes up where nothing is signed: who serves goes on, or is back soon, and nothing is lost.

The stranger reads what is public and writes at once. Whoever may write records of queries and results could do more,
and whoever may commit for a group, too: that is for access rules, or a key.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sluicegate.domain.lease import Lease
from sluicegate.domain.plan import FAR, Epoch, Plan
from sluicegate.streams import connect
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import control
from tests.harness import BROKERS, PATIENCE_S, Running, running, settings_for
from tests.integration.hostile.test_strangers import longest_outage

pytestmark = pytest.mark.virtual
OUTAGE = 5.0
QPS = 100.0
ASKED = {"latency_ms": 1_000}


@asynccontextmanager
async def asked(run: Running, *, qps: float = QPS) -> AsyncIterator[None]:
    """Somebody asks all the while, and for a while before and after."""
    stop = asyncio.Event()

    async def ask() -> None:
        while not stop.is_set():
            await run.ask(parameters=ASKED)
            await asyncio.sleep(1 / qps)

    asking = asyncio.create_task(ask())
    await asyncio.sleep(1.0)
    try:
        yield
        await asyncio.sleep(1.5 * OUTAGE)
    finally:
        stop.set()
        await asking


async def write(run: Running, plan: Plan) -> None:
    await (await run.producer.send(run.topics.plan, control.encode_plan(plan), key=b"plan"))


async def overruled(run: Running, made_up: Plan) -> float:
    """Seconds until the leader has published another plan."""
    began = run.system.clock.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            records = await run._control(run.topics.plan)
            found = [control.decode_plan(r.value) for r in records if r.value]
            if found and found[-1].epoch != made_up.epoch and found[-1].created > made_up.created:
                return run.system.clock.monotonic() - began
            await asyncio.sleep(0.01)


def variants(plan: Plan) -> dict[str, Plan]:
    """Plans for the very workers that there are."""
    term, number = plan.epoch
    made_up = {
        "the next number": Epoch(term, number + 1),
        "the highest number": Epoch(term, number + FAR),
        "the next term": Epoch(term + 1, 1),
        "the highest term": Epoch(term + FAR, 1),
        "the lowest term": Epoch(1, 1),
    }
    plans = {f"no placements, {name}": replace(plan, epoch=epoch, placements=()) for name, epoch in made_up.items()}
    others = dict.fromkeys(plan.incarnations, "another")
    epoch = Epoch(term, number + 1)
    plans["other incarnations, the next number"] = replace(plan, epoch=epoch, incarnations=others)
    plans["other incarnations, the next term"] = replace(plan, epoch=Epoch(term + 1, 1), incarnations=others)
    return plans


@pytest.mark.parametrize("broker_url", BROKERS, indirect=True)
async def test_a_plan_that_is_made_up_for_the_very_workers_is_overruled_and_they_serve_on(
    broker_url: str, tmp_path: Path, measured: Callable[[str, str], None]
) -> None:
    async with running(settings_for(broker_url, tmp_path, partitions=1), connect(broker_url)) as run:
        await run.planned()
        longest = 0.0
        async with asked(run):
            for name in variants(await newest(run)):
                made_up = variants(await newest(run))[name]
                await write(run, made_up)
                took = await overruled(run, made_up)
                assert took <= OUTAGE, name
                longest = max(longest, took)
                await asyncio.sleep(2.0)
        report = await run.settled()
        assert report.lost == 0, report.examples
        outage = await longest_outage(run, run.ids)
        measured(
            f"plans made up for the very workers, unsigned, {broker_url.partition(':')[0]}",
            f"overruled after {longest:.2f} s at most, longest outage {outage:.1f} s",
        )
        assert outage <= OUTAGE


@pytest.mark.parametrize("broker_url", BROKERS, indirect=True)
async def test_a_fence_that_is_made_up_for_a_worker_that_just_begins_hides_nothing(
    broker_url: str, tmp_path: Path, measured: Callable[[str, str], None]
) -> None:
    settings = settings_for(broker_url, tmp_path, partitions=1, devices=1)
    async with running(settings, connect(broker_url)) as run:
        await run.planned()
        async with asked(run, qps=2 * QPS):
            for _ in range(2):
                await fence_off(run)
                await asyncio.sleep(1.5 * OUTAGE)
        report = await run.settled()
        assert report.lost == 0, report.examples
        said = [r.value for r in await run._control(run.topics.status) if r.value and r.key == b"device:d0@worker"]
        assert "fence_refused" in {control.decode_announce(value).state for value in said}, "it was never tried"
        outage = await longest_outage(run, run.ids)
        measured(
            f"fences made up for a worker that begins, no planner leading, unsigned, {broker_url.partition(':')[0]}",
            f"nothing lost, longest outage {outage:.1f} s",
        )
        assert outage <= OUTAGE


@pytest.mark.parametrize("broker_url", BROKERS, indirect=True)
async def test_a_worker_that_is_named_and_left_out_in_one_breath_serves_on(broker_url: str, tmp_path: Path) -> None:
    settings = settings_for(broker_url, tmp_path, partitions=1, devices=1)
    async with running(settings, connect(broker_url)) as run:
        await run.planned()
        async with asked(run):
            named = await begun_anew(run)
            left_out = replace(named, epoch=Epoch(named.epoch.term, named.epoch.number + 1), incarnations={})
            both = [
                await run.producer.send(run.topics.plan, control.encode_plan(plan), key=b"plan")
                for plan in (named, left_out)
            ]
            await asyncio.gather(*both)
        report = await run.settled()
        assert report.lost == 0, report.examples


async def fence_off(run: Running) -> None:
    """Take the lease, have the worker begin anew, and say at once that all which waits for it is done."""
    work = TopicPartition(run.topics.work("d0"), 0)
    reads = run.broker.consumer(partitions=[work], start_at="end")
    await reads.start()
    named = await begun_anew(run)
    await write(run, replace(named, fences={"d0": (await reads.end_offsets([work]))[work]}))
    await reads.stop()


async def begun_anew(run: Running) -> Plan:
    """Take the lease and have the worker begin anew; the next plan, which names it."""
    beats = run.broker.consumer(partitions=[TopicPartition(run.topics.devices_metrics, 0)], start_at="end")
    await beats.start()
    plan = await newest(run)
    term, number = plan.epoch
    lease = Lease(term=term + 1, holder="x", renewals=1)
    await (await run.producer.send(run.topics.status, control.encode_lease(lease), key=control.LEASE_KEY))
    await asyncio.sleep(0.3)
    await write(run, replace(plan, epoch=Epoch(term, number + 1), incarnations={}))
    async with asyncio.timeout(PATIENCE_S):
        while (found := await incarnation(beats)) in (None, plan.incarnations["d0"]):
            pass
    await beats.stop()
    return replace(plan, epoch=Epoch(term, number + 2), incarnations={"d0": found or ""})


async def newest(run: Running) -> Plan:
    """The last that places something."""
    plans = [control.decode_plan(r.value) for r in await run._control(run.topics.plan) if r.value]
    return max((plan for plan in plans if plan.placements), key=lambda plan: plan.created)


async def incarnation(beats: object) -> str | None:
    """What the last heartbeats say."""
    records = await beats.get_many(wait=0.05)  # type: ignore[attr-defined]
    told = [control.decode_heartbeat(record.value).seen.incarnation for record in records if record.value]
    return told[-1] if told else None

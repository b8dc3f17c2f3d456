"""Two workers of one device: one serves, the other stands by, and takes over or follows where the first is gone."""

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.plan import Epoch
from sluicegate.domain.query import Query
from sluicegate.sluice.audit.result_log import read_results, result_topics
from sluicegate.sluice.system.process_stages import stages_of
from sluicegate.stages.runtime.supervisor import run_stages
from sluicegate.streams import connect
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import codec, control
from tests.harness import PIXELS, Running, running, settings_for

pytestmark = pytest.mark.virtual

DEVICE = "d1"
NO_WORKERS = ("admission", "router", "planner", "sink")


@asynccontextmanager
async def worker(run: Running, device: str) -> AsyncIterator["asyncio.Task[None]"]:
    """Another of ``device``, in a task that may be cancelled: it then says nothing more."""
    stop = asyncio.Event()
    task = asyncio.create_task(run_stages(stages_of(run.system, ("worker",), devices=(device,)), stop))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait([task])


async def counted_on(run: Running) -> list[str]:
    """Incarnations of the device that plans have named, each where it took another's place."""
    partition = TopicPartition(run.topics.plan, 0)
    plans = [control.decode_plan(r.value) async for r in read_results(run.broker, [partition], follow=False) if r.value]
    named = [plan.incarnations[DEVICE] for plan in plans if DEVICE in plan.incarnations]
    return [one for number, one in enumerate(named) if number == 0 or named[number - 1] != one]


async def states(run: Running) -> list[str]:
    """What was said of the device."""
    partition = TopicPartition(run.topics.status, 0)
    records = [r async for r in read_results(run.broker, [partition], follow=False) if r.value]
    said = [control.decode_announce(r.value) for r in records]
    return [one.state for one in said if one.subject == f"device:{DEVICE}"]


async def heartbeats(run: Running) -> list[control.Heartbeat]:
    """Of all its workers."""
    partition = TopicPartition(run.topics.devices_metrics, 0)
    records = [r async for r in read_results(run.broker, [partition], follow=False) if r.value]
    return [beat for beat in (control.decode_heartbeat(r.value) for r in records) if beat.seen.device == DEVICE]


async def offer(run: Running, seconds: float) -> list[str]:
    asked = []
    for _ in range(round(seconds * 20)):
        asked.append(await run.ask())
        await asyncio.sleep(0.05)
    return asked


async def test_the_second_of_a_device_stands_by_says_so_and_answers_nothing_twice(tmp_path: Path) -> None:
    settings = settings_for("memory://", tmp_path)
    async with (
        running(settings, connect("memory://"), roles=NO_WORKERS) as run,
        worker(run, "d0"),
        worker(run, DEVICE) as first,
    ):
        await run.planned()
        async with worker(run, DEVICE):
            asked = await offer(run, 15.0)
            await run.settled()
            assert len(await counted_on(run)) == 1
            assert {"contested", "stands_by"} <= set(await states(run))
            assert len({(beat.seen.incarnation, beat.stands_by) for beat in (await heartbeats(run))[-10:]}) == 2
            first.cancel()
            asked += await offer(run, 10.0)
            report = await run.settled()
            assert len(await counted_on(run)) == 2, "the second takes over once"
            ends = await run.outcomes()
    assert (report.lost, report.duplicates) == (0, 0)
    assert {ends[one].kind for one in asked} == {OutcomeKind.ANSWERED}
    assert {ends[one].device for one in asked[-100:]} >= {DEVICE}


async def left_by(run: Running, device: str, late: Query, answered: list[Query]) -> None:
    """A worker was lost, and began again before anybody missed it: its commit is that before ``late``, which waits."""
    tensor = Tensor("image", "FP32", (1, PIXELS), struct.pack(f"<{PIXELS}f", *(0.0,) * PIXELS))
    for query in (late, *answered):
        work = codec.encode_work(codec.QueryMessage(query, (tensor,)), epoch=Epoch(1, 1), slice="")
        await (await run.producer.send(run.topics.work(device), work.value, key=work.key, headers=work.headers))
    for query in answered:
        said = codec.encode_outcome(Outcome.of(query, OutcomeKind.ANSWERED, query.arrival + 1.0, device=device), ())
        await (await run.producer.send(run.topics.results("toy"), said.value, key=said.key, headers=said.headers))


async def answers(run: Running) -> Counter[str]:
    found = read_results(run.broker, await result_topics(run.broker, run.topics), follow=False)
    return Counter([codec.decode_outcome(record).outcome.query_id async for record in found])


async def test_a_worker_leaves_what_the_one_before_it_answered_and_had_not_committed(tmp_path: Path) -> None:
    async with running(settings_for("memory://", tmp_path), connect("memory://"), roles=NO_WORKERS) as run:
        now = run.system.clock.wall()
        late = Query("late", "toy", now, now + 600.0)
        before = [Query(f"before-{n}", "toy", now, now + 300.0) for n in range(1200)]
        await left_by(run, "d1", late, before)
        await asyncio.sleep(60.0)
        async with worker(run, "d0"), worker(run, "d1"):
            await run.planned()
            work, group = TopicPartition(run.topics.work("d1"), 0), run.topics.worker_group("d1")
            async with asyncio.timeout(60.0):
                while await run.broker.admin().committed(group, work) != len(before) + 1:
                    await asyncio.sleep(0.1)
        assert await answers(run) == {"late": 1, **{query.id: 1 for query in before}}

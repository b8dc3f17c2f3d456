"""Admission and router of one process without the topic between: only where the query would come to that router."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from sluicegate.domain.query import Query
from sluicegate.policies.routing.accuracy_first import SlackBlend
from sluicegate.stages.router import RouterStage
from sluicegate.streams import connect
from sluicegate.streams.ports import TopicPartition
from tests.harness import PATIENCE_S, Running, running, settings_for

pytestmark = pytest.mark.virtual

PROBES = tuple(Query(f"probe{number}", "toy", 0.0, 1.0, stream="toy") for number in range(20))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def admitted(run: Running) -> int:
    """Records on the admitted topic."""
    topic = run.topics.admitted("toy")
    count = (await run.broker.admin().partitions([topic]))[topic]
    consumer = run.broker.consumer(partitions=[TopicPartition(topic, number) for number in range(count)])
    await consumer.start()
    try:
        return sum((await consumer.end_offsets(consumer.assignment())).values())
    finally:
        await consumer.stop()


def router_of(run: Running) -> RouterStage:
    return next(stage for stage in run.stages if isinstance(stage, RouterStage))


def taken(router: RouterStage) -> set[bool]:
    return {router.takes(query) for query in PROBES}


async def test_what_is_let_in_goes_to_the_router_of_its_process_by_itself(broker_url: str, tmp_path: Path) -> None:
    async with running(settings_for(broker_url, tmp_path), connect(broker_url)) as run:
        await run.planned()
        await until(lambda: taken(router_of(run)) == {True})
        before = await admitted(run)
        for _ in range(40):
            await run.ask()
        report = await run.settled()
        assert report.balanced and report.kinds["answered"] == 40
        assert await admitted(run) == before
        assert {outcome.epoch is not None for outcome in (await run.outcomes()).values()} == {True}


async def test_by_its_topic_where_that_is_asked_for(broker_url: str, tmp_path: Path) -> None:
    async with running(settings_for(broker_url, tmp_path, chained=False), connect(broker_url)) as run:
        await run.planned()
        for _ in range(40):
            await run.ask()
        report = await run.settled()
        assert report.balanced and report.kinds["answered"] == 40
        assert await admitted(run) == 40


async def test_what_would_be_held_waits_on_its_topic(broker_url: str, tmp_path: Path) -> None:
    """Without a plan: what is held must not keep admission's partition from being committed."""
    roles = ("admission", "router", "sink")
    async with running(settings_for(broker_url, tmp_path), connect(broker_url), roles=roles) as run:
        for _ in range(5):
            await run.ask(parameters={"latency_ms": 2000})
        await asyncio.sleep(1.0)
        assert taken(router_of(run)) == {False}
        assert await admitted(run) == 5
        report = await run.settled()
        assert report.lost == 0 and report.kinds["expired"] == 5


def part_of(router: RouterStage) -> float:
    """Of its app's queries, as its policy was told."""
    assert isinstance(router.core.policy, SlackBlend)
    return router.core.policy.part


async def test_what_another_router_would_read_goes_by_the_topic(broker_url: str, tmp_path: Path) -> None:
    settings = settings_for(broker_url, tmp_path)
    broker = connect(broker_url)
    async with running(settings, broker) as run:
        await run.planned()
        here = router_of(run)
        await until(lambda: taken(here) == {True})
        async with running(settings, broker, roles=("router",), close=False) as other:
            await until(lambda: taken(here) == {False, True})
            assert taken(router_of(other)) == {False}, "nothing is handed to a router without admission beside it"
            before = await admitted(run)
            asked = [await run.ask() for _ in range(40)]
            report = await run.settled()
            assert report.balanced and report.duplicates == 0
            assert 0 < await admitted(run) - before < len(asked)
            assert [part_of(here), part_of(router_of(other))] == [0.5, 0.5], "each counts what the other sends as well"
        await until(lambda: taken(here) == {True})
        assert part_of(here) == 1.0
        before = await admitted(run)
        for _ in range(20):
            await run.ask()
        assert (await run.settled()).balanced
        assert await admitted(run) == before

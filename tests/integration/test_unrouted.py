"""An app that nobody routes: said in time in log, status and outcome; served as soon as a router runs."""

import asyncio
import logging
from pathlib import Path

import pytest

from domain.actions import Announce
from domain.outcome import OutcomeKind, Reason
from sluice.reading import read_results
from stages.run import run_stages
from streams import connect, control
from streams.ports import TopicPartition
from tests.harness import ROLES, Running, running, settings_for, toy_catalogue

WITHOUT = tuple(role for role in ROLES if role != "router")


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
def broker_url(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else str(request.getfixturevalue("kafka_url"))


async def said(run: Running, subject: str, state: str) -> Announce:
    """The announcement, once it stands."""
    async with asyncio.timeout(20):
        async for record in read_results(run.broker, [TopicPartition(run.topics.status, 0)], follow=True):
            if record.value is not None and record.key != control.LEASE_KEY:
                one = control.decode_announce(record.value)
                if (one.subject, one.state) == (subject, state):
                    return one
    raise AssertionError


async def test_what_nothing_routes_is_rejected_with_the_remedy_and_answered_once_a_router_runs(
    broker_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for(broker_url, tmp_path)
    catalogue = toy_catalogue(("toy", "other"))
    with caplog.at_level(logging.WARNING, logger="stages.admission"):
        async with running(settings, connect(broker_url), catalogue=catalogue, roles=(*WITHOUT,)) as run:
            stop = asyncio.Event()
            other = asyncio.create_task(run_stages([run.system.router("other")], stop))
            announced = await said(run, "routing:toy", "nothing_routes")
            assert "sluice up router" in announced.detail
            await run.planned()
            patient = await run.ask(parameters={"latency_ms": 30_000})
            hasty = await run.ask()
            routed = await run.ask(app="other", parameters={"latency_ms": 30_000})
            report = await run.settled()
            assert report.balanced
            ended = await run.outcomes()
            for query_id in (patient, hasty):
                assert (ended[query_id].kind, ended[query_id].reason) == (OutcomeKind.REJECTED, Reason.NOTHING_ROUTES)
                assert ended[query_id].detail == announced.detail
            assert ended[hasty].at <= ended[patient].at < ended[patient].arrival + 15.0, "long before its deadline"
            assert ended[routed].kind is OutcomeKind.ANSWERED

            late = asyncio.create_task(run_stages([run.system.router("toy")], stop))
            await said(run, "routing:toy", "routed")
            answered = await run.ask(parameters={"latency_ms": 30_000})
            assert (await run.settled()).balanced
            assert (await run.outcomes())[answered].kind is OutcomeKind.ANSWERED
            stop.set()
            await asyncio.gather(other, late)
    warned = [record.getMessage() for record in caplog.records]
    assert [line for line in warned if "toy" in line] == [announced.detail, "a router of toy lives"]

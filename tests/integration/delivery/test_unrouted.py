"""An app that nobody routes: said in time in log, status and outcome; served as soon as a router runs."""

import asyncio
import logging
from pathlib import Path

import numpy as np
import pytest
import typer

from sluicegate.domain.actions import Announce
from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.sluice.catalogue.broker_log import BrokerLog
from sluicegate.sluice.commands.running import up
from sluicegate.sluice.console import EXIT_USAGE, one_line_errors
from sluicegate.sluice.registration.registry_topic import publish_catalogue
from sluicegate.sluice.system.roles.router import router_stage
from sluicegate.stages.runtime.supervisor import run_stages
from sluicegate.streams import connect
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import control
from sluicegate.streams.topics import Topics
from sluicegate_client import Client
from tests.harness import PATIENCE_S, PIXELS, ROLES, Running, running, settings_for, toy_catalogue

pytestmark = pytest.mark.virtual

WITHOUT = tuple(role for role in ROLES if role != "router")


async def said(run: Running, subject: str, state: str) -> Announce:
    """The announcement, once it stands."""
    async with asyncio.timeout(PATIENCE_S):
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
    with caplog.at_level(logging.WARNING, logger="sluicegate.stages.admission"):
        async with running(settings, connect(broker_url), catalogue=catalogue, roles=(*WITHOUT,)) as run:
            stop = asyncio.Event()
            other = asyncio.create_task(run_stages([router_stage(run.system, "other")], stop))
            announced = await said(run, "routing:toy", "nothing_routes")
            assert "sluice up router" in announced.detail
            await run.planned()
            patient = await run.ask(parameters={"latency_ms": 30_000})
            hasty = await run.ask(parameters={})
            routed = await run.ask(app="other", parameters={"latency_ms": 30_000})
            report = await run.settled()
            assert report.balanced
            ended = await run.outcomes()
            for query_id in (patient, hasty):
                assert (ended[query_id].kind, ended[query_id].reason) == (OutcomeKind.REJECTED, Reason.NOTHING_ROUTES)
                assert ended[query_id].detail == announced.detail
            assert ended[hasty].at <= ended[patient].at < ended[patient].arrival + 15.0, "long before its deadline"
            assert ended[routed].kind is OutcomeKind.ANSWERED

            late = asyncio.create_task(run_stages([router_stage(run.system, "toy")], stop))
            await said(run, "routing:toy", "routed")
            answered = await run.ask(parameters={"latency_ms": 30_000})
            assert (await run.settled()).balanced
            assert (await run.outcomes())[answered].kind is OutcomeKind.ANSWERED
            stop.set()
            await asyncio.gather(other, late)
    warned = [record.getMessage() for record in caplog.records]
    assert [line for line in warned if "toy" in line] == [
        f"routing:toy nothing_routes: {announced.detail}",
        "routing:toy routed: a router of toy lives",
    ]


async def test_a_query_that_nobody_admits_is_one_line_with_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    topics = Topics("nobody")
    broker = connect("memory://")
    await broker.admin().create_topics(topics.specs(["toy"]))
    async with Client(BrokerLog(broker), prefix=topics.prefix, timeout=0.2) as client:
        with pytest.raises(typer.Exit) as ended, one_line_errors():
            await client.infer("toy", {"image": np.zeros((1, PIXELS), np.float32)})
    assert ended.value.exit_code == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert "no outcome of toy within 0.2 s" in line
    assert "sluice up admission" in line


async def test_a_stage_for_other_apps_than_the_system_serves_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "_LOOK_EVERY", 0.01)
    started = asyncio.Event()
    started.set()
    async with running(settings_for("memory://", tmp_path), connect("memory://"), roles=("sink",)) as run:
        looking = asyncio.create_task(up._tell_strangers(run.system, ["router"], ["other"], started))
        await asyncio.sleep(0.1)
        assert capsys.readouterr().err == "", "no planner has said what is served"
        await publish_catalogue(run.broker, run.producer, run.topics, run.system.catalogue)
        await asyncio.wait_for(looking, 20)
        assert "other: not served by this system, which serves toy" in capsys.readouterr().err
        await up._tell_strangers(run.system, ["router"], [], started)
        assert capsys.readouterr().err == ""

"""Queries with goals through the whole system: what comes back meets them, or says why it cannot."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sluicegate.domain.outcome import OutcomeKind
from sluicegate.streams import connect
from tests.harness import Running, running, settings_for, toy_catalogue

pytestmark = pytest.mark.virtual


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(settings_for("memory://", tmp_path), connect("memory://")) as run:
        await run.planned()
        yield run


async def test_goals_are_met_or_refused_with_a_suggestion_and_every_query_has_its_outcome(system: Running) -> None:
    best = await system.ask(parameters={"accuracy": 0.85})
    named = await system.ask(parameters={"model": "toy-v2"})
    plain = await system.ask()
    absurd = await system.ask(parameters={"accuracy": 0.99})
    hurried = await system.ask(parameters={"latency_ms": 1.0})
    unknown = await system.ask(parameters={"model": "nobody"})
    report = await system.settled()
    assert (report.lost, report.duplicates) == (0, 0)
    outcomes = await system.outcomes()
    assert outcomes[plain].kind is OutcomeKind.ANSWERED
    for query_id in (best, named):
        outcome = outcomes[query_id]
        assert (outcome.kind, outcome.variant) == (OutcomeKind.ANSWERED, "toy-v2"), outcome
    for query_id, told in ((absurd, "nearest: toy-v2"), (hurried, "nearest: toy-v0"), (unknown, "'nobody'")):
        outcome = outcomes[query_id]
        assert (outcome.kind, outcome.reason) == (OutcomeKind.REJECTED, "infeasible")
        assert told in (outcome.detail or "")


async def test_a_model_that_the_plan_does_not_host_is_no_capacity(system: Running) -> None:
    query_id = await system.ask(parameters={"model": "toy-v0"})
    await system.settled()
    outcome = (await system.outcomes())[query_id]
    assert (outcome.kind, outcome.reason) == (OutcomeKind.DROPPED, "no_capacity")


async def test_packing_leaves_devices_free_that_one_alone_makes_up_for(tmp_path: Path) -> None:
    settings = settings_for("memory://", tmp_path, devices=3, routing="packing")
    async with running(settings, connect("memory://")) as run:
        await run.planned()
        for number in range(30):
            await run.ask(parameters={"latency_ms": 5000, **({"accuracy": 0.85} if number % 2 else {})})
            await asyncio.sleep(0.02)
        report = await run.settled()
        outcomes = (await run.outcomes()).values()
        assert not report.lost
        assert {o.kind for o in outcomes} == {OutcomeKind.ANSWERED}
        assert len({o.device for o in outcomes}) == 1  # the plan has all three host it


async def test_more_apps_than_devices_are_all_answered(tmp_path: Path) -> None:
    apps = ("one", "two", "three")
    async with running(settings_for("memory://", tmp_path), connect("memory://"), catalogue=toy_catalogue(apps)) as run:
        await run.planned()
        for _ in range(3):
            for app in apps:
                await run.ask(app=app, parameters={"latency_ms": 5000})
        await run.settled()
        assert {o.kind for o in (await run.outcomes()).values()} == {OutcomeKind.ANSWERED}

"""A planner that raises or hangs: the running system gets a plan all the same and answers queries."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import sluicegate.planner.registry
from sluicegate.domain.actions import Announce
from sluicegate.domain.lease import Lease
from sluicegate.domain.outcome import OutcomeKind
from sluicegate.planner.greedy_fill import GreedyFill
from sluicegate.planner.problems.problem import Allocation, Planner, Problem
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.streams import connect
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import control
from tests.harness import Running, running, settings_for, toy_catalogue

pytestmark = pytest.mark.virtual


class Raising:
    """Falls over whenever it is asked."""

    name = "raising"

    def allocate(self, problem: Problem) -> Allocation:
        raise RuntimeError("the library fell over")


class Hanging:
    """Answers once it is let go."""

    name = "hanging"

    def __init__(self) -> None:
        self.released = threading.Event()

    def allocate(self, problem: Problem) -> Allocation:
        self.released.wait(30.0)
        return GreedyFill().allocate(problem)


def use(monkeypatch: pytest.MonkeyPatch, chosen: Planner) -> None:
    def named(_: str) -> Planner:
        return chosen

    monkeypatch.setattr(sluicegate.planner.registry, "planner", named)


async def reasons(run: Running) -> list[str]:
    """Of every plan published so far."""
    partition = TopicPartition(run.topics.plan, 0)
    records: list[Any] = [r async for r in read_results(run.broker, [partition], follow=False)]
    return [control.decode_plan(r.value).reason for r in records if r.value]


async def serves(run: Running) -> bool:
    for _ in range(10):
        await run.ask()
    report = await run.settled()
    outcomes = await run.outcomes()
    return report.balanced and sum(o.on_time for o in outcomes.values()) >= 9


async def test_a_planner_that_always_raises_leaves_nobody_without_a_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, Raising())
    async with running(settings_for("memory://", tmp_path), connect("memory://")) as run:
        await run.planned()
        assert await serves(run)


@pytest.mark.virtual(False)
async def test_while_the_planner_is_late_a_heuristic_stands_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hanging = Hanging()
    use(monkeypatch, hanging)
    async with running(settings_for("memory://", tmp_path), connect("memory://")) as run:
        try:
            await run.planned()
            assert any("stands in" in reason for reason in await reasons(run))
            assert await serves(run)
        finally:
            hanging.released.set()


@pytest.mark.virtual(False)
async def test_a_stand_in_hosts_every_app_where_apps_are_more_than_devices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    apps = tuple(f"app{i}" for i in range(5))
    hanging = Hanging()
    use(monkeypatch, hanging)
    settings = settings_for("memory://", tmp_path, devices=2)
    async with running(settings, connect("memory://"), catalogue=toy_catalogue(apps)) as run:
        try:
            await run.planned()
            for app in apps * 4:
                await run.ask(app=app)
            assert (await run.settled()).balanced
            outcomes = (await run.outcomes()).values()
            assert {o.app for o in outcomes if o.on_time} == set(apps)
            assert not [o for o in outcomes if o.kind is OutcomeKind.DROPPED]
            assert all("stands in" in reason for reason in await reasons(run))
        finally:
            hanging.released.set()


async def test_a_planner_that_stands_by_tells_no_plan_and_every_one_the_safe_mode_that_stands(tmp_path: Path) -> None:
    """Epochs begin anew with each term: numbers of the past would be taken for the newest."""
    settings = settings_for("memory://", tmp_path)
    async with running(settings, connect("memory://"), roles=("planner", "worker")) as run:
        await run.planned()
        meters, status = run.system.telemetry.meters, run.topics.status
        assert meters.values("sluice_plan_number")["planner",] >= 1.0
        assert meters.values("sluice_plan_served")
        producer = run.system.producer

        async def said(device: str, state: str) -> float:
            value = control.encode_announce(Announce("app:toy", state, "as another planner found"), 1.0)
            await producer.send(status, value, key=f"app:toy@planner-{device}".encode())
            await asyncio.sleep(1.0)
            return meters.value("sluice_safe_mode", "app:toy", "planner")

        told = [("d7", "safe_mode"), ("d8", "safe_mode"), ("d7", "promise_kept"), ("d8", "promise_kept")]
        assert [await said(*one) for one in told] == [1.0, 1.0, 1.0, 0.0]
        lease = Lease(term=1000, holder="another")
        await producer.send(status, control.encode_lease(lease), key=control.LEASE_KEY)
        await asyncio.sleep(0.5)
        assert meters.value("sluice_planner_leading") == 0.0
        assert ("planner",) not in meters.values("sluice_plan_number")
        assert any(stage.startswith("worker") for (stage,) in meters.values("sluice_plan_number"))
        for name in ("sluice_plan_term", "sluice_plan_served", "sluice_predicted_misses", "sluice_devices_planned"):
            assert ("planner",) not in meters.values(name) and () not in meters.values(name)
        assert not meters.values("sluice_predicted_misses")

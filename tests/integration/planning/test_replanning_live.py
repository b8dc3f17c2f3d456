"""The running planner follows what happens: profiles that are wrong, bursts, and a solver that does not come back."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sluicegate.planner.registry
from sluicegate.domain.actions import Announce
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Plan
from sluicegate.executors.emulated import EmulatedExecutor
from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.estimates.demand_estimate import DemandEstimator
from sluicegate.planner.problems.problem import Allocation, Planner, Problem
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.streams import connect
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import control
from tests.harness import PATIENCE_S, Running, running, settings_for, toy_catalogue

pytestmark = pytest.mark.virtual

SMALL, LARGE = "toy-v0", "toy-v2"


def slow_catalogue() -> Catalogue:
    """20 ms and 100 ms a query, SLO 250 ms: slow enough that a busy test machine is not mistaken for a wrong profile.

    A batch may take half the SLO, so the accurate variant fits by a quarter: half as slow again, it does not.
    """
    known = toy_catalogue()
    variants = [Variant(name=SMALL, app="toy", accuracy=0.7), Variant(name=LARGE, app="toy", accuracy=0.9)]
    profiles = [
        Profile(
            variant=name,
            device_type="cpu",
            points=(BatchLatency(1, seconds, seconds), BatchLatency(4, 2 * seconds, 2 * seconds)),
            load=0.05,
        )
        for name, seconds in ((SMALL, 0.02), (LARGE, 0.1))
    ]
    return Catalogue.of(list(known.apps.values()), variants, profiles)


async def plans(run: Running) -> list[Plan]:
    """Every plan published so far."""
    partition = TopicPartition(run.topics.plan, 0)
    records: list[Any] = [r async for r in read_results(run.broker, [partition], follow=False)]
    return [control.decode_plan(r.value) for r in records if r.value]


async def announced(run: Running, subject: str) -> list[Announce]:
    partition = TopicPartition(run.topics.status, 0)
    records: list[Any] = [r async for r in read_results(run.broker, [partition], follow=False)]
    said = [control.decode_announce(r.value) for r in records if r.value and r.key == subject.encode()]
    return [a for a in said if a.subject == subject]


def hosted(plan: Plan) -> set[str]:
    return {v for p in plan.placements if p.share > 0.0 for v in p.variants}


async def test_profiles_wrong_by_half_are_noticed_and_planned_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = EmulatedExecutor.__init__

    def slower(self: EmulatedExecutor, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **{**options, "slowdown": 1.5})

    monkeypatch.setattr(EmulatedExecutor, "__init__", slower)
    settings = settings_for("memory://", tmp_path, planner={"period_s": 60})
    async with running(settings, connect("memory://"), catalogue=slow_catalogue()) as run:
        await run.planned()
        assert hosted((await plans(run))[-1]) == {LARGE}
        async with asyncio.timeout(PATIENCE_S):
            while not (said := await announced(run, f"profile:{LARGE}@cpu")):
                await run.ask(parameters={})
                await asyncio.sleep(0.05)
            while LARGE in hosted((newest := await plans(run))[-1]):
                await asyncio.sleep(0.05)
        assert said[0].state == "wrong"
        assert said[0].data is not None
        assert said[0].data["factor"] == pytest.approx(1.5, rel=0.25)
        assert f"latency of {LARGE}@cpu" in newest[-1].reason
        await run.planned()
        late = await run.ask(parameters={})
        await run.settled()
        assert (await run.outcomes())[late].variant == SMALL


async def test_a_burst_is_answered_by_a_plan_within_a_second_of_its_detection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detected: list[float] = []
    bursting: Callable[[DemandEstimator, float], tuple[str, ...]] = DemandEstimator.bursting

    def noted(self: DemandEstimator, now: float) -> tuple[str, ...]:
        found = bursting(self, now)
        if found:
            detected.append(time.time())
        return found

    monkeypatch.setattr(DemandEstimator, "bursting", noted)
    settings = settings_for("memory://", tmp_path, planner={"period_s": 60})
    async with running(settings, connect("memory://"), catalogue=slow_catalogue()) as run:
        await run.planned()
        async with asyncio.timeout(PATIENCE_S):
            while not detected or not (bursts := [p for p in await plans(run) if "burst of toy" in p.reason]):
                for _ in range(20):
                    await run.ask(parameters={})
                await asyncio.sleep(0.1)
        assert bursts[0].created - detected[0] <= 1.0
        assert SMALL in hosted(bursts[0])
        assert bursts[0].demand["toy"] > 20.0


class HangsLater:
    """Answers once, then only when it is let go."""

    name = "hangs-later"

    def __init__(self) -> None:
        self.asked = 0
        self.hanging = threading.Event()
        self.released = threading.Event()

    def allocate(self, problem: Problem) -> Allocation:
        self.asked += 1
        if self.asked > 1:
            self.hanging.set()
            self.released.wait(60.0)
        return AllocationPlanner().allocate(problem)


@pytest.mark.virtual(False)
async def test_while_the_solver_hangs_the_plan_in_force_stands_and_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = HangsLater()

    def named(_: str) -> Planner:
        return chosen

    monkeypatch.setattr(sluicegate.planner.registry, "planner", named)
    settings = settings_for("memory://", tmp_path, planner={"period_s": 0.5})
    async with running(settings, connect("memory://"), catalogue=slow_catalogue()) as run:
        try:
            await run.planned()
            before = (await plans(run))[-1]
            async with asyncio.timeout(PATIENCE_S):
                while not chosen.hanging.is_set():
                    await asyncio.sleep(0.05)
            for _ in range(10):
                await run.ask()
            report = await run.settled()
            after = (await plans(run))[-1]
            assert report.balanced
            assert after.placements == before.placements
            assert all(o.on_time for o in (await run.outcomes()).values())
        finally:
            chosen.released.set()

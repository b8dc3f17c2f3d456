"""Queries through topics to answers, on the embedded broker and on Apache Kafka."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import ExecutionError
from sluicegate.domain.events import PlanPublished
from sluicegate.domain.executor import Executed
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.executors.emulated import EmulatedExecutor
from sluicegate.planner.control.core import PlannerCore
from sluicegate.planner.control.events import PlannerEvent, SafeModeRead
from sluicegate.policies.admission.registry import admission
from sluicegate.policies.serving.admission import AdmissionCore, AdmissionEvent
from sluicegate.policies.serving.device_events import (
    BatchEnded,
    BeatDue,
    DeviceEvent,
    Joined,
    Leaving,
    Loaded,
    QueryCame,
)
from sluicegate.policies.serving.router import RouterEvent
from sluicegate.sluice.system.roles.admission import admission_rules
from sluicegate.sluice.system.roles.worker import device_core
from sluicegate.sluice.system.system import System
from sluicegate.stages.planner.stage import PlannerStage
from sluicegate.stages.runtime.decision_log import read_steps, replay
from sluicegate.streams import connect
from sluicegate.streams.records import control
from tests.harness import ROLES, Running, running, settings_for, toy_catalogue

pytestmark = pytest.mark.virtual
POISON = 666.0
# Whether a query is on time on Apache Kafka is told by the wall clock, and so by how busy the machine is.
BY_THE_CLOCK = ["memory", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.thorough, pytest.mark.timing])]


@pytest.fixture
async def system(broker_url: str, tmp_path: Path) -> AsyncIterator[Running]:
    async with running(settings_for(broker_url, tmp_path, record=True), connect(broker_url)) as run:
        await run.planned()
        yield run


class Brittle(EmulatedExecutor):
    """Raises for any batch that holds a poisoned query, as a model would, or as an executor should not."""

    raises: Exception = ExecutionError("Gather: index 666 is out of bounds")

    async def run(
        self,
        variant: str,
        inputs: Sequence[Sequence[Tensor]],
        rows: int,
        *,
        within: float | None = None,
        apart: bool = False,
    ) -> Executed:
        for tensors in inputs:
            if memoryview(bytes(tensors[0].data)).cast("f")[0] == POISON:
                raise self.raises
        return await super().run(variant, inputs, rows, within=within, apart=apart)


async def asked_steadily(system: Running) -> dict[str, Outcome]:
    """What became of 60 queries, all of them accounted for."""
    for _ in range(60):
        await system.ask(parameters={})
        await asyncio.sleep(0.005)
    report = await system.settled()
    assert report.balanced
    outcomes = await system.outcomes()
    assert len(outcomes) == 60
    return outcomes


@pytest.mark.parametrize("broker_url", BY_THE_CLOCK, indirect=True)
async def test_queries_are_answered_on_time(system: Running) -> None:
    outcomes = await asked_steadily(system)
    assert sum(o.on_time for o in outcomes.values()) >= 57


async def test_every_query_is_accounted_for_and_its_answer_says_why(system: Running) -> None:
    outcomes = await asked_steadily(system)
    answered = [o for o in outcomes.values() if o.kind is OutcomeKind.ANSWERED]
    for outcome in answered:
        assert outcome.variant is not None
        assert outcome.accuracy == system.system.catalogue.variants[outcome.variant].accuracy
        assert outcome.device in {"d0", "d1"}
        assert outcome.epoch is not None
        assert outcome.batch_size >= 1
        assert 0.0 < outcome.execution_s <= outcome.batch_s + 1e-3
        assert outcome.queue_s >= 0.0


async def test_queries_before_the_first_plan_are_answered_or_expire_on_time(broker_url: str, tmp_path: Path) -> None:
    roles = ("admission", "router", "sink")
    async with running(settings_for(broker_url, tmp_path), connect(broker_url), roles=roles) as run:
        query_id = await run.ask(parameters={"latency_ms": 300})
        report = await run.settled()
        assert report.lost == 0
        outcome = (await run.outcomes())[query_id]
        assert outcome.kind is OutcomeKind.EXPIRED
        assert outcome.deadline <= outcome.at < outcome.deadline + 1.0


@pytest.mark.parametrize("raises", [Brittle.raises, IndexError("tuple index 666 out of range")])
async def test_a_query_that_breaks_the_model_or_the_executor_fails_alone(
    broker_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: Exception
) -> None:
    monkeypatch.setattr(Brittle, "raises", raises)

    def brittle(system: System) -> None:
        system.make_executor = lambda device, part: Brittle(system.catalogue, device.type)

    settings = settings_for(broker_url, tmp_path, devices=1)
    async with running(settings, connect(broker_url), change=brittle) as run:
        await run.planned()
        good = [await run.ask(parameters={"latency_ms": 5000}) for _ in range(6)]
        poisoned = await run.ask(values=(POISON, 0.0, 0.0, 0.0), parameters={"latency_ms": 5000})
        good += [await run.ask(parameters={"latency_ms": 5000}) for _ in range(6)]
        report = await run.settled()
        assert report.balanced
        outcomes = await run.outcomes()
        assert outcomes[poisoned].kind is OutcomeKind.FAILED
        assert outcomes[poisoned].reason == "model_error"
        assert "666" in (outcomes[poisoned].detail or "")
        assert {outcomes[query_id].kind for query_id in good} == {OutcomeKind.ANSWERED}


async def test_stopping_finishes_what_was_begun(broker_url: str, tmp_path: Path) -> None:
    settings = settings_for(broker_url, tmp_path)
    broker = connect(broker_url)
    async with running(settings, broker) as run:
        await run.planned()
        for _ in range(40):
            await run.ask(parameters={"latency_ms": 4000})
        await asyncio.sleep(0.3)
        run.stop.set()
        await run.task
        report = await run.audit()
        assert report.lost == 0
        assert report.duplicates == 0


async def test_a_recorded_run_replays_to_identical_actions(system: Running) -> None:
    for i in range(80):
        await system.ask(parameters={"latency_ms": 6_000 if i % 3 else 25_000})
        await asyncio.sleep(0.01)
    await system.ask(system.ids[0])
    await system.ask(parameters={"latency_ms": -3})
    await system.settled()
    system.stop.set()
    await system.task
    system.system.close()
    folder = system.system.run_folder / "decisions"
    router = folder / "router-toy.jsonl"
    assert len(list(read_steps(router, RouterEvent))) > 80
    assert replay(router, system.fresh_router("toy").handle, RouterEvent) == []
    assert {log.stem for log in folder.glob("worker-*.jsonl")} == {"worker-d0", "worker-d1"}
    for device in system.system.devices:
        log = folder / f"worker-{device.name}.jsonl"
        heard = [type(event) for event, _, _ in read_steps(log, DeviceEvent)]
        assert {QueryCame, BatchEnded, Loaded, PlanPublished, Joined, BeatDue, Leaving} <= set(heard)
        assert heard.count(QueryCame) > 10
        assert replay(log, device_core(system.system, device).handle, DeviceEvent) == []
    door, rules = folder / "admission.jsonl", admission_rules(system.system, ["toy"])
    told = [kind["is"] for _, _, actions in read_steps(door, AdmissionEvent) for kind in actions]
    assert told.count("Accept") == 80
    assert told.count("End") == 1
    assert {"Duplicate", "End", "DemandCounted"} <= set(told)
    assert replay(door, AdmissionCore(system.system.devices, rules).handle, AdmissionEvent) == []
    stricter = AdmissionCore(
        system.system.devices, replace(rules, make_policy=admission("deadline", max_horizon_s=0.1))
    )
    assert replay(door, stricter.handle, AdmissionEvent)


async def test_what_a_planner_decided_replays_and_another_one_is_told_apart(system: Running) -> None:
    producer = system.broker.producer()
    await producer.start()
    for key, state in (
        (b"app:toy@planner-d7", "safe_mode"),
        (b"app:toy", "safe_mode"),
        (b"app:toy@planner-d8", "promise_kept"),
    ):
        said_before = control.encode_announce(Announce("app:toy", state, "by another planner"))
        await (await producer.send(system.topics.status, said_before, key=key))
    await producer.stop()
    for _ in range(20):
        await system.ask()
    await system.settled()
    system.stop.set()
    await system.task
    system.system.close()
    log = system.system.run_folder / "decisions" / "planner.jsonl"
    stage = next(s for s in system.stages if isinstance(s, PlannerStage))
    steps = list(read_steps(log, PlannerEvent))
    said = [action for _, _, actions in steps for action in actions]
    assert {"Write", "Lead", "Solve", "Publish", "WakeAt"} <= {action["is"] for action in said}
    read = [event for event, _, _ in steps if isinstance(event, SafeModeRead)]
    assert read == [SafeModeRead("toy", "d7", True), SafeModeRead("toy", "d8", False)]
    holder = next(action["value"]["lease"]["holder"] for action in said if action["is"] == "Write")

    def core(holder: str) -> PlannerCore:
        known = system.system
        return PlannerCore(known.catalogue, holder=holder, settings=stage.core.settings, devices=known.devices)

    assert replay(log, core(holder).handle, PlannerEvent) == []
    assert replay(log, core("somebody-else").handle, PlannerEvent)


async def test_a_changed_log_does_not_replay(system: Running) -> None:
    for _ in range(20):
        await system.ask()
    await system.settled()
    system.stop.set()
    await system.task
    system.system.close()
    log = system.system.run_folder / "decisions" / "router-toy.jsonl"
    lines = log.read_text().splitlines()
    changed = [i for i, line in enumerate(lines) if '"Send"' in line]
    lines[changed[3]] = (
        lines[changed[3]].replace('"device":"d0"', '"device":"dx"').replace('"device":"d1"', '"device":"dx"')
    )
    log.write_text("\n".join(lines))
    assert len(replay(log, system.fresh_router("toy").handle, RouterEvent)) == 1


async def test_the_sink_keeps_outcomes(system: Running) -> None:
    query_id = await system.ask()
    await system.settled()
    system.stop.set()
    await system.task
    (kept,) = (system.system.run_folder / "outcomes.jsonl").read_bytes().splitlines()
    assert orjson.loads(kept)["id"] == query_id


async def test_demand_moves_the_plan_to_faster_variants(broker_url: str, tmp_path: Path) -> None:
    settings = settings_for(broker_url, tmp_path, devices=1, planner={"period_s": 2.0})
    async with running(settings, connect(broker_url), catalogue=toy_catalogue(slo=0.4, times=10.0), roles=ROLES) as run:
        await run.planned()
        for _ in range(60):
            await asyncio.gather(*(run.ask(parameters={}) for _ in range(6)), asyncio.sleep(6 / 35))
        report = await run.settled()
        assert report.balanced
        assert len(report.summary.variants_used["toy"]) >= 2

"""Selection tables in a running system: published for its plans, followed by workers, held to what they promise."""

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

import sluicegate.stages.planner.stage
from sluicegate.domain.errors import SluiceError
from sluicegate.domain.events import TurnsTold
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.table import SelectionTable
from sluicegate.executors.emulated import EmulatedExecutor
from sluicegate.planner.policy_tables.keys import TableName, decode_name
from sluicegate.planner.policy_tables.promise_monitor import Held, held
from sluicegate.planner.policy_tables.table_codec import decode
from sluicegate.planner.policy_tables.table_schedule import Make
from sluicegate.policies.serving.device_events import DeviceEvent
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.sluice.offline.table_check import counted, published
from sluicegate.sluice.system.process_stages import stages_of
from sluicegate.sluice.system.roles.worker import device_core
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime.decision_log import read_steps, replay
from sluicegate.stages.runtime.supervisor import run_stages
from sluicegate.streams import connect
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import codec, control
from tests.harness import PATIENCE_S, PIXELS, Running, running, settings_for
from tests.models.table_maker import MakerHere

pytestmark = pytest.mark.virtual
SLO = 0.2
SPEED = {"fast": (0.010, 0.7), "mid": (0.030, 0.8), "slow": (0.060, 0.9)}


def catalogue(times: float = 1.0) -> Catalogue:
    """Three variants of one app whose batches take exactly what is profiled; latencies and SLO ``times`` as long."""
    toy = App(
        name="toy",
        slo=times * SLO,
        inputs=(TensorSpec("image", "FP32", (PIXELS,)),),
        outputs=(TensorSpec("label", "INT64", ()),),
    )
    variants = [Variant(name=name, app="toy", accuracy=accuracy) for name, (_, accuracy) in SPEED.items()]
    profiles = [
        Profile(
            variant=name,
            device_type="cpu",
            points=tuple(BatchLatency(b, s * (0.6 + 0.4 * b), s * (0.6 + 0.4 * b)) for b in (1, 2, 4, 8, 16)),
            load=0.01,
        )
        for name, s in ((name, times * fast) for name, (fast, _) in SPEED.items())
    ]
    return Catalogue.of([toy], variants, profiles)


@pytest.fixture(autouse=True)
def no_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Apache Kafka tables are made by the process."""
    if request.node.get_closest_marker("kafka") is None:
        monkeypatch.setattr(sluicegate.stages.planner.stage, "TableMaker", MakerHere)


def settings(folder: Path, *, devices: int = 3, device_timeout_s: float = 30.0, **changes: Any) -> Any:
    """No device dies within the default timeout, however busy the machine is."""
    return settings_for(
        "memory://",
        folder,
        devices=devices,
        worker={"executor": "emulated", "batching": "table"},
        planner={"name": "allocation", "device_timeout_s": device_timeout_s},
        tables={"spacing": 0.05, **changes.pop("tables", {})},
        **changes,
    )


async def tables_there(
    run: Running,
    workers: int | None = None,
    *,
    phases: int = 1,
    slos: frozenset[float] = frozenset({SLO}),
) -> dict[TableName, SelectionTable]:
    """What is in force once it is a library for each of ``slos``, made for ``workers``, and no more comes.

    Plans made while devices still joined have tables too, for fewer workers, until the library comes.
    """
    seen: dict[TableName, SelectionTable] = {}
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await in_force(run)
            made = Counter(name.shelf.slo for name in found)
            fits = all(t.workers == (workers or t.workers) and t.phases == phases for t in found.values())
            if fits and made.keys() == slos and min(made.values()) >= 2 and found.keys() == seen.keys():
                return found
            seen = found
            await asyncio.sleep(0.5)


async def in_force(run: Running) -> dict[TableName, SelectionTable]:
    """What a worker that starts now would go by."""
    tables: dict[TableName, SelectionTable] = {}
    partition = TopicPartition(run.topics.policies, 0)
    async for r in read_results(run.broker, [partition], follow=False):
        if r.value is None:
            tables.pop(decode_name(r.key), None)
        else:
            tables[decode_name(r.key)] = decode(r.value)
    return tables


async def all_serve(run: Running) -> None:
    """Wait until the plan counts on every device, and all have staged it."""
    partition = TopicPartition(run.topics.plan, 0)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await run.planned()
            records = [r async for r in read_results(run.broker, [partition], follow=False) if r.value]
            placed = {p.device for p in control.decode_plan(records[-1].value or b"").placements}
            if placed == {d.name for d in run.system.devices}:
                return
            await asyncio.sleep(0.05)


async def offer(run: Running, qps: float, seconds: float, seed: int = 1) -> None:
    """Poisson arrivals."""
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    at, end = loop.time(), loop.time() + seconds
    while at < end:
        await asyncio.sleep(max(0.0, at - loop.time()))
        await run.ask(parameters={})
        at += rng.expovariate(qps)


async def what_was_held(run: Running, *, after: float) -> Held:
    """Once every worker has told what it counted until now."""
    now = run.system.clock.wall()
    beats = TopicPartition(run.topics.devices_metrics, 0)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            records = [r.value async for r in read_results(run.broker, [beats], follow=False) if r.value]
            told = {beat.seen.device for beat in map(control.decode_heartbeat, records) if beat.at > now}
            if told >= {d.name for d in run.system.devices}:
                break
            await asyncio.sleep(0.1)
    found = held(await counted(run.broker, run.topics, after=after), await published(run.broker, run.topics))
    assert found is not None
    return found


async def said(run: Running, state: str) -> list[dict[str, Any]]:
    """What was announced of ``state`` so far."""
    partition = TopicPartition(run.topics.status, 0)
    records = [json.loads(r.value) async for r in read_results(run.broker, [partition], follow=False) if r.value]
    return [record for record in records if record["state"] == state]


async def test_what_tables_promise_is_held_by_running_workers(tmp_path: Path) -> None:
    async with running(settings(tmp_path), MemoryBroker(), catalogue=catalogue()) as run:
        await all_serve(run)
        await tables_there(run, 3)
        await offer(run, 60.0, 1.0, seed=1)
        began = run.system.clock.wall()
        await offer(run, 60.0, 6.0, seed=10)
        report = await run.settled()
        assert not report.lost
        assert not report.duplicates
        found = await what_was_held(run, after=began)
        assert isinstance(run.broker, MemoryBroker)
        run.broker.dump(run.system.run_folder)
    assert found.queries > 250
    assert found.accuracy_held, found
    assert found.violation_held, found
    assert found.expected_accuracy > 0.75  # tables do use what is better than the fastest
    command = ("describe", "tables", str(run.system.run_folder), "--prefix", run.topics.prefix, "--json")
    checked = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-P", "-m", "sluicegate.sluice.main", *command],
        capture_output=True,
        check=False,
    )
    (shelf,) = json.loads(checked.stdout)["shelves"]
    assert (shelf["app"], shelf["worker_class"], shelf["slo_s"]) == ("toy", "cpu", SLO)
    assert shelf["queries"] >= found.queries
    assert checked.returncode == (0 if shelf["accuracy_held"] and shelf["violation_held"] else 1)


def slowed(factor: float) -> Any:
    """A change to the system: its devices take ``factor`` times as long as profiled."""

    def change(system: System) -> None:
        system.make_executor = lambda device, part: EmulatedExecutor(system.catalogue, device.type, slowdown=factor)

    return change


async def test_promises_that_bursts_break_are_announced_with_the_reason(tmp_path: Path) -> None:
    changed = settings(tmp_path, tables={"watch_s": 1.0})
    async with running(changed, MemoryBroker(), catalogue=catalogue()) as run:
        await all_serve(run)
        await tables_there(run, 3)
        began = run.system.clock.wall()
        async with asyncio.timeout(PATIENCE_S):
            while not (drift := await said(run, "drift")):  # how many queries a table serves depends on the machine
                for _ in range(45):
                    await run.ask(parameters={})
                await asyncio.sleep(0.4)
        await run.settled()
        found = await what_was_held(run, after=began)
    assert not (found.accuracy_held and found.violation_held), found
    assert drift[0]["subject"] == "tables:toy/cpu/200ms"
    assert "gaps vary" in drift[0]["detail"]


@pytest.mark.thorough
async def test_tables_are_made_again_for_devices_that_turn_out_slower(tmp_path: Path) -> None:
    async with running(settings(tmp_path), MemoryBroker(), catalogue=catalogue(), change=slowed(1.5)) as run:
        await all_serve(run)
        tables = await tables_there(run, 3)
        assert not any("slowdown.mid" in t.assumptions for t in tables.values())
        async with asyncio.timeout(PATIENCE_S):
            while not any("slowdown.mid" in t.assumptions for t in (await in_force(run)).values()):
                await offer(run, 100.0, 1.0)
        report = await run.settled()
    assert not report.lost


async def test_a_library_whose_process_ends_is_made_when_the_plan_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([SluiceError("the process ended")])

    class FailsOnce(MakerHere):
        @override
        async def make(self, make: Make) -> tuple[SelectionTable, ...]:
            if not make.loads and (failure := next(failures, None)):
                raise failure
            return await super().make(make)

    monkeypatch.setattr(sluicegate.stages.planner.stage, "TableMaker", FailsOnce)
    async with running(settings(tmp_path, devices=1), MemoryBroker(), catalogue=catalogue()) as run:
        await all_serve(run)
        assert len(await tables_there(run, 1)) >= 2
        assert len(await said(run, "failed")) == 1


async def test_a_worker_that_leaves_changes_the_tables_and_loses_nothing(tmp_path: Path) -> None:
    roles = ("admission", "router", "planner", "sink")
    async with running(
        settings(tmp_path, device_timeout_s=4.0), MemoryBroker(), catalogue=catalogue(times=3.0), roles=roles
    ) as run:
        stops = {name: asyncio.Event() for name in ("d0", "d1", "d2")}
        workers = {
            name: asyncio.create_task(run_stages(stages_of(run.system, ("worker",), devices=(name,)), stop))
            for name, stop in stops.items()
        }
        await all_serve(run)
        await tables_there(run, 3, slos=frozenset({3.0 * SLO}))
        sending = asyncio.create_task(offer(run, 25.0, 6.0))
        await asyncio.sleep(0.5)
        stops["d2"].set()
        async with asyncio.timeout(PATIENCE_S):
            while {t.workers for t in (await in_force(run)).values()} != {2}:
                await asyncio.sleep(0.1)
        await sending
        report = await run.settled()
        outcomes = (await run.outcomes()).values()
        for stop in stops.values():
            stop.set()
        await asyncio.gather(*workers.values())
    assert not report.lost
    assert not report.duplicates
    assert sum(o.on_time for o in outcomes) >= 0.95 * len(outcomes)


async def test_above_capacity_workers_fall_back_ask_and_keep_their_throughput(tmp_path: Path) -> None:
    """Slow variants: what is measured is the policy, not how fast the machine moves queries."""
    recorded = settings(tmp_path, devices=1, record=True)
    async with running(recorded, MemoryBroker(), catalogue=catalogue(times=4.0)) as run:
        await all_serve(run)
        tables = await tables_there(run, 1, slos=frozenset({4.0 * SLO}))
        most = max(t.qps for t in tables.values())
        await offer(run, 1.6 * most, 6.0)
        report = await run.settled()
        outcomes = (await run.outcomes()).values()
        async with asyncio.timeout(PATIENCE_S):
            while not (missing := await said(run, "table_missing")):
                await asyncio.sleep(0.1)
        folder = run.system.run_folder / "decisions"
    assert not report.lost
    on_time = sum(o.on_time for o in outcomes)
    assert on_time >= 0.8 * most * 6.0  # no worse than a first-come-first-served queue of the fastest variant would be
    assert {o.variant for o in outcomes if o.variant} >= {"fast"}
    assert missing[0]["data"]["qps"] > most
    assert replay(folder / "worker-d0.jsonl", device_core(run.system, run.system.devices[0]).handle, DeviceEvent) == []


@pytest.mark.thorough
async def test_slo_classes_of_one_app_have_workers_and_tables_of_their_own(tmp_path: Path) -> None:
    classed = settings(tmp_path, devices=4, slo_classes_s={"toy": (0.1, 0.4)})
    async with running(classed, MemoryBroker(), catalogue=catalogue()) as run:
        await all_serve(run)
        await tables_there(run, slos=frozenset({0.1, 0.4}))
        rng = random.Random(3)
        loop = asyncio.get_running_loop()
        end = loop.time() + 7.0
        asked = []
        while loop.time() < end:
            asked.append(rng.choice((0.1, 0.4)))
            await run.ask(parameters={"latency_ms": 1e3 * asked[-1]})
            await asyncio.sleep(rng.expovariate(80.0))
        report = await run.settled()
        tables = await in_force(run)
        plans = [
            control.decode_plan(r.value)
            async for r in read_results(run.broker, [TopicPartition(run.topics.plan, 0)], follow=False)
            if r.value
        ]
        outcomes = await run.outcomes()
    assert not report.lost
    assert {name.shelf.slo for name in tables} == {0.1, 0.4}
    devices = {slo: {p.device for p in plans[-1].placements if p.slo == slo} for slo in (0.1, 0.4)}
    assert devices[0.1]
    assert devices[0.4]
    assert not devices[0.1] & devices[0.4]
    sent = {name: slo for name, slo in zip(run.ids, asked, strict=True) if outcomes[name].epoch == plans[-1].epoch}
    assert Counter(sent.values()).keys() == {0.1, 0.4}
    assert all(outcomes[name].device in devices[slo] for name, slo in sent.items() if outcomes[name].device)
    assert all(t.slo == pytest.approx(name.shelf.slo - 0.01) for name, t in tables.items())  # less hop and guard
    assert sum(o.on_time for o in outcomes.values()) >= 0.95 * len(outcomes)


async def test_of_several_routers_one_is_active_and_gives_workers_strict_turns(tmp_path: Path) -> None:
    partitioned = settings(tmp_path, devices=3, partitions=4)
    async with running(partitioned, MemoryBroker(), catalogue=catalogue()) as run:
        stop = asyncio.Event()
        second = asyncio.create_task(run_stages(stages_of(run.system, ("router",)), stop))
        await all_serve(run)
        await offer(run, 100.0, 2.0)
        await run.settled()
        outcomes = await run.outcomes()
        stop.set()
        await second
    newest = max(o.epoch for o in outcomes.values() if o.epoch)
    sent = [outcomes[name].device for name in run.ids if outcomes[name].epoch == newest]
    assert len(sent) > 100
    turns = Counter(sent)
    assert set(turns) == {"d0", "d1", "d2"}
    assert max(turns.values()) - min(turns.values()) <= 1
    # Which of two queries on different partitions is read first is not known: count over stretches.
    for start in range(0, len(sent) - 30, 30):
        stretch = Counter(sent[start : start + 30])
        assert max(stretch.values()) - min(stretch.values()) <= 3


@pytest.mark.kafka
@pytest.mark.thorough
async def test_tables_reach_workers_over_kafka_and_outlive_the_planner(tmp_path: Path, kafka_url: str) -> None:
    """Without a table only the fastest variant runs: what else runs went by one."""
    on_kafka = settings(tmp_path, devices=2).model_copy(update={"broker": kafka_url})
    async with running(on_kafka, connect(kafka_url), catalogue=catalogue()) as run:
        await all_serve(run)
        await tables_there(run, 2)
        await offer(run, 20.0, 3.0)
        report = await run.settled()
        outcomes = (await run.outcomes()).values()
        left = await in_force(run)
    assert not report.lost
    assert {o.variant for o in outcomes if o.on_time} - {"fast", None}
    assert len(left) >= 2
    async with running(on_kafka, connect(kafka_url), catalogue=catalogue()) as again:
        await all_serve(again)
        for _ in range(20):
            await again.ask(parameters={})
            await asyncio.sleep(0.05)
        async with asyncio.timeout(
            PATIENCE_S
        ):  # the topics are those of the first run: an audit would count its queries too
            while not set(again.ids) <= (later := await again.outcomes()).keys():
                await asyncio.sleep(0.1)
    assert {later[name].variant for name in again.ids if later[name].on_time} - {"fast", None}


@pytest.mark.thorough
async def test_workers_are_told_how_far_their_turn_is_where_tables_tell_phases_apart(tmp_path: Path) -> None:
    phased = settings(tmp_path, record=True, tables={"phases": 3, "turns_s": 0.0})
    async with running(phased, MemoryBroker(), catalogue=catalogue()) as run:
        await all_serve(run)
        await tables_there(run, 3, phases=3)
        await offer(run, 80.0, 3.0)
        report = await run.settled()
        sent: dict[str, list[codec.WorkMessage]] = {}
        for device in run.system.devices:
            partition = TopicPartition(run.topics.work(device.name), 0)
            records = [r async for r in read_results(run.broker, [partition], follow=False)]
            sent[device.name] = [codec.decode_work(record) for record in records]
        turns = TopicPartition(run.topics.turns, 0)
        told = [control.decode_turns(r.value or b"") async for r in read_results(run.broker, [turns], follow=False)]
        folder = run.system.run_folder / "decisions"
    assert not report.lost
    count = sum(len(messages) for messages in sent.values())
    assert sorted(m.turn for messages in sent.values() for m in messages) == list(range(1, count + 1))
    newest = max(m.epoch for messages in sent.values() for m in messages)
    for messages in sent.values():
        mine = [m.turn for m in messages if m.epoch == newest]
        assert len(mine) > 30
        assert {b - a for a, b in pairwise(mine)} == {3}
    assert [t.count for t in told] == list(range(1, count + 1))
    for device in run.system.devices:
        log = folder / f"worker-{device.name}.jsonl"
        heard = [event for event, _, _ in read_steps(log, DeviceEvent) if isinstance(event, TurnsTold)]
        assert len(heard) > 0.9 * len([t for t in told if t.count >= heard[0].count])
        assert replay(log, device_core(run.system, device).handle, DeviceEvent) == []

"""Workers that come and go, live: by load through the scaler, by notices through procurement; nothing is lost."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sluicegate.domain.outcome import OutcomeKind
from sluicegate.domain.plan import Plan
from sluicegate.planner.capacity.core import CapacityCore
from sluicegate.planner.capacity.cores import load_core, spot_core
from sluicegate.planner.capacity.events import CapacityEvent, MarketEvent
from sluicegate.planner.capacity.load_scaling import LoadScaling
from sluicegate.planner.capacity.procurement import Procurement
from sluicegate.planner.capacity.spare_pool import ElasticFleet, SpareState
from sluicegate.policies.serving.device_events import DeviceEvent, Leaving
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.sluice.registration.registry_topic import publish_catalogue
from sluicegate.sluice.settings.elastic_settings import ProcurementSettings
from sluicegate.sluice.settings.settings import DeviceSettings, Settings
from sluicegate.sluice.system.elastic_capacity import driver
from sluicegate.stages.runtime.decision_log import read_steps, replay
from sluicegate.streams import connect
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import control
from tests.harness import PATIENCE_S, ROLES, Running, running, settings_for, toy_catalogue

Made = TypeVar("Made")

pytestmark = pytest.mark.virtual


class Load:
    """Asks ``qps`` queries a second until it is stopped; ``qps`` may change."""

    def __init__(self, run: Running, qps: float) -> None:
        self.qps = qps
        self._run = run
        self._task = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self._run.ask(parameters={"latency_ms": 5000})
            due = max(due + 1.0 / self.qps, loop.time() - 0.2)
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.05)


async def newest(run: Running) -> Plan | None:
    partition = TopicPartition(run.topics.plan, 0)
    records = [r async for r in read_results(run.broker, [partition], follow=False)]
    found = [control.decode_plan(r.value) for r in records if r.value]
    return max(found, key=lambda plan: plan.epoch, default=None)


async def planned_devices(run: Running) -> set[str]:
    plan = await newest(run)
    return {p.device for p in plan.placements} if plan is not None else set()


async def incarnation(run: Running, device: str) -> str:
    plan = await newest(run)
    assert plan is not None
    return plan.incarnations[device]


async def until_planned(run: Running, wanted: set[str]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await planned_devices(run) != wanted:
            await asyncio.sleep(0.1)


def kept(monkeypatch: pytest.MonkeyPatch, kind: type[Made]) -> list[Made]:
    """Those of ``kind`` that are made from now on."""
    made: list[Made] = []
    plain = kind.__init__

    def noted(self: Made, *arguments: Any, **options: Any) -> None:
        plain(self, *arguments, **options)
        made.append(self)

    monkeypatch.setattr(kind, "__init__", noted)
    return made


async def replayed(run: Running, core: str, *fresh: CapacityCore) -> list[int]:
    """How much each fresh core decides otherwise than the one that ran."""
    run.stop.set()
    await run.task
    run.system.close()
    log = run.system.run_folder / "decisions" / f"{core}.jsonl"
    assert len(list(read_steps(log, CapacityEvent, MarketEvent))) > 20
    return [len(replay(log, one.handle, CapacityEvent, MarketEvent)) for one in fresh]


def scaled(folder: Path) -> Settings:
    return settings_for(
        "memory://",
        folder,
        slo_s={"toy": 1.0},
        routing="weighted",
        record=True,
        scaling={
            "spare": ["d1"], "keep_alive_s": 3.0, "headroom": 1.0, "lead_s": 0.0, "period_s": 0.2, "settle_s": 1.0
        },
    )  # fmt: skip


async def test_the_scaler_is_told_of_apps_that_are_registered_and_retired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kept(monkeypatch, LoadScaling)
    async with running(scaled(tmp_path), connect("memory://"), roles=(*ROLES, "scaler")) as run:
        (scaling,) = made
        for served, known in ((toy_catalogue(("late",)), {"toy", "late"}), (Catalogue.of((), (), ()), {"toy"})):
            await publish_catalogue(run.broker, run.producer, run.topics, served, only="late")
            async with asyncio.timeout(PATIENCE_S):
                while scaling._units.keys() != known:
                    await asyncio.sleep(0.05)


async def test_a_worker_joins_as_load_grows_and_ends_after_the_delay_with_nothing_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kept(monkeypatch, ElasticFleet)
    async with running(scaled(tmp_path), connect("memory://"), roles=(*ROLES, "scaler")) as run:
        (fleet,) = made
        await run.ask(parameters={"latency_ms": 20_000})
        await until_planned(run, {"d0"})
        # A device does 16 of the most accurate variant in 52 ms (p95): some 300 a second.
        load = Load(run, 450.0)
        try:
            await until(lambda: fleet.state("d1") is SpareState.UP)
            await until_planned(run, {"d0", "d1"})
            grown = time.monotonic()
            load.qps = 5.0
            await until(lambda: fleet.state("d1") is SpareState.WITHDRAWN)
            fallen = time.monotonic()
            await until(lambda: fleet.state("d1") is SpareState.OFF)
            await until_planned(run, {"d0"})
        finally:
            await load.stop()
        assert fallen - grown >= 2.0, "it was kept for a while"
        report = await run.settled()
        assert report.balanced and report.duplicates == 0
        outcomes = await run.outcomes()
        assert {o.device for o in outcomes.values() if o.kind is OutcomeKind.ANSWERED} == {"d0", "d1"}
        answered = sum(o.on_time for o in outcomes.values())
        assert answered >= 0.98 * len(outcomes), f"{answered} of {len(outcomes)} on time"
        chosen = run.system.settings.scaling
        assert chosen is not None
        other = chosen.model_copy(update={"keep_alive_s": 0.0})
        known = (run.system.catalogue, run.system.devices, run.system.settings.planner.quantile)
        same, differ = await replayed(run, "scaler", *(load_core(one.rules(), *known) for one in (chosen, other)))
        assert same == 0 < differ


async def test_a_worker_that_comes_again_is_told_of_once_and_leaves_nothing_open(tmp_path: Path) -> None:
    async with running(scaled(tmp_path), connect("memory://"), roles=ROLES) as run:
        workers, meters = driver(run.system), run.system.telemetry.meters

        def loaded() -> dict[str, float]:
            return {device: value for (device, _, _), value in meters.values("sluice_variant_loaded").items()}

        await until(lambda: bool(loaded()))
        sent = []
        for _ in range(3):
            await workers.start("d1")
            await until(lambda: "d1" in loaded())
            assert loaded() == {"d0": 1.0, "d1": 1.0}
            await workers.stop("d1")
            assert loaded() == {"d0": 1.0}
            assert ("worker d1",) not in meters.values("sluice_in_flight_records")
            sent.append(meters.value("sluice_records_sent", "worker d1"))
        assert 0.0 < sent[0] < sent[1] < sent[2], "a counter goes on"
        *_, (last, _, _) = read_steps(run.system.run_folder / "decisions" / "worker-d1.2.jsonl", DeviceEvent)
        assert isinstance(last, Leaving), "the log of who is over is written whole"


def bought(folder: Path, *, p_rev: float) -> Settings:
    devices = (DeviceSettings(name="d0", price=4.0), DeviceSettings(name="d1", price=1.2, spot=True))
    procurement = ProcurementSettings(
        notices=str(folder / "notices.json"),
        on_demand_price=4.0,
        p_rev=p_rev,
        boot_s=1.0,
        poll_s=0.1,
        interval_s=300.0,
        settle_s=1.0,
    )
    settings = settings_for("memory://", folder, slo_s={"toy": 1.0}, record=True, procurement=procurement)
    return settings.model_copy(update={"devices": devices})


@pytest.mark.parametrize(("p_rev", "after"), [(0.0, "spot"), (1.0, "on_demand")])
async def test_a_noticed_device_is_drained_replaced_and_comes_back_with_nothing_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, p_rev: float, after: str
) -> None:
    settings = bought(tmp_path, p_rev=p_rev)
    made = kept(monkeypatch, Procurement)
    async with running(settings, connect("memory://"), roles=(*ROLES, "procurement")) as run:
        (procurement,) = made
        await run.planned()
        await until_planned(run, {"d0", "d1"})
        first = await incarnation(run, "d1")
        load = Load(run, 150.0)
        try:
            await asyncio.sleep(0.5)
            (tmp_path / "notices.json").write_text(json.dumps([{"node": "d1", "deadline": time.time() + 40.0}]))
            await until_planned(run, {"d0"})
            await until(lambda: procurement.state("d1").value == after)
            await until_planned(run, {"d0", "d1"})
        finally:
            await load.stop()
        assert await incarnation(run, "d1") != first, "another worker serves under the same name"
        report = await run.settled()
        assert report.balanced and report.duplicates == 0
        outcomes = await run.outcomes()
        assert sum(o.on_time for o in outcomes.values()) >= 0.98 * len(outcomes)
        assert report.cost["on_demand"] > 0.0 and report.cost["spot"] > 0.0
        chosen = run.system.settings.procurement
        assert chosen is not None
        other = chosen.model_copy(update={"settle_s": 30.0})
        fresh = (spot_core(one.rules(), run.system.devices) for one in (chosen, other))
        same, differ = await replayed(run, "procurement", *fresh)
        assert same == 0 < differ

"""Promises on a live system: kept, or safe mode announced before they break; recounted by the audit."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, Promise, WeaklyHard
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.outcome import Outcome, OutcomeKind, Reason
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.policies.admission.sustained_rates import limits, sustained
from sluicegate.policies.placement.hosted_variants import Hosting
from sluicegate.policies.promises.keeper import Hops
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.audit.topic_audit import AuditReport
from sluicegate.sluice.catalogue.broker_log import BrokerLog
from sluicegate.stages.fronts.http_front import HttpStage
from sluicegate.streams import connect
from sluicegate.streams.ports import Record
from sluicegate.streams.records import control
from sluicegate_client import Client, Status
from tests.harness import PATIENCE_S, PIXELS, ROLES, Running, running, settings_for

pytestmark = pytest.mark.virtual
SLO = 0.25
PROMISE = Promise(weakly_hard=(WeaklyHard(4, 10),))


def slow_catalogue(levels: tuple[float, ...] = (0.024,)) -> Catalogue:
    """Variants of an app "toy", of ``levels`` seconds for one row."""
    app = App(
        name="toy",
        slo=SLO,
        inputs=(TensorSpec("image", "FP32", (PIXELS,)),),
        outputs=(TensorSpec("scores", "FP32", (2,)), TensorSpec("label", "INT64", ())),
        max_rows=8,
    )
    variants, profiles = [], []
    for level, first in enumerate(levels):
        variants.append(Variant(name=f"toy-v{level}", app="toy", accuracy=0.7 + 0.1 * level))
        points = tuple(BatchLatency(b, first * (1 + b / 8), 1.2 * first * (1 + b / 8)) for b in (1, 2, 4, 8))
        profiles.append(Profile(variant=f"toy-v{level}", device_type="cpu", points=points, load=0.02))
    return Catalogue.of([app], variants, profiles)


def rate_on(devices: int, catalogue: Catalogue, variant: str) -> float:
    """Queries a second that a plan with ``variant`` on every device sustains."""
    app = replace(catalogue.apps["toy"], promise=PROMISE)
    known = Catalogue.of([app], catalogue.variants.values(), catalogue.profiles.values())
    hosting = Hosting(known, [Device(name=f"d{i}", type="cpu") for i in range(devices)], "p95")
    placed = tuple(Placement(f"d{i}", "toy", (variant,), 1.0 / devices, 8) for i in range(devices))
    plan = Plan(epoch=Epoch(1, 1), created=0.0, placements=placed)
    found = limits(app, sustained(app, hosting, plan, Hops()), plan)
    assert found is not None
    return min(limit.bound(1) for limit in found.places) / found.window_s


async def load(run: Running, rate: float, seconds: float) -> None:
    """Queries at even distances, sent as they fall due."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(int(rate * seconds)):
        wait = began + number / rate - loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        await run.ask(parameters={})


async def served(
    folder: Path,
    mode: str,
    *,
    levels: tuple[float, ...] = (0.024,),
    devices: int = 1,
    seconds: float = 4.0,
    **changes: Any,
) -> tuple[AuditReport, dict[str, Outcome]]:
    """A system at twice what the slowest variant is announced to sustain, after a calm start."""
    catalogue = slow_catalogue(levels)
    settings = settings_for(
        "memory://",
        folder,
        devices=devices,
        promises={"toy": {"weakly_hard": [[4, 10]]}},
        worker={"executor": "emulated", "batching": "adaptive"},
        admission={"policy": "sustainable", "mode": mode},
        **changes,
    )
    rate = rate_on(devices, catalogue, f"toy-v{len(levels) - 1}")
    async with running(settings, connect("memory://"), catalogue=catalogue) as run:
        await run.planned()
        await load(run, 0.5 * rate, 2.0)
        await load(run, 2.0 * rate, seconds)
        report = await run.settled()
        return report, await run.outcomes()


@pytest.mark.parametrize("mode", ["enforce", "degrade", "observe"])
async def test_above_the_sustainable_rate_the_promise_is_kept_or_safe_mode_announced_first(
    mode: str, tmp_path: Path
) -> None:
    report, outcomes = await served(tmp_path, mode)
    assert report.balanced
    (stream,) = report.promises
    assert stream.queries + stream.rejected == report.queries
    assert stream.agrees
    assert report.promises_unannounced == 0
    rejected = [o for o in outcomes.values() if o.kind is OutcomeKind.REJECTED]
    assert all(o.reason == Reason.OVER_SUSTAINABLE_RATE for o in rejected)
    if mode == "observe":  # nothing is turned away, so the promise cannot hold
        assert not rejected
        assert stream.broken > 0.2 * stream.queries
    else:  # one variant: there is no faster one to degrade to
        assert len(rejected) > 0.15 * len(outcomes)
        assert report.promises_broken == 0


async def test_degrading_answers_with_faster_variants_what_enforcing_would_reject(tmp_path: Path) -> None:
    report, outcomes = await served(tmp_path, "degrade", levels=(0.006, 0.024), planner={"name": "allocation"})
    assert report.balanced
    assert report.promises_broken == 0
    kinds = Counter(o.kind for o in outcomes.values())
    assert kinds[OutcomeKind.REJECTED] < 0.2 * len(outcomes)  # a third where the rest is enforced
    assert {o.variant for o in outcomes.values() if o.on_time} >= {"toy-v0"}
    assert kinds[OutcomeKind.ANSWERED] > 0.7 * len(outcomes)


async def test_a_stream_over_two_devices_keeps_the_whole_promise(tmp_path: Path) -> None:
    report, outcomes = await served(tmp_path, "enforce", devices=2)
    assert report.balanced
    assert len(report.promises) == 1
    assert {o.device for o in outcomes.values() if o.on_time} == {"d0", "d1"}
    assert report.promises_broken == 0


async def test_a_restart_goes_on_with_the_streams_that_the_results_tell_of(tmp_path: Path) -> None:
    broker = connect("memory://")
    settings = settings_for(
        "memory://",
        tmp_path,
        devices=1,
        promises={"toy": {"weakly_hard": [[4, 10]]}},
        worker={"executor": "emulated", "batching": "adaptive"},
    )
    for _ in range(2):
        async with running(settings, broker, catalogue=slow_catalogue(), close=False) as run:
            await run.planned()
            await load(run, 50.0, 0.6)
            await asyncio.sleep(0.5)
            outcomes = await run.outcomes()
    await broker.close()
    last = max(outcomes.values(), key=lambda o: o.sequence)
    assert last.promise is not None
    assert last.promise.queries == len(outcomes) == 60


async def test_a_router_that_finds_what_another_may_have_sent_says_that_the_promise_is_not_to_be_counted_on(
    tmp_path: Path,
) -> None:
    broker = connect("memory://")
    settings = settings_for(
        "memory://",
        tmp_path,
        chained=False,
        promises={"toy": {"weakly_hard": [[4, 10]]}},
        worker={"executor": "emulated", "batching": "adaptive"},
    )
    copies: list[Record] = []
    told = []
    for turn in range(3):
        async with running(settings, broker, catalogue=slow_catalogue(), close=False) as run:
            await run.planned()
            await load(run, 30.0, 0.5)
            await asyncio.sleep(3 * SLO)
            said = [control.decode_announce(r.value) for r in await run._control(run.topics.status) if r.value]
            told.append([one.state for one in said if one.subject == "app:toy"])
            admitted = run.topics.admitted("toy")
            copies = await run._control(admitted)
        if turn == 1:  # as if the last three had been sent, and that not committed
            producer = broker.producer()
            await producer.start()
            for record in copies[-3:]:
                await (await producer.send(admitted, record.value, key=record.key, headers=record.headers))
            await producer.stop()
    await broker.close()
    assert told == [[], [], ["safe_mode", "promise_kept"]]


async def test_a_rule_that_keeps_no_promises_is_refused(tmp_path: Path) -> None:
    settings = settings_for(
        "memory://", tmp_path, promises={"toy": {"max_consecutive": 2}}, worker={"batching": "eager"}
    )
    with pytest.raises(ConfigurationError, match="keeps no promises"):
        async with running(settings, connect("memory://"), catalogue=slow_catalogue()):
            pass


@pytest.mark.virtual(False)
async def test_a_client_is_called_when_safe_mode_is_announced(tmp_path: Path) -> None:
    heard: list[Status] = []
    settings = settings_for(
        "memory://",
        tmp_path,
        devices=1,
        promises={"toy": {"max_consecutive": 0}},
        worker={"executor": "emulated", "batching": "adaptive"},
        http={"port": 0},
    )
    async with running(settings, connect("memory://"), catalogue=slow_catalogue(), roles=(*ROLES, "http")) as run:
        await run.planned()
        url = next(s.address for s in run.stages if isinstance(s, HttpStage)).replace("http://", "memory+http://")
        async with Client(BrokerLog(connect(url)), prefix=settings.prefix) as client:
            client.on_status(heard.append)
            await load(run, 600.0, 0.5)  # far above what one slow device sustains
            async with asyncio.timeout(PATIENCE_S):
                while not any(said.state == "safe_mode" for said in heard):
                    await asyncio.sleep(0.05)
    assert {said.subject for said in heard if said.state == "safe_mode"} == {"app:toy"}


@pytest.mark.virtual(False)
async def test_queries_too_large_for_a_promise_are_told_of_at_the_start_and_once_a_plan_is_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Status] = []
    settings = settings_for(
        "memory://",
        tmp_path,
        devices=1,
        promises={"toy": {"weakly_hard": [[4, 10]]}},
        worker={"executor": "emulated", "batching": "adaptive"},
        admission={"policy": "sustainable"},
        http={"port": 0},
    )
    async with running(settings, connect("memory://"), catalogue=slow_catalogue((0.05,)), roles=(*ROLES, "http")) as up:
        (at_start,) = [one.message for one in caplog.records if "rows_refused" in one.message]
        assert "rows:toy" in at_start and "an SLO of" in at_start
        await up.planned()
        url = next(s.address for s in up.stages if isinstance(s, HttpStage)).replace("http://", "memory+http://")
        async with Client(BrokerLog(connect(url)), prefix=settings.prefix) as client:
            client.on_status(heard.append)
            async with asyncio.timeout(PATIENCE_S):
                while not any(said.state == "rows_refused" for said in heard):
                    await asyncio.sleep(0.05)
    (said,) = [said for said in heard if said.state == "rows_refused"]
    assert said.subject == "rows:toy" and "no query of 4 to 8 rows" in said.detail

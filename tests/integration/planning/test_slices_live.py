"""Eight fake A100 serve strict and best-effort queries while demand moves: drained, cut otherwise, loaded again."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sluicegate.domain.actions import Announce
from sluicegate.domain.events import DeviceSeen
from sluicegate.domain.fleet.device import Slice
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import Outcome
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.executors.devices.fake_gpus import FakeLibrary
from sluicegate.executors.devices.gpu import Gpu
from sluicegate.executors.devices.gpu_library import DeviceError, Fault
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import load_catalogue
from sluicegate.profiles.catalogue.slice_profiles import slowed
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.sluice.settings.settings import Settings
from sluicegate.sluice.system.system import System
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import codec, control
from tests.harness import PATIENCE_S, Running, running, settings_for

pytestmark = pytest.mark.virtual

CATALOGUE = Path(__file__).parents[3] / "examples" / "gpus"
HALVES = (Slice("4g", "4g", 20 << 30), Slice("3g", "3g", 20 << 30))
WORDS = {"draining", "cutting", "serving"}


def gpu_settings(folder: Path, fake: str) -> Settings:
    joint = {"geometry": "joint", "period_s": 3.0, "geometry_patience_s": 0.5}
    slices = {"fake_step_s": 0.05, "drain_s": 2.0}
    return settings_for("memory://", folder, devices=0, fake_gpu=fake, planner=joint, worker={"slices": slices})


async def ask(run: Running, app: str, number: int) -> None:
    zeros = Tensor("x", "FP32", (1, 4), bytes(16))
    message = codec.encode_query(f"{app}-{number}", (zeros,), app=app, now=run.system.clock.wall())
    await run.send(app, message.value, key=message.key, headers=message.headers)


async def offer(run: Running, app: str, qps: Callable[[float], float], until: asyncio.Event) -> None:
    """Poisson arrivals of a rate that depends on the seconds since the start."""
    loop, rng, number = asyncio.get_running_loop(), random.Random(app), 0
    began = due = loop.time()
    while not until.is_set():
        due += rng.expovariate(qps(loop.time() - began))
        await asyncio.sleep(max(0.0, due - loop.time()))
        await ask(run, app, number)
        number += 1


async def said(run: Running) -> list[tuple[float, Announce]]:
    """What workers told of their GPUs, and when."""
    records = [r for r in await run._control(run.topics.status) if r.value is not None and r.key != control.LEASE_KEY]
    told = [(r.timestamp, control.decode_announce(r.value)) for r in records if r.value is not None]
    return [(at, one) for at, one in told if one.subject.startswith("device:") and one.state in WORDS]


async def until_cut(run: Running) -> float:
    """When a GPU first served again after a cut."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await said(run)
            cut = {one.subject for _, one in found if one.state == "cutting"}
            ends = [at for at, one in found if one.state == "serving" and one.subject in cut]
            if ends:
                return ends[0]
            await asyncio.sleep(0.1)


def slow_catalogue(times: float) -> Catalogue:
    """The GPUs' example, everything ``times`` as slow and as patient: the same plans at a fraction of the queries."""
    example = load_catalogue(CATALOGUE)
    apps = [replace(a, slo=times * a.slo) for a in example.apps.values()]
    profiles = [slowed(p, p.device_type, times) for p in example.profiles.values()]
    return Catalogue.of(apps, example.variants.values(), profiles)


def surging(seconds: float) -> float:
    """Queries/s of the best-effort app: next to nothing, then more than whole GPUs can do beside the strict one."""
    return 2.0 + 34.0 * min(1.0, max(0.0, (seconds - 1.5) / 2.0))


async def test_demand_moves_and_gpus_are_cut_otherwise_while_strict_queries_keep_their_slo(tmp_path: Path) -> None:
    settings = gpu_settings(tmp_path, "a100x8")
    async with running(settings, MemoryBroker(), catalogue=slow_catalogue(2.5)) as run:
        await run.planned()
        stop = asyncio.Event()
        sending = [asyncio.create_task(offer(run, "vision", lambda seconds: min(28.0, 10.0 + 9.0 * seconds), stop))]
        sending.append(asyncio.create_task(offer(run, "bulk", surging, stop)))
        try:
            served = await until_cut(run)
            async with asyncio.timeout(PATIENCE_S):
                while not any(part != "7g.0" for part in await answering(run)):
                    await asyncio.sleep(0.2)
        finally:
            stop.set()
            await asyncio.gather(*sending)
        report = await run.settled()
        began = min(at for at, one in await said(run) if one.state == "draining")
        outcomes = list((await run.outcomes()).values())
        assert report.balanced
        assert (report.lost, report.duplicates) == (0, 0)
        assert on_time(outcomes, began, served + 1.0) >= 0.95
        assert all(o.slice == "7g.0" for o in outcomes if o.at < began and o.slice)


async def answering(run: Running) -> set[str | None]:
    """Slices that answered in time."""
    return {o.slice for o in (await run.outcomes()).values() if o.on_time}


def on_time(outcomes: list[Outcome], after: float, until: float) -> float:
    strict = [o for o in outcomes if o.query_class is QueryClass.STRICT and after <= o.arrival <= until]
    return sum(o.on_time for o in strict) / len(strict)


class Stuck(FakeLibrary):
    """Something else runs on every instance once it has been made."""

    def destroy_compute(self, gpu: int, instance: int, compute: int) -> None:
        raise DeviceError(Fault.IN_USE, f"a process runs on instance {instance} of GPU {gpu}")


async def seen(run: Running, ready: Callable[[DeviceSeen], bool]) -> DeviceSeen:
    """The first heartbeat of gpu0 from now on that is as awaited."""
    async with asyncio.timeout(PATIENCE_S):
        async for record in read_results(run.broker, [TopicPartition(run.topics.devices_metrics, 0)], follow=True):
            beat = control.decode_heartbeat(record.value or b"").seen
            if beat.device == "gpu0" and ready(beat):
                return beat
    raise AssertionError("a topic that is followed does not end")


async def publish(run: Running, number: int, beat: DeviceSeen, part: str, geometry: tuple[Slice, ...] = ()) -> None:
    """A plan with everything on ``part`` of gpu0, or nothing there where it is "" and to be cut."""
    placed = (Placement("gpu0", "vision", ("vision-base",), 1.0, 4, part),) if part else ()
    geometries = {"gpu0": geometry} if geometry else {}
    named = {"gpu0": beat.incarnation}
    plan = Plan(epoch=Epoch(1, number), created=0.0, placements=placed, geometries=geometries, incarnations=named)
    await (await run.producer.send(run.topics.plan, control.encode_plan(plan), key=b"plan"))


async def test_a_gpu_that_cannot_be_cut_says_why_and_serves_on_with_the_slices_it_has(tmp_path: Path) -> None:
    gpu = Gpu(Stuck("a100", 1), 0, name="gpu0", kind="a100")

    def given(system: System) -> None:
        system.gpus.gpu = lambda device: gpu if device.name == "gpu0" else None  # type: ignore[method-assign]

    options = {
        "catalogue": load_catalogue(CATALOGUE),
        "change": given,
        "roles": ("admission", "router", "worker", "sink"),
    }
    async with running(gpu_settings(tmp_path, "a100"), MemoryBroker(), **options) as run:  # type: ignore[arg-type]
        whole = await seen(run, lambda beat: bool(beat.slices))
        assert [s.name for s in whole.slices] == ["7g.0"]
        await publish(run, 1, whole, "7g.0")
        await run.planned()
        await ask(run, "vision", 0)
        await run.settled()
        await publish(run, 2, whole, "", HALVES)
        cut = await seen(run, lambda beat: beat.slices != whole.slices or bool(beat.fault))
        assert (cut.slices, cut.fault_epoch) == (whole.slices, Epoch(1, 2))
        assert "a process runs on instance" in cut.fault
        assert "drain the GPU first" in cut.fault
        await publish(run, 3, cut, "7g.0")
        await run.planned()
        for number in range(1, 6):
            await ask(run, "vision", number)
        report = await run.settled()
        outcomes = await run.outcomes()
        assert (report.balanced, report.lost, report.duplicates) == (True, 0, 0)
        assert {outcomes[f"vision-{n}"].slice for n in range(6)} == {"7g.0"}

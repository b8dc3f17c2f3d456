"""Poison on real executors: a registered model hangs, crashes or overfills its process on some inputs; it is stopped.

What one device carries is measured first, on the same machine, and more than that is asked of two.
"""

import asyncio
import os
import signal
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import OutcomeKind
from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.sluice.registration.register import register
from sluicegate.sluice.system.system import System
from sluicegate.streams import connect
from sluicegate.streams.records import codec
from tests.harness import Running, running, settings_for
from tests.integration.faults.test_poison_queries import goodput
from tests.models.registration_models import (
    CRASHES,
    FEATURES,
    HANGS,
    OVERFILLS,
    labelled_rows,
    perilous,
    request_of,
    write_model,
    write_rows,
)

pytestmark = [pytest.mark.timing, pytest.mark.thorough]
MORE = 1.13
"""Times what one device carries: asked of two."""
POISON = {"hang": HANGS, "crash": 2 * CRASHES, "memory": 2 * OVERFILLS, "stop": None}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, registered as any other; a row takes it some 10 ms."""
    folder = tmp_path_factory.mktemp("perilous")
    x, labels = labelled_rows(120)
    request = request_of(write_model(folder, perilous(1_200_000)), write_rows(folder, x=x, label=labels), slo=1.0)
    record = register(request, folder / "home").record
    assert any(c.served for c in record.candidates)
    return folder / "home"


@asynccontextmanager
async def serving(
    folder: Path, home: Path, devices: int
) -> AsyncIterator[tuple[Running, list[OnnxExecutor], "Counter[str]"]]:
    """Its system, its executors, and how often each was started again."""
    registered = Registered(home)
    catalogue = registered.catalogue()
    assert catalogue is not None
    executors: list[OnnxExecutor] = []
    starts: Counter[str] = Counter()

    def noted(system: System) -> None:
        make = system.make_executor

        def made(device: Device, part: Slice) -> OnnxExecutor:
            executor = make(device, part)
            assert isinstance(executor, OnnxExecutor)
            start = executor.start

            async def counted() -> None:
                starts[device.name] += executor.pid is None
                await start()

            executor.start = counted  # type: ignore[method-assign]
            executors.append(executor)
            return executor

        system.make_executor = made

    settings = settings_for("memory://", folder, devices=devices, home=home, worker={"executor": "onnx"}, partitions=1)
    async with running(
        settings, connect("memory://"), catalogue=catalogue, models=registered.folder, change=noted
    ) as run:
        await run.planned()
        starts.clear()
        yield run, executors, starts


async def ask(run: Running, *, poison: float | None = None, number: int = 0) -> str:
    rows = labelled_rows(1, seed=5)[0]
    if poison is not None:
        rows[0, 0], rows[0, 1] = poison, number
    query_id = uuid.uuid4().hex
    tensor = Tensor("x", "FP32", (1, FEATURES), rows.tobytes())
    told = {"latency_ms": 20_000} if poison is not None else {}
    message = codec.encode_query(query_id, (tensor,), app="mine", now=run.system.clock.wall(), parameters=told)
    await run.send("mine", message.value, key=message.key, headers=message.headers)
    return query_id


async def ask_for(run: Running, seconds: float, qps: float) -> list[str]:
    loop = asyncio.get_running_loop()
    asked, began = [], loop.time()
    while loop.time() < began + seconds:
        asked.append(await ask(run))
        await asyncio.sleep(max(0.0, began + len(asked) / qps - loop.time()))
    return asked


_ALONE: list[float] = []


async def carried_by_one(folder: Path, home: Path) -> float:
    """On-time answers a second of one device, asked for more; measured once."""
    if not _ALONE:
        async with serving(folder, home, 1) as (run, *_):
            points = max(run.system.known.profiles.values(), key=lambda p: len(p.points)).points
            most = max(point.batch / point.median for point in points)
            await ask_for(run, 5.0, 1.3 * most)
            began = run.system.clock.wall()
            await ask_for(run, 6.0, 1.3 * most)
            await run.settled()
            _ALONE.append(goodput((await run.outcomes()).values(), began, began + 5.0))
    return _ALONE[0]


@pytest.mark.parametrize("both", [False, True])
async def test_poison_leaves_what_the_other_device_carries_and_on_both_they_are_soon_back(
    tmp_path: Path, home: Path, measured: Callable[[str, str], None], both: bool
) -> None:
    """One kind after another on the same two devices: each is fully back before it meets the next."""
    alone = await carried_by_one(tmp_path / "alone", home)
    count, back = 4 if both else 1, 3.0 if both else 2.0
    async with serving(tmp_path, home, 2) as (run, executors, starts):
        innocent = await ask_for(run, 5.0, MORE * alone)
        guilty, began_at, ended = [], {}, {}
        for kind, poison in POISON.items():
            starts.clear()
            began_at[kind] = run.system.clock.wall()
            if poison is None:
                for executor in executors if both else executors[:1]:
                    assert executor.pid is not None
                    os.kill(executor.pid, signal.SIGSTOP)
            else:
                guilty += [await ask(run, poison=poison, number=number) for number in range(count)]
            innocent += await ask_for(run, 6.0, MORE * alone)
            ended[kind] = sum(starts.values())
        report = await run.settled()
        ended[kind] = sum(starts.values())  # of the last, until all is settled
        assert (report.lost, report.duplicates) == (0, 0)
        ends = await run.outcomes()
        innocents = [ends[one] for one in innocent]
        assert all(ends[one].kind is OutcomeKind.FAILED for one in guilty), [ends[one] for one in guilty]
        assert not any(o.kind is OutcomeKind.FAILED for o in innocents)
        for kind, began in began_at.items():
            told = [round(goodput(innocents, began + t / 2, began + t / 2 + 0.5) / alone, 2) for t in range(-4, 15)]
            usual = goodput(innocents, began - 3.0, began)
            assert usual >= 0.9 * alone, f"too busy: {usual:.0f} of {alone:.0f} a second before the poison ({kind})"
            after = goodput(innocents, began + back, began + back + 2.0) / alone
            shown = f"{after:.0%} of what one carries ({alone:.0f} a second) {back:g} s later"
            where = "both devices" if both else "one of two"
            measured(f"poison ({kind}) on {where}, ONNX", f"{shown}; {ended[kind]} executors ended")
            assert ended[kind] <= count, (kind, ended)
            assert after >= 0.9, (kind, told, ended)

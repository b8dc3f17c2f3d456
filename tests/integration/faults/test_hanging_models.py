"""A registered classifier that hangs on one input, a child that dies or stands still: innocents are answered."""

import asyncio
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import Outcome, OutcomeKind, Reason
from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.sluice.registration.register import register
from sluicegate.sluice.system.system import System
from sluicegate.streams import connect
from sluicegate.streams.records import codec
from tests.harness import PATIENCE, PATIENCE_S, Running, running, settings_for
from tests.models.registration_models import (
    FEATURES,
    HANGS,
    labelled_rows,
    looping,
    request_of,
    write_model,
    write_rows,
)

FLOOR = 1.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier that hangs on some inputs, registered as any other."""
    folder = tmp_path_factory.mktemp("hanging")
    request = request_of(write_model(folder, looping()), write_rows(folder), slo=2.0)
    record = register(request, folder / "home").record
    assert any(c.served for c in record.candidates)
    return folder / "home"


@asynccontextmanager
async def serving(url: str, folder: Path, home: Path) -> AsyncIterator[tuple[Running, list[OnnxExecutor]]]:
    """One device, so that innocents have no other to go to."""
    registered = Registered(home)
    catalogue = registered.catalogue()
    assert catalogue is not None
    executors: list[OnnxExecutor] = []

    def noted(system: System) -> None:
        make = system.make_executor

        def made(device: Device, part: Slice) -> OnnxExecutor:
            executor = make(device, part)
            assert isinstance(executor, OnnxExecutor)
            executors.append(executor)
            return executor

        system.make_executor = made

    settings = settings_for(
        url, folder, devices=1, home=home, worker={"executor": "onnx", "run_timeout_floor_s": FLOOR}
    )
    async with running(settings, connect(url), catalogue=catalogue, models=registered.folder, change=noted) as run:
        await run.planned()
        assert len(executors) == 1
        yield run, executors


async def ask(run: Running, *, most: float | None = None, **parameters: float) -> str:
    rows = labelled_rows(1, seed=5)[0]
    if most is not None:
        rows[0, 0] = most
    query_id = uuid.uuid4().hex
    tensor = Tensor("x", "FP32", (1, FEATURES), rows.tobytes())
    now = run.system.clock.wall()
    message = codec.encode_query(query_id, (tensor,), app="mine", now=now, parameters=parameters)
    await run.send("mine", message.value, key=message.key, headers=message.headers)
    return query_id


async def ended(run: Running, query_id: str) -> Outcome:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            outcome = (await run.outcomes()).get(query_id)
            if outcome is not None:
                return outcome
            await asyncio.sleep(0.05)


async def gone(executor: OnnxExecutor, pid: int) -> None:
    """It was noticed that the child is no more; another may be there already."""
    async with asyncio.timeout(PATIENCE_S):
        while executor.pid == pid:
            await asyncio.sleep(0.001)


async def another(executor: OnnxExecutor, pid: int) -> None:
    """Another child serves."""
    async with asyncio.timeout(PATIENCE_S):
        while executor.pid in (None, pid):
            await asyncio.sleep(0.02)


async def test_an_input_that_hangs_the_model_fails_alone_and_soon(broker_url: str, tmp_path: Path, home: Path) -> None:
    async with serving(broker_url, tmp_path, home) as (run, (executor,)):
        assert (await ended(run, await ask(run))).kind is OutcomeKind.ANSWERED
        pid = executor.pid
        assert pid is not None
        culprit = await ask(run, most=HANGS)
        outcome = await ended(run, culprit)
        assert outcome.kind is OutcomeKind.FAILED
        assert "run took more than" in (outcome.detail or "")
        assert outcome.reason == Reason.EXECUTOR_KILLED
        assert outcome.batch_s < 5 * FLOOR  # a minute before
        await another(executor, pid)
        innocents = []
        for _ in range(40):
            innocents.append(await ask(run))
            await asyncio.sleep(0.02)
        report = await run.settled()
        assert report.lost == 0, report.examples
        outcomes = await run.outcomes()
        kinds = [outcomes[i].kind for i in innocents]
        assert kinds == [OutcomeKind.ANSWERED] * len(innocents)


async def test_innocents_of_a_batch_with_an_input_that_hangs_are_run_again_or_expire(
    broker_url: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(broker_url, tmp_path, home) as (run, (executor,)):
        await ended(run, await ask(run))
        starts: list[None] = []
        start = executor.start

        async def counted() -> None:
            starts.append(None)
            await start()

        monkeypatch.setattr(executor, "start", counted)
        asked = [await ask(run, most=HANGS if i == 7 else None) for i in range(15)]
        report = await run.settled()
        assert report.lost == 0, report.examples
        outcomes = await run.outcomes()
        assert outcomes[asked[7]].kind in (OutcomeKind.FAILED, OutcomeKind.EXPIRED)
        innocent = {outcomes[i].kind for i in asked if i != asked[7]}
        assert innocent <= {OutcomeKind.ANSWERED, OutcomeKind.EXPIRED}
        again = await ended(run, await ask(run, most=HANGS))
        assert (again.kind, again.reason) == (OutcomeKind.FAILED, Reason.EXECUTOR_KILLED)
        assert (await ended(run, await ask(run))).kind is OutcomeKind.ANSWERED
        # Once with its batch. Where it expired before it was found, it ended another when it came again.
        assert len(starts) == (1 if outcomes[asked[7]].kind is OutcomeKind.FAILED else 2)


async def test_a_child_that_dies_idle_is_there_again_before_the_next_query(
    broker_url: str, tmp_path: Path, home: Path, measured: Callable[[str, str], None]
) -> None:
    async with serving(broker_url, tmp_path, home) as (run, (executor,)):
        await ended(run, await ask(run))
        pid = executor.pid
        assert pid is not None
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        await gone(executor, pid)
        noticed = time.monotonic() - began
        await another(executor, pid)  # nobody has asked anything
        outcome = await ended(run, await ask(run))
        told = f"noticed after {noticed:.2f} s, the next query answered {time.monotonic() - began:.2f} s after it"
        measured(f"an idle executor is killed, {broker_url.partition(':')[0]}", told)
        assert outcome.kind is OutcomeKind.ANSWERED, outcome.detail
        report = await run.settled()
        assert report.balanced


async def test_queries_that_come_while_a_dead_child_is_started_again_wait_for_it(
    broker_url: str, tmp_path: Path, home: Path
) -> None:
    async with serving(broker_url, tmp_path, home) as (run, (executor,)):
        await ended(run, await ask(run))
        pid = executor.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await gone(executor, pid)
        asked = [await ask(run) for _ in range(5)]
        await run.settled()
        outcomes = await run.outcomes()
        assert {outcomes[i].kind for i in asked} <= {OutcomeKind.ANSWERED, OutcomeKind.EXPIRED}


async def test_a_child_that_is_stopped_while_idle_is_replaced_before_anybody_asks(
    broker_url: str, tmp_path: Path, home: Path, measured: Callable[[str, str], None]
) -> None:
    async with serving(broker_url, tmp_path, home) as (run, (executor,)):
        await ended(run, await ask(run))
        pid = executor.pid
        assert pid is not None
        began = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        await gone(executor, pid)
        noticed = time.monotonic() - began
        await another(executor, pid)
        assert (await ended(run, await ask(run))).kind is OutcomeKind.ANSWERED
        told = f"noticed after {noticed:.2f} s, the next query answered {time.monotonic() - began:.2f} s after it"
        measured(f"an idle executor is stopped, {broker_url.partition(':')[0]}", told)


async def test_a_child_that_stands_still_is_replaced_and_what_it_ran_is_run_again(
    broker_url: str, tmp_path: Path, home: Path
) -> None:
    async with serving(broker_url, tmp_path, home) as (run, (executor,)):
        await ended(run, await ask(run))
        pid = executor.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        outcome = await ended(run, await ask(run, latency_ms=PATIENCE))
        assert outcome.kind is OutcomeKind.ANSWERED, outcome  # it had no part in it
        await another(executor, pid)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert (await ended(run, await ask(run))).kind is OutcomeKind.ANSWERED

"""Two executors on one CPU worker, live: both serve, one that is killed is started again alone, nothing is lost."""

import asyncio
import os
import signal
import time
import uuid
from pathlib import Path

import pytest

from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import OutcomeKind
from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
from sluicegate.policies.serving.device_events import DeviceEvent
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.sluice.registration.register import register
from sluicegate.sluice.system.roles.worker import device_core
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime.decision_log import replay
from sluicegate.streams import connect
from sluicegate.streams.records import codec
from tests.harness import PATIENCE_S, Running, running, settings_for
from tests.models.registration_models import FEATURES, labelled_rows, looping, request_of, write_model, write_rows


async def ask(run: Running) -> str:
    query_id = uuid.uuid4().hex
    tensor = Tensor("x", "FP32", (1, FEATURES), labelled_rows(1, seed=5)[0].tobytes())
    message = codec.encode_query(query_id, (tensor,), app="mine", now=run.system.clock.wall())
    await run.send("mine", message.value, key=message.key, headers=message.headers)
    return query_id


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    register(request_of(write_model(folder, looping()), write_rows(folder), slo=20.0), folder / "home")
    return folder / "home"


def dead(pid: int) -> None:
    """Until the process has ended, and nobody here has noticed."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.001)


async def test_each_is_started_again_alone_and_the_run_replays(tmp_path: Path, home: Path) -> None:
    registered = Registered(home)
    catalogue = registered.catalogue()
    assert catalogue is not None
    executors: list[OnnxExecutor] = []
    ran: list[int] = []

    def noted(system: System) -> None:
        make = system.make_executor

        def made(device: Device, part: Slice) -> OnnxExecutor:
            executor = make(device, part)
            assert isinstance(executor, OnnxExecutor)
            number, run = len(executors), executor.run

            async def counted(*given: object, **more: object) -> object:
                ran.append(number)
                return await run(*given, **more)  # type: ignore[arg-type]

            executor.run = counted  # type: ignore[method-assign, assignment]
            executors.append(executor)
            return executor

        system.make_executor = made

    worker = {"executor": "onnx", "batching": "eager", "slices": {"executors": {"cpu": 2}}}
    settings = settings_for("memory://", tmp_path, devices=1, home=home, worker=worker, record=True)
    async with running(
        settings, connect("memory://"), catalogue=catalogue, models=registered.folder, change=noted
    ) as run:
        await run.planned()
        first, second = executors
        asked = [await ask(run) for _ in range(20)]
        await run.settled()
        assert set(ran) == {0, 1}
        pids = (first.pid, second.pid)
        assert None not in pids and pids[0] != pids[1]
        os.kill(pids[0] or 0, signal.SIGKILL)
        dead(pids[0] or 0)  # a query that it still took would be held to have ended it
        asked += [await ask(run) for _ in range(20)]
        async with asyncio.timeout(PATIENCE_S):
            while first.pid in (None, pids[0]):
                await asyncio.sleep(0.02)
        asked += [await ask(run) for _ in range(20)]
        report = await run.settled()
        assert report.lost == report.duplicates == 0, report.examples
        outcomes = await run.outcomes()
        assert [outcomes[one].kind for one in asked] == [OutcomeKind.ANSWERED] * 60
        assert second.pid == pids[1]
        system = run.system
    (log,) = system.run_folder.glob("decisions/worker-d0.jsonl")
    assert replay(log, device_core(system, system.devices[0]).handle, DeviceEvent) == []

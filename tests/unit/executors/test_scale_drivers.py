"""Drivers of workers: real child processes, the command that compose is given, tasks of this process."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.executors.drivers.worker_drivers import ComposeWorkers, WorkerDriver, WorkerProcesses, WorkerTasks
from tests.harness import PATIENCE_S

SLEEPER = (sys.executable, "-c", "import time; time.sleep(60)")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until_dead(driver: WorkerDriver, device: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while device in driver.running():
            await asyncio.sleep(0.01)


async def test_processes_are_started_once_stopped_and_started_anew_where_they_died(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = f"import os, time; print(os.getpid(), file=open({str(pids)!r}, 'a'), flush=True); time.sleep(60)"
    workers = WorkerProcesses(lambda _: (sys.executable, "-c", code), grace=5.0)
    try:
        await workers.start("cpu1")
        await workers.start("cpu1")
        assert workers.running() == {"cpu1"}
        async with asyncio.timeout(PATIENCE_S):
            while not pids.exists() or not pids.read_text().strip():
                await asyncio.sleep(0.01)
        os.kill(int(pids.read_text()), signal.SIGKILL)
        await until_dead(workers, "cpu1")
        await workers.start("cpu1")
        assert workers.running() == {"cpu1"}
        await workers.stop("cpu1")
        await workers.stop("cpu1")
        assert not workers.running()
    finally:
        await workers.close()


async def test_a_worker_that_ignores_the_request_is_killed_after_its_grace(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    )
    workers = WorkerProcesses(lambda _: (sys.executable, "-c", code), grace=0.2)
    await workers.start("gpu0")
    async with asyncio.timeout(PATIENCE_S):
        while not ready.exists():
            await asyncio.sleep(0.01)
    await asyncio.wait_for(workers.close(), 20.0)
    assert not workers.running()


async def test_a_worker_whose_stop_was_given_up_is_ended_when_the_driver_closes(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    )
    workers = WorkerProcesses(lambda _: (sys.executable, "-c", code), grace=0.5)
    await workers.start("gpu0")
    async with asyncio.timeout(PATIENCE_S):
        while not ready.exists():
            await asyncio.sleep(0.01)
    stopping = asyncio.create_task(workers.stop("gpu0"))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert workers.running() == {"gpu0"}
    await asyncio.wait_for(workers.close(), 20.0)
    assert not workers.running()


async def test_a_worker_in_whose_place_another_runs_already_does_not_outlive_a_stop_that_was_given_up(
    tmp_path: Path,
) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"print(os.getpid(), file=open({str(pids)!r}, 'a'), flush=True); time.sleep(600)"
    )
    workers = WorkerProcesses(lambda _: (sys.executable, "-c", code), grace=0.5)
    await workers.start("gpu0")
    async with asyncio.timeout(PATIENCE_S):
        while not pids.exists() or not pids.read_text().strip():
            await asyncio.sleep(0.01)
    first = int(pids.read_text())
    stopping = asyncio.create_task(workers.stop("gpu0"))
    await asyncio.sleep(0)
    await workers.start("gpu0")
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    async with asyncio.timeout(PATIENCE_S):
        while alive(first):
            await asyncio.sleep(0.01)
    assert workers.running() == {"gpu0"}
    await asyncio.wait_for(workers.close(), 20.0)


async def test_a_program_that_is_not_there_is_one_clear_error() -> None:
    with pytest.raises(ConfigurationError, match="worker of cpu1 cannot be started: /no/such"):
        await WorkerProcesses(lambda _: ("/no/such",)).start("cpu1")


async def test_compose_is_told_to_scale_the_service_of_the_device_alone() -> None:
    said: list[tuple[str, ...]] = []

    async def run(command: Sequence[str]) -> int:
        said.append(tuple(command))
        return int("worker-bad=1" in command)

    compose = ComposeWorkers(Path("compose.yml"), run=run)
    await compose.start("cpu2")
    assert compose.running() == {"cpu2"}
    await compose.stop("cpu2")
    up = ("docker", "compose", "-f", "compose.yml", "up", "-d", "--no-recreate", "--no-deps", "--scale")
    assert said == [(*up, "worker-cpu2=1", "worker-cpu2"), (*up, "worker-cpu2=0", "worker-cpu2")]
    with pytest.raises(ConfigurationError, match="ended with 1"):
        await compose.start("bad")
    assert not compose.running()


async def test_no_docker_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigurationError, match="install Docker"):
        await ComposeWorkers(Path("compose.yml")).start("cpu2")


async def test_a_task_that_failed_is_started_anew_and_what_it_failed_with_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    starts: list[str] = []

    async def serve(device: str, stop: asyncio.Event) -> None:
        starts.append(device)
        if len(starts) == 1:
            raise RuntimeError("out of memory")
        await stop.wait()

    tasks = WorkerTasks(serve)
    await tasks.start("cpu1")
    await until_dead(tasks, "cpu1")
    await tasks.start("cpu1")
    assert tasks.running() == {"cpu1"}
    assert "worker of cpu1 failed and is started anew: out of memory" in caplog.text
    await tasks.close()
    assert starts == ["cpu1", "cpu1"]


async def test_tasks_end_when_they_are_stopped_and_tell_what_they_failed_with() -> None:
    ended: list[str] = []

    async def serve(device: str, stop: asyncio.Event) -> None:
        if device == "broken":
            raise ConfigurationError("broken")
        await stop.wait()
        ended.append(device)

    tasks = WorkerTasks(serve)
    await tasks.start("cpu1")
    await tasks.start("cpu2")
    await tasks.stop("cpu1")
    assert ended == ["cpu1"] and tasks.running() == {"cpu2"}
    await tasks.start("broken")
    await until_dead(tasks, "broken")
    with pytest.raises(ConfigurationError, match="broken"):
        await tasks.stop("broken")
    await tasks.close()
    assert ended == ["cpu1", "cpu2"] and not tasks.running()


@pytest.mark.parametrize("name", ["", "-x", "a b", "../x", "x" * 65, "a=1", "a.b"])
async def test_hostile_names_reach_no_command(name: str) -> None:
    async def run(command: Sequence[str]) -> int:
        raise AssertionError(command)

    async def serve(device: str, stop: asyncio.Event) -> None:
        raise AssertionError(device)

    drivers: tuple[WorkerDriver, ...] = (
        WorkerProcesses(lambda _: SLEEPER),
        ComposeWorkers(Path("x"), run=run),
        WorkerTasks(serve),
    )
    for driver in drivers:
        with pytest.raises(InvalidInputError, match="device"):
            await driver.start(name)

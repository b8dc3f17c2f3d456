"""Scaling drivers: real child processes, and the command that compose is given."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from domain.errors import ConfigurationError, InvalidInputError
from executors.providers.scale import ComposeScale, LocalProcesses


async def spawn(app: str, number: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)")


async def test_processes_are_started_stopped_and_replaced() -> None:
    workers = LocalProcesses(spawn, grace=5.0)
    try:
        await workers.scale_to("digits", 2)
        assert workers.count("digits") == 2
        workers._running["digits"][0].kill()
        await workers._running["digits"][0].wait()
        assert workers.count("digits") == 1
        await workers.scale_to("digits", 3)
        assert workers.count("digits") == 3
        await workers.scale_to("digits", 1)
        assert workers.count("digits") == 1
    finally:
        await workers.close()
    assert workers.count("digits") == 0


async def test_a_worker_that_ignores_the_request_is_killed_after_its_grace() -> None:
    async def stubborn(app: str, number: int) -> asyncio.subprocess.Process:
        code = (
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
        )
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        await process.stdout.readline()
        return process

    workers = LocalProcesses(stubborn, grace=0.2)
    await workers.scale_to("digits", 1)
    await asyncio.wait_for(workers.close(), 10.0)
    assert workers.count("digits") == 0


async def test_compose_is_told_the_number() -> None:
    said: list[tuple[str, ...]] = []

    async def run(command: Sequence[str]) -> int:
        said.append(tuple(command))
        return 0 if "worker=3" in command else 1

    compose = ComposeScale(Path("compose.yml"), {"digits": "worker"}, run)
    await compose.scale_to("digits", 3)
    assert said[0][:4] == ("docker", "compose", "-f", "compose.yml")
    assert said[0][-3:] == ("--scale", "worker=3", "worker")
    with pytest.raises(ConfigurationError, match="ended with 1"):
        await compose.scale_to("digits", 4)
    with pytest.raises(ConfigurationError, match="no compose service"):
        await compose.scale_to("words", 1)
    for app, count in (("--evil", 1), ("digits", -1), ("digits", 10**9)):
        with pytest.raises(InvalidInputError):
            await compose.scale_to(app, count)

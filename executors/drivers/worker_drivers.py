"""Starting and ending the workers of devices: child processes, compose services, or tasks of this process.

Rules:
- ``start`` and ``stop`` are idempotent: one worker a device, and none where none runs.
- A worker is asked to end (it drains) and is given ``grace`` seconds; only then is it killed.
- ``running`` names the devices whose worker runs as far as the driver knows; one that died is not among them.
- Compose is told ``--scale <service>=1`` or ``=0``, one service a device, and leaves every other container as it is.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from sluicegate.domain.errors import ConfigurationError, InvalidInputError

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
Command = Callable[[str], Sequence[str]]
"""The command line of a device's worker."""
Run = Callable[[Sequence[str]], Awaitable[int]]
"""Runs a command to its end: its exit status."""
Serve = Callable[[str, asyncio.Event], Coroutine[Any, Any, None]]
"""Is the worker of a device, until the event is set and what it holds is finished."""


class WorkerDriver(Protocol):
    """Workers by device name. Calls may take as long as a worker drains: nothing on the query path waits for them."""

    def running(self) -> frozenset[str]:
        """Devices whose worker runs."""
        ...

    async def start(self, device: str) -> None:
        """Have a worker of ``device``. Raises ConfigurationError, InvalidInputError."""
        ...

    async def stop(self, device: str) -> None:
        """End the worker of ``device``: returns once it has ended. Raises ConfigurationError, InvalidInputError."""
        ...

    async def close(self) -> None:
        """End all workers that this driver started."""
        ...


class WorkerProcesses:
    """Implements WorkerDriver by child processes, for instance ``sluice up worker --device <device>``.

    ``environment``: theirs; None: ours.
    """

    def __init__(self, command: Command, *, grace: float = 30.0, environment: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._environment = environment
        self._grace = grace
        self._started: dict[str, asyncio.subprocess.Process] = {}

    def running(self) -> frozenset[str]:
        """Devices whose process has not ended."""
        return frozenset(name for name, process in self._started.items() if process.returncode is None)

    async def start(self, device: str) -> None:
        """Start its process, anew where it died."""
        _check(device)
        if device in self.running():
            return
        command = self._command(device)
        try:
            self._started[device] = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, env=self._environment
            )
        except OSError as error:
            raise ConfigurationError(f"worker of {device} cannot be started: {command[0]}: {error.strerror}") from error

    async def stop(self, device: str) -> None:
        """Ask it to end, kill it once its grace is over."""
        _check(device)
        process = self._started.pop(device, None)
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self._grace)
        except TimeoutError:
            process.kill()
            await process.wait()
        except asyncio.CancelledError:
            if self._started.setdefault(device, process) is not process:  # else ``close`` sees to it
                process.kill()
            raise

    async def close(self) -> None:
        """End all of them, at the same time, those that ``stop`` was not left the time for, too."""
        await asyncio.gather(*(self.stop(device) for device in tuple(self._started)))


class ComposeWorkers:
    """Implements WorkerDriver by ``docker compose up --scale``, one service a device.

    ``service``: its name by device; the default is that of compose/docker-compose.yml. ``run``: what runs commands; a
    dry run hands in one that writes them down.
    """

    def __init__(
        self, file: Path, *, service: Callable[[str], str] = "worker-{}".format, run: Run | None = None
    ) -> None:
        self._file = file
        self._service = service
        self._run = run or run_command
        self._started: set[str] = set()

    def running(self) -> frozenset[str]:
        """Devices that were started and not stopped: compose restarts what dies."""
        return frozenset(self._started)

    def command(self, device: str, replicas: int) -> tuple[str, ...]:
        """What compose is told. Raises InvalidInputError."""
        _check(device)
        service = self._service(device)
        file = ("docker", "compose", "-f", str(self._file))
        return (*file, "up", "-d", "--no-recreate", "--no-deps", "--scale", f"{service}={replicas}", service)

    async def start(self, device: str) -> None:
        """One replica of its service."""
        await self._tell(device, 1)
        self._started.add(device)

    async def stop(self, device: str) -> None:
        """None of it."""
        await self._tell(device, 0)
        self._started.discard(device)

    async def close(self) -> None:
        """The containers go on by themselves: compose owns them."""

    async def _tell(self, device: str, replicas: int) -> None:
        command = self.command(device, replicas)
        try:
            status = await self._run(command)
        except OSError as error:
            raise ConfigurationError(f"docker compose cannot be run: {error.strerror}; install Docker") from error
        if status:
            raise ConfigurationError(f"docker compose ended with {status}: {' '.join(command)}")


class WorkerTasks:
    """Implements WorkerDriver by tasks of this process: what ``serve`` does is the worker."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._started: dict[str, tuple[asyncio.Event, asyncio.Task[None]]] = {}

    def running(self) -> frozenset[str]:
        """Devices whose task has not ended."""
        return frozenset(name for name, (_, task) in self._started.items() if not task.done())

    async def start(self, device: str) -> None:
        """Begin its task, anew where it failed."""
        _check(device)
        if device in self.running():
            return
        _, ended = self._started.pop(device, (None, None))
        if ended is not None and not ended.cancelled() and (error := ended.exception()) is not None:
            log.error("worker of %s failed and is started anew: %s", device, error, exc_info=error)
        stop = asyncio.Event()
        self._started[device] = (stop, asyncio.create_task(self._serve(device, stop)))

    async def stop(self, device: str) -> None:
        """Set its event and wait. Raises what it failed with."""
        _check(device)
        stop, task = self._started.pop(device, (None, None))
        if stop is not None and task is not None:
            stop.set()
            await task

    async def close(self) -> None:
        """End all of them; where waiting is cancelled so are they."""
        started, self._started = self._started, {}
        for stop, _ in started.values():
            stop.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*(task for _, task in started.values()), return_exceptions=True)


async def note_command(command: Sequence[str]) -> int:
    """A dry run: what would be run is logged, and goes well."""
    log.warning("dry run: %s", " ".join(command))
    return 0


async def run_command(command: Sequence[str]) -> int:
    """Run a command to its end: its exit status. Raises OSError where there is no such program."""
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
    return await process.wait()


def _check(device: str) -> None:
    if _NAME.fullmatch(device) is None:
        raise InvalidInputError("device", f"{device[:70]!r} is no name of 1 to 64 letters, digits, '_' and '-'")

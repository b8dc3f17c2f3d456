"""Having as many worker containers as the autoscaler says: local processes, or docker compose.

Rules:
- ``scale_to`` is idempotent: it compares with what runs and starts or stops the difference, the newest first.
- A process is asked to end (it drains) and is given time; only then is it killed.
- Compose is told the number and leaves running containers as they are.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from domain.errors import ConfigurationError, InvalidInputError

MAX_CONTAINERS = 10_000
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")
Spawn = Callable[[str, int], Awaitable[asyncio.subprocess.Process]]
"""Starts worker ``number`` of an app."""
Run = Callable[[Sequence[str]], Awaitable[int]]
"""Runs a command to its end: its exit status."""


class Scaler(Protocol):
    """Has ``containers`` workers of ``app``."""

    async def scale_to(self, app: str, containers: int) -> None:
        """Raises ConfigurationError where that cannot be done."""
        ...


class LocalProcesses:
    """Workers as child processes. ``grace``: seconds that one has to drain."""

    def __init__(self, spawn: Spawn, *, grace: float = 30.0) -> None:
        self._spawn = spawn
        self._grace = grace
        self._running: dict[str, list[asyncio.subprocess.Process]] = {}

    def count(self, app: str) -> int:
        """Workers of ``app`` that run."""
        return sum(p.returncode is None for p in self._running.get(app, ()))

    async def scale_to(self, app: str, containers: int) -> None:
        """Start or stop the difference; dead ones are replaced."""
        _check(app, containers)
        alive = [p for p in self._running.get(app, ()) if p.returncode is None]
        self._running[app] = alive
        while len(alive) < containers:
            try:
                alive.append(await self._spawn(app, len(alive)))
            except OSError as error:
                raise ConfigurationError(f"worker of {app} cannot be started: {error}") from error
        surplus = alive[containers:]
        del alive[containers:]
        await asyncio.gather(*(self._end(process) for process in reversed(surplus)))

    async def close(self) -> None:
        """End all of them."""
        for app in tuple(self._running):
            await self.scale_to(app, 0)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self._grace)
        except TimeoutError:
            process.kill()
            await process.wait()


class ComposeScale:
    """Workers as replicas of a compose service. ``service``: its name by app."""

    def __init__(self, file: Path, services: dict[str, str], run: Run | None = None) -> None:
        for service in services.values():
            _check(service, 0)
        self._file = file
        self._services = dict(services)
        self._run = run or _run

    async def scale_to(self, app: str, containers: int) -> None:
        """``docker compose up --scale``."""
        _check(app, containers)
        service = self._services.get(app)
        if service is None:
            raise ConfigurationError(f"no compose service is known for {app}; there are {', '.join(self._services)}")
        command = ("docker", "compose", "-f", str(self._file), "up", "-d", "--no-recreate", "--no-deps")
        try:
            status = await self._run((*command, "--scale", f"{service}={containers}", service))
        except OSError as error:
            raise ConfigurationError(f"docker compose cannot be run: {error}; install Docker") from error
        if status:
            raise ConfigurationError(f"docker compose ended with {status} when scaling {service} to {containers}")


def _check(name: str, containers: int) -> None:
    if _NAME.match(name) is None:
        raise InvalidInputError("app", f"{name[:40]!r} is not a name of letters, digits, '.', '_' and '-'")
    if not 0 <= containers <= MAX_CONTAINERS:
        raise InvalidInputError("containers", f"{containers} is not within 0..{MAX_CONTAINERS}")


async def _run(command: Sequence[str]) -> int:
    process = await asyncio.create_subprocess_exec(*command)
    return await process.wait()

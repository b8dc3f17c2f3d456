"""A process of the system: stages as they are, with a clock, a connection and executors that can be broken."""

import asyncio
import contextvars
import errno
import logging
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from random import Random

from typing_extensions import Buffer, override

from sluicegate.domain.errors import ExecutionError, LoadError
from sluicegate.domain.executor import Executed, Loaded
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.models.variant import Variant
from sluicegate.executors.emulated import EmulatedExecutor
from sluicegate.sluice.settings.settings import Settings
from sluicegate.sluice.system.process_stages import stages_of
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime import append_file
from sluicegate.stages.runtime.supervisor import run_stages
from tests.explore.clients import Connection
from tests.explore.cluster import Cluster, Link
from tests.explore.loop import BASE, HOST, Host, VirtualLoop
from tests.explore.shape import POISON, catalogue


class SteppedClock:
    """A process's clock: its wall clock may be set."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.skew = 0.0

    def wall(self) -> float:
        """Seconds since the epoch."""
        return BASE + self._loop.time() + self.skew

    def monotonic(self) -> float:
        """Seconds."""
        return self._loop.time()


class BreakableExecutor:
    """An emulated device whose process can die, idle or at work, hang for a while or for good, or refuse to load."""

    def __init__(self, inner: EmulatedExecutor) -> None:
        self._inner = inner
        self._on_end: Callable[[], None] = lambda: None
        self._alive = False
        self.trouble = ""

    def watch(self, on_end: Callable[[], None]) -> None:
        """Whom to tell that it died."""
        self._on_end = on_end

    def die(self) -> None:
        """Its process ends by itself."""
        self._alive = False
        self._on_end()

    async def start(self) -> None:
        """A restart mends what died, and what hung."""
        await self._inner.start()
        self._alive = True
        if self.trouble == "hangs":
            self.trouble = ""

    async def load(self, variant: Variant, *, max_batch: int, within: float | None = None) -> Loaded:
        """Load, or fail."""
        del within
        self._check()
        if self.trouble == "refuses":
            raise LoadError(f"{variant.name}: refused")
        return await self._inner.load(variant, max_batch=max_batch)

    async def unload(self, variant: str) -> None:
        """Forget."""
        await self._inner.unload(variant)

    async def run(
        self,
        variant: str,
        inputs: Sequence[Sequence[Tensor]],
        rows: int,
        *,
        within: float | None = None,
        apart: bool = False,
    ) -> Executed:
        """Run, if it lives; what hangs is ended with its process."""
        self._check()
        if max(struct.unpack_from("<f", tensors[0].data)[0] for tensors in inputs) >= POISON:
            await asyncio.sleep(0.002)
            if not apart:
                self.die()
            raise ExecutionError("the input ended it", fatal=not apart, apart=apart)
        begun = asyncio.get_running_loop().time()
        while self.trouble == "hangs":
            await asyncio.sleep(0.05)
            if within is not None and asyncio.get_running_loop().time() - begun > within:
                self.die()
                raise ExecutionError("the batch took too long", fatal=True)
        executed = await self._inner.run(variant, inputs, rows)
        self._check()
        return executed

    async def close(self) -> None:
        """End."""
        self._alive = False
        await self._inner.close()

    def _check(self) -> None:
        if not self._alive:
            raise ExecutionError("the executor died", fatal=True)


class Process(Host):
    """A process that runs some roles. Killed, another can be started in its place."""

    def __init__(
        self,
        name: str,
        roles: tuple[str, ...],
        *,
        devices: tuple[str, ...],
        cluster: Cluster,
        settings: Settings,
        folder: Path,
        rng: Random,
    ) -> None:
        super().__init__()
        self.name = name
        self.roles = roles
        self.devices = devices
        self._cluster = cluster
        self._settings = settings
        self._folder = folder
        self._rng = rng
        self.clock = SteppedClock(cluster.loop)
        self.link = Link(cluster, name)
        self.executors: list[BreakableExecutor] = []
        self.stop = asyncio.Event()
        self.slow_disk = 0.0
        self.full_disk = False
        self.task: asyncio.Task[None] = contextvars.Context().run(self._started)

    def kill(self) -> None:
        """Nothing of it runs any more, from the next callback on."""
        self.dead = True
        self.link.break_off()

    def _started(self) -> "asyncio.Task[None]":
        HOST.set(self)
        return self._cluster.loop.create_task(self._main())

    async def _main(self) -> None:
        broker = Connection(self.link)
        producer = broker.producer()
        await producer.start()
        self._folder.mkdir()
        system = System(self._settings, catalogue(), Path(), broker, producer, self._folder)  # type: ignore[arg-type]
        system.clock = self.clock  # type: ignore[assignment]
        system.make_executor = self._executor
        await system.create_topics()
        await run_stages(stages_of(system, self.roles, devices=self.devices), self.stop)
        system.close()
        await producer.stop()

    def _executor(self, device: Device, *_: object) -> BreakableExecutor:
        emulated = EmulatedExecutor(
            catalogue(),
            device.type,
            jitter=True,
            seed=self._rng.getrandbits(32),
        )
        executor = BreakableExecutor(emulated)
        self.executors.append(executor)
        return executor


class _File(FileIO):
    """A file on the disk of whoever writes to it."""

    @override
    def write(self, data: Buffer, /) -> int:
        """Raises OSError where that is full, with a part of it written."""
        host = HOST.get()
        if isinstance(host, Process) and host.full_disk:
            super().write(memoryview(data)[:7])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


@contextmanager
def disks() -> Iterator[None]:
    """What stages append to lies on disks that can be full."""
    held, append_file.FileIO = append_file.FileIO, _File  # type: ignore[misc]
    try:
        yield
    finally:
        append_file.FileIO = held  # type: ignore[misc]


class Story(logging.Handler):
    """What the stages log, handed on with the name of its process. ``wrong``: errors that should never be met."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note
        self.wrong: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Hand it on."""
        host = HOST.get()
        name = host.name if isinstance(host, Process) else "-"
        told = f"[{name}] {record.levelname} {record.getMessage()[:300]}"
        if record.exc_info and record.exc_info[1] is not None:
            told += f": {record.exc_info[1]!r:.300}"
            if record.levelno >= logging.ERROR:
                self.wrong.append(told)
        self._note(told)

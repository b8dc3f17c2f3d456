"""A process that answers questions, kept alive beside a stage: its work holds nothing up, and what hangs can be ended.

Rules. Questions and answers go over pipes, each with its length before it; one is out at a time. A process that ends
or is stopped (SIGSTOP) is started again, and the question that it was at fails, as does one that waits for a process
that ends before it can be asked. It ends with its input, and with its parent even while it hangs. Signals of the
terminal are its parent's business.
"""

import asyncio
import os
import signal
import struct
import sys
from collections.abc import Callable

from sluicegate.domain.errors import SluiceError
from sluicegate.executors.linux_processes import die_with_parent, is_stopped

LENGTH = struct.Struct(">I")
_HELLO = b"!"
_NICE = 2
_LOOKS = 0.3
"""Seconds between looks at the process: stopped at two of them, it is ended."""
_LIVES = 1.0
"""Seconds between two starts, at least."""


class AskedProcess:
    """The process ``python -m MODULE``, which calls ``answer_questions``. ``on_end`` is told when it ended unasked."""

    def __init__(self, module: str, on_end: Callable[[str], None]) -> None:
        self._module = module
        self._on_end = on_end
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._ready = False
        self._has_begun = False
        """Whether the process that there is, or was last, could be asked."""
        self._given_up = False
        """Whether it was ended because whoever asked did not want to know any more."""
        self._awaited: asyncio.Future[None] | None = None
        self._turn = asyncio.Lock()

    @property
    def ready(self) -> bool:
        """Whether it can be asked now; its imports take a second."""
        return self._ready

    @property
    def pid(self) -> int | None:
        """Process id, None while there is none."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def start(self) -> None:
        """Start it, and again whenever it ends, until ``close``."""
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    async def ask(self, request: bytes) -> bytes:
        """What it answers; it is started where it was not. Raises SluiceError where it ends, or cannot start, instead.

        Cancelled, it ends the process: half an answer may be under way.
        """
        self.start()
        async with self._turn:
            if not self._ready:
                self._awaited = asyncio.get_running_loop().create_future()
                await self._awaited
            process = self._process
            assert process is not None and process.stdin is not None and process.stdout is not None  # as asked for
            try:
                process.stdin.write(LENGTH.pack(len(request)) + request)
                await process.stdin.drain()
                (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
                return await process.stdout.readexactly(length)
            except asyncio.CancelledError:
                self._given_up = True
                self.kill()
                raise
            except (OSError, EOFError) as error:
                self.kill()
                raise SluiceError(f"{self._module}: the process ended ({type(error).__name__} {error})") from error

    def kill(self) -> None:
        """End the process that there is; another is started."""
        self._ready = False
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def close(self) -> None:
        """End it, for good."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            self._has_begun = self._given_up = False
            try:
                why = await self._one()
            except OSError as error:
                why = f"cannot be started ({error})"
            if not self._given_up:
                self._on_end(why)
            if not self._has_begun and self._awaited is not None and not self._awaited.done():
                self._awaited.set_exception(SluiceError(f"{self._module}: the process {why}, and could not be asked"))
            await asyncio.sleep(max(0.0, began + _LIVES - loop.time()))

    async def _one(self) -> str:
        """One process, from its start to its end: how it ended."""
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            self._module,
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None and process.stdout is not None  # pipes, as asked for
        try:
            if await process.stdout.read(len(_HELLO)):
                self._ready = self._has_begun = True
                if self._awaited is not None and not self._awaited.done():
                    self._awaited.set_result(None)
            return await _end_of(process)
        finally:
            self._ready = False
            if process.returncode is None:
                process.kill()
            process.stdin.close()
            await process.wait()


async def _end_of(process: asyncio.subprocess.Process) -> str:
    ending = asyncio.ensure_future(process.wait())
    before = False
    try:
        while not (await asyncio.wait([ending], timeout=_LOOKS))[0]:
            stopped = is_stopped(process.pid)
            if stopped and before:
                return "stood still"
            before = stopped
    finally:
        ending.cancel()
    code = process.returncode or 0
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def answer_questions(answer: Callable[[bytes], bytes]) -> None:
    """The ``main`` of such a process: answer until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(int(sys.argv[1]))
    os.nice(_NICE)
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    sink.write(_HELLO)
    sink.flush()
    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        answered = answer(source.read(*LENGTH.unpack(head)))
        sink.write(LENGTH.pack(len(answered)) + answered)
        sink.flush()

"""Making selection tables beside the planner, in a process of its own."""

import asyncio
import contextlib
import sys

from sluicegate.domain.errors import SluiceError
from sluicegate.domain.table import SelectionTable
from sluicegate.planner.policy_tables.table_library import LibraryRules
from sluicegate.planner.policy_tables.table_schedule import Make
from sluicegate.stages.planner.table_process import LENGTH, decode_answer, encode_request


class TableMaker:
    """The process that makes tables, one question at a time, so that seconds of linear algebra hold nothing up.

    Started ahead, since its imports take a second, and again where it died.
    """

    def __init__(self, rules: LibraryRules) -> None:
        self._rules = rules
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Start it; where that fails, ``make`` tries again and says why."""
        with contextlib.suppress(OSError):
            async with self._turn:
                await self._started()

    async def make(self, make: Make) -> tuple[SelectionTable, ...]:
        """Raises SluiceError with what went wrong."""
        async with self._turn:
            return await self._made(make)

    async def _made(self, make: Make) -> tuple[SelectionTable, ...]:
        try:
            process = await self._started()
            assert process.stdin is not None and process.stdout is not None  # pipes, as asked for
            process.stdin.write(encode_request(make, self._rules))
            await process.stdin.drain()
            (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
            answer = await process.stdout.readexactly(length)
        except asyncio.CancelledError:
            await self.close()  # half an answer may be under way
            raise
        except (OSError, EOFError) as error:
            await self.close()
            raise SluiceError(f"the process that makes tables ended ({type(error).__name__} {error})") from error
        return decode_answer(answer)

    async def close(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        assert process.stdin is not None  # a pipe, as asked for
        process.stdin.close()
        await process.wait()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "sluicegate.stages.planner.table_process",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        return self._process

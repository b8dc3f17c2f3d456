"""Background tasks: whose failure fails the stage, and that end when they are to."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

from sluicegate.streams.ports import Consumer

log = logging.getLogger(__name__)

_ENDS = 0.5
"""Seconds that what is cancelled has to end."""
_STOPS = 2.0
"""Seconds that a client has to leave its broker."""


class BackgroundTasks:
    """Those of ``name`` that nobody awaits: what one fails of is logged, and told to ``failed``. They are cancelled in
    the order in which they began."""

    def __init__(self, name: str, failed: Callable[[BaseException], None] | None = None) -> None:
        self._name = name
        self._failed = failed
        self._tasks: dict[asyncio.Task[None], None] = {}

    def begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Do ``work``."""
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._over)
        return task

    def cancel(self) -> None:
        """End all."""
        for task in self._tasks:
            task.cancel()

    async def over(self) -> None:
        """Wait until all have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _over(self, task: "asyncio.Task[None]") -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("%s: %s", self._name, error, exc_info=error)
            if self._failed is not None:
                self._failed(error)


@asynccontextmanager
async def beside(work: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run ``work`` while the body runs, and end it with the body.

    What one of them raises ends the body at its next wait and is raised in its stead; one that returns is done.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def raise_failures(tasks: Iterable["asyncio.Task[None]"]) -> None:
    """What the first of these that failed has raised."""
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()


async def stands(reading: "asyncio.Task[None]", stepped: Callable[[], float], patience: float) -> bool:
    """Whether it took no step for twice ``patience`` seconds; False once it has ended. Raises what ended it.

    ``stepped``: when it took the last one, by the event loop's clock. It is looked at twice: after one look alone this
    process itself may have stood still. A look is a timer's call, and wakes no task.
    """
    loop = asyncio.get_running_loop()
    over: asyncio.Future[bool] = loop.create_future()
    seen, is_second = stepped(), False
    timer: asyncio.TimerHandle

    def tell(still: bool) -> None:
        if not over.done():
            over.set_result(still)

    def look() -> None:
        nonlocal seen, is_second, timer
        last = stepped()
        if last != seen:
            seen, is_second = last, False
            timer = loop.call_at(last + patience, look)
        elif is_second:
            tell(True)
        else:
            is_second = True
            timer = loop.call_later(patience, look)

    def has_ended(_: "asyncio.Task[None]") -> None:
        tell(False)

    timer = loop.call_later(patience, look)
    reading.add_done_callback(has_ended)
    try:
        if await over:
            return True
    finally:
        timer.cancel()
        reading.remove_done_callback(has_ended)
    reading.result()
    return False


async def ended(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel these and wait for them, but not for ever: what calls a client that hangs may not end."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_ENDS)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # told where it matters


async def stopped(consumer: Consumer, within: float = _STOPS) -> None:
    """Ended as far as it lets itself be."""
    stopping = asyncio.create_task(consumer.stop())
    await asyncio.wait([stopping], timeout=within)
    await ended([stopping])

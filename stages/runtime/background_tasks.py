"""Background tasks: whose failure fails the stage, and that end when they are to."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

from sluicegate.streams.ports import Consumer

_ENDS = 0.5
"""Seconds that what is cancelled has to end."""
_STOPS = 2.0
"""Seconds that a client has to leave its broker."""


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

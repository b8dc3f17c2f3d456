"""Background tasks whose failure fails the stage."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any


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

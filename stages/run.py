"""Running stages together: all start, one stop ends all, one crash ends all and is told."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

log = logging.getLogger(__name__)


class Stage(Protocol):
    """One process role. ``run`` returns once ``stop`` is set and what was begun is finished, within a bound."""

    @property
    def name(self) -> str:
        """For logs."""
        ...

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``."""
        ...


async def run_stages(stages: Sequence[Stage], stop: asyncio.Event) -> None:
    """Run all until ``stop``; where one fails, stop the others and raise its error.

    Stages are stopped in the order given, upstream first, so that what is in flight flows out.
    """
    stops = [asyncio.Event() for _ in stages]
    tasks = [asyncio.create_task(stage.run(s), name=stage.name) for stage, s in zip(stages, stops, strict=True)]
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
        for task, one in zip(tasks, stops, strict=True):
            one.set()
            await asyncio.wait([task], timeout=15.0)
        failures = [t for t in tasks if t.done() and not t.cancelled() and t.exception() is not None]
        for task in failures:
            log.error("stage %s failed: %s", task.get_name(), task.exception())
        if failures:
            await failures[0]
    finally:
        stopping.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(stopping, *tasks, return_exceptions=True)

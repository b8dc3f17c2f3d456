"""Running stages together: all start, one stop ends all, one that ends before ends all and is told."""

import asyncio
import logging
from collections.abc import Sequence
from itertools import groupby
from typing import Protocol

from sluicegate.domain.errors import SluiceError

log = logging.getLogger(__name__)

PATIENCE = 12.0
"""Seconds that one stage may take to end: it drains for 5, and its broker may be away, and a child hang."""
WITHIN = 14.0
"""Seconds that all of them may take."""
_LEAST = 1.0
"""Seconds that a stage has to end even when the others took all the time, and that a cancelled one has."""


class Stage(Protocol):
    """One process role. ``run`` returns once ``stop`` is set and what was begun is finished, within a bound."""

    @property
    def name(self) -> str:
        """For logs."""
        ...

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``."""
        ...


def ended_early(names: Sequence[str]) -> SluiceError:
    """What to tell of stages that returned before they were told to."""
    return SluiceError(f"stage {', '.join(names)} ended, though nothing told it to; start it again")


async def run_stages(stages: Sequence[Stage], stop: asyncio.Event) -> None:
    """Run all until ``stop``; where one fails, stop the others and raise its error, with its name as a note. One that
    returns before ``stop`` has failed too.

    Stages are stopped in the order given, upstream first, so that what is in flight flows out; neighbours of one kind
    together. Those that do not end in time are named, cancelled and left.
    """
    stops = [asyncio.Event() for _ in stages]
    tasks = [asyncio.create_task(stage.run(s), name=stage.name) for stage, s in zip(stages, stops, strict=True)]
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
        early = [] if stop.is_set() else [task.get_name() for task in tasks if task.done()]
        await _stop_all(stages, tasks, stops)
        ended = [t for t in tasks if t.done() and not t.cancelled()]
        failures = [(t.get_name(), error) for t in ended if (error := t.exception()) is not None]
        for name, error in failures[1:]:
            log.error("stage %s failed: %s", name, error)
        if failures:
            name, error = failures[0]
            error.add_note(f"(stage {name})")
            raise error
        if early:
            raise ended_early(early)
    finally:
        stopping.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.wait([stopping, *tasks], timeout=_LEAST)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()  # told above, or of no interest any more


async def _stop_all(
    stages: Sequence[Stage], tasks: Sequence["asyncio.Task[None]"], stops: Sequence[asyncio.Event]
) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + WITHIN
    all_of_them = zip(stages, tasks, stops, strict=True)
    for _, alike in groupby(all_of_them, key=lambda one: type(one[0])):
        ending = []
        for _, task, stop in alike:
            stop.set()
            ending.append(task)
        await asyncio.wait(ending, timeout=min(PATIENCE, max(_LEAST, end - loop.time())))
    late = [task.get_name() for task in tasks if not task.done()]
    if late:
        log.error("did not end in time, and are left: %s", ", ".join(late))

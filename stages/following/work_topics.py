"""Which devices have a work topic: a heartbeat or a plan that names any other was written by a stranger.

A worker's work topic is there before its first heartbeat, so that a name without one has no worker; what was put there
would be put nowhere.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from sluicegate.domain.clock import Clock
from sluicegate.domain.errors import InvalidInputError, SluiceError
from sluicegate.stages.runtime.background_tasks import BackgroundTasks
from sluicegate.streams.ports import Broker
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)

_EVERY = 1.0


class WorkTopics:
    """What is known of them; looked up again, at most once a second, where a device is asked for that has none."""

    def __init__(self, broker: Broker, topics: Topics, clock: Clock) -> None:
        self._broker = broker
        self._topics = topics
        self._clock = clock
        self._there: frozenset[str] = frozenset()
        self._looked = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._tasks = BackgroundTasks("work topics")

    def lacking(self, devices: Iterable[str]) -> tuple[str, ...]:
        """Those of ``devices`` that have none, as far as is known. Raises InvalidInputError for what names none."""
        return tuple(sorted(d for d in set(devices) if self._topics.work(d) not in self._there))

    def among(self, devices: Iterable[str]) -> tuple[str, ...]:
        """Those of ``devices`` that have one, as far as is known. What names no device has none."""
        return tuple(d for d in sorted(devices) if self._has(d))

    def _has(self, device: str) -> bool:
        try:
            return self._topics.work(device) in self._there
        except InvalidInputError:
            return False

    def devices(self) -> tuple[str, ...]:
        """Those that have one, as far as is known."""
        return tuple(sorted(d for topic in self._there if (d := self._topics.device_of(topic)) is not None))

    async def look(self) -> bool:
        """Look them up now. False: the broker is away, which leaves what was known."""
        self._looked = self._clock.monotonic()
        try:
            self._there = await self._broker.admin().topics()
        except SluiceError as error:
            log.warning("work topics cannot be looked up (%s)", error)
            return False
        return True

    async def gone(self, device: str) -> bool:
        """Whether the broker says, now, that ``device`` has none."""
        return await self.look() and not self._has(device)

    def look_soon(self, then: Callable[[], None] = lambda: None) -> None:
        """Look them up beside what is done now, and call ``then``; calls close together are one look, of the first."""
        if self._looking is None or self._looking.done():
            self._looking = self._tasks.begin(self._wait_and_look(then))

    async def _wait_and_look(self, then: Callable[[], None]) -> None:
        await asyncio.sleep(max(0.0, self._looked + _EVERY - self._clock.monotonic()))
        await self.look()
        then()

    async def close(self) -> None:
        """Look no more."""
        self._tasks.cancel()
        await self._tasks.over()

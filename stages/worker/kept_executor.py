"""An executor that is kept alive: one whose process ends, at work or idle, is started again at once with what it held.

Rules.
- Batches (``ready``) and loads wait until it is whole again.
- A load that failed because the process ended under it, perhaps by what it ran meanwhile, is tried once more.
- What lived for less than ``_LIVES`` seconds is started again only when they have passed.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from sluicegate.domain.clock import Clock
from sluicegate.domain.errors import ExecutionError, LoadError
from sluicegate.domain.executor import Executor
from sluicegate.domain.models.variant import Variant

log = logging.getLogger(__name__)

_LIVES = 1.0


class KeptExecutor:
    """An executor that is replaced when it dies.

    ``name``: of the slice, for logs. ``held``: what should be loaded just now.

    ``spawn`` runs work as a task of the slice; ``restarts`` is called at each restart; ``reloaded`` hears
    (variant, seconds) of what was loaded again.
    """

    def __init__(
        self,
        executor: Executor,
        name: str,
        *,
        clock: Clock,
        held: Callable[[], Sequence[Variant]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        restarts: Callable[[], None],
        reloaded: Callable[[str, float], None],
    ) -> None:
        self._executor = executor
        self._name = name
        self._clock = clock
        self._held = held
        self._spawn = spawn
        self._restarts = restarts
        self._reloaded = reloaded
        self._turn = asyncio.Lock()
        self._whole = asyncio.Event()
        self._largest: dict[str, int] = {}  # variant -> batch it was loaded for
        self._deaths = 0
        self._started = 0.0
        self._closing = False

    async def start(self) -> None:
        """Start it."""
        self._executor.watch(self._ended)
        await self._executor.start()
        self._started = self._clock.monotonic()
        self._whole.set()

    async def ready(self) -> None:
        """Once it runs and holds what it should."""
        await self._whole.wait()

    async def restart(self) -> None:
        """Start it again and load what it held, unless that was done since it ended."""
        async with self._turn:
            await self._make_whole()

    async def load(self, variant: Variant, max_batch: int) -> float:
        """Load; seconds that it took. Raises LoadError, ExecutionError."""
        async with self._turn:
            deaths = self._deaths
            try:
                return await self._load(variant, max_batch)
            except (LoadError, ExecutionError):
                if deaths == self._deaths:
                    raise
                await self._make_whole()
                return await self._load(variant, max_batch)

    async def unload(self, variant: str) -> None:
        """Forget it, unless it should be loaded after all."""
        async with self._turn:
            if all(held.name != variant for held in self._held()):
                await self._executor.unload(variant)

    def let_go(self) -> None:
        """Do not start it again any more."""
        self._closing = True

    async def close(self) -> None:
        """Stop it for good."""
        self.let_go()
        await self._executor.close()

    def _ended(self) -> None:
        if not self._closing:
            self._deaths += 1
            self._whole.clear()
            self._spawn(self.restart())

    async def _make_whole(self) -> None:
        if self._whole.is_set():
            return
        deaths = self._deaths
        log.warning("%s: the executor's process is gone; starting it again", self._name)
        self._restarts()
        await asyncio.sleep(self._started + _LIVES - self._clock.monotonic())
        await self._executor.start()
        self._started = self._clock.monotonic()
        for variant in self._held():
            try:
                self._reloaded(variant.name, await self._load(variant, self._largest[variant.name]))
            except (LoadError, ExecutionError) as error:
                log.error("%s cannot be loaded again on %s: %s", variant.name, self._name, error)
        if deaths == self._deaths:
            self._whole.set()

    async def _load(self, variant: Variant, max_batch: int) -> float:
        loaded = await self._executor.load(variant, max_batch=max_batch)
        self._largest[variant.name] = max_batch
        return loaded.load_s

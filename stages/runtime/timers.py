"""Timers for policies: one a name, at the earliest time asked for; policies ask again when they are woken early."""

import asyncio
from collections.abc import Callable

from sluicegate.domain.clock import Clock


class Wakes:
    """Turns ``WakeAt`` into calls. Times are of ``clock`` (wall seconds)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def wake_at(self, name: str, at: float, woke: Callable[[], None]) -> None:
        """Call ``woke`` at ``at``, unless the timer of that name goes off as early."""
        loop = asyncio.get_running_loop()
        when = loop.time() + max(0.0, at - self._clock.wall())
        timer = self._timers.get(name)
        if timer is not None:
            if timer.when() <= when:
                return
            timer.cancel()
        self._timers[name] = loop.call_at(when, self._fire, name, woke)

    def cancel(self) -> None:
        """Stop all."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _fire(self, name: str, woke: Callable[[], None]) -> None:
        del self._timers[name]
        woke()

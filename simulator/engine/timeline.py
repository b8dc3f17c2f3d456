"""The virtual clock: what happens next, in time order, and on the same instant in the order it was asked for.

That order is the whole of determinism: no hash, address or wall clock decides anything.
"""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from math import inf
from typing import Any

Happening = Callable[[Any, float], None]
"""Takes the argument it was scheduled with and the time."""


class Timeline:
    """An event heap. ``now``: seconds; it never goes back."""

    __slots__ = ("_asked", "_heap", "now")

    def __init__(self, start: float) -> None:
        self.now = start
        self._heap: list[tuple[float, int, Happening, Any]] = []
        self._asked = 0

    def at(self, when: float, happening: Happening, argument: Any = None) -> None:
        """Have ``happening(argument, when)`` called at ``when``; a time that has passed means now."""
        self._asked += 1
        heappush(self._heap, (when if when > self.now else self.now, self._asked, happening, argument))

    def run_until(self, limit: float) -> None:
        """Let everything happen that is due by ``limit``; then it is ``limit``."""
        heap = self._heap
        while heap and heap[0][0] <= limit:
            when, _, happening, argument = heappop(heap)
            self.now = when
            happening(argument, when)
        self.now = limit

    def walk(self, steps: Iterable[tuple[float, Any]], happening: Happening) -> None:
        """Let ``happening`` be beside what is scheduled, at each of ``steps``: (when, its argument), in time order."""
        heap = self._heap
        for at, given in steps:
            while heap and heap[0][0] <= at:
                when, _, scheduled, argument = heappop(heap)
                self.now = when
                scheduled(argument, when)
            self.now = at
            happening(given, at)

    def step(self, limit: float = inf) -> bool:
        """Let the next thing happen; False where nothing is left that is due by ``limit``."""
        if not self._heap or self._heap[0][0] > limit:
            return False
        when, _, happening, argument = heappop(self._heap)
        self.now = when
        happening(argument, when)
        return True


class Alarm:
    """A timer that calls ``woke`` at the earliest time asked for, as the live shells' timers do: cores ask again."""

    __slots__ = ("_at", "_timeline", "_woke")

    def __init__(self, timeline: Timeline, woke: Callable[[float], None]) -> None:
        self._timeline = timeline
        self._woke = woke
        self._at = inf

    def set(self, at: float) -> None:
        """Go off at ``at``, unless it does so earlier."""
        if at < self._at:
            self._at = at
            self._timeline.at(at, self._rings)

    def _rings(self, _: object, now: float) -> None:
        if now >= self._at:
            self._at = inf
            self._woke(now)

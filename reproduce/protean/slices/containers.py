"""Warm containers by GPU and variant: a batch takes one or waits for one to start; idle ones are kept a while.

After PROTEAN, section 4.4: reactive start, delayed termination.
"""

from copy import copy


class Containers:
    """Warm containers by GPU and variant. ``keep_alive``: seconds that an idle container is kept; 0 ends it at once."""

    def __init__(self, keep_alive: float) -> None:
        self._keep_alive = keep_alive
        self._idle: dict[tuple[str, str], list[float]] = {}
        self.cold_starts = 0
        self.warm_starts = 0

    def __deepcopy__(self, memo: dict[int, object]) -> "Containers":
        made = copy(self)
        made._idle = {key: idle.copy() for key, idle in self._idle.items()}
        return made

    def take(self, gpu: str, variant: str, now: float) -> bool:
        """A batch needs a container: whether a warm one was there, the one idle for the shortest time first."""
        idle = self._idle.get((gpu, variant))
        while idle:
            since = idle.pop()
            if now - since <= self._keep_alive and self._keep_alive > 0.0:
                self.warm_starts += 1
                return True
            idle.clear()  # those below were idle even longer
        self.cold_starts += 1
        return False

    def give(self, gpu: str, variant: str, now: float) -> None:
        """A batch ended: its container is idle."""
        self._idle.setdefault((gpu, variant), []).append(now)

    def forget(self, gpu: str) -> None:
        """The GPU was cut anew or replaced: no container survives that."""
        for key in [k for k in self._idle if k[0] == gpu]:
            del self._idle[key]

    def warm(self, gpu: str, variant: str, count: int, now: float) -> None:
        """Have ``count`` idle containers at least (pre-warmed from a forecast)."""
        idle = self._idle.setdefault((gpu, variant), [])
        idle.extend([now] * max(0, count - len(idle)))

"""Time is an argument: decisions take ``now``, shells ask a clock."""

from typing import Protocol


class Clock(Protocol):
    """Absolute seconds. ``wall`` is comparable across machines, ``monotonic`` never goes back."""

    def wall(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start."""
        ...

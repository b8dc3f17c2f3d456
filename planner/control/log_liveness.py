"""Tells a broker outage from a dead device.

Rules. A device is missed by its silence, which means something only while others are heard: whoever leads hears its own
lease at least. Nothing at all for ``patience`` seconds says that the log is away, or that this process stood still.
That time is nobody's silence: once something is heard again, everyone is given the whole time-out anew.
"""


class Hearing:
    """Of one planner. ``patience``: seconds, more than any two records are apart while the log answers."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._last: float | None = None

    def heard(self, now: float) -> bool:
        """A record was read; whether the log had been silent before it."""
        was_deaf = self.deaf(now)
        self._last = now
        return was_deaf

    def deaf(self, now: float) -> bool:
        """Whether nothing was read for too long."""
        return self._last is not None and now - self._last > self._patience

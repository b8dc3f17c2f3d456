"""The clock of live stages."""

import time


class SystemClock:
    """Wall time for deadlines (comparable across machines), monotonic time for waiting."""

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds from an arbitrary start."""
        return time.monotonic()

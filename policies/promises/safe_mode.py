"""Safe mode: the promise of a stream can no longer be kept, and says so before it breaks; with hysteresis.

Rules. The first query that must be missed against the promise enters safe mode. It is left once ``calm`` consecutive
decisions were made within the promise. Entering and leaving are reported once each.
"""


class SafeModeSwitch:
    """Decides whether safe mode is on. ``active`` says whether safe mode is on. ``calm``: queries, at
    least 1."""

    __slots__ = ("_quiet", "active", "calm")

    def __init__(self, calm: int) -> None:
        self.calm = calm
        self.active = False
        self._quiet = 0

    def trouble(self) -> bool:
        """A miss beyond the promise is about to happen. Returns whether this enters safe mode."""
        self._quiet = 0
        if self.active:
            return False
        self.active = True
        return True

    def calm_for(self, queries: int) -> bool:
        """``queries`` more were decided within the promise. Returns whether this leaves safe mode."""
        if not self.active:
            return False
        self._quiet += queries
        if self._quiet < self.calm:
            return False
        self.active = False
        return True

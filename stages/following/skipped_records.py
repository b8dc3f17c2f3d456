"""Records that a reader leaves out, told in its log: what is wrong with them, and of a flood a line a second."""

import logging
import time
from collections.abc import Callable

from sluicegate.domain.errors import InvalidInputError
from sluicegate.streams.ports import Record

_EVERY = 1.0


class Skipping:
    """Of one reader. ``clock``: seconds that only grow."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._told = float("-inf")
        self._untold = 0

    def skipped(self, record: Record, error: Exception) -> None:
        """``error`` is why ``record`` counts for nothing: input that is wrong, or a defect of ours, with its story."""
        now = self._clock()
        if now - self._told < _EVERY:
            self._untold += 1
            return
        more = f" ({self._untold} more since the last such line)" if self._untold else ""
        self._told, self._untold = now, 0
        expected = isinstance(error, InvalidInputError)
        why = str(error) if expected else f"{type(error).__name__}: {error!s:.200}; please report it"
        told = (record.topic, record.offset, why, more)
        self._log.log(
            logging.WARNING if expected else logging.ERROR,
            "%s offset %d skipped: %s%s",
            *told,
            exc_info=None if expected else error,
            extra={"record": record.place},
        )

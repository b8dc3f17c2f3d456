"""Interference on line: measured batch times against what the slowdown model predicted, by slice.

Rules:
- The ratio measured over predicted is averaged with exponential weights, by slice.
- A slice is interfered with once its average exceeds ``threshold`` for ``patience`` batches in a row, and clear again
  once it is below half of the way back to 1: two levels, so that noise does not toggle it.
"""

from dataclasses import dataclass

from sluicegate.domain.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class InterferenceChanged:
    """A slice's interference begins or ends. ``slice`` runs ``ratio`` times slower than predicted (``on``), or no
    longer does."""

    slice: str
    on: bool
    ratio: float


@dataclass(slots=True)
class _Average:
    ratio: float = 1.0
    above: int = 0
    on: bool = False
    seen: int = 0


class InterferenceDetector:
    """Compares measured with predicted batch times. ``handle`` each batch that ended; it says when a slice's state
    changes."""

    def __init__(self, *, threshold: float = 1.25, patience: int = 3, weight: float = 0.2) -> None:
        if not (threshold > 1.0 and patience >= 1 and 0.0 < weight <= 1.0):
            raise InvalidInputError("interference", "threshold exceeds 1, patience is at least 1, weight within 0..1")
        self._threshold = threshold
        self._patience = patience
        self._weight = weight
        self._slices: dict[str, _Average] = {}

    def handle(self, part: str, measured: float, predicted: float) -> list[InterferenceChanged]:
        """A batch took ``measured`` seconds where ``predicted`` were expected."""
        if not (measured > 0.0 and predicted > 0.0):
            raise InvalidInputError("measured", f"{measured} and {predicted} must be positive seconds")
        ratio = measured / predicted
        average = self._slices.setdefault(part, _Average())
        self._fold(average, ratio)
        average.above = average.above + 1 if average.ratio > self._threshold else 0
        if not average.on and average.above >= self._patience:
            average.on = True
            return [InterferenceChanged(part, on=True, ratio=average.ratio)]
        if average.on and average.ratio < 1.0 + (self._threshold - 1.0) / 2.0:
            average.on = False
            return [InterferenceChanged(part, on=False, ratio=average.ratio)]
        return []

    def _fold(self, average: _Average, ratio: float) -> None:
        average.seen += 1
        # The first batches count fully: the average does not start biased towards 1.
        weight = max(self._weight, 1.0 / average.seen)
        average.ratio += weight * (ratio - average.ratio)

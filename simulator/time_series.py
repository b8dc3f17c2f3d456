"""A run over time, in steps wide enough that memory does not grow with its length."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sluicegate.domain.fold import LatencyHistogram
from sluicegate.domain.outcome import Outcome, OutcomeKind

MAX_STEPS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Steps of ``step`` seconds from 0; element i is about queries that arrived in step i.

    ``demand``: queries/s; ``goodput``: of them answered on time, per second; ``accuracy``: mean over those, normalised
    by the app's best variant (0..1, NaN where none); ``variants``: answered on time per second by "app/variant".
    ``latencies``: (seconds, count) of all answers, ascending. ``marks``: (seconds, text) of events worth a line.
    """

    step: float
    demand: Sequence[float]
    goodput: Sequence[float]
    accuracy: Sequence[float]
    variants: Mapping[str, Sequence[float]] = field(default_factory=dict)
    latencies: Sequence[tuple[float, int]]
    marks: Sequence[tuple[float, str]]

    @property
    def times(self) -> list[float]:
        """Middle of each step, seconds."""
        return [(i + 0.5) * self.step for i in range(len(self.demand))]


class SeriesFold:
    """Folds outcomes into a Series. ``step``: seconds at first; it doubles whenever MAX_STEPS are exceeded."""

    def __init__(self, step: float = 1.0) -> None:
        self.step = step
        self._asked: list[int] = []
        self._on_time: list[int] = []
        self._accuracy: list[float] = []
        self._variants: dict[tuple[str, str], list[int]] = {}
        self._latency = LatencyHistogram()

    def add(self, outcome: Outcome) -> None:
        """One query has ended."""
        at = int(max(0.0, outcome.arrival) / self.step)
        while at >= MAX_STEPS:
            self._double()
            at = int(outcome.arrival / self.step)
        if at >= len(self._asked):
            self._grow(at + 1)
        self._asked[at] += 1
        if outcome.kind is not OutcomeKind.ANSWERED:
            return
        self._latency.add(outcome.at - outcome.arrival)
        if outcome.at > outcome.deadline:
            return
        self._on_time[at] += 1
        self._accuracy[at] += outcome.accuracy / (outcome.best_accuracy or 1.0)
        key = (outcome.app, outcome.variant or "")
        counts = self._variants.get(key)
        if counts is None:
            counts = self._variants[key] = [0] * len(self._asked)
        counts[at] += 1

    def series(self, marks: Sequence[tuple[float, str]] = ()) -> Series:
        """What was folded so far."""
        pairs = zip(self._accuracy, self._on_time, strict=True)
        return Series(
            step=self.step,
            demand=[n / self.step for n in self._asked],
            goodput=[n / self.step for n in self._on_time],
            accuracy=[total / n if n else math.nan for total, n in pairs],
            variants={f"{a}/{v}": [n / self.step for n in c] for (a, v), c in sorted(self._variants.items())},
            latencies=self._latency.buckets(),
            marks=tuple(marks),
        )

    def _grow(self, size: int) -> None:
        more = size - len(self._asked)
        for counts in (self._asked, self._on_time, *self._variants.values()):
            counts.extend([0] * more)
        self._accuracy.extend([0.0] * more)

    def _double(self) -> None:
        self.step *= 2.0
        if len(self._asked) % 2:
            self._grow(len(self._asked) + 1)
        self._asked = _pairs(self._asked)
        self._on_time = _pairs(self._on_time)
        self._accuracy = [a + b for a, b in zip(self._accuracy[::2], self._accuracy[1::2], strict=True)]
        self._variants = {key: _pairs(counts) for key, counts in self._variants.items()}


def _pairs(counts: list[int]) -> list[int]:
    return [a + b for a, b in zip(counts[::2], counts[1::2], strict=True)]

"""What to measure next, and what the measurements say: the profiler without a clock, a process or a loop.

Rules. Batch sizes and variants are interleaved: each round measures every pair that still needs samples once, in an
order of its own, so that a slow spell of the machine falls on all of them and not on one. A pair is done after
``enough`` samples, or once it has ``least`` and its ``share`` of time is spent. A batch size is given up, with all
larger ones, where a smaller one takes longer than ``longest`` each time: once may be the machine. No sample is left out
of a median or a p95.
Where inputs vary in length, shorter ones are measured as well, at fewer batch sizes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from sluicegate.domain.models.profile import BatchLatency

BATCH_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
"""Powers of two and a few between, up to the largest that a profile holds."""


LENGTH_BATCHES = (1, 4, 16, 64)
"""Those that shorter lengths are measured at."""
LENGTH_SHARES = (8, 4, 2)
"""Shorter lengths measured: the longest over these."""


def shorter_lengths(longest: int) -> tuple[int, ...]:
    """Lengths to measure besides the longest, ascending; none where inputs do not vary (0)."""
    return tuple(sorted({n for share in LENGTH_SHARES if 0 < (n := -(-longest // share)) < longest}))


@dataclass(frozen=True, slots=True)
class Measurement:
    """Run one batch of ``batch`` rows of ``variant``; ``length`` of their inputs, 0 for the longest."""

    variant: str
    batch: int
    length: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """What a batch took: wall seconds, round trip included, and CPU seconds of the process that ran it."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much to measure. Seconds; ``share`` is that of one variant at one batch size."""

    least: int = 7
    enough: int = 50
    share: float = 0.15
    longest: float = 1.0


@dataclass(frozen=True, slots=True)
class Spread:
    """A median of ``samples`` wall times, seconds, with its 95 % confidence interval ``low`` to ``high``."""

    middle: float
    low: float
    high: float
    samples: int


@dataclass(slots=True)
class _Pair:
    measurement: Measurement
    samples: list[Sample] = field(default_factory=list)
    spent: float = 0.0
    fastest: float = 0.0
    given_up: bool = False

    def done(self, effort: Effort) -> bool:
        if self.given_up or len(self.samples) >= effort.enough:
            return True
        return len(self.samples) >= effort.least and self.spent >= effort.share


class Sweep:
    """One sweep over ``variants`` and ``batches``: ask ``next``, run it, ``record`` what it took, until None.

    ``lengths``: by variant, shorter ones to measure besides the longest.
    """

    def __init__(
        self,
        variants: Iterable[str],
        batches: Sequence[int] = BATCH_SIZES,
        effort: Effort | None = None,
        seed: int = 0,
        lengths: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        self._effort = effort or Effort()
        fewer = [b for b in batches if b in LENGTH_BATCHES] or batches
        planned = [
            Measurement(v, b, n)
            for v in variants
            for n in (0, *lengths.get(v, ()))
            for b in sorted(fewer if n else batches)
        ]
        self._pairs = {measurement: _Pair(measurement) for measurement in planned}
        self._rng = np.random.default_rng(seed)
        # The first round goes up in batch sizes, so that those that take too long are met from below.
        self._round = sorted(self._pairs, key=lambda m: m.batch, reverse=True)

    def next(self) -> Measurement | None:
        """What to run now; None when the sweep is over."""
        while True:
            while self._round:
                measurement = self._round.pop()
                if not self._pairs[measurement].done(self._effort):
                    return measurement
            left = [m for m, pair in self._pairs.items() if not pair.done(self._effort)]
            if not left:
                return None
            self._round = [left[i] for i in self._rng.permutation(len(left))]

    def record(self, measurement: Measurement, sample: Sample) -> None:
        """Take down what ``measurement`` took."""
        pair, longest = self._pairs[measurement], self._effort.longest
        before = pair.fastest  # 0 before the first
        pair.fastest = min(before, sample.wall) if pair.samples else sample.wall
        pair.samples.append(sample)
        pair.spent += sample.wall
        if (before > longest) != (pair.fastest > longest):
            self._give_up(measurement.variant)

    def _give_up(self, variant: str) -> None:
        """What is larger than one that takes too long, and what only seemed to be is taken up again."""
        mine = [pair for m, pair in self._pairs.items() if m.variant == variant]
        slow = [pair.measurement for pair in mine if pair.fastest > self._effort.longest]
        for pair in mine:
            batch, length = pair.measurement.batch, pair.measurement.length
            pair.given_up = any(m.batch < batch and (not length or 0 < m.length <= length) for m in slow)

    @property
    def progress(self) -> float:
        """How far the sweep is, 0..1."""
        done = sum(1.0 if p.done(self._effort) else self._part(p) for p in self._pairs.values())
        return done / max(1, len(self._pairs))

    def _part(self, pair: _Pair) -> float:
        by_count = len(pair.samples) / self._effort.enough
        by_time = min(len(pair.samples) / self._effort.least, pair.spent / self._effort.share)
        return min(1.0, max(by_count, by_time))

    def points(self, variant: str, length: int = 0) -> tuple[BatchLatency, ...]:
        """Latency of each batch size of ``variant`` that was measured, with inputs of ``length`` (0: the longest)."""
        return tuple(summarise(p.measurement.batch, p.samples) for p in self._measured(variant, length))

    def spreads(self, variant: str) -> dict[int, Spread]:
        """Batch size -> median of ``variant`` with its confidence interval, for the longest inputs."""
        return {p.measurement.batch: spread_of(p.samples) for p in self._measured(variant, 0)}

    def rounds(self, variant: str) -> dict[int, tuple[Sample, ...]]:
        """Batch size -> samples of ``variant`` with the longest inputs, one a round: those of the same place in two
        variants were taken one behind the other."""
        return {p.measurement.batch: tuple(p.samples) for p in self._measured(variant, 0)}

    def _measured(self, variant: str, length: int) -> Iterator[_Pair]:
        of = (variant, length)
        return (p for m, p in self._pairs.items() if (m.variant, m.length) == of and p.samples and not p.given_up)


def spread_of(samples: Sequence[Sample]) -> Spread:
    """The median wall time and the order statistics around it that enclose the true one in 95 % of cases.

    Free of assumptions on the distribution (the number below the median is binomial): the interval is honest on a noisy
    machine, and is the whole range where there are fewer than six samples.
    """
    wall = [s.wall for s in samples]
    return Spread(float(np.median(wall)), *median_interval(wall, 1.96), len(wall))


def median_interval(values: Sequence[float], deviations: float) -> tuple[float, float]:
    """The order statistics so many standard deviations of a binomial with p = 1/2 below and above the median."""
    found = np.sort(values)
    n = len(found)
    half = 0.5 * deviations * np.sqrt(n)
    low = max(0, int(np.floor(n / 2 - half)))
    high = min(n - 1, int(np.ceil(n / 2 + half)))
    return float(found[low]), float(found[high])


def summarise(batch: int, samples: Sequence[Sample]) -> BatchLatency:
    """Median and 95th percentile (linear between order statistics) of the wall times, median of the CPU times."""
    wall = np.array([s.wall for s in samples])
    return BatchLatency(
        batch=batch,
        median=float(np.median(wall)),
        p95=float(np.quantile(wall, 0.95)),
        cpu=float(np.median([s.cpu for s in samples])),
    )

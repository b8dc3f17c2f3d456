"""What is known of a variant on a device type: latency for each batch size, memory, load time.

Inputs of varying length (text): a batch is padded to its longest, so its latency depends on rows and length. It is
measured at several lengths, and predicted between them so that it never falls with the length: what a shorter one took
is the least that a longer one takes, and lengths in between are interpolated linearly.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, assert_never

from sluicegate.domain.errors import InvalidInputError

Quantile = Literal["median", "p95"]
AnyQuantile = Quantile | Literal["sure", "shown", "paced"]
"""``sure``: hardly any batch takes longer, as far as the 95th percentile says; ``shown``: once many batches have shown
that their latencies spread as these two quantiles say; ``paced``: until then, of batches one after the other, where one
in twenty may take as long as is sure."""

Z95 = 1.6448536269514722
"""Standard normal: 95 % lie below."""
TAIL = 2.25
"""What hardly any batch exceeds is so many times as far above the median as the 95th percentile is: where latencies are
lognormal and vary by a third, one batch in 1,500 takes longer. What a query waits for is two in a row."""
LEAST_GUARD = 1.05
"""Over the 95th percentile, where a profile says that batches hardly vary: timers and schedulers do."""
FIRST_GUARD = 1.32
"""Over the 95th percentile until more is known: a p95 permits that one batch in twenty takes any time beyond it."""
PACE_GUARD = 1.1
"""Over the 95th percentile until more is known: what batches take that follow one another, those that took longer among
them."""


LENGTH_STEPS = 256
"""Lengths are rounded up to one of that many before a latency is predicted."""


@dataclass(frozen=True, slots=True)
class LengthCurves:
    """Seconds by length: ``seconds[i][b - 1]`` for b rows padded to ``lengths[i]``, both ascending."""

    lengths: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    _known: dict[int, tuple[float, ...]] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def longest(self) -> int:
        """Length that nothing exceeds."""
        return self.lengths[-1]

    def step(self, length: int, steps: int = LENGTH_STEPS) -> int:
        """``length`` rounded up to one of ``steps``; 0 (not known) is the longest."""
        longest = self.lengths[-1]
        if length <= 0 or length >= longest:
            return longest
        width = -(-longest // steps)
        return min(longest, -(-length // width) * width)

    def at(self, length: int) -> tuple[float, ...]:
        """Seconds for b = 1.. rows padded to ``length``; up to the shortest known the shortest holds."""
        length = self.step(length)
        found = self._known.get(length)
        if found is None:
            found = self._known[length] = self._between(length)
        return found

    def padded(self, spans: Iterable[tuple[int, int]]) -> tuple[float, ...]:
        """Seconds for the first b rows of a queue. ``spans``: (rows, the longest of them), both ascending."""
        seconds: tuple[float, ...] = ()
        for rows, length in spans:
            seconds += self.at(length)[len(seconds) : rows]
        return seconds

    def scaled(self, factor: float) -> "LengthCurves":
        """Each latency times ``factor``."""
        return LengthCurves(self.lengths, tuple(tuple(s * factor for s in each) for each in self.seconds))

    def _between(self, length: int) -> tuple[float, ...]:
        above = next(i for i, known in enumerate(self.lengths) if length <= known)
        if above == 0:
            return self.seconds[0]
        low, high = self.lengths[above - 1], self.lengths[above]
        part = (length - low) / (high - low)
        # s0 + (s1 - s0) * 1.0 may differ from s1 in the last place: what is known is given as it is.
        if part == 1.0:
            return self.seconds[above]
        return tuple(s0 + (s1 - s0) * part for s0, s1 in zip(self.seconds[above - 1], self.seconds[above], strict=True))


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """Seconds to run a batch of b rows, b = 1..len(seconds): ``curve.seconds[b - 1]`` or ``curve(b)``.

    ``lengths``: the same by length where inputs vary in length; ``seconds`` are then those of the longest.
    """

    seconds: tuple[float, ...]
    lengths: LengthCurves | None = None

    def __call__(self, batch: int) -> float:
        """Seconds for ``batch`` rows; 1 <= batch <= max_batch."""
        return self.seconds[batch - 1]

    def as_of_longest(self, rows: int, length: int, took: float) -> float:
        """What a batch that ``took`` so long would have taken with the longest inputs, by what is known of both."""
        if self.lengths is None:
            return took
        rows = min(rows, len(self.seconds))
        return took * self.seconds[rows - 1] / self.at(rows, length)

    @property
    def max_batch(self) -> int:
        """Largest batch known."""
        return len(self.seconds)

    def scaled(self, factor: float) -> "LatencyCurve":
        """The same curve, each latency times ``factor``."""
        lengths = None if self.lengths is None else self.lengths.scaled(factor)
        return LatencyCurve(tuple(s * factor for s in self.seconds), lengths)

    def within(self, rows: int) -> "LatencyCurve":
        """The same for batches of at most ``rows`` rows."""
        lengths = self.lengths
        if lengths is not None:
            lengths = LengthCurves(lengths.lengths, tuple(each[:rows] for each in lengths.seconds))
        return LatencyCurve(self.seconds[:rows], lengths)

    def at(self, rows: int, length: int) -> float:
        """Seconds for ``rows`` rows padded to ``length`` (0: not known, the longest)."""
        return self.seconds[rows - 1] if self.lengths is None else self.lengths.at(length)[rows - 1]

    def largest_within(self, budget: float) -> int:
        """Largest b whose latency is at most ``budget`` seconds; 0 if none. Curves need not be monotone."""
        for batch in range(len(self.seconds), 0, -1):
            if self.seconds[batch - 1] <= budget:
                return batch
        return 0


@dataclass(frozen=True, slots=True)
class BatchLatency:
    """Measured latency of one batch size, seconds: wall median and 95th percentile, CPU median."""

    batch: int
    median: float
    p95: float
    cpu: float = 0.0


@dataclass(frozen=True, slots=True)
class LengthPoints:
    """Measured latencies of inputs of one length."""

    length: int
    points: tuple[BatchLatency, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Profile of one variant on one device type.

    ``points``: ascending in batch, starting anywhere; sizes between are interpolated linearly, below the first point
    the first point holds (a smaller batch never takes longer), above the last nothing is known.
    ``memory_bytes``: what hosting takes; ``load``: seconds to load and warm.
    ``length``: of the longest inputs, which ``points`` are of, where inputs vary in length (0: they do not);
    ``shorter``: the same for shorter ones, ascending in length. Batch sizes that a shorter length was not measured at
    take what the next longer takes.
    ``fbr``: part of the bandwidth, or of the cores, that a batch takes while it runs; all where nobody measured it.
    ``executors``: batches that run at a time, beside which ``points`` count each of them.
    """

    variant: str
    device_type: str
    points: tuple[BatchLatency, ...]
    memory_bytes: int = 0
    load: float = 1.0
    length: int = 0
    shorter: tuple[LengthPoints, ...] = ()
    fbr: float = 1.0
    executors: int = 1

    def __post_init__(self) -> None:
        self._check(self.points)
        last = 0
        for each in self.shorter:
            if not last < each.length < self.length:
                raise InvalidInputError(
                    "shorter.length", f"{each.length} after {last}; list lengths ascending, below {self.length}"
                )
            self._check(each.points)
            last = each.length

    def _check(self, points: tuple[BatchLatency, ...]) -> None:
        if not points:
            raise InvalidInputError(
                f"profile {self.variant}@{self.device_type}", "has no batch sizes; profile it again"
            )
        last = 0
        for point in points:
            if point.batch <= last:
                raise InvalidInputError(
                    "points.batch", f"{point.batch} after {last}; list batch sizes ascending from 1"
                )
            for name, value in (("median", point.median), ("p95", point.p95)):
                if not 0.0 < value < float("inf"):
                    raise InvalidInputError(
                        f"points[{point.batch}].{name}", f"{value} is not a positive finite latency"
                    )
            last = point.batch

    @property
    def max_batch(self) -> int:
        """Largest batch measured."""
        return self.points[-1].batch

    def later(self, seconds: float) -> "Profile":
        """The same where each batch takes ``seconds`` longer than measured."""
        if not seconds > 0.0:
            return self
        shorter = tuple(replace(each, points=_later(each.points, seconds)) for each in self.shorter)
        return replace(self, points=_later(self.points, seconds), shorter=shorter)

    def curve(self, quantile: AnyQuantile = "p95", limit: int | None = None) -> LatencyCurve:
        """Latency for every integer batch up to ``limit`` (default: the largest measured), linearly interpolated."""
        top = min(limit or self.max_batch, self.max_batch)
        seconds = _interpolated(self.points, quantile, top)
        if not self.length:
            return LatencyCurve(seconds)
        by_length = [seconds]
        for each in reversed(self.shorter):
            known = _interpolated(each.points, quantile, min(top, each.points[-1].batch))
            by_length.append(known + by_length[-1][len(known) :])
        by_length.reverse()
        for i in range(1, len(by_length)):
            by_length[i] = tuple(map(max, by_length[i - 1], by_length[i]))
        lengths = (*(each.length for each in self.shorter), self.length)
        return LatencyCurve(by_length[-1], LengthCurves(lengths, tuple(by_length)))


def _later(points: tuple[BatchLatency, ...], seconds: float) -> tuple[BatchLatency, ...]:
    return tuple(replace(p, median=p.median + seconds, p95=p.p95 + seconds) for p in points)


@lru_cache(maxsize=8192)  # a plan asks for the same curves again and again
def _interpolated(points: tuple[BatchLatency, ...], quantile: AnyQuantile, top: int) -> tuple[float, ...]:
    known = [(p.batch, _latency(p, quantile)) for p in points]
    seconds: list[float] = []
    i = 0
    for batch in range(1, top + 1):
        while i + 1 < len(known) and known[i + 1][0] <= batch:
            i += 1
        b0, s0 = known[i]
        if batch <= b0 or i + 1 == len(known):
            seconds.append(s0)
        else:
            b1, s1 = known[i + 1]
            seconds.append(s0 + (s1 - s0) * (batch - b0) / (b1 - b0))
    return tuple(seconds)


def _latency(point: BatchLatency, quantile: AnyQuantile) -> float:
    match quantile:
        case "median":
            return point.median
        case "p95":
            return point.p95
        case "sure":
            return max(_spread(point), FIRST_GUARD * point.p95)
        case "shown":
            return max(_spread(point), LEAST_GUARD * point.p95)
        case "paced":
            return max(_spread(point), PACE_GUARD * point.p95)
        case _:
            assert_never(quantile)


def _spread(point: BatchLatency) -> float:
    return point.median + TAIL * (point.p95 - point.median)

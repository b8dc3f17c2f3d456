"""What is known of a variant on a device type: latency for each batch size, memory, load time."""

from dataclasses import dataclass
from typing import Literal

from domain.errors import InvalidInputError

Quantile = Literal["median", "p95"]


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """Seconds to run a batch of b rows, b = 1..len(seconds): ``curve.seconds[b - 1]`` or ``curve(b)``."""

    seconds: tuple[float, ...]

    def __call__(self, batch: int) -> float:
        """Seconds for ``batch`` rows; 1 <= batch <= max_batch."""
        return self.seconds[batch - 1]

    @property
    def max_batch(self) -> int:
        """Largest batch known."""
        return len(self.seconds)

    def scaled(self, factor: float) -> "LatencyCurve":
        """The same curve, each latency times ``factor``."""
        return LatencyCurve(tuple(s * factor for s in self.seconds))

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Profile of one variant on one device type.

    ``points``: ascending in batch, starting anywhere; sizes between are interpolated linearly, below the first point
    the first point holds (a smaller batch never takes longer), above the last nothing is known.
    ``memory_bytes``: what hosting takes; ``load``: seconds to load and warm.
    """

    variant: str
    device_type: str
    points: tuple[BatchLatency, ...]
    memory_bytes: int = 0
    load: float = 1.0

    def __post_init__(self) -> None:
        if not self.points:
            raise InvalidInputError(
                f"profile {self.variant}@{self.device_type}", "has no batch sizes; profile it again"
            )
        last = 0
        for point in self.points:
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

    def curve(self, quantile: Quantile = "p95", limit: int | None = None) -> LatencyCurve:
        """Latency for every integer batch up to ``limit`` (default: the largest measured), linearly interpolated."""
        top = min(limit or self.max_batch, self.max_batch)
        known = [(p.batch, p.median if quantile == "median" else p.p95) for p in self.points]
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
        return LatencyCurve(tuple(seconds))

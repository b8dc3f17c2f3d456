"""Demand as a rate that is constant between edges, and what may be done to it before arrivals are drawn."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluicegate.domain.errors import InvalidInputError

Floats = NDArray[np.float64]

MAX_QPS = 1e9
"""No trace of this world goes beyond; a number above is a mistake."""


@dataclass(frozen=True, eq=False)
class Rates:
    """A piecewise constant rate of arrivals. ``qps[i]`` queries/s (all apps together) from ``edges[i]`` to ``edges[i +
    1]`` seconds; ``edges[0]`` is 0.
    """

    edges: Floats
    qps: Floats

    def __post_init__(self) -> None:
        if self.qps.ndim != 1 or self.edges.shape != (self.qps.size + 1,) or not self.qps.size:
            raise InvalidInputError("rates", "need one rate at least, and one edge more than rates")
        if not np.isfinite(self.edges).all() or self.edges[0] != 0.0 or (np.diff(self.edges) <= 0.0).any():
            raise InvalidInputError("rates.edges", "must start at 0 and increase")
        if not (np.isfinite(self.qps) & (self.qps >= 0.0) & (self.qps <= MAX_QPS)).all():
            raise InvalidInputError("rates.qps", f"must lie within 0..{MAX_QPS:g} queries/s")

    @staticmethod
    def stepped(qps: "Floats | list[float]", step: float = 1.0) -> "Rates":
        """Equal steps of ``step`` seconds."""
        if not 0.0 < step < 1e9:
            raise InvalidInputError("step", f"{step} is not a positive number of seconds")
        values = np.asarray(qps, dtype=np.float64)
        return Rates(np.arange(values.size + 1, dtype=np.float64) * step, values)

    @property
    def duration(self) -> float:
        """Seconds."""
        return float(self.edges[-1])

    @property
    def expected(self) -> float:
        """Arrivals to expect in all."""
        return float(np.dot(self.qps, np.diff(self.edges)))

    @property
    def peak(self) -> float:
        """Highest rate, queries/s."""
        return float(self.qps.max())

    def faster(self, speed: float) -> "Rates":
        """The same arrivals in 1/``speed`` of the time: rates grow by as much."""
        _positive("speed", speed)
        return Rates(self.edges / speed, self.qps * speed)

    def times(self, factor: float) -> "Rates":
        """Each rate times ``factor``."""
        _positive("scale", factor)
        return Rates(self.edges, self.qps * factor)

    def within(self, low: float, high: float) -> "Rates":
        """Rescaled linearly: the lowest rate becomes ``low``, the highest ``high``; a flat trace ``high``."""
        check_range(low, high)
        least, most = float(self.qps.min()), float(self.qps.max())
        unit = (self.qps - least) / (most - least) if most > least else np.ones_like(self.qps)
        return Rates(self.edges, low + (high - low) * unit)

    def lasting(self, duration: float, *, repeat: bool = False) -> "Rates":
        """Cut at ``duration`` seconds; a shorter trace starts again (``repeat``) or stays as it is."""
        _positive("duration", duration)
        edges, qps = self.edges, self.qps
        if repeat and duration > self.duration:
            rounds = int(np.ceil(duration / self.duration))
            if rounds * qps.size > 50_000_000:
                raise InvalidInputError("duration", f"{duration} s repeats the trace {rounds} times; ask for less")
            starts = np.repeat(np.arange(rounds) * self.duration, qps.size)
            edges = np.append(starts + np.tile(edges[:-1], rounds), rounds * self.duration)
            qps = np.tile(qps, rounds)
        kept = int(np.searchsorted(edges, duration, side="left"))
        if kept < edges.size:
            edges, qps = np.append(edges[:kept], duration), qps[:kept]
        return Rates(edges, qps)

    def smoothed_to_seconds(self) -> "Rates":
        """Linear between the edges' values, one rate a second: n steps of s seconds become (n - 1) s + 1 rates."""
        starts = self.edges[:-1]
        seconds = np.arange(int(starts[-1]) + 1, dtype=np.float64)
        return Rates.stepped(np.interp(seconds, starts, self.qps), 1.0)


def check_range(low: float, high: float) -> None:
    """Raise InvalidInputError for what is no range of rates."""
    if not 0.0 <= low <= high <= MAX_QPS:
        raise InvalidInputError(
            "qps", f"[{low:g}, {high:g}] is no range of queries/s; give [low, high], 0 <= low <= high <= {MAX_QPS:g}"
        )


def _positive(name: str, value: float) -> None:
    if not 0.0 < value < float("inf"):
        raise InvalidInputError(name, f"{value} is not a positive finite number")

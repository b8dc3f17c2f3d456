"""Arrivals drawn from rates: a renewal process of unit rate per app, carried through the integrated rate.

With Lambda(t) the arrivals expected until t, an app of share p gets arrivals where p * Lambda(t) passes the partial
sums of gaps of mean 1: exponential gaps make an exact Poisson process of varying rate, Gamma gaps of shape k one with
squared coefficient of variation 1/k (Proteus, section 6: shape 0.05), constant gaps an even one. Everything is
vectorised, and drawn in blocks: memory does not grow with the length of the trace.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sluicegate.domain.errors import InvalidInputError
from sluicegate.simulator.arrivals.rates import Floats, Rates

Process = Literal["poisson", "gamma", "uniform"]
Chunk = tuple[Floats, NDArray[np.intp]]
"""Sorted arrival times in seconds, and for each the index of its app."""

BLOCK = 4096
CHUNK = 65_536.0
MAX_COLLECTED = 200_000_000


class ArrivalSource(Protocol):
    """Arrivals of several apps in time order, some thousands at a time. ``chunks`` may be called once."""

    @property
    def apps(self) -> tuple[str, ...]:
        """Names that the indices of a chunk stand for."""
        ...

    @property
    def duration(self) -> float:
        """Seconds the trace lasts; no arrival comes after."""
        ...

    @property
    def expected(self) -> float:
        """Arrivals to expect in all."""
        ...

    def chunks(self) -> Iterator[Chunk]:
        """Arrivals in time order."""
        ...


class SampledArrivals:
    """Arrivals drawn from ``rates``. ``shares``: of each app, summing to 1. ``shape``: of Gamma gaps.

    Raises InvalidInputError for an unknown process or a shape that is not positive.
    """

    def __init__(
        self,
        rates: Rates,
        apps: Sequence[str],
        shares: Floats,
        rng: Generator,
        *,
        process: Process = "poisson",
        shape: float = 1.0,
    ) -> None:
        if process not in ("poisson", "gamma", "uniform"):
            raise InvalidInputError("process", f"{process!r} is none of poisson, gamma, uniform")
        if not 1e-3 <= shape <= 1e6:
            raise InvalidInputError("shape", f"{shape} is not within 0.001..1e6")
        if len(apps) != shares.size or abs(float(shares.sum()) - 1.0) > 1e-6:
            raise InvalidInputError("shares", "need one for each app, summing to 1")
        self.apps = tuple(apps)
        self.rates = rates
        self._integral = np.concatenate(([0.0], np.cumsum(rates.qps * np.diff(rates.edges))))
        self._renewals = tuple(
            _Renewal(float(share), process, shape, child)
            for share, child in zip(shares, rng.spawn(len(apps)), strict=True)
        )

    @property
    def duration(self) -> float:
        """Seconds the rates last."""
        return self.rates.duration

    @property
    def expected(self) -> float:
        """Arrivals to expect in all."""
        return self.rates.expected

    def chunks(self) -> Iterator[Chunk]:
        """About 65,536 arrivals at a time, in time order; ties in the order of apps."""
        total = float(self._integral[-1])
        until = 0.0
        while until < total:
            until = min(total, until + CHUNK)
            drawn = [r.until(until) for r in self._renewals]
            passed = np.concatenate(drawn)
            index = np.repeat(np.arange(len(drawn)), [d.size for d in drawn])
            order = np.argsort(passed, kind="stable")
            yield self._when(passed[order]), index[order]

    def _when(self, passed: Floats) -> Floats:
        """The time at which the integrated rate reaches each value."""
        segment = np.searchsorted(self._integral, passed, side="right") - 1
        segment = np.minimum(segment, self.rates.qps.size - 1)
        return self.rates.edges[segment] + (passed - self._integral[segment]) / self.rates.qps[segment]


class _Renewal:
    """Partial sums of gaps of mean 1/share: one app's arrivals on the clock of the integrated rate of all."""

    def __init__(self, share: float, process: Process, shape: float, rng: Generator) -> None:
        self._share = share
        self._process = process
        self._shape = shape
        self._rng = rng
        # An even process starts at a random phase, or the apps' arrivals would fall together.
        self._last = float(rng.random()) / share - 1.0 / share if process == "uniform" and share else 0.0
        self._ready = np.empty(0)

    def until(self, limit: float) -> Floats:
        """Sums below ``limit`` that were not given before."""
        if self._share == 0.0:
            return self._ready
        blocks = [self._ready]
        while self._last < limit:
            block = self._last + np.cumsum(self._gaps())
            self._last = float(block[-1])
            blocks.append(block)
        known = np.concatenate(blocks)
        cut = int(np.searchsorted(known, limit, side="left"))
        self._ready = known[cut:]
        return known[:cut]

    def _gaps(self) -> Floats:
        match self._process:
            case "poisson":
                gaps = self._rng.standard_exponential(BLOCK)
            case "gamma":
                gaps = self._rng.standard_gamma(self._shape, BLOCK) / self._shape
            case "uniform":
                gaps = np.ones(BLOCK)
        return gaps / self._share


def collect(source: ArrivalSource) -> dict[str, Floats]:
    """All arrival times by app, sorted: for traces that fit in memory. Raises InvalidInputError beyond 200 million."""
    parts: list[Chunk] = []
    count = 0
    for chunk in source.chunks():
        count += chunk[0].size
        if count > MAX_COLLECTED:
            raise InvalidInputError("trace", f"more than {MAX_COLLECTED} arrivals; shorten or scale it down")
        parts.append(chunk)
    times = np.concatenate([t for t, _ in parts]) if parts else np.empty(0)
    index = np.concatenate([i for _, i in parts]) if parts else np.empty(0, dtype=np.intp)
    return {app: times[index == i] for i, app in enumerate(source.apps)}

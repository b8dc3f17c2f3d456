"""How long a batch takes: what the profile says, drawn around it, or slowed down."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.models.profile import Z95, LatencyCurve, Profile, Quantile
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.slice_profiles import crowd

ServiceMode = Literal["median", "p95", "sampled", "exponential"]

_BLOCK = 4096


class ServiceTimes:
    """Service times of one run.

    ``mode``: "median" and "p95" take the profile's curve as it is; "sampled" draws from the lognormal distribution that
    has the profile's median and p95; "exponential" from one whose mean is the profile's median (queueing theory).
    Each batch takes ``slow_factor`` times as long with probability ``slow_probability``. Draws come from ``rng`` in
    the order of batches.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        mode: ServiceMode,
        rng: Generator,
        *,
        slow_probability: float = 0.0,
        slow_factor: float = 1.0,
    ) -> None:
        if mode not in ("median", "p95", "sampled", "exponential"):
            raise ConfigurationError(f"service {mode!r} is unknown; choose median, p95, sampled or exponential")
        self._catalogue = catalogue
        self._mode = mode
        self._slow = (slow_probability, slow_factor)
        normal, exponential, uniform = rng.spawn(3)
        self._normals = _endless(normal.standard_normal)
        self._exponentials = _endless(exponential.standard_exponential)
        self._uniforms = _endless(uniform.random)
        self._tables: dict[str, dict[str, tuple[float, ...]]] = {}
        self._spreads: dict[str, dict[str, tuple[float, ...]]] = {}
        self._by_length: dict[str, dict[str, LatencyCurve]] = {}

    def of(self, kind: str) -> Callable[[str, int], float]:
        """Seconds that (variant, rows) of the longest inputs takes on a device type or slice profile, alone there."""
        table = self._tables.setdefault(kind, {})
        spreads = self._spreads.setdefault(kind, {})
        for (variant, on), profile in self._catalogue.profiles.items():
            if on == kind:
                profile = crowd(profile, 1)
                table[variant] = profile.curve("p95" if self._mode == "p95" else "median").seconds
                spreads[variant] = _spread(profile)
        return self._with_slow_batches(self._drawn(table, spreads))

    def by_length(self, kind: str) -> Mapping[str, LatencyCurve]:
        """Of variants there whose inputs vary in length: how latency goes with it."""
        if kind not in self._by_length:
            quantile: Quantile = "p95" if self._mode == "p95" else "median"
            self._by_length[kind] = {
                variant: profile.curve(quantile)
                for (variant, on), profile in self._catalogue.profiles.items()
                if on == kind and profile.length
            }
        return self._by_length[kind]

    def _drawn(
        self, table: dict[str, tuple[float, ...]], spreads: dict[str, tuple[float, ...]]
    ) -> Callable[[str, int], float]:
        normals, exponentials = self._normals, self._exponentials
        match self._mode:
            case "sampled":
                return lambda variant, rows: table[variant][rows - 1] * spreads[variant][rows - 1] ** next(normals)
            case "exponential":
                return lambda variant, rows: table[variant][rows - 1] * next(exponentials)
            case _:
                return lambda variant, rows: table[variant][rows - 1]

    def _with_slow_batches(self, draw: Callable[[str, int], float]) -> Callable[[str, int], float]:
        probability, factor = self._slow
        if not probability:
            return draw
        uniforms = self._uniforms
        return lambda variant, rows: draw(variant, rows) * (factor if next(uniforms) < probability else 1.0)


def _spread(profile: Profile) -> tuple[float, ...]:
    """exp(sigma) for each batch size: p95 = median * exp(1.645 sigma)."""
    median, p95 = profile.curve("median").seconds, profile.curve("p95").seconds
    return tuple((p / m) ** (1.0 / Z95) for m, p in zip(median, p95, strict=True))


def _endless(draw: Callable[[int], NDArray[np.float64]]) -> Iterator[float]:
    """One number after the other, drawn thousands at a time."""
    return chain.from_iterable(draw(_BLOCK).tolist() for _ in repeat(None))

"""How many containers an app should have: as many as its backlog needs, kept for a while, warmed ahead of demand.

Rules:
- Wanted now: sum over variants of ceil(waiting and running queries / batch size).
- Delayed termination: the target is the largest number wanted within the last ``keep_alive`` seconds. 0 follows at
  once.
- Pre-warm: the number wanted by the forecast for the time that a container takes to start counts too.
- Bounds: at least ``least``, at most ``most``. A step is announced only when the target changes.

After PROTEAN (Middleware 2024), section 4.4.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.profile import Quantile
from sluicegate.profiles.catalogue.catalogue import Catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSettings:
    """Settings of the autoscaler. ``keep_alive``: seconds; ``least`` and ``most``: containers of an app."""

    keep_alive: float = 600.0
    least: int = 0
    most: int = 1000

    def __post_init__(self) -> None:
        if not (0.0 <= self.keep_alive < math.inf and 0 <= self.least <= self.most):
            raise InvalidInputError(
                "scaling", f"keep_alive {self.keep_alive} or bounds {self.least}..{self.most} make no sense"
            )


@dataclass(frozen=True, slots=True)
class Observed:
    """An app's load. ``queries``: waiting and running, by variant.

    ``expected``: the same by forecast, for when a container that is started now would be ready.
    """

    app: str
    queries: Mapping[str, float]
    expected: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ScaleTo:
    """Have ``containers`` of ``app``."""

    app: str
    containers: int


class Autoscaler:
    """All apps of a fleet. ``batches``: batch size by variant (1 where unknown)."""

    def __init__(self, batches: Mapping[str, int], settings: ScalingSettings | None = None) -> None:
        self._batches = dict(batches)
        self._settings = settings or ScalingSettings()
        self._wanted: dict[str, deque[tuple[float, int]]] = {}
        self._target: dict[str, int] = {}

    def registered(self, batches: Mapping[str, int]) -> None:
        """Other variants may run from now on, with these batch sizes."""
        self._batches |= batches

    def target(self, app: str) -> int:
        """Containers that ``app`` should have."""
        return self._target.get(app, self._settings.least)

    def handle(self, event: Observed, now: float) -> list[ScaleTo]:
        """A new target, where it changes. Times must not go back."""
        wanted = max(containers_wanted(self._batches, event.queries), containers_wanted(self._batches, event.expected))
        kept = self._wanted.setdefault(event.app, deque())
        # Only numbers that could still become the maximum are kept: ascending time, descending number.
        while kept and kept[-1][1] <= wanted:
            kept.pop()
        kept.append((now, wanted))
        while kept[0][0] < now - self._settings.keep_alive:
            kept.popleft()
        target = min(max(kept[0][1], self._settings.least), self._settings.most)
        if target == self._target.get(event.app, self._settings.least):
            return []
        self._target[event.app] = target
        return [ScaleTo(event.app, target)]


def containers_wanted(batches: Mapping[str, int], queries: Mapping[str, float]) -> int:
    """Containers for ``queries`` by variant, each of them a batch at a time. Raises InvalidInputError."""
    total = 0
    for variant, number in queries.items():
        if not 0.0 <= number < math.inf:
            raise InvalidInputError(f"queries.{variant}", f"{number} is not a number of queries")
        total += math.ceil(number / max(1, batches.get(variant, 1)) - 1e-9)
    return total


@dataclass(frozen=True, slots=True)
class Unit:
    """What one worker does for an app at a time: ``batch`` queries of ``variant`` in ``seconds``. ``slo``: seconds."""

    variant: str
    batch: int
    seconds: float
    slo: float

    def on_hand(self, qps: float, backlog: float = 0.0) -> float:
        """Queries in service at a time where ``qps`` come and ``backlog`` is to be gone within the SLO."""
        return (qps + backlog / self.slo) * self.seconds


def units(catalogue: Catalogue, device_type: str, quantile: Quantile = "p95") -> dict[str, Unit]:
    """By app: the most accurate variant that has a batch within half the SLO on the device type, at its best batch, as
    many of them at a time as a worker runs.

    Fewer workers could serve less accurate variants, and do while others start: the planner sees to that. Apps for
    which nothing is fast enough are left out: no number of workers helps them.
    """
    found: dict[str, Unit] = {}
    for app in catalogue.apps.values():
        for variant in sorted(catalogue.of_app(app.name), key=lambda v: (-v.accuracy, v.name)):
            profile = catalogue.profiles.get((variant.name, device_type))
            if profile is None:
                continue
            points = [(p.batch, p.median if quantile == "median" else p.p95) for p in profile.points]
            fit = [(batch / seconds, batch, seconds) for batch, seconds in points if seconds <= app.slo / 2.0]
            if fit:
                _, batch, seconds = max(fit)
                found[app.name] = Unit(variant.name, profile.executors * batch, seconds, app.slo)
                break
    return found


_APART = 0.5
"""Seconds that a sample is after the one before it, at least: rates are counted so often, and of the time between two a
clock that is set back may leave next to nothing."""


class Trend:
    """Level and slope of a rate by double exponential smoothing (Holt), for the time that a worker takes to start.

    ``alpha``, ``beta``: weights of the newest sample and of the newest slope.
    """

    def __init__(self, *, alpha: float = 0.5, beta: float = 0.3) -> None:
        self._alpha = alpha
        self._beta = beta
        self._level: float | None = None
        self._slope = 0.0
        self._at = 0.0

    def update(self, rate: float, now: float) -> None:
        """A sample. One that comes as the clock is set back only says what time it is now."""
        at, self._at = self._at, now
        if self._level is None:
            self._level = rate
        elif now > at:
            passed = max(now - at, _APART)
            before = self._level
            self._level = self._alpha * rate + (1.0 - self._alpha) * (before + self._slope * passed)
            self._slope += self._beta * ((self._level - before) / passed - self._slope)

    def ahead(self, seconds: float) -> float:
        """The rate expected then, never below 0."""
        return max(0.0, (self._level or 0.0) + self._slope * seconds)

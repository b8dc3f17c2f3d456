"""How much each app asks for, how much to hold ready above that, and when a burst cannot wait for the next plan.

Rules:
- Counts go into seconds by the middle of their window, so that any number of counters add up. A second is a sample once
  it is over; seconds without a count are zero.
- The estimate is an exponentially weighted mean of the samples (Proteus's artifact: alpha 0.385).
- A burst is a second (sliding, by half seconds) with ``sharp`` times what the plan in force covers, or two seconds with
  ``sustained`` times that: single seconds a little above are left to routing and batching, a plan made for them costs
  accuracy until the next one. During a burst the estimate is the largest rate of the ``window`` before.
- Headroom: beta = max(floor, 1 + z spread), spread = sqrt(D / (0.3 s)), s the estimate, 0.3 s the time over which
  queues cannot help. D is 1 (Poisson) unless arrivals are burstier: the index of dispersion of the samples, from
  squared differences of neighbours so that a trend does not count, over ``tolerance``, which is what a fluctuating rate
  gives by itself.
- z = 1.5 and a floor of 1.1: on the Twitter traces of Proteus's artifact at 2.5 times their load, 2 and 1.2 cost 0.1
  points of accuracy and save no violations, since bursts are planned for when they come.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import DemandCounted

_HALVES = 6
"""Half seconds kept for bursts."""
_WEIGHTS = frozenset({"alpha", "dispersion_alpha"})
_POSITIVE = _WEIGHTS | {"window", "sharp", "sustained", "queue_time", "tolerance", "min_qps"}
_FORGOTTEN = 120
"""Seconds after which a sample weighs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandSettings:
    """Settings of the demand estimate. ``alpha``: weight of a new sample. ``window``: seconds. ``min_qps``: never
    estimate less."""

    alpha: float = 0.385
    window: float = 1.0
    sharp: float = 1.5
    sustained: float = 1.1
    z: float = 1.5
    headroom_floor: float = 1.1
    headroom_cap: float = 8.0
    queue_time: float = 0.3
    dispersion_alpha: float = 0.05
    tolerance: float = 4.0
    dispersion_cap: float = 8.0
    min_qps: float = 0.5


def demand_settings(options: Mapping[str, float], where: str) -> DemandSettings:
    """Settings from ``options`` by name. Raises ConfigurationError, which names ``where`` and the option."""
    allowed = [f.name for f in fields(DemandSettings)]
    for option, value in options.items():
        if option not in allowed:
            raise ConfigurationError(f"{where}.{option}: no such setting; it takes {', '.join(allowed)}")
        if not 0.0 <= value < math.inf or (value == 0.0 and option in _POSITIVE):
            raise ConfigurationError(f"{where}.{option}: {value}; give a positive number")
        if option in _WEIGHTS and value > 1.0:
            raise ConfigurationError(f"{where}.{option}: {value} is above 1; it is the weight of a new sample")
        if option == "headroom_cap" and value < 1.0:
            raise ConfigurationError(f"{where}.{option}: {value}; give 1 or more, plans are for the demand at least")
    return DemandSettings(**dict(options))


@dataclass(frozen=True, slots=True)
class Estimate:
    """Demand of an app, rows/s; capacity planned for it is ``headroom`` times that.

    ``spread``: standard deviation over mean of demand while queues cannot help.
    """

    qps: float
    headroom: float
    burst: bool
    spread: float


@dataclass(slots=True)
class _AppState:
    """One app's counts. ``seconds``: counts of seconds not over yet. ``samples``: the last ones of the window, (second,
    count)."""

    seconds: dict[int, float] = field(default_factory=dict)
    halves: dict[int, float] = field(default_factory=dict)
    next_second: int | None = None
    mean: float | None = None
    samples: deque[tuple[int, float]] = field(default_factory=deque)
    variance: float = 0.0
    level: float = 0.0
    last: float | None = None
    covered: float = math.inf
    burst_until: float = -math.inf
    rated: tuple[int, float, float] | None = None
    """Until another count comes: a half second, and the rates over the last one and two seconds as of it."""


class DemandEstimator:
    """Fold counts in, ask for estimates. Pure: time comes with the calls, which never go back in it."""

    def __init__(self, settings: DemandSettings | None = None) -> None:
        self._settings = settings or DemandSettings()
        self._apps: dict[str, _AppState] = {}

    def handle(self, event: DemandCounted, now: float) -> None:
        """Fold one count in."""
        state = self._apps.setdefault(event.app, _AppState())
        middle = now - event.age - event.window / 2
        second = math.floor(middle)
        if state.next_second is None:
            state.next_second = second
        if second < state.next_second:
            # A count that comes after its second was closed belongs to the oldest open one: nothing is lost.
            second = state.next_second
        if second not in state.seconds:  # who stands by is told and never asked: nobody closes these there
            oldest = math.floor(now - 0.5) - _FORGOTTEN
            for old in [k for k in state.seconds if k < oldest]:
                del state.seconds[old]
        state.seconds[second] = state.seconds.get(second, 0.0) + event.count
        half = math.floor(2 * middle)
        state.halves[half] = state.halves.get(half, 0.0) + event.count
        state.rated = None
        for old in [h for h in state.halves if h < half - _HALVES]:
            del state.halves[old]

    def cover(self, app: str, qps: float) -> None:
        """The plan in force covers ``qps`` of ``app`` (headroom included): a burst is more than that."""
        state = self._apps.setdefault(app, _AppState())
        state.covered = qps

    def bursting(self, now: float) -> tuple[str, ...]:
        """Apps that get more than their plan covers, by name."""
        found = []
        s = self._settings
        half = math.floor(2 * now)
        for app, state in self._apps.items():
            if state.rated is None or state.rated[0] != half:
                state.rated = half, self._sliding(state, now, 2), self._sliding(state, now, 4)
            _, second, two = state.rated
            lasting = s.sustained * state.covered
            if second > s.min_qps and (second > s.sharp * state.covered or (second > lasting and two > lasting)):
                state.burst_until = now + s.window
                found.append(app)
        return tuple(sorted(found))

    def estimates(self, now: float) -> Mapping[str, Estimate]:
        """Estimates of all apps that were ever counted, by name."""
        return {app: self._estimate(state, now) for app, state in sorted(self._apps.items())}

    def estimate(self, app: str, now: float) -> Estimate:
        """The estimate of ``app``; the least there is where it was never counted."""
        return self._estimate(self._apps.setdefault(app, _AppState()), now)

    def _estimate(self, state: _AppState, now: float) -> Estimate:
        self._close(state, now)
        qps = state.mean if state.mean is not None else self._sliding(state, now, 2)
        burst = now < state.burst_until
        if burst:
            qps = max(qps, self._sliding(state, now, 2), max((c for _, c in state.samples), default=0.0))
        qps = max(qps, self._settings.min_qps)
        spread = self._spread(state, qps)
        headroom = min(max(1.0 + self._settings.z * spread, self._settings.headroom_floor), self._settings.headroom_cap)
        return Estimate(qps, headroom, burst, spread)

    def _spread(self, state: _AppState, qps: float) -> float:
        s = self._settings
        dispersion = state.variance / state.level if state.level > 0 else 1.0
        dispersion = min(max(dispersion / s.tolerance, 1.0), s.dispersion_cap)
        return math.sqrt(dispersion / (s.queue_time * qps))

    def _close(self, state: _AppState, now: float) -> None:
        """Turn seconds that are over (and half a second more, for counters that are late) into samples."""
        if state.next_second is None:
            return
        over = math.floor(now - 0.5)
        # After a long silence only the seconds that still weigh anything are walked through.
        first = max(state.next_second, over - _FORGOTTEN)
        for second in [k for k in state.seconds if k < first]:
            del state.seconds[second]
        for second in range(first, over):
            self._sample(state, second, state.seconds.pop(second, 0.0))
        state.next_second = max(state.next_second, over)
        while state.samples and state.samples[0][0] < over - self._settings.window:
            state.samples.popleft()

    def _sample(self, state: _AppState, second: int, count: float) -> None:
        s = self._settings
        state.mean = count if state.mean is None else state.mean + s.alpha * (count - state.mean)
        if state.last is None:
            # Poisson until something else is seen.
            state.level = state.variance = count
        else:
            state.level += s.dispersion_alpha * (count - state.level)
            state.variance += s.dispersion_alpha * ((count - state.last) ** 2 / 2 - state.variance)
        state.last = count
        state.samples.append((second, count))

    @staticmethod
    def _sliding(state: _AppState, now: float, halves: int) -> float:
        """Mean rate over the newest ``halves`` half seconds, or those before if the newest is still being counted."""
        newest = math.floor(2 * now) - 1
        sums = (sum(state.halves.get(h, 0.0) for h in range(n - halves + 1, n + 1)) for n in (newest, newest - 1))
        return max(sums) / (0.5 * halves)

"""The rate a device sustains for ever under a promise, and the batch that attains it.

Rules. Batches of B start every S seconds and take at most P: with S + P <= SLO every query is a candidate of exactly
one batch, and the candidates of one batch are the arrivals of one half-open window of S seconds. With at most X
arrivals a window the promise holds for ever, across batch borders, where

    X <= B                      nothing may be missed
    X <= B (1 + M)              at most M misses in a row
    X <= floor(K B / (K - m))   at most m misses in any K consecutive queries

The last is tight and larger than the spread-drop paper's bound (its Theorem 2): with X + 1 a window the share of drops
exceeds m/K, so that no policy keeps the promise. For several promises the least bound counts. S = P on a device with
one model, S = the cycle on a device that serves several in turn.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import NO_PROMISE, Promise
from sluicegate.domain.models.profile import LatencyCurve

NEARLY = 0.93
"""Of the best rate, for shorter turns where best effort is beside."""


@dataclass(frozen=True, slots=True)
class Sustainable:
    """A rate that is sustained for ever. ``bound`` arrivals in any window of ``window_s`` seconds are sustained with
    batches of ``batch``."""

    batch: int
    window_s: float
    bound: int

    @property
    def rate(self) -> float:
        """Queries per second."""
        return self.bound / self.window_s


def window_bound(batch: int, promise: Promise = NO_PROMISE) -> int:
    """Arrivals a window that batches of ``batch`` sustain under ``promise``.

    Raises InvalidInputError for m >= K (a promise that cannot be broken bounds nothing: leave it out), m < 0 or M < 0.
    """
    bounds: list[int] = []
    if promise.max_consecutive is not None:
        if promise.max_consecutive < 0:
            raise InvalidInputError("max_consecutive", f"{promise.max_consecutive} is negative; give 0 or more")
        bounds.append(batch * (1 + promise.max_consecutive))
    for pair in promise.weakly_hard:
        if not 0 <= pair.m < pair.k:
            raise InvalidInputError("weakly_hard", f"({pair.m}, {pair.k}) is not 0 <= m < K")
        bounds.append(pair.k * batch // (pair.k - pair.m))
    return min(bounds, default=batch)


def processing_bound(curve: LatencyCurve, batch: int) -> float:
    """P: seconds within which any batch of at most ``batch`` rows ends."""
    return max(curve.seconds[:batch])


def max_rate(
    curve: LatencyCurve,
    slo: float,
    promise: Promise = NO_PROMISE,
    *,
    others_s: float = 0.0,
    batches: Iterable[int] | None = None,
) -> Sustainable | None:
    """The batch with the highest sustainable rate, the smallest of equals; None where none has S + P <= ``slo``.

    ``others_s``: seconds of each cycle that go to other models of the device (S = P + others_s). ``batches``: sizes to
    choose from, default all of the curve. The largest batch, which spread-drop takes (4.3), is not always the best.
    """
    best: Sustainable | None = None
    for batch in sorted(batches or range(1, curve.max_batch + 1)):
        processing = processing_bound(curve, batch)
        spacing = processing + others_s
        if spacing + processing > slo:
            continue
        found = Sustainable(batch, spacing, window_bound(batch, promise))
        if best is None or found.rate > best.rate:
            best = found
    return best


def nearly_best(
    curve: LatencyCurve, promise: Promise, *, others_s: float = 0.0, batches: Sequence[int], nearly: float = NEARLY
) -> Sustainable | None:
    """The smallest batch whose rate is ``nearly`` the highest of ``batches`` (ascending), whatever the SLO.

    Shorter turns leave more to others, whose large batches are worth more than what is given up.
    """
    best = max_rate(curve, inf, promise, others_s=others_s, batches=batches)
    if best is None:
        return None
    for batch in batches:
        spacing = processing_bound(curve, batch) + others_s
        bound = window_bound(batch, promise)
        if bound >= nearly * best.rate * spacing:
            return Sustainable(batch, spacing, bound)
    return best

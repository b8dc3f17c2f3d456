"""How many queries of an app a plan sustains: what admission keeps to, from what the plan's slices can run.

Rules. The app's own stream goes to its D slices in strict turns, so that D times the least bound of a slice, in the
longest of their windows, is sustained by all. A slice's bound is that of its most accurate variant, or, for
``degraded``, of whichever of its variants sustains most. Slices on which no batch fits twice into the SLO sustain
nothing and are left out. Where a slice serves several apps in a duty cycle, its batch and its spacing are those of the
cycle.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sluicegate.domain.events import Hosted, HostedOn
from sluicegate.domain.models.app import Promise
from sluicegate.policies.promises.sustainable_rate import Sustainable, max_rate


@dataclass(frozen=True, slots=True)
class Bounds:
    """At most ``bound`` queries in any window of ``window_s`` seconds; ``degraded``: on the faster variants."""

    bound: int
    window_s: float
    degraded: int


Turn = tuple[int, float]
"""The batch of an app in a duty cycle, and the seconds of each cycle that go to others."""


def sustained(
    slices: Sequence[HostedOn], slo: float, promise: Promise, turns: Mapping[tuple[str, str], Turn] | None = None
) -> Bounds | None:
    """Bounds of an app hosted on ``slices``; None where no slice sustains anything. ``turns``: by device and slice."""
    share = promise.over(len(slices))
    cycle = turns or {}

    def best(hosted: Sequence[Hosted], part: HostedOn) -> Sustainable | None:
        return _best(hosted, slo, share, cycle.get((part.device, part.slice)))

    accurate = _together(slices, lambda part: best(part.hosted[:1], part) or best(part.hosted, part))
    fastest = _together(slices, lambda part: best(part.hosted, part))
    if accurate is None or fastest is None:
        return None
    bound, window_s = accurate
    return Bounds(bound, window_s, max(bound, int(fastest[0] * window_s / fastest[1])))


def _best(hosted: Sequence[Hosted], slo: float, promise: Promise, turn: Turn | None) -> Sustainable | None:
    batches, others_s = (None, 0.0) if turn is None else (turn[:1], turn[1])
    found = (max_rate(h.curve, slo, promise, others_s=others_s, batches=batches) for h in hosted)
    return max((s for s in found if s is not None), key=lambda s: s.rate, default=None)


def _together(
    slices: Sequence[HostedOn], bound_of: Callable[[HostedOn], Sustainable | None]
) -> tuple[int, float] | None:
    each = [bound for part in slices if part.hosted and (bound := bound_of(part)) is not None]
    if not each:
        return None
    return len(each) * min(s.bound for s in each), max(s.window_s for s in each)

"""Where the queries of an app with a promise go by a plan: a pure function of the plan, so that all who ask agree.

Rules.
- The app's own stream (queries without a key) goes round the placements in turns, in proportion to their shares. Each
  keeps its part of the promise (``sluicegate.policies.promises.stream_turns``).
- Any other stream has one placement, by rendezvous hashing weighted by the shares: when placements come or go, only the
  streams of those move. The hash does not depend on the process, so restarts change nothing.
"""

from collections import OrderedDict
from functools import lru_cache
from hashlib import blake2b
from math import log

from sluicegate.domain.models.app import Promise
from sluicegate.domain.plan import Placement, Plan
from sluicegate.policies.promises.stream_turns import ALONE, Turns, dealt, part_of, turns_of

_REMEMBERED = 16_384
"""Streams whose place is remembered; others are hashed again, with the same result."""

Place = tuple[str, str]
"""Device and slice."""
Shares = tuple[tuple[str, str, float], ...]
"""Device, slice, and what is served there of an app."""


class StreamPlaces:
    """Of one app. ``targets``: its placements, by device and slice; ``cycle``: of each turn, which of them."""

    __slots__ = ("_found", "_index", "cycle", "shares", "targets")

    def __init__(self, targets: tuple[Placement, ...]) -> None:
        self.targets = targets
        self.cycle = _dealt(tuple(max(p.share, 1e-3) for p in targets)) if targets else ()
        self.shares: Shares = tuple([(p.device, p.slice, p.share) for p in targets])
        self._index = {(p.device, p.slice): i for i, p in enumerate(targets)}
        self._found: OrderedDict[str, Placement] = OrderedDict()

    @staticmethod
    def of(plan: Plan, app: str) -> "StreamPlaces":
        """Placements that host something for ``app``, those with a share if any has; equal plans route equally."""
        mine = [p for p in plan.of_app(app) if p.variants]
        shared = [p for p in mine if p.share > 0.0]
        return StreamPlaces(tuple(sorted(shared or mine, key=lambda p: (p.device, p.slice))))

    @property
    def places(self) -> tuple[Place, ...]:
        """Devices and slices."""
        return tuple(self._index)

    def part(self, promise: Promise, place: Place) -> Promise:
        """What ``place`` must keep of ``promise``, of the app's own stream."""
        index = self._index.get(place)
        return promise if index is None or not promise.active else part_of(promise, self.cycle, index)

    def turns(self, place: Place) -> Turns:
        """Which turns are those of ``place``."""
        index = self._index.get(place)
        return ALONE if index is None else turns_of(self.cycle, index)

    def target(self, stream: str) -> Placement:
        """Of a stream with a key."""
        found = self._found.get(stream)
        if found is None:
            found = self.targets[chosen(stream, self.shares)]
            if len(self._found) >= _REMEMBERED:
                self._found.popitem(last=False)
            self._found[stream] = found
        return found

    def of_stream(self, stream: str) -> Place | None:
        """Device and slice of a stream with a key; None while nothing is hosted."""
        if not self.targets:
            return None
        target = self.target(stream)
        return (target.device, target.slice)


@lru_cache(maxsize=256)
def _dealt(weights: tuple[float, ...]) -> tuple[int, ...]:
    return dealt(weights)


def chosen(stream: str, shares: Shares) -> int:
    """Which of these places is that of a stream with a key."""
    return max(range(len(shares)), key=lambda i: _score(stream, *shares[i]))


def _score(stream: str, device: str, part: str, share: float) -> float:
    """Weighted rendezvous: -w / ln(u), u being a number from 0 to 1 that the hash gives."""
    digest = blake2b(f"{stream}\0{device}\0{part}".encode(), digest_size=8).digest()
    drawn = (int.from_bytes(digest) + 0.5) / 2.0**64
    return -max(share, 1e-3) / log(drawn)


def moved(stream: str, before: Shares, after: Shares) -> bool:
    """Whether a stream with a key has another place by the shares ``after``."""
    if before == after or not before or not after:
        return before != after
    return before[chosen(stream, before)][:2] != after[chosen(stream, after)][:2]

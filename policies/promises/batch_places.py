"""The batches that a rule which keeps promises may run on a slice: B and P of each variant."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from sluicegate.domain.events import Hosted
from sluicegate.domain.query import Query
from sluicegate.policies.promises.keeper import Share

MOST_STRETCH = 1.5
"""Allowed for overruns at most."""
LATELY = 64
OUTLIERS = 2


@dataclass(frozen=True, slots=True)
class Places:
    """A variant and the B and P of its batches. ``upto``: by rows, seconds that no batch of so many rows exceeds."""

    hosted: Hosted
    batch: int
    processing_s: float
    upto: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.batch / self.processing_s

    def in_time(self, head: Query, now: float) -> int:
        """Rows of the largest batch that saves ``head``; 0 where not even one of its own rows does."""
        if head.rows > self.batch:
            return 0
        if now + self.processing_s <= head.deadline:
            return self.batch
        rows = bisect_right(self.upto, head.deadline - now, hi=self.batch)
        while rows and now + self.upto[rows - 1] > head.deadline:  # the difference was rounded
            rows -= 1
        return rows if rows >= head.rows else 0


class Stretch:
    """By how much batches overran lately what hardly any batch should exceed. ``factor``: at least 1.

    That of the last ``LATELY`` batches which only ``OUTLIERS`` exceeded: a machine that stood still once, or the first
    batch of all, says nothing of the next.
    """

    __slots__ = ("_overruns", "_ran", "factor")

    def __init__(self) -> None:
        self.factor = 1.0
        self._overruns: deque[tuple[int, float]] = deque()
        self._ran = 0

    def ran(self, seconds: float, longest: float) -> bool:
        """A batch took so long, and should have taken ``longest`` at most. Whether ``factor`` is another now."""
        self._ran += 1
        overruns = self._overruns
        if seconds > longest:
            overruns.append((self._ran, min(MOST_STRETCH, seconds / longest)))
        while overruns and overruns[0][0] <= self._ran - LATELY:
            overruns.popleft()
        before, self.factor = self.factor, 1.0
        if len(overruns) > OUTLIERS:
            self.factor = sorted([factor for _, factor in overruns])[-1 - OUTLIERS]
        return self.factor != before


def places_of(hosted: Hosted, batch: int) -> Places:
    """Batches of ``batch`` rows."""
    upto = tuple(accumulate(hosted.longest, max))
    return Places(hosted, min(batch, len(upto)), upto[min(batch, len(upto)) - 1], upto)


def shared_places(hosted: Sequence[Hosted], share: Share, stretch: float) -> tuple[Places, ...]:
    """What fits into ``share``, where batches take ``stretch`` times what is known; variants of which nothing fits are
    left out, unless that is all of them: then single rows of the last, the fastest."""
    found = []
    for one in hosted:
        upto = tuple([stretch * seconds for seconds in accumulate(one.longest, max)])
        batch = bisect_right(upto, share.processing_s)
        if batch:
            found.append(Places(one, batch, upto[batch - 1], upto))
    if not found and stretch > 1.0:
        return shared_places(hosted, share, 1.0)
    return tuple(found) or tuple([places_of(one, 1) for one in hosted[-1:]])


def surely_fit(candidates: Sequence[Query], rows: int) -> int:
    """How many of ``candidates`` fit into ``rows`` whichever they are: as many as of the largest."""
    if len(candidates) == sum([q.rows for q in candidates]):
        return rows
    for count, taken in enumerate(accumulate(sorted((q.rows for q in candidates), reverse=True))):
        if taken > rows:
            return count
    return len(candidates)

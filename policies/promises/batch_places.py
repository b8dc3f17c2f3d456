"""The batches that a rule which keeps promises may run on a slice: B and P of each variant."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from sluicegate.domain.events import Hosted
from sluicegate.domain.query import Query
from sluicegate.policies.promises.keeper import Share


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

    def usual_s(self, rows: int) -> float:
        """Seconds that batches of ``rows`` rows usually take at most."""
        return max(self.hosted.curve.seconds[:rows])

    def in_time(self, head: Query, now: float) -> int:
        """Rows of the largest batch that saves ``head``; 0 where not even one of its own rows does."""
        if head.rows > self.batch:
            return 0
        if now + self.processing_s <= head.deadline:
            return self.batch
        rows = bisect_right(self.upto, head.deadline, hi=self.batch, key=lambda took: now + took)
        return rows if rows >= head.rows else 0


def places_of(hosted: Hosted, batch: int) -> Places:
    """Batches of ``batch`` rows."""
    upto = tuple(accumulate(hosted.longest, max))
    return Places(hosted, min(batch, len(upto)), upto[min(batch, len(upto)) - 1], upto)


def shared_places(hosted: Sequence[Hosted], share: Share) -> tuple[Places, ...]:
    """What fits into ``share``; variants of which nothing fits are left out, unless that is all of them: then single
    rows of the last, the fastest."""
    found = []
    for one in hosted:
        upto = tuple(accumulate(one.longest, max))
        batch = bisect_right(upto, share.processing_s)
        if batch:
            found.append(Places(one, batch, upto[batch - 1], upto))
    return tuple(found) or tuple([places_of(one, 1) for one in hosted[-1:]])


def surely_fit(candidates: Sequence[Query], rows: int) -> int:
    """How many of ``candidates`` fit into ``rows`` whichever they are: as many as of the largest."""
    if len(candidates) == sum([q.rows for q in candidates]):
        return rows
    for count, taken in enumerate(accumulate(sorted((q.rows for q in candidates), reverse=True))):
        if taken > rows:
            return count
    return len(candidates)

"""How many queries will be answered in time after a batch: a short fluid look ahead, cheap enough for every decision.

The queue is known; arrivals go on at the rate seen lately, evenly spaced. From the end of the batch in question up to
one SLO from now, batches of an efficient size are formed as early drop does (Nexus, policy 0): as many as are there,
those that would be late in it skipped. The last batch counts in proportion. Index k of the queue is a row; indices
beyond the queue are arrivals to come. Each step costs one bisection, so that a look takes a few microseconds.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

KNEE = 0.95
"""Share of the best throughput that counts as efficient."""
CHUNK = 0.05
"""Share of the SLO that a batch may take in any case: finer steps add cost and no insight."""
LASTING = 0.5
"""Share of the SLO that batches may take where one follows another: who just missed one is answered by the next."""
CHOICES = 24
"""Batch sizes compared at most."""


def efficient_batch(seconds: Sequence[float], slo: float) -> int:
    """The smallest batch with ``KNEE`` of the best throughput, or the largest within ``CHUNK`` of the SLO if larger.

    Of batches within ``LASTING`` of the SLO; 1 where there are none.
    """
    lasting = [b for b, s in enumerate(seconds, 1) if s <= LASTING * slo * (1.0 + 1e-9)]
    seconds = seconds[: lasting[-1] if lasting else 1]
    best = max(b / s for b, s in enumerate(seconds, 1))
    knee = next(b for b, s in enumerate(seconds, 1) if b / s >= KNEE * best)
    return max(knee, max((b for b, s in enumerate(seconds, 1) if s <= CHUNK * slo), default=1))


def taken_whole(seconds: Sequence[float]) -> list[bool]:
    """Index n: whether one batch of n rows takes no longer than the best way to cut n rows into batches."""
    least = [0.0]
    whole = [True]
    for n, at_once in enumerate(seconds, 1):
        least.append(min(seconds[b - 1] + least[n - b] for b in range(1, n + 1)))
        whole.append(at_once <= least[n] * 1.001)
    return whole


class Lookahead:
    """For one latency curve (``seconds[b - 1]``: b rows) and SLO."""

    __slots__ = ("batch", "horizon", "seconds", "slo", "throughput", "whole")

    def __init__(self, seconds: Sequence[float], slo: float) -> None:
        self.seconds = tuple(seconds)
        self.slo = slo
        self.horizon = slo
        self.batch = efficient_batch(self.seconds, slo)
        self.throughput = max(b / self.seconds[b - 1] for b in range(1, self.batch + 1))
        self.whole = taken_whole(self.seconds)

    def at_most(self, start: float) -> float:
        """No more rows than this will ``on_time`` find from ``start`` on."""
        left = self.horizon - start
        return self.throughput * left if left > 0.0 else 0.0

    def on_time(self, slacks: Sequence[float], rate: float, start: float, index: int) -> float:
        """Rows answered in time of those from ``index`` on, the executor being free at ``start``.

        ``slacks``: seconds to the deadline of each row queued, ascending; ``start`` seconds from now; ``rate``: rows/s.
        """
        seconds, largest, horizon = self.seconds, self.batch, self.horizon
        queued = len(slacks)
        served = 0.0
        while start < horizon:
            there = queued + int(start * rate)
            if index >= there:  # idle until the next arrival
                if rate <= 0.0:
                    break
                start = (index - queued + 1) / rate
                there = index + 1
                if start >= horizon:
                    break
            end = start + seconds[min(there - index, largest) - 1]
            if index < queued and slacks[index] < end:
                index = bisect_left(slacks, end, index, queued)
            if index >= queued and end > self.slo:
                index = max(index, queued - 1 + int((end - self.slo) * rate + 0.999999))
            batch = min(there - index, largest)
            if batch <= 0:
                index = there
                continue
            took = seconds[batch - 1]
            if start + took > horizon:
                served += batch * (horizon - start) / took
                break
            start += took
            served += batch
            index += batch
        return served

    def candidates(self, slacks: Sequence[float]) -> list[tuple[int, int]]:
        """(rows to skip, rows to run) worth comparing, each on time for all it runs; some ``CHOICES``.

        Sizes from the largest down, each behind the rows that it would make late; besides, without skipping: the
        largest batch, an efficient one and one row.
        """
        seconds = self.seconds
        queued = len(slacks)
        head = slacks[0]
        largest = plain = min(queued, len(seconds))
        while plain > 1 and seconds[plain - 1] > head:
            plain -= 1
        found = dict.fromkeys((0, b) for b in (plain, min(plain, self.batch), 1) if seconds[b - 1] <= head)
        for size in range(largest, 0, -max(1, largest // CHOICES)):
            took = seconds[size - 1]
            skip = 0 if took <= head else bisect_left(slacks, took)
            batch = min(size, queued - skip)
            if batch > 0 and seconds[batch - 1] <= slacks[skip]:
                found[skip, batch] = None
        return list(found)

    def between_queries(
        self, choices: Sequence[tuple[int, int]], slacks: Sequence[float], cuts: Sequence[int]
    ) -> list[tuple[int, int]]:
        """``choices`` that cut no query of several rows: more is skipped and less is run, but at least one query.

        ``cuts``: rows before each query, ascending from 0, and rows in all.
        """
        seconds = self.seconds
        found: dict[tuple[int, int], None] = {}
        for skip, rows in choices:
            first = bisect_left(cuts, skip)
            if first + 1 < len(cuts):
                last = max(bisect_right(cuts, cuts[first] + rows) - 1, first + 1)
                batch = cuts[last] - cuts[first]
                if batch <= len(seconds) and seconds[batch - 1] <= slacks[cuts[first]]:
                    found[cuts[first], batch] = None
        return list(found)

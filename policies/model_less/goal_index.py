"""Finds the first of many variants that meets two goals, or the nearest, in a time that hardly grows with their number.

Rules. Places are ordered by preference, best first. Each node of a binary tree over them keeps the staircase of what is
below it: times ascending, and for each the best accuracy reached within it. Whether any place below meets
(accuracy, time) is one bisection of that staircase, so the first place that does is found in O(log n) of them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import inf

import numpy as np
import numpy.typing as npt


class FirstFit:
    """A search tree for the first variant that fits. ``accuracies`` and ``times`` by place, in order of preference."""

    __slots__ = ("_best", "_size", "_steps")

    def __init__(self, accuracies: Sequence[float], times: Sequence[float]) -> None:
        self._size = 1
        while self._size < len(accuracies):
            self._size *= 2
        # Staircases by node, the root at 1: the steps' times, and the best accuracy within each.
        self._steps: list[list[float]] = [[] for _ in range(2 * self._size)]
        self._best: list[list[float]] = [[] for _ in range(2 * self._size)]
        for place, (accuracy, time) in enumerate(zip(accuracies, times, strict=True)):
            self._steps[self._size + place] = [time]
            self._best[self._size + place] = [accuracy]
        for node in range(self._size - 1, 0, -1):
            self._join(node)

    def first(self, accuracy: float, time: float) -> int:
        """First place with at least ``accuracy`` within ``time``; -1 where there is none."""
        steps, best, size = self._steps, self._best, self._size
        at = bisect_right(steps[1], time)
        if not at or best[1][at - 1] < accuracy:
            return -1
        node = 1
        while node < size:
            node *= 2
            at = bisect_right(steps[node], time)
            if not at or best[node][at - 1] < accuracy:
                node += 1
        return node - size

    def _join(self, node: int) -> None:
        """The staircase of a node from those of its children."""
        left_steps, right_steps = self._steps[2 * node], self._steps[2 * node + 1]
        left_best, right_best = self._best[2 * node], self._best[2 * node + 1]
        if not right_steps:
            self._steps[node], self._best[node] = left_steps, left_best
            return
        if not left_steps:
            self._steps[node], self._best[node] = right_steps, right_best
            return
        steps: list[float] = []
        best: list[float] = []
        i = j = 0
        reached = -1.0
        while i < len(left_steps) or j < len(right_steps):
            if j == len(right_steps) or (i < len(left_steps) and left_steps[i] <= right_steps[j]):
                time, accuracy = left_steps[i], left_best[i]
                i += 1
            else:
                time, accuracy = right_steps[j], right_best[j]
                j += 1
            if accuracy > reached:
                reached = accuracy
                if steps and steps[-1] == time:
                    best[-1] = accuracy
                else:
                    steps.append(time)
                    best.append(accuracy)
        self._steps[node], self._best[node] = steps, best


class Nearest:
    """The variant that misses two goals by least, relative to them: INFaaS' suggestion for an infeasible query.

    Only those on the staircase (no other is as accurate in less time) can be nearest. Of the steps within the time the
    last misses least, of those as accurate as asked the first; what a step between them misses is linear in its time
    and accuracy, so it is least on a corner of the convex hull of these steps. A binary tree over the staircase keeps
    the hulls, and the corner is one bisection of its slopes a node: O(log^2 n) comparisons.
    """

    __slots__ = ("_accuracies", "_corners", "_miss", "_places", "_size", "_slopes", "_term", "_times", "_wide")

    def __init__(self, accuracies: Sequence[float], times: Sequence[float], costs: Sequence[float]) -> None:
        order = sorted(range(len(times)), key=lambda i: (times[i], -accuracies[i], i))
        kept: list[int] = []
        for place in order:
            if not kept or accuracies[place] > accuracies[kept[-1]]:
                kept.append(place)
        self._places = kept
        self._accuracies = [accuracies[i] for i in kept]
        self._times = [times[i] for i in kept]
        self._size = 1
        while self._size < len(kept):
            self._size *= 2
        # By node, the root at 1: steps that are corners of its hull, and seconds per accuracy from each to the next.
        self._corners: list[list[int]] = [[] for _ in range(2 * self._size)]
        self._slopes: list[list[float]] = [[] for _ in range(2 * self._size)]
        for step in range(len(kept)):
            self._corners[self._size + step] = [step]
        for node in range(self._size - 1, 0, -1):
            self._hull(node)
        # All variants, with room to reckon in: what is allocated once costs no query.
        self._wide: tuple[npt.NDArray[np.float64], ...] = tuple(np.array(v, float) for v in (accuracies, times, costs))
        self._miss, self._term = np.empty(len(costs)), np.empty(len(costs))

    def find(self, accuracy: float, time: float) -> int:
        """Place of argmin max(0, (a - acc) / a) + max(0, (t - T) / T); -1 where there is no variant at all.

        Without a goal of accuracy (0) there is nothing to miss of it; a time of 0 or less is missed by every second.
        """
        if not self._places:
            return -1
        if accuracy <= 0.0:
            return self._places[0]
        scale = time if time > 0.0 else 1.0
        within = bisect_right(self._times, time) if time > 0.0 else 0
        enough = bisect_left(self._accuracies, accuracy)
        if enough < within:
            return self._places[enough]
        found = self._best_corner(within, enough, accuracy, scale)
        if within:
            found = min(found, (1.0 - self._accuracies[within - 1] / accuracy, within - 1))
        if enough < len(self._places):
            found = min(found, (self._times[enough] / scale - 1.0, enough))
        return self._places[found[1]]

    def find_within(self, accuracy: float, time: float, cost: float) -> int:
        """The same with a third term for the cost, over all variants."""
        accuracies, times, costs = self._wide
        if not len(costs):
            return -1
        miss, term = self._miss, self._term
        miss.fill(0.0)
        if accuracy > 0.0:
            np.multiply(accuracies, -1.0 / accuracy, out=miss)
            miss += 1.0
            np.maximum(miss, 0.0, out=miss)
        for values, goal in ((times, time), (costs, cost)):
            np.multiply(values, 1.0 / goal if goal > 0.0 else 1.0, out=term)
            term -= 1.0 if goal > 0.0 else 0.0
            np.maximum(term, 0.0, out=term)
            miss += term
        return int(miss.argmin())

    def _best_corner(self, start: int, end: int, accuracy: float, time: float) -> tuple[float, int]:
        """Least of t / T - acc / a over steps from ``start`` to before ``end``, and its step; infinite for none."""
        times, accuracies, corners, slopes = self._times, self._accuracies, self._corners, self._slopes
        best, found = inf, 0
        worth = time / accuracy  # seconds that a unit of accuracy is worth
        left, right = start + self._size, end + self._size
        while left < right:
            for node in (left,) * (left & 1) + (right - 1,) * (right & 1):
                step = corners[node][bisect_left(slopes[node], worth)]
                miss = times[step] / time - accuracies[step] / accuracy
                if miss < best:
                    best, found = miss, step
            left = (left + 1) >> 1
            right >>= 1
        return best, found

    def _hull(self, node: int) -> None:
        """The hull of a node from those of its children, from the left: slopes ascend."""
        corners, slopes = list(self._corners[2 * node]), list(self._slopes[2 * node])
        times, accuracies = self._times, self._accuracies
        for step in self._corners[2 * node + 1]:
            while corners:
                last = corners[-1]
                slope = (times[step] - times[last]) / (accuracies[step] - accuracies[last])
                if not slopes or slope > slopes[-1]:
                    slopes.append(slope)
                    break
                corners.pop()
                slopes.pop()
            corners.append(step)
        self._corners[node], self._slopes[node] = corners, slopes

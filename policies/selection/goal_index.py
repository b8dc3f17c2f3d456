"""Finds the first of many variants that meets two goals, in a time that hardly depends on how many there are.

Rules. Places are ordered by preference, best first. Each node of a binary tree over them keeps the staircase of what is
present below it: times ascending, and for each the best accuracy reached within it. Whether any place below meets
(accuracy, time) is one bisection of that staircase, so the first place that does is found in O(log n) of them. A place
that comes or goes changes the staircases above it and no others.
"""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class FirstFit:
    """``accuracies`` and ``times`` by place, in the order of preference; all absent at first unless ``present``."""

    __slots__ = ("_accuracies", "_best", "_present", "_size", "_steps", "_times")

    def __init__(self, accuracies: Sequence[float], times: Sequence[float], *, present: bool = False) -> None:
        self._accuracies = list(accuracies)
        self._times = list(times)
        self._present = [present] * len(accuracies)
        self._size = 1
        while self._size < len(accuracies):
            self._size *= 2
        # Staircases by node, the root at 1: the steps' times, and the best accuracy within each.
        self._steps: list[list[float]] = [[] for _ in range(2 * self._size)]
        self._best: list[list[float]] = [[] for _ in range(2 * self._size)]
        if present:
            for place in range(len(accuracies)):
                self._steps[self._size + place] = [self._times[place]]
                self._best[self._size + place] = [self._accuracies[place]]
            for node in range(self._size - 1, 0, -1):
                self._join(node)

    def put(self, place: int, *, present: bool) -> None:
        """Say whether ``place`` may be found from now on."""
        if self._present[place] == present:
            return
        self._present[place] = present
        node = self._size + place
        self._steps[node], self._best[node] = ([self._times[place]], [self._accuracies[place]]) if present else ([], [])
        while node > 1:
            node //= 2
            self._join(node)

    def first(self, accuracy: float, time: float, start: int = 0) -> int:
        """First place at or after ``start`` with at least ``accuracy`` within ``time``; -1 where there is none."""
        steps, best, size = self._steps, self._best, self._size
        node = 1
        if start:
            if start >= size:
                return -1
            node = size + start
        while True:
            at = bisect_right(steps[node], time)
            if at and best[node][at - 1] >= accuracy:
                break
            if not start:
                return -1
            while node & 1:  # a right child: what lies to the right of its parent is next
                node >>= 1
            if not node:
                return -1
            node += 1
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

    Only those on the staircase (no other is as accurate in less time) can be nearest.
    """

    __slots__ = ("_accuracies", "_costs", "_places", "_times")

    def __init__(self, accuracies: Sequence[float], times: Sequence[float], costs: Sequence[float]) -> None:
        order = sorted(range(len(times)), key=lambda i: (times[i], -accuracies[i], i))
        kept: list[int] = []
        for place in order:
            if not kept or accuracies[place] > accuracies[kept[-1]]:
                kept.append(place)
        self._places = kept
        self._accuracies: npt.NDArray[np.float64] = np.array([accuracies[i] for i in kept])
        self._times: npt.NDArray[np.float64] = np.array([times[i] for i in kept])
        self._costs = (np.asarray(accuracies, float), np.asarray(times, float), np.asarray(costs, float))

    def find(self, accuracy: float, time: float) -> int:
        """Place of argmin max(0, (a - acc) / a) + max(0, (t - T) / T); -1 where there is no variant at all."""
        if not self._places:
            return -1
        # Without a goal of accuracy or time there is nothing to miss of it.
        short = np.maximum(0.0, accuracy - self._accuracies) / accuracy if accuracy > 0.0 else 0.0
        late = np.maximum(0.0, self._times / time - 1.0) if time > 0.0 else self._times
        return self._places[int(np.argmin(short + late))]

    def find_within(self, accuracy: float, time: float, cost: float) -> int:
        """The same with a third term for the cost, over all variants."""
        accuracies, times, costs = self._costs
        if not len(costs):
            return -1
        short = np.maximum(0.0, accuracy - accuracies) / accuracy if accuracy > 0.0 else 0.0
        late = np.maximum(0.0, times / time - 1.0) if time > 0.0 else times
        dear = np.maximum(0.0, costs / cost - 1.0) if cost > 0.0 else costs
        return int(np.argmin(short + late + dear))

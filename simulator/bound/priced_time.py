"""An upper bound on what queries can be worth together, whoever decides, from prices of device time.

A query is worth ``value`` where it is answered in time, in one of several ways; each way takes so many seconds of
resources of which there are so many. Time is cut into intervals, and each resource has a price in each.

Rules.
- Whatever prices there are (none below zero), no policy gets more than all resources cost at them, over all time, plus
  for each query the most that it leaves over its cost at the lowest prices between its arrival and its deadline. For
  the device time that a query takes lies between the two, and no more of it is taken than there is (weak duality).
- So the bound needs no trust in a solver, nor in how intervals were chosen. A linear program finds prices at which it
  is low: a fluid of queries flows through intervals, each query at any between its arrival and deadline.
- The program is solved for stretches of intervals one after the other, each as if nothing were left over at its ends:
  that can only raise the bound, a little, and a long trace takes no more than time in proportion.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_STRETCH = 100
"""Intervals that are priced together."""
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True)
class Way:
    """One way to answer a query. ``takes``: (resource, seconds of it a query)."""

    value: float
    takes: tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False)
class Asked:
    """Queries that can be answered in the same ways. ``counts[c]`` of them may take device time from interval
    ``first[c]`` to interval ``last[c]``, both included."""

    first: Ints
    last: Ints
    counts: Floats

    @staticmethod
    def of(ready: Floats, until: Floats, interval: float) -> "Asked":
        """Those that can be begun from ``ready`` on and count ``until`` then (seconds, from 0)."""
        first = (ready / interval).astype(np.int64)
        span = (until / interval).astype(np.int64) - first
        widest = int(span.max(initial=0)) + 1
        found, counts = np.unique(first * widest + span, return_counts=True)
        return Asked(found // widest, found // widest + found % widest, counts.astype(np.float64))

    @property
    def queries(self) -> float:
        """All of them."""
        return float(self.counts.sum())


def most_value(asked: Sequence[Asked], ways: Sequence[Sequence[Way]], capacity: Floats, interval: float) -> float:
    """What the queries of all ``asked`` can be worth at most, answered in the ``ways`` that each has.

    ``capacity``: of each resource, seconds of it in a second.
    """
    ends = 1 + max((int(each.last.max(initial=-1)) for each in asked), default=0)
    offered = [_worth_offering(each) for each in ways]
    prices = np.zeros((capacity.size, ends))
    free = _worth_at(prices, asked, offered, capacity * interval)
    for begin in range(0, ends, _STRETCH):
        end = min(ends, begin + _STRETCH)
        prices[:, begin:end] = _Stretch(begin, end, capacity * interval).prices(asked, offered)
    return min(free, _worth_at(prices, asked, offered, capacity * interval))


def _worth_at(prices: Floats, asked: Sequence[Asked], ways: Sequence[Sequence[Way]], amounts: Floats) -> float:
    """The bound that ``prices`` prove. ``amounts``: seconds of each resource in an interval."""
    worth = float(amounts @ prices.sum(axis=1))
    for each, offered in zip(asked, ways, strict=True):
        left = np.zeros(prices.shape[1])
        for way in offered:
            cost = np.zeros_like(left)
            for resource, seconds in way.takes:
                cost += seconds * prices[resource]
            np.maximum(left, way.value - cost, out=left)
        best = left[each.first]
        for step in range(1, int((each.last - each.first).max(initial=0)) + 1):
            inside = each.first + step <= each.last
            best[inside] = np.maximum(best[inside], left[each.first[inside] + step])
        worth += float(best @ each.counts)
    return worth


def _worth_offering(ways: Sequence[Way]) -> list[Way]:
    """Without those that are never better than a mixture of others (or of none) that take the same resources."""
    alike: dict[tuple[tuple[int, float], ...], list[tuple[float, Way]]] = {}
    for way in ways:
        size = sum(seconds for _, seconds in way.takes)
        direction = tuple((resource, round(seconds / size, 12)) for resource, seconds in way.takes)
        alike.setdefault(direction, []).append((size, way))
    return [way for group in alike.values() for way in _hull(group)]


def _hull(sized: list[tuple[float, Way]]) -> list[Way]:
    """The upper concave hull of value over size, from (0, 0)."""
    hull: list[tuple[float, float, Way | None]] = [(0.0, 0.0, None)]
    for size, way in sorted(sized, key=lambda pair: (pair[0], -pair[1].value)):
        if way.value <= hull[-1][1]:
            continue
        while len(hull) > 1:
            (s0, v0, _), (s1, v1, _) = hull[-2:]
            if (v1 - v0) * (size - s0) > (way.value - v0) * (s1 - s0):
                break
            hull.pop()
        hull.append((size, way.value, way))
    return [way for _, _, way in hull if way is not None]


class _Stretch:
    """The program of intervals ``begin`` to ``end``: rows of resources, then of balances, then of what was asked."""

    def __init__(self, begin: int, end: int, amounts: Floats) -> None:
        self._begin = begin
        self._end = end
        self._amounts = amounts
        self._rows: list[Ints] = []
        self._columns: list[Ints] = []
        self._values: list[Floats] = []
        self._worth: list[Floats] = []
        self._made = 0

    def prices(self, asked: Sequence[Asked], ways: Sequence[Sequence[Way]]) -> Floats:
        """By resource and interval; 0 where the program could not be solved."""
        steps = self._end - self._begin
        resources = self._amounts.size
        inside = np.arange(steps)
        supplies: list[Floats] = []
        present = [
            (each, offered, here)
            for each, offered in zip(asked, ways, strict=True)
            if (here := (each.first >= self._begin) & (each.first < self._end)).any()
        ]
        row = (resources + len(present)) * steps
        for number, (each, offered, here) in enumerate(present):
            balance = (resources + number) * steps
            for way in offered:
                columns = self._new(np.full(steps, way.value))
                self._put(balance + inside, columns, 1.0)
                for resource, seconds in way.takes:
                    self._put(resource * steps + inside, columns, seconds)
            first = each.first[here] - self._begin
            last = np.minimum(each.last[here] - self._begin, steps - 1)
            spans = last - first + 1
            of = np.repeat(np.arange(first.size), spans)
            at = np.arange(of.size) - np.repeat(np.cumsum(spans) - spans, spans) + first[of]
            columns = self._new(np.zeros(of.size))
            self._put(row + of, columns, 1.0)
            self._put(balance + at, columns, -1.0)
            supplies.append(each.counts[here])
            row += first.size
        if not self._made:
            return np.zeros((resources, steps))
        limits = np.concatenate([np.repeat(self._amounts, steps), np.zeros(len(present) * steps), *supplies])
        triplets = np.concatenate(self._values), (np.concatenate(self._rows), np.concatenate(self._columns))
        matrix = sparse.csr_matrix(triplets, shape=(row, self._made))
        worth = -np.concatenate(self._worth)
        solved = linprog(worth, A_ub=matrix, b_ub=limits, method="highs-ipm")  # type: ignore[call-overload]  # no sparse matrix in stubs
        if solved.status != 0:
            return np.zeros((resources, steps))
        found = -np.asarray(solved.ineqlin.marginals, dtype=np.float64)[: resources * steps]
        return np.where(found > _NOTHING, found, 0.0).reshape(resources, steps)

    def _new(self, worth: Floats) -> Ints:
        columns = self._made + np.arange(worth.size)
        self._made += worth.size
        self._worth.append(worth)
        return columns

    def _put(self, rows: Ints, columns: Ints, value: float) -> None:
        self._rows.append(rows)
        self._columns.append(columns)
        self._values.append(np.full(rows.size, value))

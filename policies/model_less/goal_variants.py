"""The variants of an app as goals know them, indexed: what meets goals at all, and what misses them by least.

Decisions take O(log variants) of the app that is asked, with a cost that rules out the first find O(variants). Of the
variants that meet the goals the cheapest is found (then the fastest, then by name), loaded or not (INFaaS, ATC 2021,
4.2).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from sluicegate.policies.model_less.goal_index import FirstFit, Nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalVariant:
    """What is known of a variant on its hardware. ``latency``, ``load``: seconds. ``cost``: money, in any one unit."""

    name: str
    app: str
    accuracy: float
    latency: float
    cost: float
    load: float = 0.0
    hardware: str = "cpu"


class AppGoals:
    """The variants of one app."""

    __slots__ = ("_all", "_by_cost", "_by_end", "_nearest", "_soonest", "by_name")

    def __init__(self, variants: Iterable[GoalVariant]) -> None:
        self._by_cost = sorted(variants, key=lambda v: (v.cost, v.latency, v.name))
        self.by_name = {v.name: v for v in self._by_cost}
        accuracies, latencies = [v.accuracy for v in self._by_cost], [v.latency for v in self._by_cost]
        self._nearest = Nearest(accuracies, latencies, [v.cost for v in self._by_cost])
        self._all = FirstFit(accuracies, latencies)
        self._by_end: list[GoalVariant] = []
        self._soonest: FirstFit | None = None  # made when it is asked for: only where variants are loaded on demand

    def feasible(self, accuracy: float, latency: float, cost: float) -> GoalVariant | None:
        """The cheapest that meets the goals, loaded or not."""
        place = self._all.first(accuracy, latency)
        found = self._by_cost[place] if place >= 0 else None
        return found if found is not None and found.cost <= cost else None  # the first is the cheapest

    def nearest(self, accuracy: float, latency: float, cost: float) -> GoalVariant | None:
        """What misses the goals by least."""
        if cost < inf:
            place = self._nearest.find_within(accuracy, latency, cost)
        else:
            place = self._nearest.find(accuracy, latency)
        return self._by_cost[place] if place >= 0 else None

    def soonest(self, model: str | None, accuracy: float, cost: float) -> GoalVariant | None:
        """Of those as accurate and cheap, what is loaded and has run soonest; ``model`` alone where it is named."""
        if model is not None:
            named = self.by_name.get(model)
            return named if named is not None and named.accuracy >= accuracy and named.cost <= cost else None
        if self._soonest is None:
            self._by_end = sorted(self._by_cost, key=lambda v: (v.load + v.latency, v.name))
            self._soonest = FirstFit([v.accuracy for v in self._by_end], [v.cost for v in self._by_end])
        place = self._soonest.first(accuracy, cost)
        return self._by_end[place] if place >= 0 else None

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
    cost: float = 0.0
    load: float = 0.0
    hardware: str = "cpu"


class AppGoals:
    """The variants of one app."""

    __slots__ = ("_all", "_by_cost", "_nearest", "by_name")

    def __init__(self, variants: Iterable[GoalVariant]) -> None:
        self._by_cost = sorted(variants, key=lambda v: (v.cost, v.latency, v.name))
        self.by_name = {v.name: v for v in self._by_cost}
        accuracies, latencies = [v.accuracy for v in self._by_cost], [v.latency for v in self._by_cost]
        self._nearest = Nearest(accuracies, latencies, [v.cost for v in self._by_cost])
        self._all = FirstFit(accuracies, latencies)

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

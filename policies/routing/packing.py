"""Online bin packing of queries to slices (INFaaS, ATC 2021, 4.2): fills one before the next, so that others stay free.

Rules.
- A query goes to the slice with the most work before it that would still be done in time, by the router's own estimate
  of completion (``backlog``); in time is ``margin`` of the query's own time before its deadline, kept for the error of
  the estimate. Among slices without work the most accurate is the next to be filled, then the first by device.
- Where no slice keeps the margin the query goes where it is done first. Where the plan says no latencies its shares
  decide.
"""

from collections.abc import Iterable
from typing import TypeVar

from typing_extensions import override

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.query import Query
from sluicegate.policies.routing.accuracy_first import AccuracyFirst, Target
from sluicegate.policies.routing.backlog_estimate import Backlog

MARGIN = 0.4
Place = TypeVar("Place")


def fullest(places: Iterable[tuple[Place, Backlog]], query: Query, now: float, margin: float = MARGIN) -> Place | None:
    """Of ``places`` the one with the most work that keeps ``margin``, else that of the earliest end; None of none."""
    latest = query.deadline - margin * (query.deadline - query.arrival)
    chosen: Place | None = None
    most, earliest = -1.0, 0.0
    for place, backlog in places:
        done_at = backlog.done_at(query.rows, now)
        if done_at <= latest:
            work = backlog.done_at(0, now) - now
            if work > most:
                chosen, most = place, work
        elif most < 0.0 and (chosen is None or done_at < earliest):
            chosen, earliest = place, done_at
    return chosen


class Packing(AccuracyFirst):
    """Routes ``app`` to the fullest slice that is in time. ``margin``: share of a query's time, 0..1."""

    name = "packing"
    __slots__ = ("share",)

    def __init__(self, app: str, *, margin: float = MARGIN) -> None:
        super().__init__(app)
        if not 0.0 <= margin < 1.0:
            raise ConfigurationError(f"packing: margin {margin}; give 0 <= margin < 1")
        self.share = margin

    @override
    def _route(self, query: Query, now: float) -> Target:
        found = fullest((pair for same in self._by_accuracy for pair in same), query, now, self.share)
        if found is None:
            return self._by_share()
        assert found.backlog is not None
        found.backlog.send(query.rows, now)
        return found

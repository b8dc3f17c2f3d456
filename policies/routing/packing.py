"""Online bin packing of queries to slices (INFaaS, ATC 2021, 4.2): fills one before the next, so that others stay free.

Rules.
- A query goes to the slice with the most work before it that would still be done in time, by the router's own estimate
  of completion (``backlog``); in time is ``margin`` of the query's own time before its deadline, kept for the error of
  the estimate. Among slices without work the most accurate is the next to be filled, then the first by device.
- Where no slice keeps the margin the query goes where it is done first. Where the plan says no latencies its shares
  decide.
"""

from typing_extensions import override

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.query import Query
from sluicegate.policies.routing.accuracy_first import AccuracyFirst, Target
from sluicegate.policies.routing.backlog_estimate import Backlog

MARGIN = 0.4


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
        rows = self._rows(query)
        latest = query.deadline - self.share * (query.deadline - query.arrival)
        chosen: tuple[Target, Backlog] | None = None
        most, earliest = -1.0, 0.0
        for pair in (pair for same in self._by_accuracy for pair in same):
            done_at = pair[1].done_at(rows, now)
            if done_at <= latest:
                work = pair[1].done_at(0, now) - now
                if work > most:
                    chosen, most = pair, work
            elif most < 0.0 and (chosen is None or done_at < earliest):
                chosen, earliest = pair, done_at
        if chosen is None:
            return self._by_share()
        chosen[1].send(rows, now)
        return chosen[0]

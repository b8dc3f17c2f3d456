"""Admits what can still be answered in time, as far as the deadline alone says.

A query that came with its deadline already past is rejected: nobody could have answered it. One whose deadline passed
on its way here has expired, which is a miss of ours.
"""

from sluicegate.domain.actions import Accept, AdmissionAction, Expire, Reject
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import Arrived
from sluicegate.domain.outcome import Reason

MAX_HORIZON_S = 3600.0


class DeadlineAdmission:
    """Accepts a query unless its deadline is past, or absurd: more than ``max_horizon_s`` seconds ahead, or NaN."""

    name = "deadline"
    __slots__ = ("max_horizon_s",)

    def __init__(self, *, max_horizon_s: float = MAX_HORIZON_S) -> None:
        if not max_horizon_s > 0.0:
            raise ConfigurationError(f"max_horizon_s is {max_horizon_s}: give the seconds a deadline may lie ahead")
        self.max_horizon_s = max_horizon_s

    def handle(self, event: Arrived, now: float) -> list[AdmissionAction]:
        """Decide."""
        query = event.query
        ahead = query.deadline - now
        if 0.0 < ahead <= self.max_horizon_s:
            return [Accept(query)]
        if ahead <= 0.0 and query.deadline > query.arrival:
            return [Expire(query)]
        if ahead <= 0.0:
            return [Reject(query, Reason.DEADLINE_PAST, f"the deadline passed {-ahead * 1e3:.1f} ms ago")]
        detail = f"the deadline lies {ahead:.0f} s ahead; at most {self.max_horizon_s:.0f} s are allowed"
        return [Reject(query, Reason.INVALID, detail)]

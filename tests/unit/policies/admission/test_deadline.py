"""Admission by deadline."""

from math import inf, nan

import pytest

from sluicegate.domain.actions import Accept, Expire, Reject
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import Arrived
from sluicegate.domain.outcome import Reason
from sluicegate.domain.query import Query
from sluicegate.policies.admission.deadline_feasibility import DeadlineAdmission
from sluicegate.policies.admission.registry import admission


@pytest.mark.parametrize(
    ("deadline", "reason"),
    [
        (100.001, None),
        (160.0, None),
        (99.0, Reason.DEADLINE_PAST),
        (-inf, Reason.DEADLINE_PAST),
        (160.1, Reason.INVALID),
        (inf, Reason.INVALID),
        (nan, Reason.INVALID),
    ],
)
def test_only_deadlines_ahead_and_within_the_horizon_are_accepted(deadline: float, reason: Reason | None) -> None:
    query = Query("1", "a", 99.0, deadline)
    (action,) = admission("deadline", max_horizon_s=60.0)().handle(Arrived(query), 100.0)
    if reason is None:
        assert action == Accept(query)
    else:
        assert isinstance(action, Reject)
        assert action.reason is reason
        assert action.detail


@pytest.mark.parametrize("deadline", [99.5, 100.0])
def test_what_expired_on_its_way_is_expired_and_not_rejected(deadline: float) -> None:
    query = Query("1", "a", 99.0, deadline)
    assert admission("deadline", max_horizon_s=60.0)().handle(Arrived(query), 100.0) == [Expire(query)]


def test_a_horizon_that_admits_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_horizon_s"):
        DeadlineAdmission(max_horizon_s=nan)

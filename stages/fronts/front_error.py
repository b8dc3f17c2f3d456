"""Why a request that a front took gets no answer.

Status, as HTTP's: 200 answered (also late, marked), 400 rejected, 404 unknown app or version, 413 a body too large, 429
over its client's share, its address's rate or the rate that devices sustain, 500 failed, 502 answered and not to be had
(it lies in an object store that does not give it), 503 dropped, not routed, too many waiting or a host that does not
keep up, 504 expired. With 429 and 503 comes when to ask again.
"""

from collections.abc import Mapping
from math import ceil

from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.stages.fronts.oip_responses import OUTCOME_HEADER, refusal_header
from sluicegate.streams.records import codec

_STATUS = {
    OutcomeKind.ANSWERED: 200,
    OutcomeKind.REJECTED: 400,
    OutcomeKind.FAILED: 500,
    OutcomeKind.DROPPED: 503,
    OutcomeKind.EXPIRED: 504,
}
_BY_REASON: Mapping[str | None, int] = {
    Reason.UNKNOWN_APP: 404,
    Reason.OVER_SHARE: 429,
    Reason.OVER_SUSTAINABLE_RATE: 429,
    Reason.NOTHING_ROUTES: 503,
}
"""Where that says more than how the query ended."""
_PASSES = frozenset({429, 503})
"""What may be otherwise in a while."""


class FrontError(Exception):
    """A request gets no answer. ``result``: how its query ended, None where it was not one. ``retry_s``: seconds after
    which it may get one, where that may be."""

    def __init__(self, status: int, why: str, result: bytes | None = None, *, retry_s: float = 1.0) -> None:
        super().__init__(why)
        self.status = status
        self.why = why
        self.result = result
        self._retry_s = retry_s

    @property
    def retry_after(self) -> str | None:
        """Whole seconds after which to ask again, where it may be otherwise by then."""
        return str(max(1, ceil(self._retry_s))) if self.status in _PASSES else None

    @property
    def headers(self) -> Mapping[str, str]:
        """What HTTP tells of it besides."""
        told = {} if self.result is None else {OUTCOME_HEADER: refusal_header(self.result)}
        if self.retry_after is not None:
            told["Retry-After"] = self.retry_after
        return told


def check_answered(message: codec.OutcomeMessage) -> None:
    """Raise FrontError where it was not."""
    outcome = message.outcome
    status = _BY_REASON.get(outcome.reason, _STATUS[outcome.kind])
    if status == 200:
        return
    why = f"query {outcome.query_id}: {outcome.kind.value}"
    if outcome.reason:
        why += f" ({outcome.reason})"
    if outcome.detail:
        why += f": {outcome.detail}"
    raise FrontError(status, why, message.body)

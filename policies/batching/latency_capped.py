"""Base of the published rules that only form batches which take at most a share of the SLO.

Plans size devices by batches within half the SLO, so that a query which has just missed one batch is answered by the
next (Nexus, section 4; Proteus, section 5; Clipper's objective). The rule itself keeps that limit here, whatever curve
it is given: a slice may host a variant for larger batches than a published rule would ever form.
"""

from math import inf

from typing_extensions import override

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.policies.batching.base import QueueingPolicy


class LimitedPolicy(QueueingPolicy):
    """Batching with a cap on a batch's latency. ``max_latency_share``: share of the SLO that a batch may take, times
    ``margin`` (Nexus: 1.15).

    ``largest``: rows of the largest such batch, at least 1. A query that has more rows runs by itself all the same.
    """

    counts_length = True
    __slots__ = ("largest", "margin", "max_latency_share")

    def __init__(self, *, margin: float = 1.0, max_latency_share: float = 0.5) -> None:
        super().__init__()
        if not 0.0 < margin < inf:
            raise ConfigurationError(f"margin is {margin}; give a positive factor of the latency")
        if not 0.0 < max_latency_share <= 1.0:
            raise ConfigurationError(
                f"max_latency_share is {max_latency_share}; give a share of the SLO above 0, up to 1"
            )
        self.margin = margin
        self.max_latency_share = max_latency_share
        self.largest = 1

    @override
    def hosting_changed(self) -> None:
        """The largest batch within the share."""
        if self.hosted:
            self.curves_changed()

    @override
    def curves_changed(self) -> None:
        """The same by the curves of this queue."""
        curve = LatencyCurve(self.hosted[0].curve.seconds).scaled(self.margin)
        self.seconds = curve.seconds
        self.largest = max(1, curve.largest_within(self.slo * self.max_latency_share * (1.0 + 1e-9)))

    def room(self) -> int:
        """Rows of the largest batch that may be formed now."""
        rows = self.queue.items[0].rows
        return rows if rows > self.largest else self.largest

"""What a slice serves of an app whose streams were promised something: no more than is let in of it.

Rules. k apps on a slice take turns of (SLO - hop) / (k + 1) at most, in batches that hardly ever take longer; of each
turn as many queries are let in as the promise bears (``sluicegate.domain.models.sustainable_rate``). What plans count
on is the less of that and of what batches within the budget serve.
"""

from sluicegate.domain.models.app import HOP_PART, App
from sluicegate.domain.models.profile import LatencyCurve, Profile
from sluicegate.domain.models.sustainable_rate import nearly_best, processing_bound
from sluicegate.planner.problems.throughput import NONE, Throughput


def kept(found: Throughput, profile: Profile, app: App, budget: float, *, factor: float = 1.0) -> Throughput:
    """``found``, or what is let in of ``app`` where that is less. ``budget``: seconds of a batch, SLO / (k + 1)."""
    if not app.promise.active or not found.batch:
        return found
    curve = profile.curve("sure").scaled(factor)
    room = (1.0 - HOP_PART) * budget
    sizes = [rows for rows in range(1, curve.max_batch + 1) if processing_bound(curve, rows) <= room]
    best = nearly_best(LatencyCurve(curve.seconds), app.promise, batches=sizes) if sizes else None
    if best is None:
        return NONE
    return found if found.qps <= best.rate else Throughput(min(found.batch, best.batch), best.rate)

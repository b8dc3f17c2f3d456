"""What a plan can carry of each app, and what the same slices could with the app's best variant alone. Pure.

Rules. As planners count: batches within half the SLO, at the best of their sizes, medians as profiled. A slice that
hosts several apps is shared by them equally. Where nothing is profiled, nothing is carried.
"""

from collections import Counter
from collections.abc import Iterable

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.plan import Placement, Plan
from sluicegate.planner.problems.throughput import throughput
from sluicegate.policies.placement.hosted_variants import profile_on
from sluicegate.profiles.catalogue.catalogue import Catalogue, KnownCatalogue

Carries = dict[str, tuple[float, float]]
"""Rows a second by app: by the plan, and with the best variant alone."""


class PlanCapacity:
    """Of plans on ``devices``, by what ``catalogue`` knows; both may be told more."""

    def __init__(self, catalogue: Catalogue, devices: Iterable[Device]) -> None:
        self._devices = {device.name: device for device in devices}
        self._known = KnownCatalogue(catalogue)

    def registered(self, catalogue: Catalogue) -> None:
        """These are served, too."""
        self._known.add(catalogue)

    def of(self, plan: Plan) -> Carries:
        """By app."""
        together = Counter((p.device, p.slice) for p in plan.placements)
        found: Carries = {}
        for placed in plan.placements:
            if placed.app not in self._known.apps or placed.device not in self._devices:
                continue
            served = self._known.of_app(placed.app)
            best = max(served, key=lambda v: v.accuracy).name if served else ""
            planned, alone = found.get(placed.app, (0.0, 0.0))
            share = together[placed.device, placed.slice]
            planned += max((self._rate(placed, name) for name in placed.variants), default=0.0) / share
            found[placed.app] = planned, alone + self._rate(placed, best) / share
        return found

    def _rate(self, placed: Placement, variant: str) -> float:
        app = self._known.apps[placed.app]
        try:
            profile = profile_on(self._known, self._devices[placed.device], placed.slice, variant)
        except KeyError:
            return 0.0
        return throughput(profile, 0.5 * (placed.slo or app.slo), rows=app.max_rows).qps

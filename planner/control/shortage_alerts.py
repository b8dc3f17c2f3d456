"""Announcing that an app cannot be served in full, without flapping.

Rules: shortage is announced with the first plan that leaves part of an app's demand unserved, and its end with the
``calm_plans``-th plan in a row that serves all of it. An app that was not planned for meanwhile (it was retired) is
announced anew where it lacks again.
"""

from dataclasses import dataclass, field

from sluicegate.domain.actions import Announce
from sluicegate.domain.plan import Plan
from sluicegate.planner.problems.problem import part_served


@dataclass(slots=True)
class ShortageWatch:
    """Announces apps that a plan serves in part. ``enough``: served fraction that counts as all."""

    enough: float = 0.999
    calm_plans: int = 2
    _calm: dict[str, int] = field(default_factory=dict)
    _left: set[str] = field(default_factory=set)

    def observe(self, plan: Plan) -> list[Announce]:
        """What to say after this plan."""
        said: list[Announce] = []
        self._left |= self._calm.keys() - plan.served.keys()
        for app, fraction in sorted(plan.served.items()):
            if fraction < self.enough:
                if app not in self._calm or app in self._left:
                    asked = plan.demand.get(app, 0.0)
                    detail = f"the devices can serve {part_served(fraction)} of {asked:.1f} rows/s"
                    said.append(Announce(f"app:{app}", "shortage", detail, {"served": fraction}))
                self._calm[app] = 0
                self._left.discard(app)
            elif app in self._calm:
                self._calm[app] += 1
                if self._calm[app] >= self.calm_plans:
                    del self._calm[app]
                    self._left.discard(app)
                    said.append(Announce(f"app:{app}", "served", "all of its demand can be served again"))
        return said

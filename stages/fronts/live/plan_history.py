"""The newest plans, for the live page: what changed with each, and what was carried while it was in force. Pure.

Rules. Each is told once, when it comes: pictures are made often, and plans are large.
"""

from collections import Counter, deque
from collections.abc import Callable, Set
from typing import Any, NamedTuple

from sluicegate.domain.plan import NO_EPOCH, Plan, follows
from sluicegate.stages.fronts.live.plan_capacity import Carries

_Hosts = dict[str, Counter[str]]
"""App -> variants of a slice -> how many slices."""


class _Kept(NamedTuple):
    """A plan as it was told. ``variants``: by app."""

    plan: Plan
    carries: Carries
    hosts: _Hosts
    variants: dict[str, set[str]]
    told: dict[str, Any]


class PlanHistory:
    """At most ``most`` plans, oldest first. ``carries``: what a plan can carry, by app."""

    def __init__(self, carries: Callable[[Plan], Carries], most: int) -> None:
        self._carries = carries
        self._kept: deque[_Kept] = deque(maxlen=most)

    @property
    def newest(self) -> Plan | None:
        """The plan in force."""
        return self._kept[-1].plan if self._kept else None

    def add(self, plan: Plan) -> None:
        """A plan was published; one that is older than the newest is passed over."""
        before = self._kept[-1] if self._kept else None
        if not follows(plan.epoch, before.plan.epoch if before else NO_EPOCH):
            return
        hosts: _Hosts = {}
        variants: dict[str, set[str]] = {}
        for placed in plan.placements:
            hosts.setdefault(placed.app, Counter())["+".join(placed.variants)] += 1
            variants.setdefault(placed.app, set()).update(placed.variants)
        told = {**_told(plan), "changes": _changes(before.hosts, hosts) if before else []}
        self._kept.append(_Kept(plan, self._carries(plan), hosts, variants, told))

    def told(self) -> list[dict[str, Any]]:
        """All, as JSON can hold them, the newest first."""
        return [kept.told for kept in reversed(self._kept)]

    def variants(self, app: str) -> Set[str]:
        """Those that any of the plans hosts of ``app``."""
        return {variant for kept in self._kept for variant in kept.variants.get(app, ())}

    def in_force(self, at: float) -> Carries:
        """What the newest plan made until ``at`` carries; nothing where there was none."""
        return next((kept.carries for kept in reversed(self._kept) if kept.plan.created <= at), {})


def _changes(old: _Hosts, new: _Hosts) -> list[str]:
    """Sentences: which apps other variants answer for from a plan on, on how many slices."""
    told = []
    for app in sorted({*old, *new}):
        lost, won = old.get(app, Counter()) - new.get(app, Counter()), new.get(app, Counter()) - old.get(app, Counter())
        if lost and won:
            told.append(f"{app}: {_listed(won)} instead of {_listed(lost)}")
        elif won or lost:
            told.append(f"{app}: {_listed(won)} more" if won else f"{app}: {_listed(lost)} less")
    return told


def _listed(counted: Counter[str]) -> str:
    return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in sorted(counted.items()))


def _told(plan: Plan) -> dict[str, Any]:
    return {
        "epoch": list(plan.epoch),
        "created": plan.created,
        "reason": plan.reason,
        "objective": plan.objective,
        "bound": plan.bound,
        "solve_ms": 1e3 * plan.solve_s,
        "served": dict(plan.served),
        "demand": dict(plan.demand),
        "devices": len({p.device for p in plan.placements}),
    }

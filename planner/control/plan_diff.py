"""The plan in force: what of it stands when devices go, and whether another one is worth an epoch."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.plan import Placement, Plan


def reduced(plan: Plan, devices: Iterable[Device], reason: str) -> Plan | None:
    """``plan`` with only what it places on slices of ``devices``, and what these serve; None where that is all."""
    there = {(d.name, s.name) for d in devices for s in d.slices}
    kept = tuple(p for p in plan.placements if (p.device, p.slice) in there)
    if len(kept) == len(plan.placements):
        return None
    return replace(plan, placements=kept, served=_served_by(plan, kept), reason=reason, solve_s=0.0)


def differs(old: Iterable[Placement], new: Iterable[Placement], publish_change: float) -> bool:
    """Whether other variants are hosted, or a share moved by more than ``publish_change``."""
    before = {(p.device, p.slice, p.app): p for p in old}
    after = {(p.device, p.slice, p.app): p for p in new}
    if before.keys() != after.keys():
        return True
    return any(
        p.variants != before[key].variants
        or p.slo != before[key].slo
        or p.max_batch != before[key].max_batch
        or abs(p.share - before[key].share) > publish_change
        for key, p in after.items()
    )


def _served_by(plan: Plan, kept: Sequence[Placement]) -> dict[str, float]:
    """Served fractions of what is left of a plan."""
    before: dict[str, float] = {}
    after: dict[str, float] = {}
    for p in plan.placements:
        before[p.app] = before.get(p.app, 0.0) + p.share
    for p in kept:
        after[p.app] = after.get(p.app, 0.0) + p.share
    return {
        app: fraction * (after.get(app, 0.0) / before[app] if before.get(app) else 1.0)
        for app, fraction in plan.served.items()
    }

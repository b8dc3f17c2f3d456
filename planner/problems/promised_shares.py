"""Shares of apps with a promise: in proportion to what each slice can keep, whatever the load is.

Streams with a promise go round in turns that are dealt out by the plan's shares
(``sluicegate.policies.promises.stream_places``). A share that followed the load would change the turns with every plan,
and what is known of a stream on a slice would be lost each time.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sluicegate.domain.fleet.device import Device, profile_type
from sluicegate.domain.plan import Placement
from sluicegate.planner.problems.throughput import throughput
from sluicegate.profiles.catalogue.catalogue import Catalogue


def with_promised_shares(
    placements: Sequence[Placement], catalogue: Catalogue, devices: Sequence[Device]
) -> tuple[Placement, ...]:
    """``placements``, the shares of promised apps as their slices' rates are; each app's add up to what they did."""
    kinds = {(d.name, s.name): (profile_type(d.type, s.profile), d.type) for d in devices for s in d.slices}
    together = Counter((p.device, p.slice) for p in placements if p.variants)
    found = list(placements)
    for name, app in catalogue.apps.items():
        mine = [i for i, p in enumerate(found) if p.app == name and p.variants and not p.slo]
        if not app.promise.active or len(mine) < 2:
            continue
        budgets = [app.slo / (together[found[i].device, found[i].slice] + 1) for i in mine]
        rates = [_rate(found[i], catalogue, kinds, budget) for i, budget in zip(mine, budgets, strict=True)]
        total = sum(found[i].share for i in mine)
        if sum(rates) > 0.0 and total > 0.0:
            for i, rate in zip(mine, rates, strict=True):
                found[i] = replace(found[i], share=total * rate / sum(rates))
    return tuple(found)


def _rate(
    placed: Placement, catalogue: Catalogue, kinds: dict[tuple[str, str], tuple[str, str]], budget: float
) -> float:
    """Rows a second of its most accurate variant in batches of at most ``budget`` seconds; 0 where none fits."""
    best = max(placed.variants, key=lambda v: (catalogue.variants[v].accuracy, v))
    for kind in kinds.get((placed.device, placed.slice), ()):
        profile = catalogue.profiles.get((best, kind))
        if profile is not None:
            return throughput(profile, budget, quantile="p95").qps
    return 0.0

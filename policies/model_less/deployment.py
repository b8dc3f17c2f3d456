"""What a deployment's devices make of the catalogue, as selection by goals knows variants.

Rules. The latency of a variant is the median of a batch of one row on the fastest device type that the deployment has;
its cost the money that a thousand rows take of a device, at the best rate its profile reaches, on the cheapest such
type: price an hour / 3600 * 1000 * the least seconds a row / batches at a time. Where no device has a price, everything
costs nothing.
"""

from collections import defaultdict
from collections.abc import Iterable

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.profile import Profile
from sluicegate.policies.model_less.goal_variants import GoalVariant
from sluicegate.profiles.catalogue.catalogue import Catalogue


def cost_of(profile: Profile, price: float) -> float:
    """Money for a thousand rows on a device of ``price`` an hour."""
    return price / 3.6 * min(p.median / p.batch for p in profile.points) / profile.executors


def goal_variants(catalogue: Catalogue, devices: Iterable[Device]) -> dict[str, tuple[GoalVariant, ...]]:
    """App -> variants that some device of the deployment can serve."""
    prices = _prices(devices)
    found: defaultdict[str, list[GoalVariant]] = defaultdict(list)
    for variant in catalogue.variants.values():
        here = {t: p for (v, t), p in catalogue.profiles.items() if v == variant.name and t in prices}
        if here:
            fastest = min(here, key=lambda t: here[t].points[0].median)
            found[variant.app].append(
                GoalVariant(
                    name=variant.name,
                    app=variant.app,
                    accuracy=variant.accuracy,
                    latency=here[fastest].points[0].median,
                    cost=min(cost_of(p, prices[t]) for t, p in here.items()),
                    load=here[fastest].load,
                    hardware=fastest,
                )
            )
    return {app: tuple(variants) for app, variants in found.items()}


def highest_costs(catalogue: Catalogue, devices: Iterable[Device]) -> dict[str, float]:
    """Variant -> what a thousand rows cost at most, on whichever device of the deployment they run."""
    prices = _prices(devices)
    found: dict[str, float] = {}
    for (variant, kind), profile in catalogue.profiles.items():
        if kind in prices:
            found[variant] = max(found.get(variant, 0.0), cost_of(profile, prices[kind]))
    return found


def _prices(devices: Iterable[Device]) -> dict[str, float]:
    """Device type -> the lowest price of its devices."""
    prices: dict[str, float] = {}
    for device in devices:
        prices[device.type] = min(prices.get(device.type, device.price), device.price)
    return prices

"""Units: slices of devices, grouped into pools of interchangeable ones."""

from collections.abc import Iterable, Mapping

from sluicegate.domain.fleet.device import WHOLE, Device, profile_type
from sluicegate.domain.plan import Placement
from sluicegate.planner.allocation.program import Loaded, PoolKey, Unit


def group_units(
    devices: Iterable[Device],
    previous: Iterable[Placement],
    *,
    by_price: bool = False,
    by_device: bool = False,
    by_held: bool = False,
) -> dict[PoolKey, list[Unit]]:
    """Units by pool, pools and units sorted.

    ``by_price``: spot and dear devices are pools of their own. ``by_device``: every unit is. ``by_held``: those that
    hold nothing are, as loading them displaces nothing.
    """
    held: dict[tuple[str, str], set[str]] = {}
    classes: dict[tuple[str, str], float] = {}
    for placement in previous:
        held.setdefault((placement.device, placement.slice), set()).update(placement.variants)
        classes[placement.device, placement.slice] = placement.slo
    pools: dict[PoolKey, list[Unit]] = {}
    for device in sorted(devices, key=lambda d: d.name):
        for part in device.slices:
            memory = device.memory_bytes if part.profile == WHOLE else part.memory_bytes
            price, spot = (device.price, device.spot) if by_price else (0.0, False)
            own = f"{device.name}/{part.name}" if by_device else ""
            loaded = held.get((device.name, part.name))
            empty = by_held and not loaded
            key = PoolKey(profile_type(device.type, part.profile), memory, price, spot, own, empty)
            slo = classes.get((device.name, part.name), 0.0)
            unit = Unit(device.name, part.name, tuple(sorted(loaded)) if loaded else (), slo)
            pools.setdefault(key, []).append(unit)
    return dict(sorted(pools.items()))


def count_loaded(pools: Mapping[PoolKey, list[Unit]]) -> dict[Loaded, int]:
    """Units by pool, what they hold and for which SLO class."""
    counts: dict[Loaded, int] = {}
    for key, units in pools.items():
        for unit in units:
            held = Loaded(key, unit.loaded, unit.slo)
            counts[held] = counts.get(held, 0) + 1
    return counts

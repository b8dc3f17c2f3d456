"""Units: slices of devices, grouped into pools of interchangeable ones."""

from collections.abc import Iterable, Mapping

from sluicegate.domain.fleet.device import WHOLE, Device, profile_type
from sluicegate.domain.plan import Placement
from sluicegate.planner.allocation.program import PoolKey, Unit


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
    for placement in previous:
        held.setdefault((placement.device, placement.slice), set()).update(placement.variants)
    pools: dict[PoolKey, list[Unit]] = {}
    for device in sorted(devices, key=lambda d: d.name):
        for part in device.slices:
            memory = device.memory_bytes if part.profile == WHOLE else part.memory_bytes
            price, spot = (device.price, device.spot) if by_price else (0.0, False)
            own = f"{device.name}/{part.name}" if by_device else ""
            loaded = held.get((device.name, part.name))
            empty = by_held and not loaded
            key = PoolKey(profile_type(device.type, part.profile), memory, price, spot, own, empty)
            unit = Unit(device.name, part.name, tuple(sorted(loaded)) if loaded else ())
            pools.setdefault(key, []).append(unit)
    return dict(sorted(pools.items()))


def count_loaded(pools: Mapping[PoolKey, list[Unit]]) -> dict[tuple[PoolKey, tuple[str, ...]], int]:
    """Units by pool and what they hold."""
    counts: dict[tuple[PoolKey, tuple[str, ...]], int] = {}
    for key, units in pools.items():
        for unit in units:
            counts[key, unit.loaded] = counts.get((key, unit.loaded), 0) + 1
    return counts

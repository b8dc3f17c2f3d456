"""Units: slices of devices, grouped into pools of interchangeable ones; and which devices a budget is spent on."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from sluicegate.domain.fleet.device import WHOLE, Device, Slice, profile_type
from sluicegate.domain.plan import Placement
from sluicegate.planner.allocation.program import Loaded, PoolKey, Unit

Part = Callable[[Device, Slice], float]
"""Of a device's price, what a slice counts."""


def equal_part(device: Device, part: Slice) -> float:
    """As much as each other slice of the device."""
    del part
    return 1.0 / len(device.slices)


def group_units(
    devices: Iterable[Device],
    previous: Iterable[Placement],
    *,
    by_price: bool = False,
    by_device: bool = False,
    by_held: bool = False,
    by_part: Part | None = None,
) -> dict[PoolKey, list[Unit]]:
    """Units by pool, pools and units sorted.

    ``by_price``: spot and dear devices are pools of their own. ``by_device``: every unit is. ``by_held``: those that
    hold nothing are, as loading them displaces nothing. ``by_part``: what a slice counts of its device's price; else
    all of it.
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
            price *= by_part(device, part) if by_part else 1.0
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


def count_empty(sizes: Mapping[PoolKey, int], loaded: Mapping[Loaded, int]) -> tuple[int, ...]:
    """Units that hold nothing, by pool in their order. ``sizes``: all of each pool."""
    held = dict.fromkeys(sizes, 0)
    for what, units in loaded.items():
        if what.variants and what.pool in held:
            held[what.pool] += units
    return tuple(max(0, sizes[pool] - held[pool]) for pool in sorted(sizes))


def rented(devices: Sequence[Device], placements: Iterable[Placement], budget: float) -> tuple[tuple[Device, ...], ...]:
    """What may be rented, whole and within ``budget`` an hour, for what ``placements`` use of its slices: choices, of
    which none is a part of another.

    Of devices that are alike as many as hold that many slices of each profile, those first of which most are used. What
    is used whole comes first, then by its use for a price; besides, of each kind one that is used in part comes first.
    """
    used: dict[str, set[str]] = {}
    for placement in placements:
        used.setdefault(placement.device, set()).add(placement.slice)
    alike: dict[tuple[object, ...], list[Device]] = {}
    for device in sorted(devices, key=lambda d: (-len(used.get(d.name, ())), d.name)):
        cut = tuple(sorted(part.profile for part in device.slices))
        alike.setdefault((device.type, device.memory_bytes, device.price, device.spot, cut), []).append(device)
    full: list[Device] = []
    last: list[tuple[float, Device]] = []
    firsts: list[Device | None] = [None]
    for same in alike.values():
        asked = Counter(part.profile for d in same for part in d.slices if part.name in used.get(d.name, ()))
        room = Counter(part.profile for part in same[0].slices)
        needed = max(-(-asked[profile] // count) for profile, count in room.items())
        part = asked.total() / room.total()
        whole = min(needed, int(part + 1e-9))
        full.extend(same[:whole])
        firsts.extend(same[whole:needed][:1])
        last.extend(((part - at) / same[at].price, same[at]) for at in range(whole, needed))
    last.sort(key=lambda use: (-use[0], use[1].name))
    wanted = [*full, *(device for _, device in last)]
    found: list[frozenset[Device]] = []
    for first in firsts:
        chosen, money = [], budget * (1 + 1e-9)
        for device in sorted(wanted, key=lambda d: d is not first):
            if device.price <= money:
                chosen.append(device)
                money -= device.price
        found.append(frozenset(chosen))
    kept = [one for one in dict.fromkeys(found) if one and not any(one < other for other in found)]
    return tuple(tuple(sorted(one, key=lambda d: d.name)) for one in kept)

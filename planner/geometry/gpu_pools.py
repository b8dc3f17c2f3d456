"""Fleets: GPUs that are interchangeable in a plan of geometries, and which of them get which cut.

Rules:
- A GPU can be cut otherwise if its type has a placement table and all its slices are profiles of it. GPUs of one type
  (and, where money counts, one price) are a fleet; where the problem says which may change, those that may and those
  that may not are fleets of their own, which share the pools of their slices.
- Memory of a slice is that of the table, for slices that are and for those that could be.
- GPUs that hold most of what is loaded keep their slices first; the others are cut otherwise.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sluicegate.domain.fleet.device import Device, Slice, profile_type
from sluicegate.planner.allocation.program import Ints, PoolKey, Program
from sluicegate.planner.allocation.units import Part, equal_part
from sluicegate.planner.geometry.joint_program import Fleet
from sluicegate.planner.geometry.mig_tables import TABLES, Geometry, PlacementTable
from sluicegate.planner.geometry.reconfigurator import change_limit
from sluicegate.planner.problems.problem import Problem, RecutGroup


@dataclass(frozen=True, slots=True)
class Group:
    """GPUs of one fleet. ``max_changes``: None for what the settings say. ``charged``: whether a change costs."""

    table: PlacementTable
    devices: tuple[Device, ...]
    max_changes: int | None
    charged: bool

    def cut_now(self, device: Device) -> Geometry:
        """The geometry of a GPU as it is."""
        return self.table.ordered([s.profile for s in device.slices])


def can_be_cut(device: Device, tables: Mapping[str, PlacementTable] = TABLES) -> bool:
    """Whether it is a GPU with a placement table, and cut into slices of it."""
    table = tables.get(device.type)
    return table is not None and bool(device.slices) and all(s.profile in table.profiles for s in device.slices)


def grouped(problem: Problem, tables: Mapping[str, PlacementTable]) -> list[Group]:
    """Fleets of a problem, in a fixed order."""
    recuts: tuple[RecutGroup, ...] = problem.recuts.groups if problem.recuts is not None else ()
    group_of = {name: i for i, group in enumerate(recuts) for name in group.devices}
    found: dict[tuple[str, float, bool, int], list[Device]] = {}
    for device in sorted(problem.devices, key=lambda d: d.name):
        if can_be_cut(device, tables):
            priced = (device.price, device.spot) if problem.by_price else (0.0, False)
            found.setdefault((device.type, *priced, group_of.get(device.name, -1)), []).append(device)
    groups = []
    for (kind, _, _, which), devices in sorted(found.items()):
        if problem.recuts is None:
            limit, charged = None, True
        else:
            limit, charged = (recuts[which].limit, not recuts[which].free) if which >= 0 else (0, True)
        groups.append(Group(tables[kind], tuple(devices), limit, charged))
    return groups


def by_the_table(problem: Problem, tables: Mapping[str, PlacementTable]) -> Problem:
    """The same problem, slices of GPUs that have a table with its memory."""

    def rated(device: Device) -> Device:
        if not can_be_cut(device, tables):
            return device
        table = tables[device.type]
        return replace(
            device, slices=tuple(replace(s, memory_bytes=table.profile(s.profile).memory_bytes) for s in device.slices)
        )

    return replace(problem, devices=tuple(rated(d) for d in problem.devices))


def part_of(table: PlacementTable, profile: str) -> float:
    """The part of a GPU's compute that a slice of ``profile`` has, whatever the others are: those of a cut add up to 1
    at most."""
    return table.profile(profile).compute / max(known.compute for known in table.profiles.values())


def part_by_table(tables: Mapping[str, PlacementTable]) -> Part:
    """What a slice counts of its device's price: of a GPU with a table as ``part_of`` says."""

    def part(device: Device, piece: Slice) -> float:
        cut = can_be_cut(device, tables)
        return part_of(tables[device.type], piece.profile) if cut else equal_part(device, piece)

    return part


def largest_pools(problem: Problem, groups: Sequence[Group]) -> dict[PoolKey, int]:
    """Units that each slice pool could have at most."""
    sizes: dict[PoolKey, int] = {}
    for group in groups:
        cuts = {*group.table.undominated, *(group.cut_now(d) for d in group.devices)}
        for profile in group.table.profiles:
            most = max(Counter(g)[profile] for g in cuts)
            key = _key(problem, group, profile)
            sizes[key] = sizes.get(key, 0) + most * len(group.devices)
    return sizes


def fleet_of(problem: Problem, program: Program, group: Group, max_changes: int | None, slots: int) -> Fleet:
    """A group as the joint program has it. ``max_changes``: where the group does not say (None: a part of it)."""
    now = Counter(group.cut_now(d) for d in group.devices)
    options = tuple(dict.fromkeys([*group.table.undominated, *sorted(now)]))
    index = {key: i for i, key in enumerate(program.pools)}
    pools = {p: index[_key(problem, group, p)] for p in group.table.profiles}
    limit = max_changes if group.max_changes is None else group.max_changes
    if limit is None:
        limit = change_limit(len(group.devices))
    return Fleet(len(group.devices), options, dict(now), pools, limit, slots, group.charged)


def assigned(problem: Problem, group: Group, fleet: Fleet, gpus: Ints) -> dict[str, Geometry]:
    """Which GPU gets which geometry: as many as can keep theirs, those that hold most first."""
    held = Counter(p.device for p in problem.previous)
    left = {g: int(n) for g, n in zip(fleet.options, gpus, strict=True) if n}
    result: dict[str, Geometry] = {}
    rest: list[Device] = []
    for device in sorted(group.devices, key=lambda d: (-held[d.name], d.name)):
        now = group.cut_now(device)
        if left.get(now, 0) > 0:
            left[now] -= 1
            result[device.name] = now
        else:
            rest.append(device)
    wanted = [g for g, n in left.items() for _ in range(n)]
    for device, geometry in zip(rest, wanted, strict=True):
        result[device.name] = geometry
    return result


def recut(device: Device, geometry: Geometry, table: PlacementTable) -> Device:
    """The device cut like ``geometry``; its slices are named ``<profile>.<number>``."""
    parts = tuple(
        Slice(f"{name}.{i}", name, table.profile(name).memory_bytes) for i, name in enumerate(table.ordered(geometry))
    )
    return replace(device, slices=parts)


def sliced(name: str, kind: str, geometry: Geometry, *, price: float = 0.0, spot: bool = False) -> Device:
    """A GPU of a type with a table, cut like ``geometry``."""
    return recut(Device(name=name, type=kind, price=price, spot=spot), geometry, TABLES[kind])


def _key(problem: Problem, group: Group, profile: str) -> PoolKey:
    """The pool of a slice profile."""
    device = group.devices[0]
    price, spot = (device.price, device.spot) if problem.by_price else (0.0, False)
    if problem.budget is not None:
        price *= part_of(group.table, profile)
    return PoolKey(profile_type(device.type, profile), group.table.profile(profile).memory_bytes, price, spot)

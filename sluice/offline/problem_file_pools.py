"""Pools of a problem file: identical devices, and GPUs that are cut into slices or are to be.

Rules: a pool with a ``geometry`` is of GPUs that are cut so, each slice with the memory that its type gives it. How
many of them may be cut otherwise is its ``change_limit``. One whose geometry is "free" is planned from nothing: each
GPU may be cut in any way, and that is no change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.fleet.device import Device
from sluicegate.planner.geometry.gpu_pools import recut
from sluicegate.planner.geometry.mig_tables import TABLES, Geometry, PlacementTable, parse_geometry
from sluicegate.planner.geometry.reconfigurator import change_limit
from sluicegate.planner.problems.problem import RecutGroup, Recuts
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.formats.field_types import NotNegative, Text

MAX_DEVICES = 2_000_000
FREE = "free"


class PoolEntry(BaseModel):
    """A pool of identical devices. ``count`` identical devices. ``price``: money an hour for each; ``spot``: they may
    be taken away.

    ``geometry``: how each of these GPUs is cut (4g+2g+1g), or "free" where that is still to be chosen.
    ``change_limit``: how many may be cut otherwise; by default what a running system changes at a time.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Text
    count: int = Field(ge=0, le=MAX_DEVICES)
    memory_bytes: int = Field(default=0, ge=0)
    price: NotNegative = 0.0
    spot: bool = False
    geometry: Text | None = None
    change_limit: int | None = Field(default=None, ge=0)


def pool_devices(
    pools: Sequence[PoolEntry], catalogue: Catalogue, aliases: Mapping[str, str]
) -> tuple[list[Device], dict[str, str]]:
    """Devices named by pool and number, and the pool of each as the file calls it."""
    devices: list[Device] = []
    pool_of: dict[str, str] = {}
    for p, pool in enumerate(pools):
        kind = aliases.get(pool.type, pool.type)
        table = _table(pool, kind)
        profiled = {t.partition(":")[0] for t in catalogue.device_types} if table else catalogue.device_types
        if kind not in profiled:
            names = ", ".join(sorted({*aliases, *catalogue.device_types}))
            raise InvalidInputError("pools.type", f"{pool.type!r} is not profiled; there are {names}")
        whole = Device(name="", type=kind, memory_bytes=pool.memory_bytes, price=pool.price, spot=pool.spot)
        one = whole if table is None else recut(whole, _cut_now(pool, table), table)
        width = len(str(max(0, pool.count - 1)))
        for i in range(pool.count):
            name = f"{pool_label(pools, p)}-{i:0{width}d}"
            devices.append(replace(one, name=name))
            pool_of[name] = pool_label(pools, p)
    return devices, pool_of


def pool_label(pools: Sequence[PoolEntry], p: int) -> str:
    """What a pool is called: by its type, and its place in the file where others are of its type."""
    pool = pools[p]
    return f"{pool.type}#{p}" if sum(other.type == pool.type for other in pools) > 1 else pool.type


def _table(pool: PoolEntry, kind: str) -> PlacementTable | None:
    """Of a pool of GPUs that are cut; None for one of whole devices."""
    if pool.geometry is None:
        if pool.change_limit is not None:
            raise InvalidInputError("pools.change_limit", f"pool {pool.type} has no geometry that could change")
        return None
    if kind not in TABLES:
        raise InvalidInputError("pools.geometry", f"{pool.type!r} cannot be cut; there are {', '.join(TABLES)}")
    if pool.memory_bytes:
        raise InvalidInputError("pools.memory_bytes", f"slices of {pool.type} have a memory of their own; leave it out")
    return TABLES[kind]


def _cut_now(pool: PoolEntry, table: PlacementTable) -> Geometry:
    if pool.geometry == FREE or pool.geometry is None:
        return table.undominated[0]
    geometry = parse_geometry(pool.geometry)
    if not table.valid(geometry):
        known = ", ".join(table.profiles)
        raise InvalidInputError("pools.geometry", f"{pool.geometry!r} fits on no {table.gpu}; its slices are {known}")
    return table.ordered(geometry)


def pool_recuts(pools: Sequence[PoolEntry], pool_of: Mapping[str, str]) -> Recuts | None:
    """Which GPUs may be cut otherwise; None where the file has none that are cut."""
    groups = []
    for p, pool in enumerate(pools):
        names = tuple(sorted(name for name, label in pool_of.items() if label == pool_label(pools, p)))
        if pool.geometry is not None and names:
            free = pool.geometry == FREE
            usual = len(names) if free else change_limit(len(names))
            limit = usual if pool.change_limit is None else pool.change_limit
            groups.append(RecutGroup(names, limit, free))
    return Recuts(tuple(groups)) if groups else None

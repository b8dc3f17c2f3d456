"""Plans geometry and hosting together: which GPUs to cut anew and how, and what every slice then hosts.

Rules:
- A GPU can be cut anew if its type has a placement table and all its slices are profiles of it. GPUs of one type (and,
  where money counts, one price) are a fleet. All other devices take part as they are.
- The relaxed program says how many GPUs of each geometry; whole numbers come from it, and for small fleets from an
  integer search that starts there and, where demand is left over, from cutting one GPU otherwise at a time. Staying as
  it is always competes: a change is made only if it is worth its price.
- The GPUs that change are those that hold least of what stays wanted; the others keep their slices, with their names.
- Slices then are pools like any others: the allocation's own pipeline plans what they host, with its bound and gap.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

import numpy as np

from domain.device import Device, Slice
from planner.allocation import chain
from planner.allocation.columns import build
from planner.allocation.linear import Limits, Matrix, SolverError
from planner.allocation.pipeline import AllocationPlanner, Counts
from planner.allocation.program import Ints, PoolKey, Program, Serve
from planner.allocation.rounding import Whole, evaluate
from planner.allocation.units import count_loaded, group_units, profile_type
from planner.geometry.program import Fleet, GeometryMatrix, units_of, whole_gpus
from planner.geometry.reconfiguration import change_limit
from planner.geometry.tables import TABLES, Geometry, PlacementTable
from planner.problem import Allocation, Problem
from planner.validation import check

_SMALL_FLEET = 64
_MOVES = 4
_TRIALS = 200
_SAME = 1e-6
_SLOTS = 1000
"""Units that a slice is counted as where variants share it: a small load then takes no whole slice."""
Quality = Callable[[Program, Serve], float]
"""What a query answered by a serve is worth (0..1), where that is not the variant's accuracy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometrySettings:
    """``max_changes``: GPUs of a fleet that may change (None: max(1, floor(0.3 n))).

    ``change_weight``: what changing every GPU is worth in the unit of the step that gains by it (share of demand,
    accuracy). ``limits``: of the integer search. ``quality``: None for the variants' accuracy.
    """

    max_changes: int | None = None
    change_weight: float = 0.01
    limits: Limits = field(default_factory=lambda: Limits(nodes=200, seconds=5.0))
    quality: Quality | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometryPlan:
    """``geometries``: by name of every GPU that can be cut; ``changes``: those that differ from now.

    ``devices``: all devices as they will be. ``objective``: accuracy over all demand less the price of the changes, and
    ``bound`` on it by the relaxed joint program (where all demand is served).
    """

    geometries: Mapping[str, Geometry]
    changes: Mapping[str, Geometry]
    devices: tuple[Device, ...]
    counts: Counts
    objective: float
    bound: float
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Members:
    """A fleet and its GPUs."""

    fleet: Fleet
    table: PlacementTable
    devices: tuple[Device, ...]


def plan_geometry(
    problem: Problem,
    settings: GeometrySettings | None = None,
    tables: Mapping[str, PlacementTable] = TABLES,
) -> GeometryPlan:
    """The joint plan without the map to concrete placements. Raises InvalidInputError, SolverError."""
    chosen = settings or GeometrySettings()
    check(problem)
    groups = _groups(problem, tables)
    pools = group_units(problem.devices, problem.previous, by_price=problem.by_price)
    sizes = {key: len(units) for key, units in pools.items()}
    sizes |= _largest(problem, groups, tables)
    slots = _SLOTS if chosen.shared else 1
    sizes = {key: slots * count for key, count in sizes.items()}
    program = _valued(build(problem, sizes, count_loaded(pools)), chosen.quality, slots)
    members = [_members(problem, program, devices, tables, chosen) for devices in groups]
    fleets = [m.fleet for m in members]
    steps: list[str] = []
    relaxed, bound = _relaxed(program, fleets, chosen, steps)
    stay = [np.array([f.now.get(g, 0) for g in f.options], dtype=np.int64) for f in fleets]
    options = [stay, [whole_gpus(f, r) for f, r in zip(fleets, relaxed, strict=True)]]
    best = _best(program, fleets, options, chosen, steps)
    if sum(f.gpus for f in fleets) <= _SMALL_FLEET and fleets and not chosen.shared:
        for found in _searched(program, fleets, best, chosen, steps):
            best = found if _better(found, best, fleets, chosen) else best
        best = _improved(program, fleets, best, chosen, steps)
    geometries: dict[str, Geometry] = {}
    for member, gpus in zip(members, best.gpus, strict=True):
        geometries |= _assigned(problem, member, gpus)
    changes = {d.name: geometries[d.name] for m in members for d in m.devices if _cut_as(d, m) != geometries[d.name]}
    devices = tuple(_recut(d, changes[d.name], tables[d.type]) if d.name in changes else d for d in problem.devices)
    steps.append(f"{len(changes)} of {len(geometries)} GPUs change")
    return GeometryPlan(
        geometries=geometries,
        changes=changes,
        devices=devices,
        counts=best.counts,
        objective=best.counts.whole.value - _price(best.changes, fleets, chosen),
        bound=bound,
        steps=(*steps, *best.counts.steps),
    )


def allocate(problem: Problem, plan: GeometryPlan, planner: AllocationPlanner | None = None) -> Allocation:
    """What the slices host once the plan's geometry stands. Slices that go take what they held with them."""
    there = {(d.name, s.name) for d in plan.devices for s in d.slices}
    kept = tuple(p for p in problem.previous if (p.device, p.slice) in there and p.device not in plan.changes)
    return (planner or AllocationPlanner()).allocate(replace(problem, devices=plan.devices, previous=kept))


@dataclass(frozen=True, slots=True)
class _Choice:
    gpus: list[Ints]
    counts: Counts
    changes: int


def _groups(problem: Problem, tables: Mapping[str, PlacementTable]) -> list[tuple[Device, ...]]:
    groups: dict[tuple[str, float, bool], list[Device]] = {}
    for device in sorted(problem.devices, key=lambda d: d.name):
        table = tables.get(device.type)
        if table is None or not device.slices or any(s.profile not in table.profiles for s in device.slices):
            continue
        priced = (device.price, device.spot) if problem.by_price else (0.0, False)
        groups.setdefault((device.type, *priced), []).append(device)
    return [tuple(devices) for _, devices in sorted(groups.items())]


def _largest(
    problem: Problem, groups: Sequence[tuple[Device, ...]], tables: Mapping[str, PlacementTable]
) -> dict[PoolKey, int]:
    """Units that each slice pool could have at most."""
    sizes: dict[PoolKey, int] = {}
    for devices in groups:
        table = tables[devices[0].type]
        for profile in table.profiles:
            most = max(Counter(g)[profile] for g in table.undominated)
            sizes[_key(problem, devices[0], profile, table)] = most * len(devices)
    return sizes


def _key(problem: Problem, device: Device, profile: str, table: PlacementTable) -> PoolKey:
    """The pool of a slice profile: memory as the device's own slices state it where it has such."""
    price, spot = (device.price, device.spot) if problem.by_price else (0.0, False)
    return PoolKey(profile_type(device.type, profile), table.profile(profile).memory_bytes, price, spot)


def _members(
    problem: Problem,
    program: Program,
    devices: tuple[Device, ...],
    tables: Mapping[str, PlacementTable],
    settings: GeometrySettings,
) -> _Members:
    table = tables[devices[0].type]
    now = Counter(table.ordered([s.profile for s in d.slices]) for d in devices)
    options = tuple(dict.fromkeys([*table.undominated, *sorted(now)]))
    index = {key: i for i, key in enumerate(program.pools)}
    pools = {p: index[_key(problem, devices[0], p, table)] for p in table.profiles}
    limit = change_limit(len(devices)) if settings.max_changes is None else settings.max_changes
    slots = _SLOTS if settings.shared else 1
    return _Members(Fleet(len(devices), options, dict(now), pools, limit, slots), table, devices)


def _valued(program: Program, quality: Quality | None, slots: int) -> Program:
    if quality is None and slots == 1:
        return program
    serves = tuple(
        replace(s, need=slots * s.need, accuracy=s.accuracy if quality is None else quality(program, s))
        for s in program.serves
    )
    return replace(program, serves=serves)


def _relaxed(
    program: Program, fleets: Sequence[Fleet], settings: GeometrySettings, steps: list[str]
) -> tuple[list[np.ndarray], float]:
    if not program.serves:
        return [np.array([f.now.get(g, 0) for g in f.options], dtype=np.float64) for f in fleets], 0.0
    matrix = GeometryMatrix(program, fleets, change_weight=settings.change_weight)
    outcome = chain.run(matrix, program)
    steps.extend(f"geometry lp: {line}" for line in outcome.log)
    return matrix.by_fleet(), outcome.solved.bound


def _best(
    program: Program,
    fleets: Sequence[Fleet],
    options: Sequence[list[Ints]],
    settings: GeometrySettings,
    steps: list[str],
) -> _Choice:
    """The option of most service, each change charged; among equals the most accurate, then the first."""
    best: _Choice | None = None
    tried: set[tuple[bytes, ...]] = set()
    for gpus in options:
        key = tuple(g.tobytes() for g in gpus)
        if key in tried:
            continue
        tried.add(key)
        cut = _cut(program, fleets, gpus)
        counts = _fluid(cut) if settings.shared else AllocationPlanner(polish=False, fill_idle=False).solve(cut)
        changes = sum(int(np.maximum(0, _now(f) - g).sum()) for f, g in zip(fleets, gpus, strict=True))
        candidate = _Choice(gpus, counts, changes)
        steps.append(f"geometry: {changes} changes, served {float(program.weight @ counts.whole.served):.4f}")
        if best is None or _better(candidate, best, fleets, settings):
            best = candidate
    assert best is not None
    return best


def _fluid(program: Program) -> Counts:
    """The relaxed answer itself, units rounded up for show: what slices serve that any variant may share."""
    if not program.serves:
        return AllocationPlanner(polish=False, fill_idle=False).solve(program)
    outcome = chain.run(Matrix(program), program)
    solved = outcome.solved
    score: list[float] = []
    for strict in (True, False):
        members = np.flatnonzero((program.strict == strict) & (chain.servable(program) > 0))
        if len(members):
            score += [float(solved.served[members].min()), float(program.weight[members] @ solved.served[members])]
    units = np.ceil(solved.units - 1e-6).astype(np.int64)
    accuracy = float((program.accuracy * program.weight[program.serve_demand]) @ solved.shares)
    whole = Whole(units, solved.shares, solved.served, accuracy, solved.value, (*score, solved.value))
    return Counts(whole, max(0.0, solved.bound - solved.value), outcome.log, False)


def _better(one: _Choice, other: _Choice, fleets: Sequence[Fleet], settings: GeometrySettings) -> bool:
    """Whether ``one`` wins by what it does better first (service by class, then value), its extra changes paid."""
    extra = _price(one.changes - other.changes, fleets, settings)
    for mine, theirs in zip(one.counts.whole.score, other.counts.whole.score, strict=True):
        if abs(mine - theirs) > _SAME:
            return mine - theirs > extra
    return extra < 0.0


def _searched(
    program: Program, fleets: Sequence[Fleet], start: _Choice, settings: GeometrySettings, steps: list[str]
) -> list[_Choice]:
    """What an integer search finds from what is known: its own units, and units rounded anew for its geometries."""
    if not program.serves:
        return []
    matrix = GeometryMatrix(program, fleets, change_weight=settings.change_weight, integer=True)
    relaxed = chain.run(GeometryMatrix(program, fleets, change_weight=settings.change_weight), program)
    known = chain.Known(start.counts.whole.as_solved(), relaxed, settings.limits, "scip")
    try:
        outcome = chain.run(matrix, program, known)
    except SolverError as error:
        steps.append(f"geometry search: nothing better ({error})")
        return []
    steps.append(f"geometry search: {outcome.log[-1]}")
    gpus = [np.rint(g).astype(np.int64) for g in matrix.by_fleet()]
    rounded = _best(program, fleets, [gpus], settings, steps)
    whole = evaluate(_cut(program, fleets, gpus), np.rint(outcome.solved.units).astype(np.int64))
    return [rounded, replace(rounded, counts=replace(rounded.counts, whole=whole))]


def _improved(
    program: Program, fleets: Sequence[Fleet], best: _Choice, settings: GeometrySettings, steps: list[str]
) -> _Choice:
    """One GPU cut otherwise at a time, as long as demand is left over and that helps; where those are few trials."""
    asked = chain.servable(program) > 0
    for _ in range(_MOVES):
        if (best.counts.whole.served[asked] >= 1.0 - _SAME).all():
            return best
        moves = [gpus for f in range(len(fleets)) for gpus in _moved(fleets, best.gpus, f)]
        if not moves or len(moves) > _TRIALS:
            return best
        found = _best(program, fleets, moves, settings, steps)
        if not _better(found, best, fleets, settings):
            return best
        best = found
    return best


def _moved(fleets: Sequence[Fleet], gpus: Sequence[Ints], which: int) -> list[list[Ints]]:
    """``gpus`` with one of fleet ``which`` cut otherwise, or two (one back, one anew) where the limit is reached."""
    fleet, now = fleets[which], _now(fleets[which])
    found = []
    for start in (gpus[which], now):
        for i, j in permutations(range(len(start)), 2):
            moved = start.copy()
            moved[i] -= 1
            moved[j] += 1
            if moved[i] >= 0 and np.maximum(0, now - moved).sum() <= fleet.max_changes:
                found.append([moved if f == which else g for f, g in enumerate(gpus)])
    return found


def _price(changes: int, fleets: Sequence[Fleet], settings: GeometrySettings) -> float:
    return settings.change_weight * changes / max(1, sum(f.gpus for f in fleets))


def _cut(program: Program, fleets: Sequence[Fleet], gpus: Sequence[Ints]) -> Program:
    """The program once the GPUs are cut so. What slices hold that no longer exist is loaded nowhere."""
    counts = units_of(fleets, gpus, program.counts)
    left = list(counts)
    hosts = []
    for host in program.hosts:
        loaded = min(host.loaded, left[host.pool])
        left[host.pool] -= loaded
        hosts.append(host if loaded == host.loaded else replace(host, loaded=loaded))
    return replace(program, counts=counts, hosts=tuple(hosts))


def _now(fleet: Fleet) -> Ints:
    return np.array([fleet.now.get(g, 0) for g in fleet.options], dtype=np.int64)


def _cut_as(device: Device, member: _Members) -> Geometry:
    return member.table.ordered([s.profile for s in device.slices])


def _assigned(problem: Problem, member: _Members, gpus: Ints) -> dict[str, Geometry]:
    """Which GPU gets which geometry: as many as can keep theirs, those that hold most first."""
    held = Counter(p.device for p in problem.previous)
    left = {g: int(n) for g, n in zip(member.fleet.options, gpus, strict=True) if n}
    result: dict[str, Geometry] = {}
    rest: list[Device] = []
    for device in sorted(member.devices, key=lambda d: (-held[d.name], d.name)):
        now = _cut_as(device, member)
        if left.get(now, 0) > 0:
            left[now] -= 1
            result[device.name] = now
        else:
            rest.append(device)
    wanted = [g for g, n in left.items() for _ in range(n)]
    for device, geometry in zip(rest, wanted, strict=True):
        result[device.name] = geometry
    return result


def _recut(device: Device, geometry: Geometry, table: PlacementTable) -> Device:
    parts = tuple(
        Slice(f"{name}.{i}", name, table.profile(name).memory_bytes) for i, name in enumerate(table.ordered(geometry))
    )
    return replace(device, slices=parts)


def sliced(name: str, kind: str, geometry: Geometry, *, price: float = 0.0, spot: bool = False) -> Device:
    """A GPU cut like ``geometry``; its slices are named ``<profile>.<number>``."""
    table = TABLES[kind]
    return _recut(Device(name=name, type=kind, price=price, spot=spot), geometry, table)

"""Plans geometry and hosting together: which GPUs to cut anew and how, and what every slice then hosts.

Rules:
- GPUs that can be cut otherwise form fleets; all other devices take part as they are.
- The relaxed program says how many GPUs of each geometry; whole numbers come from it, and for small fleets from an
  integer search that starts there and, where demand is left over, from cutting one GPU otherwise at a time. Staying as
  it is always competes: a change is made only if it is worth its price.
- The GPUs that change are those that hold least of what stays wanted; the others keep their slices, with their names.
- Slices then are pools like any others: the allocation's own pipeline plans what they host, with its bound and gap.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import QueryClass
from sluicegate.planner.allocation.columns import build
from sluicegate.planner.allocation.pipeline import AllocationPlanner, Counts
from sluicegate.planner.allocation.program import Floats, Program
from sluicegate.planner.allocation.units import count_loaded, group_units
from sluicegate.planner.geometry.geometry_search import SLOTS, GeometrySettings, Quality, Search
from sluicegate.planner.geometry.gpu_pools import (
    assigned,
    by_the_table,
    fleet_of,
    grouped,
    largest_pools,
    part_by_table,
    recut,
)
from sluicegate.planner.geometry.mig_tables import TABLES, Geometry, PlacementTable
from sluicegate.planner.problems.problem import Allocation, Planner, Problem
from sluicegate.planner.problems.problem_checks import check


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometryPlan:
    """Geometries and what their slices host. ``geometries``: by name of every GPU that can be cut; ``changes``: those
    that differ from now.

    ``devices``: all devices as they will be. ``before``: what they could host as they are, to compare with ``counts``;
    ``gained``: by class, the share of its demand that is served beyond that.
    ``objective``: accuracy over all demand less the price of the changes, and ``bound`` on it by the relaxed joint
    program (where all demand is served).
    """

    geometries: Mapping[str, Geometry]
    changes: Mapping[str, Geometry]
    devices: tuple[Device, ...]
    counts: Counts
    before: Counts
    gained: Mapping[QueryClass, float]
    objective: float
    bound: float
    steps: tuple[str, ...]


def plan_geometry(
    problem: Problem,
    settings: GeometrySettings | None = None,
    tables: Mapping[str, PlacementTable] = TABLES,
) -> GeometryPlan:
    """The joint plan without the map to concrete placements. Raises InvalidInputError, SolverError."""
    chosen = settings or GeometrySettings()
    check(problem, by_slo=problem.tables is not None)
    groups = grouped(problem, tables)
    rated = by_the_table(problem, tables)
    by_part = part_by_table(tables) if problem.budget is not None else None
    pools = group_units(rated.devices, problem.previous, by_price=problem.by_price, by_part=by_part)
    sizes = {key: len(units) for key, units in pools.items()} | largest_pools(problem, groups)
    slots = SLOTS if chosen.shared else 1
    built = build(rated, {key: slots * count for key, count in sizes.items()}, count_loaded(pools))
    program = _valued(built, chosen.quality, slots)
    fleets = [fleet_of(problem, program, group, chosen.max_changes, slots) for group in groups]
    search = Search(program, fleets, chosen)
    found = search.run()
    geometries: dict[str, Geometry] = {}
    changes: dict[str, Geometry] = {}
    for group, fleet, gpus in zip(groups, fleets, found.best.gpus, strict=True):
        geometries |= assigned(problem, group, fleet, gpus)
        changes |= {d.name: geometries[d.name] for d in group.devices if group.cut_now(d) != geometries[d.name]}
    best, stay = found.best.counts, found.stay.counts
    return GeometryPlan(
        geometries=geometries,
        changes=changes,
        devices=tuple(recut(d, changes[d.name], tables[d.type]) if d.name in changes else d for d in problem.devices),
        counts=best,
        before=stay,
        gained=_gained(program, best.whole.served - stay.whole.served),
        objective=best.whole.value - search.price(found.best.changes),
        bound=found.bound,
        steps=(*search.steps, f"{len(changes)} of {len(geometries)} GPUs change", *best.steps),
    )


def as_cut(problem: Problem, plan: GeometryPlan) -> Problem:
    """The problem once the plan's geometry stands. Slices that go take what they held with them."""
    there = {(d.name, s.name) for d in plan.devices for s in d.slices}
    kept = tuple(p for p in problem.previous if (p.device, p.slice) in there and p.device not in plan.changes)
    return replace(problem, devices=plan.devices, previous=kept, recuts=None)


def allocate(problem: Problem, plan: GeometryPlan, planner: Planner | None = None) -> Allocation:
    """What the slices host once the plan's geometry stands."""
    return (planner or AllocationPlanner()).allocate(as_cut(problem, plan))


def cut_and_placed(problem: Problem, planner: Planner) -> tuple[GeometryPlan, Allocation, Allocation]:
    """How GPUs are best cut, what they would host as they are, and what they host then.

    Where ``planner``, who spends a budget, has no use for it that is better, everything stays."""
    plan, before = plan_geometry(problem), planner.allocate(problem)
    after = allocate(problem, plan, planner)
    if problem.budget is None or problem.worth(after) > problem.worth(before):
        return plan, before, after
    now = {
        d.name: TABLES[d.type].ordered([s.profile for s in d.slices]) for d in problem.devices if d.name in plan.changes
    }
    stays = replace(
        plan, geometries={**plan.geometries, **now}, changes={}, devices=problem.devices, counts=plan.before
    )
    return stays, before, before


def _gained(program: Program, served: Floats) -> dict[QueryClass, float]:
    gained = {}
    for query_class in QueryClass:
        weight = program.weight * np.array([d.query_class is query_class for d in program.demands], dtype=np.float64)
        total = float(weight.sum())
        gained[query_class] = float(weight @ served) / total if total > 0.0 else 0.0
    return gained


def _valued(program: Program, quality: Quality | None, slots: int) -> Program:
    if quality is None and slots == 1:
        return program
    serves = tuple(
        replace(s, need=slots * s.need, accuracy=s.accuracy if quality is None else quality(program, s))
        for s in program.serves
    )
    return replace(program, serves=serves)

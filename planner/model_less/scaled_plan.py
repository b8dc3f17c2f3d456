"""The planner of the settings under model-less scaling: as accurate as the others, on as few units as that takes.

Rules.
- It plans as ever: all that can be served, then accuracy, geometries and loads with it. A unit costs money: its price
  (1 where nothing has a price) at the problem's ``money_weight``, and never so little that it is kept for less than
  ``WORTH`` of what one unit answers. What holds nothing is free, and its worker may be ended.
- Devices in ``avoided`` host nothing as long as the others serve as much without them.
- Each variant in ``wanted`` that no unit holds gets one: one that is idle, else one that the others can spare, as far
  as the budget goes. None where a GPU is about to be cut. A budget limits nothing where nothing has a price.
- What a worker that was replaced had held counts as loaded on the one in its place.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from typing_extensions import override

from sluicegate.domain.plan import Placement
from sluicegate.planner.allocation.columns import candidates
from sluicegate.planner.allocation.program import PoolKey, Unit
from sluicegate.planner.allocation.rounding import SAME
from sluicegate.planner.allocation.units import group_units
from sluicegate.planner.model_less.wishes import FollowsWishes, restored
from sluicegate.planner.problems.problem import Allocation, Planner, Problem, Recuts

WORTH = 1e-3
"""Of the accuracy of what an average unit answers: what a unit has to bring at least."""


class ScaledPlan(FollowsWishes):
    """A planner, ``inner``, held to as few units as its answer takes."""

    def __init__(self, inner: Planner) -> None:
        super().__init__(inner.name)
        self._inner = inner

    @override
    def allocate(self, problem: Problem) -> Allocation:
        """Raises InvalidInputError, and what ``inner`` raises."""
        wishes = self.wishes
        problem = replace(_priced(problem), previous=(*problem.previous, *restored(problem, wishes)))
        found = self._inner.allocate(problem)
        kept = _without(problem, wishes.avoided)
        if kept.devices and len(kept.devices) < len(problem.devices):
            elsewhere = self._inner.allocate(kept)
            if _as_much(elsewhere, found):
                problem, found = kept, elsewhere
        if not found.geometries:
            for variant in sorted(wishes.wanted):
                found = self._with(problem, found, variant)
        return found

    def _with(self, problem: Problem, found: Allocation, variant: str) -> Allocation:
        """With an instance of ``variant``, where there is none and a unit can be spared for it."""
        held = {name for p in found.placements for name in p.variants}
        if variant in held or variant not in problem.catalogue.variants:
            return found
        app = problem.catalogue.variants[variant].app
        placed = {(p.device, p.slice): p for p in found.placements}
        fitting = list(_fitting(problem, variant))
        idle = [x for x in fitting if (x[1].device, x[1].slice) not in placed and _affordable(problem, found, x[1])]
        for _, unit, batch in sorted(idle, key=lambda x: (variant not in x[1].loaded, x[0].price, x[1])):
            return _placed(found, Placement(unit.device, app, (variant,), 0.0, batch, unit.slice), unit)
        used = [x for x in fitting if (x[1].device, x[1].slice) in placed]
        mine = [(placed[unit.device, unit.slice], unit, batch) for _, unit, batch in used]
        for _, unit, batch in sorted(mine, key=lambda x: (x[0].app != app, x[0].share, x[1]))[:1]:
            others = self._inner.allocate(_without_unit(problem, unit))
            if _as_much(others, found) and _affordable(problem, others, unit):
                return _placed(others, Placement(unit.device, app, (variant,), 0.0, batch, unit.slice), unit)
        return found


def _priced(problem: Problem) -> Problem:
    """Each unit at its price, or at 1 where nothing has one, and no unit for nothing."""
    devices, recuts = problem.devices, problem.recuts
    if not any(d.price > 0.0 for d in devices):
        devices = tuple(replace(d, price=1.0) for d in devices)
        problem = replace(problem, budget=None)
        if recuts is not None:
            recuts = replace(recuts, changing=tuple(replace(d, price=1.0) for d in recuts.changing))
    units = sum(len(d.slices) for d in devices)
    dearest = max((d.price for d in devices), default=1.0)
    least = WORTH / max(1, units) / dearest
    return replace(problem, devices=devices, recuts=recuts, money_weight=max(problem.money_weight, least))


def _without(problem: Problem, names: Collection[str]) -> Problem:
    """The problem where these devices are not."""
    kept = tuple(d for d in problem.devices if d.name not in names)
    recuts = problem.recuts
    if recuts is not None:
        groups = tuple(replace(g, devices=tuple(d for d in g.devices if d not in names)) for g in recuts.groups)
        groups = tuple(g for g in groups if g.devices)
        recuts = Recuts(groups, recuts.changing) if groups else None
    return replace(problem, devices=kept, recuts=recuts)


def _without_unit(problem: Problem, unit: Unit) -> Problem:
    devices = []
    for d in problem.devices:
        rest = tuple(s for s in d.slices if d.name != unit.device or s.name != unit.slice)
        if rest:
            devices.append(replace(d, slices=rest))
    return replace(problem, devices=tuple(devices), recuts=None)


def _affordable(problem: Problem, found: Allocation, unit: Unit) -> bool:
    """Whether the budget bears ``unit`` beside what is in use."""
    used = {unit.device, *(p.device for p in found.placements)}
    return problem.budget is None or problem.rent(used) <= problem.budget * (1 + 1e-9)


def _as_much(allocation: Allocation, before: Allocation) -> bool:
    """Whether no app is served less, in either class."""
    by_class = allocation.served_by_class
    return all(allocation.served.get(app, 0.0) >= share - SAME for app, share in before.served.items()) and all(
        by_class.get(of, 0.0) >= share - SAME for of, share in before.served_by_class.items()
    )


def _fitting(problem: Problem, variant: str) -> Iterator[tuple[PoolKey, Unit, int]]:
    """Units that can answer queries by ``variant`` in time, and in which batches."""
    wanted = problem.catalogue.variants[variant]
    demands = {i: d for i, d in enumerate(problem.demands) if d.app == wanted.app}
    for key, units in group_units(problem.devices, problem.previous, by_price=True).items():
        for candidate in candidates(problem, key, (wanted,), demands):
            batch = max(rate.batch for rate in candidate.rates.values())
            for unit in units:
                yield key, unit, batch


def _placed(found: Allocation, placement: Placement, unit: Unit) -> Allocation:
    """With ``placement`` on ``unit``, which holds nothing else."""
    placements = tuple(sorted((*found.placements, placement), key=lambda p: (p.device, p.slice, p.app)))
    more = 0 if placement.variants[0] in unit.loaded else 1
    told = f"{placement.variants[0]} is asked for: on {placement.device}"
    return replace(found, placements=placements, loads=found.loads + more, steps=(*found.steps, told))

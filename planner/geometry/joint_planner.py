"""The joint geometry as a planner: beside what every slice hosts, which GPUs are to be cut otherwise.

Rules:
- A GPU that is to be cut otherwise hosts nothing meanwhile: the answer is for the others, and its demand goes there.
- GPUs that are being cut count as they will be when a geometry is chosen, and not at all when something is placed.
- A change that serves more may cost service for as long as it takes, if it brings that back within ``pays_within``. One
  that only makes answers more accurate may cost no service, and has to bring back the accuracy that it costs for as
  long as what is gained may be expected to last: as long again as the apps' hosts have stood, ``pays_within`` at most.
  What would pay if it lasted longer is thought about again.
- What a change brings is told by the search; where a budget says how many GPUs are used at all, by who spends it.
- Where as many changes as are allowed cost too much, a single one is tried; else everything stays.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import inf

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import QueryClass
from sluicegate.planner.allocation.program import CALM
from sluicegate.planner.allocation.solver_types import Limits, SolverError
from sluicegate.planner.geometry.geometry_search import GeometrySettings
from sluicegate.planner.geometry.gpu_pools import recut
from sluicegate.planner.geometry.joint_plan import GeometryPlan, as_cut, plan_geometry
from sluicegate.planner.geometry.mig_tables import TABLES, PlacementTable
from sluicegate.planner.problems.problem import Allocation, Planner, Problem, Recuts

_NONE = 1e-3
"""Share of demand that counts as none."""
_LIMITS = Limits(nodes=50, seconds=2.0)
"""Of the integer search: a running system waits for the answer."""
Shares = Mapping[QueryClass, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRules:
    """What a change of geometry costs and must earn. ``takes``: seconds from draining a GPU to its new slices being
    loaded. ``pays_within``: seconds."""

    takes: float = 10.0
    pays_within: float = 120.0


@dataclass(frozen=True, slots=True)
class _Gains:
    """What changes bring once they are made: shares served more, by class, and accuracy."""

    served: Shares
    value: float


class JointGeometry:
    """A planner of geometry and hosting together. ``inner`` says what is hosted. Problems without GPUs that may be cut
    otherwise are its alone."""

    def __init__(
        self,
        inner: Planner,
        *,
        settings: GeometrySettings | None = None,
        rules: ChangeRules | None = None,
        tables: Mapping[str, PlacementTable] = TABLES,
    ) -> None:
        self._inner = inner
        self._settings = settings or GeometrySettings(limits=_LIMITS)
        self._rules = rules or ChangeRules()
        self._tables = tables

    @property
    def name(self) -> str:
        """That of the planner of what is hosted, which is what the settings name."""
        return self._inner.name

    def allocate(self, problem: Problem) -> Allocation:
        """Raises what ``inner`` raises; without a geometry where there is no joint plan."""
        recuts = problem.recuts
        stay = self._inner.allocate(problem)
        if recuts is None:
            return stay
        undecided = False
        most = max((g.limit for g in recuts.groups), default=0)
        for limit in sorted({most, min(most, 1)} - {0}, reverse=True):
            try:
                then = _as_they_will_be(problem, recuts, limit)
                plan = plan_geometry(then, self._settings, self._tables)
            except (SolverError, InvalidInputError) as error:  # what slices host as they are is a plan all the same
                return replace(stay, steps=(*stay.steps, f"geometry: {error}"))
            changes = dict(sorted(plan.changes.items())[:limit])
            if not changes:
                break
            meanwhile = self._inner.allocate(_without(problem, changes))
            pays = self._pays_after(self._gains(plan, then), problem, stay, meanwhile)
            if pays <= min(self._rules.pays_within, _lasts(problem)):
                cut = {d.name: d for d in problem.devices if d.name in changes}
                parts = {n: recut(cut[n], g, self._tables[cut[n].type]).slices for n, g in changes.items()}
                return replace(meanwhile, geometries=parts, steps=(*plan.steps, *meanwhile.steps))
            undecided = undecided or pays <= self._rules.pays_within
            stay = replace(stay, steps=(*stay.steps, f"geometry: {len(changes)} changes pay after {pays:.0f} s"))
        return replace(stay, geometries=None if undecided else {})

    def _gains(self, plan: GeometryPlan, then: Problem) -> _Gains:
        if then.budget is None:
            return _Gains(plan.gained, plan.counts.whole.value - plan.before.whole.value)
        now, cut = self._inner.allocate(replace(then, recuts=None)), self._inner.allocate(as_cut(then, plan))
        before, after = _served(then, now), _served(then, cut)
        return _Gains({c: after[c] - before[c] for c in QueryClass}, cut.objective - now.objective)

    def _pays_after(self, gains: _Gains, problem: Problem, stay: Allocation, meanwhile: Allocation) -> float:
        """Seconds until a change has brought back what it costs.

        The first class that it serves more of says so; classes before it may lose nothing. Where none is served more,
        accuracy does.
        """
        before, during = _served(problem, stay), _served(problem, meanwhile)
        for query_class in (QueryClass.STRICT, QueryClass.BEST_EFFORT):
            lost, gained = before[query_class] - during[query_class], gains.served[query_class]
            if gained > _NONE:
                return 0.0 if lost * self._rules.takes <= gained * self._rules.pays_within else inf
            if lost > _NONE or gained < -_NONE:
                return inf
        lost = max(0.0, stay.objective - meanwhile.objective)
        return lost * self._rules.takes / gains.value if gains.value > 0.0 else inf


def _lasts(problem: Problem) -> float:
    """Seconds for which what a change gains may be expected to last."""
    return max(CALM, min(problem.stood.values(), default=0.0))


def _as_they_will_be(problem: Problem, recuts: Recuts, limit: int) -> Problem:
    groups = tuple(replace(g, limit=min(g.limit, limit)) for g in recuts.groups)
    return replace(problem, devices=(*problem.devices, *recuts.changing), recuts=replace(recuts, groups=groups))


def _without(problem: Problem, names: Collection[str]) -> Problem:
    return replace(problem, devices=tuple(d for d in problem.devices if d.name not in names))


def _served(problem: Problem, allocation: Allocation) -> Shares:
    """Share of each class's demand that is served."""
    total, served = dict.fromkeys(QueryClass, 0.0), dict.fromkeys(QueryClass, 0.0)
    for d in problem.demands:
        fallback = allocation.served.get(d.app, 0.0)
        total[d.query_class] += d.qps
        served[d.query_class] += d.qps * allocation.served_by_class.get((d.app, d.query_class), fallback)
    return {c: served[c] / total[c] if total[c] else 1.0 for c in QueryClass}

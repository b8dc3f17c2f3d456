"""The five steps: prune, LP chain, reserve and round up, MIP polish, keep the assignment.

Rules:
- Every step leaves something that can be published; a later one only replaces it by something better (service first,
  then accuracy less prices). The plan in force takes part as an incumbent; where apps that may share units are more
  than those, so does the answer that needs no solver, as a search over sets of variants sees only a part of them.
- Loads have their price where a unit holds one variant; where it may hold several they are free.
- The LP of the published service bounds its accuracy from above: every plan carries a certified gap.
- The polish runs only where the gap or the service leaves something to gain, and stops on nodes or gap. If its safety
  stop in seconds strikes, the allocation is marked nondeterministic.
- A budget rents devices whole. Where some are cut, slices count by their part of the price first, which leaves no plan
  out and so bounds them all; what that uses most is rented, as long as the money lasts, and planned for by itself.
- If the solver fails or is missing, the heuristic planner's answer is returned, and ``steps`` says so.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from sluicegate.domain.fleet.device import Device
from sluicegate.planner.allocation import column_pruning, goal_chain
from sluicegate.planner.allocation.assignment import allocation, assign
from sluicegate.planner.allocation.columns import build, with_hosts
from sluicegate.planner.allocation.idle_units import fill
from sluicegate.planner.allocation.linear import Matrix, MipSolver
from sluicegate.planner.allocation.program import Floats, Ints, Program
from sluicegate.planner.allocation.rounding import Whole, evaluate, prices, round_up
from sluicegate.planner.allocation.solver_types import Limits, SolverError
from sluicegate.planner.allocation.table_columns import one_set_each
from sluicegate.planner.allocation.unit_exchange import improved
from sluicegate.planner.allocation.unit_repair import repaired
from sluicegate.planner.allocation.units import count_loaded, equal_part, group_units, rented
from sluicegate.planner.greedy_fill import GreedyFill, serve
from sluicegate.planner.problems.problem import Allocation, Problem
from sluicegate.planner.problems.problem_checks import check
from sluicegate.planner.shared_units import SharedUnits

_FEW = 200
"""Units up to which the heuristic's answer is looked at besides."""


@dataclass(frozen=True, slots=True)
class Counts:
    """An answer before it is mapped to devices: what a fleet of any size costs the same to find.

    ``gap``: how far its accuracy (mean over all demand), less prices, can be from the best at the same service.
    ``rough``: whether that is more than enough, and nothing better was looked for.
    """

    whole: Whole
    gap: float
    steps: tuple[str, ...]
    nondeterministic: bool
    rough: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationPlanner:
    """Near-optimal allocation with a certified gap.

    ``polish``: whether to search beyond rounding. ``fill_idle``: whether idle units go to the apps with least spare
    capacity. ``limits``: of each integer search.
    """

    name: str = "allocation"
    polish: bool = True
    fill_idle: bool = True
    limits: Limits = field(default_factory=Limits)
    solver: MipSolver = "scip"

    def allocate(self, problem: Problem) -> Allocation:
        """Always an allocation; raises InvalidInputError for input that is not finite or out of range."""
        check(problem, by_slo=problem.tables is not None)
        if problem.variants_per_device > 1:
            # What is loaded need not take the place of anything there.
            problem = replace(problem, loads="free")
        return self._within_budget(problem) if problem.by_part else self._allocated(problem)

    def _within_budget(self, problem: Problem) -> Allocation:
        """Rent devices whole within the budget, and plan for those alone. What to rent is found by plans whose slices
        count by their part of a price, which bound what any choice of devices can do."""
        quick = replace(self, polish=False)
        budget = money = problem.budget or 0.0
        paid = tuple(d for d in problem.devices if d.price == 0)
        widest: Allocation | None = None
        while True:
            rent = {d.name for d in paid}
            more = tuple(d for d in problem.devices if 0 < d.price <= money and d.name not in rent)
            if widest is not None and not more:
                break
            free = tuple(replace(d, price=0.0) for d in paid)
            parts = quick._allocated(replace(problem, devices=(*free, *more), budget=money))
            widest = widest or parts
            choices = [(*paid, *choice) for choice in rented(more, parts.placements, money)]
            if not choices:
                break
            paid = (
                max(choices, key=lambda c: problem.worth(quick._planned_on(problem, c))) if choices[1:] else choices[0]
            )
            money = budget - sum(d.price for d in paid)
        found = self._planned_on(problem, paid)
        step = f"budget: {len(paid)} of {len(problem.devices)} devices are rented, whole"
        return replace(found, bound=max(found.bound, widest.bound), steps=(step, *found.steps))

    def _planned_on(self, problem: Problem, paid: tuple[Device, ...]) -> Allocation:
        """What is hosted where these devices are paid for, and no others are there."""
        return self._allocated(replace(problem, devices=paid, budget=None, money_weight=0.0))

    def _allocated(self, problem: Problem) -> Allocation:
        priced = problem.loads != "free"
        by_price, by_part = problem.by_price, equal_part if problem.by_part else None
        pools = group_units(problem.devices, problem.previous, by_price=by_price, by_held=priced, by_part=by_part)
        sizes, loaded = {k: len(u) for k, u in pools.items()}, count_loaded(pools)
        program = build(replace(problem, variants_per_device=1), sizes, loaded)
        try:
            program = one_set_each(program)
            counts = self.solve(program)
            if problem.variants_per_device > 1:
                several, start = one_set_each(build(problem, sizes, loaded)), None
                if (shared := SharedUnits(problem, pools)).needed:
                    several, start = with_hosts(several, *shared.hosted())
                program, counts = self._several(program, counts, several, start)
        except SolverError as error:
            fallback = GreedyFill().allocate(problem)
            return replace(fallback, steps=(f"solver: {error}; greedy-fill instead", *fallback.steps))
        placements, loads = assign(program, counts.whole, pools)
        return allocation(
            program,
            counts.whole,
            counts.gap,
            placements,
            loads=loads,
            steps=counts.steps,
            nondeterministic=counts.nondeterministic,
            rough=counts.rough,
        )

    def _several(self, single: Program, alone: Counts, program: Program, start: Ints | None) -> tuple[Program, Counts]:
        """The program with several variants a unit and its answer, or the one with single ones where that is as good.

        Sets of variants cost memory and loads, so they must gain more than the search's gap.
        """
        relaxed = goal_chain.run(Matrix(program), program)
        enough = relaxed.full and _as_served(program, relaxed, alone.whole)
        if enough and relaxed.solved.bound - alone.whole.value <= self.limits.gap:
            gap = max(alone.gap, relaxed.solved.bound - alone.whole.value)
            return single, replace(alone, gap=gap, steps=(*alone.steps, "several variants a unit could gain nothing"))
        sets = self.solve(program, start)
        alone = replace(alone, rough=alone.rough or sets.rough)
        steps = (*(f"single: {s}" for s in alone.steps), *(f"several: {s}" for s in sets.steps))
        more = sets.whole.service_beyond(alone.whole)
        if not more:
            gain = sets.whole.value - alone.whole.value
            if gain <= self.limits.gap:
                return single, replace(alone, gap=max(alone.gap, sets.gap + gain), steps=steps)
        elif more < 0.0:
            return single, replace(alone, steps=steps, gap=max(alone.gap, self._bound_gap(program, relaxed, alone)))
        return program, replace(sets, steps=steps, rough=alone.rough)

    def _bound_gap(self, program: Program, relaxed: goal_chain.Outcome, counts: Counts) -> float:
        return max(0.0, self._bound(program, relaxed, counts.whole) - counts.whole.value)

    def solve(self, program: Program, start: Ints | None = None) -> Counts:
        """Counts and shares for ``program``, no worse than those of ``start`` (units by host). Raises SolverError."""
        steps = [f"prune: {len(program.serves)} ways to serve {len(program.demands)} demands"]
        if not program.serves or not program.pool_count.any():
            nothing = evaluate(program, np.zeros(len(program.hosts), dtype=np.int64))
            return Counts(nothing, 0.0, (*steps, "nothing can be served"), False)
        large = len(program.serves) > column_pruning.LARGE
        relaxed = goal_chain.run(Matrix(program), program, duals=large)
        steps.extend(f"lp: {line}" for line in relaxed.log)
        best, rounds = round_up(program, relaxed.solved)
        steps.append(f"round up: {_describe(program, best)} after {rounds} programs")
        if not _as_served(program, relaxed, best):
            best = self._repair(program, relaxed, best, steps)
        if program.loaded.any():
            best = self._known(program, program.loaded, best, "previous plan", steps)
        if start is not None:
            best = self._known(program, start, best, "shared units", steps)
        bound = self._bound(program, relaxed, best)
        if program.money_weight > 0 or bound - best.value > self._enough(program, best):
            best, bound = self._exchange(program, relaxed, best, bound, steps)
        timed_out = False
        wanting = bound - best.value > self._enough(program, best) or not _as_served(program, relaxed, best)
        if self.polish and wanting:
            best, bound, timed_out = self._polish(program, relaxed, best, bound, steps)
        gap = max(0.0, bound - best.value)
        if self.fill_idle:
            best, gap = self._fill_idle(program, relaxed, best, bound, steps)
        return Counts(best, gap, tuple(steps), timed_out, rough=wanting and not self.polish)

    def _enough(self, program: Program, whole: Whole) -> float:
        """The gap to stop at, in mean accuracy over all demand: what is reported is over what is served."""
        return self.limits.gap * max(0.05, float(program.weight @ whole.served))

    def _fill_idle(
        self, program: Program, relaxed: goal_chain.Outcome, best: Whole, bound: float, steps: list[str]
    ) -> tuple[Whole, float]:
        """Idle units put to use, and the gap that is left. What they cost to load is no part of the trade."""
        units = fill(program, best)
        filled = evaluate(program, units)
        added = int((units - best.units).sum())
        if not added or filled.service_beyond(best) < 0.0:
            return best, max(0.0, bound - best.value)
        steps.append(f"idle units: {added} kept or given to the apps with least spare capacity")
        if not np.allclose(filled.served, best.served, atol=1e-6):
            bound = self._bound(program, relaxed, filled)
        return filled, max(0.0, bound - (filled.accuracy - prices(program, best.units)))

    def _repair(self, program: Program, relaxed: goal_chain.Outcome, best: Whole, steps: list[str]) -> Whole:
        """The best of what single moves make of the rounding and of the heuristic's answer, where that is cheap."""
        found = repaired(program, relaxed.solved.served, best)
        if (
            not _as_served(program, relaxed, found)
            and int(program.pool_count.sum()) <= _FEW
            and program.independent
            and program.max_loads is None
        ):
            served = evaluate(program, serve(program))
            other = repaired(program, relaxed.solved.served, served)
            found = other if other.beats(found) else found
        if found.beats(best):
            steps.append(f"repair: {_describe(program, found)}")
        return found

    def _exchange(
        self, program: Program, relaxed: goal_chain.Outcome, best: Whole, bound: float, steps: list[str]
    ) -> tuple[Whole, float]:
        """What single units that change host make of it, and the bound at its service."""
        found = improved(program, best)
        if found is best:
            return best, bound
        steps.append(f"exchange: {_describe(program, found)}")
        if not np.allclose(found.served, best.served, atol=1e-6):
            bound = self._bound(program, relaxed, found)
        return found, bound

    def _known(self, program: Program, units: Ints, best: Whole, of: str, steps: list[str]) -> Whole:
        """The better of ``best`` and of what ``units`` serve, where limits allow those."""
        used = np.zeros(len(program.pools), dtype=np.int64)
        np.add.at(used, program.host_pool, units)
        if (used > program.pool_count).any() or not program.allowed(units):
            return best
        known = evaluate(program, units)
        if known.beats(best):
            steps.append(f"{of}: {_describe(program, known)} is better")
            return known
        return best

    def _bound(self, program: Program, relaxed: goal_chain.Outcome, best: Whole) -> float:
        """Upper bound on accuracy less prices at the service of ``best``."""
        if relaxed.full and _as_served(program, relaxed, best):
            return max(relaxed.solved.bound, best.value)
        served = np.minimum(best.served, goal_chain.servable(program))
        try:
            return max(goal_chain.at_service(Matrix(program), program, served).bound, best.value)
        except SolverError:
            # The service of whole units can sit on the edge of the relaxed program: fall back to a looser bound.
            return float(program.weight @ (served * _best_accuracy(program)))

    def _polish(
        self, program: Program, relaxed: goal_chain.Outcome, best: Whole, bound: float, steps: list[str]
    ) -> tuple[Whole, float, bool]:
        limits = self.limits.of_size(min(len(program.serves), column_pruning.LARGE))
        limits = replace(limits, gap=self._enough(program, best))
        known = goal_chain.Known(best.as_solved(), relaxed, limits, self.solver)
        part = None
        if relaxed.solved.demand_duals is not None:
            part = column_pruning.restrict(program, relaxed.solved, best)
            inner = replace(relaxed, solved=part.narrow(relaxed.solved))
            known = replace(known, incumbent=part.narrow(known.incumbent), relaxed=inner)
            steps.append(f"polish: over {len(part.hosts)} of {len(program.hosts)} hosts")
        searched = part.program if part else program
        matrix = Matrix(searched, integer=True)
        try:
            outcome = goal_chain.run(matrix, searched, known)
        except SolverError as error:
            steps.append(f"polish: nothing better ({error})")
            return best, bound, matrix.timed_out
        steps.extend(f"polish: {line}" for line in outcome.log)
        solved = outcome.solved
        units = part.widen(solved.units, len(program.hosts)) if part else np.rint(solved.units).astype(np.int64)
        found = evaluate(program, units)
        steps.append(f"polish: {_describe(program, found)}, {solved.nodes} nodes")
        better = found.beats(best)
        kept = found if better else best
        if better and not np.allclose(found.served, best.served, atol=1e-6):
            bound = self._bound(program, relaxed, found)
        if part is None and np.allclose(kept.served, solved.served, atol=1e-6):
            bound = min(bound, max(solved.bound, kept.value))
        return kept, bound, matrix.timed_out


def _best_accuracy(program: Program) -> Floats:
    best = np.zeros(len(program.demands))
    np.maximum.at(best, program.serve_demand, program.accuracy)
    return best


def _as_served(program: Program, relaxed: goal_chain.Outcome, whole: Whole) -> bool:
    high = goal_chain.servable(program)
    target = high if relaxed.full else np.minimum(relaxed.solved.served, high)
    return bool((whole.served[high > 0] >= target[high > 0] - 1e-6).all())


def _describe(program: Program, whole: Whole) -> str:
    served = float(program.weight @ whole.served)
    mean = whole.accuracy / served if served > 0 else 0.0
    return f"served {served:.4f}, accuracy {mean:.6f}"

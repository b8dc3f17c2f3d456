"""The search for whole numbers of GPUs by geometry: what each option would host, and which is worth its changes.

Rules: options are compared by what they serve, class by class, then by value; the extra changes of one must be worth
their price. Where GPUs are few, an integer search starts from the best that is known, and one GPU at a time is cut
otherwise as long as demand is left over and that helps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

import numpy as np

from sluicegate.planner.allocation import goal_chain
from sluicegate.planner.allocation.linear import Limits, Matrix, SolverError
from sluicegate.planner.allocation.pipeline import AllocationPlanner, Counts
from sluicegate.planner.allocation.program import Floats, Ints, Program, Serve
from sluicegate.planner.allocation.rounding import Whole, evaluate, service_of
from sluicegate.planner.geometry.joint_program import Fleet, GeometryMatrix, units_of, whole_gpus

_SMALL_FLEET = 64
_MOVES = 4
_TRIALS = 200
_SAME = 1e-6
SLOTS = 1000
"""Units that a slice is counted as where variants share it: a small load then takes no whole slice."""
Quality = Callable[[Program, Serve], float]
"""What a query answered by a serve is worth (0..1), where that is not the variant's accuracy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometrySettings:
    """Limits of the geometry search. ``max_changes``: GPUs of a fleet that may change, where the problem does not say
    (None: max(1, floor(0.3 n))).

    ``change_weight``: what changing every GPU is worth in the unit of the step that gains by it (share of demand,
    accuracy). ``limits``: of the integer search. ``quality``: None for the variants' accuracy. ``shared``: variants
    share slices.
    """

    max_changes: int | None = None
    change_weight: float = 0.01
    limits: Limits = field(default_factory=lambda: Limits(nodes=200, seconds=5.0))
    quality: Quality | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """A whole number of GPUs for each geometry. ``gpus`` by fleet and option; what they host; how many changes are
    charged for."""

    gpus: list[Ints]
    counts: Counts
    changes: int


@dataclass(frozen=True, slots=True)
class Found:
    """The best choice, what staying as it is comes to, and the bound of the relaxed joint program."""

    best: Choice
    stay: Choice
    bound: float


class Search:
    """One program and its fleets. ``steps``: what was tried, in order."""

    def __init__(self, program: Program, fleets: Sequence[Fleet], settings: GeometrySettings) -> None:
        self._program = program
        self._fleets = tuple(fleets)
        self._settings = settings
        self._gpus = sum(f.gpus for f in fleets)
        self.steps: list[str] = []

    def run(self) -> Found:
        """Raises SolverError where the relaxed program cannot be solved."""
        relaxed, bound = self._relaxed()
        stay = self._tried([_now(f) for f in self._fleets])
        best = self._best([[whole_gpus(f, r) for f, r in zip(self._fleets, relaxed, strict=True)]], stay)
        if self._fleets and self._gpus <= _SMALL_FLEET and not self._settings.shared:
            for found in self._searched(best):
                best = found if self._better(found, best) else best
            best = self._improved(best)
        return Found(best, stay, bound)

    def price(self, changes: int) -> float:
        """What so many changes cost, in the unit of what is compared."""
        return self._settings.change_weight * changes / max(1, self._gpus)

    def _relaxed(self) -> tuple[list[Floats], float]:
        if not self._program.serves:
            return [_now(f).astype(np.float64) for f in self._fleets], 0.0
        matrix = GeometryMatrix(self._program, self._fleets, change_weight=self._settings.change_weight)
        outcome = goal_chain.run(matrix, self._program)
        self.steps.extend(f"geometry lp: {line}" for line in outcome.log)
        return matrix.by_fleet(), outcome.solved.bound

    def _tried(self, gpus: list[Ints]) -> Choice:
        """What the slices host once the GPUs are cut so."""
        cut = _cut(self._program, self._fleets, gpus)
        counts = _fluid(cut) if self._settings.shared else AllocationPlanner(polish=False, fill_idle=False).solve(cut)
        pairs = zip(self._fleets, gpus, strict=True)
        changes = sum(int(np.maximum(0, _now(f) - g).sum()) for f, g in pairs if f.charged)
        self.steps.append(f"geometry: {changes} changes, served {self._served(counts.whole):.4f}")
        return Choice(gpus, counts, changes)

    def _best(self, options: Sequence[list[Ints]], known: Choice) -> Choice:
        """The option of most service, each change charged; among equals the most accurate, then the first."""
        best = known
        tried = {_name(known.gpus)}
        for gpus in options:
            if _name(gpus) in tried:
                continue
            tried.add(_name(gpus))
            candidate = self._tried(gpus)
            if self._better(candidate, best):
                best = candidate
        return best

    def _better(self, one: Choice, other: Choice) -> bool:
        """Whether ``one`` wins by what it does better first (service by class, then value), its extra changes paid."""
        extra = self.price(one.changes - other.changes)
        mine, theirs = one.counts.whole, other.counts.whole
        gained = mine.service_beyond(theirs) or mine.value - theirs.value
        return (gained if abs(gained) > _SAME else 0.0) > extra

    def _searched(self, start: Choice) -> list[Choice]:
        """What an integer search finds from what is known: its own units, and units rounded for its geometries."""
        if not self._program.serves:
            return []
        weight = self._settings.change_weight
        matrix = GeometryMatrix(self._program, self._fleets, change_weight=weight, integer=True)
        relaxed = goal_chain.run(GeometryMatrix(self._program, self._fleets, change_weight=weight), self._program)
        known = goal_chain.Known(start.counts.whole.as_solved(), relaxed, self._settings.limits, "scip")
        try:
            outcome = goal_chain.run(matrix, self._program, known)
        except SolverError as error:
            self.steps.append(f"geometry search: nothing better ({error})")
            return []
        self.steps.append(f"geometry search: {outcome.log[-1]}")
        gpus = [np.rint(g).astype(np.int64) for g in matrix.by_fleet()]
        rounded = self._tried(gpus)
        cut, units = _cut(self._program, self._fleets, gpus), np.rint(outcome.solved.units).astype(np.int64)
        if not cut.allowed(units):
            self.steps.append("geometry search: more loads than allowed on slices cut so")
            return [rounded]
        return [rounded, replace(rounded, counts=replace(rounded.counts, whole=evaluate(cut, units)))]

    def _improved(self, best: Choice) -> Choice:
        """One GPU cut otherwise at a time; where those are few trials."""
        asked = goal_chain.servable(self._program) > 0
        for _ in range(_MOVES):
            if (best.counts.whole.served[asked] >= 1.0 - _SAME).all():
                return best
            moves = [gpus for f in range(len(self._fleets)) for gpus in _moved(self._fleets, best.gpus, f)]
            if not moves or len(moves) > _TRIALS:
                return best
            found = self._best(moves, best)
            if found is best:
                return best
            best = found
        return best

    def _served(self, whole: Whole) -> float:
        return float(self._program.weight @ whole.served)


def _fluid(program: Program) -> Counts:
    """The relaxed answer itself, units rounded up for show: what slices serve that any variant may share."""
    if not program.serves:
        return AllocationPlanner(polish=False, fill_idle=False).solve(program)
    outcome = goal_chain.run(Matrix(program), program)
    solved = outcome.solved
    units = np.ceil(solved.units - 1e-6).astype(np.int64)
    accuracy = float((program.accuracy * program.weight[program.serve_demand]) @ solved.shares)
    whole = Whole(units, solved.shares, solved.served, accuracy, solved.value, service_of(program, solved.served))
    return Counts(whole, max(0.0, solved.bound - solved.value), outcome.log, False)


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


def _cut(program: Program, fleets: Sequence[Fleet], gpus: Sequence[Ints]) -> Program:
    """The program once the GPUs are cut so. What slices hold that no longer exist is loaded nowhere, and what is cut
    anew holds nothing."""
    counts = units_of(fleets, gpus, program.counts)
    hosted = np.bincount(program.host_pool, weights=program.loaded, minlength=len(counts)).astype(np.int64)
    holding_else = np.maximum(0, program.pool_count - hosted - program.empty_units)
    left = list(counts)
    hosts = []
    for host in program.hosts:
        loaded = min(host.loaded, left[host.pool])
        left[host.pool] -= loaded
        hosts.append(host if loaded == host.loaded else replace(host, loaded=loaded))
    empty = tuple(max(0, n - else_) for n, else_ in zip(left, holding_else.tolist(), strict=True))
    return replace(program, counts=counts, hosts=tuple(hosts), empty_units=empty)


def _now(fleet: Fleet) -> Ints:
    return np.array([fleet.now.get(g, 0) for g in fleet.options], dtype=np.int64)


def _name(gpus: Sequence[Ints]) -> tuple[bytes, ...]:
    return tuple(g.tobytes() for g in gpus)

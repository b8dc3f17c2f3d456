"""Columns of units that hold several variants of an app, a selection table picking one for each batch.

Rules:
- What such a unit earns as its load grows is concave (``sluicegate.planner.mdp.load_curve``): each piece of the curve
  is a serve in a lane of its own. A unit that holds one variant is the same with one piece.
- A unit holds the variants that make up the front of accuracy and latency, as far as they are in time for the SLO:
  with more to choose from a table promises no less. Where memory does not hold them all, each set that holds no more is
  a column, up to ``MOST_SETS``; units of a kind then hold the same set of an app, the one that the relaxed program uses
  most, since tables are for equal workers.
- An app asked for with several SLOs has units for each, while there are units for all; else all are for the tightest.
  Units for an SLO that is not the app's own say so: by what they say tables are asked for, and workers told.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

import numpy as np

from sluicegate.domain.fleet.device import profile_type
from sluicegate.planner.allocation import goal_chain
from sluicegate.planner.allocation.linear import Matrix
from sluicegate.planner.allocation.program import Host, Ints, PoolKey, Program, Serve
from sluicegate.planner.mdp.load_curve import Piece, pieces
from sluicegate.planner.mdp.mdp_model import MAX_WORKERS, Candidate, SelectionModel
from sluicegate.planner.policy_tables.table_requests import TableRules, front, model_of
from sluicegate.planner.problems.problem import AppDemand, Problem

Kept = TypeVar("Kept")
MOST_SETS = 6
_HELD = 12
"""Variants of an app that a unit holds at most: the ends of its front and what lies evenly between."""
_RATED = 4
"""Variants by which a unit is rated: with more a table promises no less, and its chain takes longer."""


@dataclass(frozen=True, slots=True)
class Class:
    """Demands of an app that share units. ``slo``: that their tables keep; ``mark``: of their placements."""

    app: str
    slo: float
    mark: float
    demands: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """What a unit may hold for a class. ``ranked``: most accurate first. ``batch``: the largest in time. ``load_s``: of
    the variant that takes longest; the others serve meanwhile."""

    of: Class
    ranked: tuple[str, ...]
    pieces: tuple[Piece, ...]
    batch: int
    load_s: float
    rate: float

    @property
    def names(self) -> tuple[str, ...]:
        """As units are compared."""
        return tuple(sorted(self.ranked))

    def serves(self, host: int, demands: Sequence[AppDemand], kind: str) -> Iterator[Serve]:
        """By piece and demand."""
        label = f"{'+'.join(self.ranked)}@{kind}"
        for lane, piece in enumerate(self.pieces):
            for d in self.of.demands:
                need = demands[d].headroom * demands[d].qps / piece.qps
                yield Serve(host, d, f"{label}#{lane}", piece.worth, need, self.batch, piece.qps, lane)


def classes(demands: Sequence[AppDemand], units: int, own: Mapping[str, float]) -> tuple[Class, ...]:
    """Who shares units. ``own``: the SLO of each app."""
    slos: dict[str, set[float]] = {}
    for d in demands:
        slos.setdefault(d.app, set()).add(d.slo)
    apart = sum(map(len, slos.values())) <= units
    found: dict[tuple[str, float], list[int]] = {}
    for i, d in enumerate(demands):
        found.setdefault((d.app, d.slo if apart else min(slos[d.app])), []).append(i)
    return tuple(
        Class(app, slo, slo if (apart and len(slos[app]) > 1) or slo != own[app] else 0.0, tuple(members))
        for (app, slo), members in sorted(found.items())
    )


def table_columns(
    problem: Problem, rules: TableRules, demands: Sequence[AppDemand], pools: Mapping[PoolKey, int]
) -> dict[PoolKey, list[TableColumn]]:
    """By pool."""
    memory: dict[str, int] = {}
    for key in pools:
        if key.memory_bytes:
            memory[key.type] = min(key.memory_bytes, memory.get(key.type, key.memory_bytes))
    by_kind = {kind: memory.get(kind, 0) for kind in sorted({key.type for key in pools})}
    found: dict[str, list[TableColumn]] = {kind: [] for kind in by_kind}
    own = {name: app.slo for name, app in problem.catalogue.apps.items()}
    for of in classes(demands, sum(pools.values()), own):
        fronts = {kind: front(problem.catalogue, of.app, kind, problem.latency_factor, rules) for kind in by_kind}
        least = max(demands[d].min_accuracy for d in of.demands)
        rates = {kind: _rate(variants, of.slo) for kind, variants in fronts.items()}
        for kind, variants in fronts.items():
            if not rates[kind]:
                continue
            workers = _workers(problem, of, demands, rates, kind)
            for held in _sets(problem, kind, [v for v in variants if v.accuracy >= least], by_kind[kind]):
                column = _column(problem, rules, of, kind, held, workers)
                if column is not None:
                    found[kind].append(column)
    return {key: found[key.type] for key in pools}


def _rate(variants: Sequence[Candidate], slo: float) -> float:
    """Queries/s of a unit with the best batch of any variant."""
    return max((b / s for v in variants for b, s in enumerate(v.latency, 1) if s <= slo), default=0.0)


def _workers(problem: Problem, of: Class, demands: Sequence[AppDemand], rates: Mapping[str, float], kind: str) -> int:
    """Units like one of ``kind`` that share the class's queries: what shares them now, else no fewer than it takes."""
    kinds = {(d.name, s.name): profile_type(d.type, s.profile) for d in problem.devices for s in d.slices}
    mine = [p for p in problem.previous if p.app == of.app and p.slo == of.mark]
    now = sum(rates.get(kinds.get((p.device, p.slice), ""), 0.0) for p in mine)
    asked = now or sum(demands[d].qps for d in of.demands)
    return min(MAX_WORKERS, max(1, int(asked / rates[kind])))


def _column(
    problem: Problem, rules: TableRules, of: Class, kind: str, held: Sequence[Candidate], workers: int
) -> TableColumn | None:
    model: SelectionModel | None = model_of(held, of.slo, workers, rules)
    if model is None:
        return None
    best = problem.catalogue.best_accuracy(of.app) or 1.0
    rated = replace(model, variants=_spread(model.variants, _RATED))
    curve = pieces(rated, best=best, max_violation=rules.library.max_violation)
    if not curve:
        return None
    names = [v.name for v in model.variants]
    return TableColumn(
        of=of,
        ranked=tuple(reversed(names)),
        pieces=curve,
        batch=max(b for v in model.variants for b, s in enumerate(v.latency, 1) if s <= of.slo),
        load_s=max(problem.catalogue.profiles[name, kind].load for name in names),
        rate=_rate(model.variants, of.slo),
    )


def _sets(problem: Problem, kind: str, variants: Sequence[Candidate], memory: int) -> Iterator[tuple[Candidate, ...]]:
    """All of ``variants`` (fastest first); where ``memory`` does not hold them, the sets to which none can be added."""
    variants = _spread(variants, _HELD)
    takes = {v.name: problem.catalogue.profiles[v.name, kind].memory_bytes for v in variants}
    if not variants:
        return
    if not memory or sum(takes.values()) <= memory:
        yield tuple(variants)
        return
    found: list[tuple[Candidate, ...]] = []
    for size in range(len(variants), 0, -1):
        for held in combinations(variants, size):
            fits = sum(takes[v.name] for v in held) <= memory
            if fits and not any(set(held) <= set(larger) for larger in found):
                found.append(held)
    yield from _spread(found, MOST_SETS)


def _spread(found: Sequence[Kept], most: int) -> tuple[Kept, ...]:
    """At most ``most``: the ends and what lies evenly between."""
    last = len(found) - 1
    return tuple(found) if last < most else tuple(found[i * last // (most - 1)] for i in range(most))


def one_set_each(program: Program) -> Program:
    """The same where units of a kind hold one set of each app. Raises SolverError."""
    rivals: dict[tuple[str, float, str], list[int]] = {}
    for h, host in enumerate(program.hosts):
        if host.ranked:
            app = program.demands[program.serves[program.serves_of_host[h][0]].demand].app
            rivals.setdefault((app, host.slo, program.pools[host.pool].type), []).append(h)
    kept = np.ones(len(program.hosts), dtype=np.bool_)
    if all(len({program.hosts[h].variants for h in hosts}) == 1 for hosts in rivals.values()):
        return program
    used = goal_chain.run(Matrix(program), program).solved.units
    for hosts in rivals.values():
        worth: dict[tuple[str, ...], tuple[float, int]] = {}
        for h in hosts:
            names = program.hosts[h].variants
            units, loaded = worth.get(names, (0.0, 0))
            worth[names] = (units + float(used[h]), loaded + program.hosts[h].loaded)
        chosen = max(sorted(worth), key=lambda names: worth[names])
        for h in hosts:
            kept[h] = program.hosts[h].variants == chosen
    return _with(program, np.flatnonzero(kept))


def _with(program: Program, hosts: Ints) -> Program:
    number = {int(h): i for i, h in enumerate(hosts)}
    serves = tuple(replace(s, host=number[s.host]) for s in program.serves if s.host in number)
    return replace(program, hosts=tuple(program.hosts[h] for h in hosts), serves=serves)


def host_of(column: TableColumn, pool: int, loaded: int, stood: float) -> Host:
    """As the program has it."""
    return Host(pool, column.names, loaded, column.load_s, stood, column.ranked, column.of.mark, column.rate)

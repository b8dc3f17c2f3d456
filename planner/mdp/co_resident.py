"""``co-resident``: every slice hosts several variants of one app, and a selection table picks among them per batch.

Rules.
- Variants off the Pareto front of accuracy and latency, or too slow for the SLO even alone, are left out. Where memory
  does not hold the rest, the fastest come first: without them there is no fallback.
- An app asked for with several SLOs has a class for each, with slices of its own, while there are slices for all.
- Slices of a kind are divided among classes in proportion to the slices that each needs so that its tables promise at
  most ``violation``, at least one for each class with demand while there are enough. Slices stay with the class that
  they served where the division allows.
- Shares follow peak rates, so that equal slices get equal shares: a strict round robin, which tables count on.
- The objective is what the tables promise for the demand given; the headroom is how far demand may grow until they
  promise more violations than that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from sluicegate.domain.fleet.device import WHOLE, profile_type
from sluicegate.domain.plan import Placement
from sluicegate.domain.table import Expectations
from sluicegate.planner.mdp.generate_table import candidates, generate
from sluicegate.planner.mdp.mdp_model import MAX_WORKERS, Candidate, SelectionModel, pareto_front
from sluicegate.planner.mdp.utilisation_cap import best_rate, tolerable_rate
from sluicegate.planner.problems.problem import Allocation, Problem
from sluicegate.planner.problems.problem_checks import check

VIOLATION = 1e-3
"""Share of queries that a plan lets tables violate."""


@dataclass(frozen=True, slots=True, order=True)
class _Class:
    """The queries of an app that ask for ``slo``; ``marked`` where the app has others too."""

    app: str
    slo: float
    marked: bool

    @property
    def mark(self) -> float:
        """As placements have it."""
        return self.slo if self.marked else 0.0


@dataclass(frozen=True, slots=True)
class _Unit:
    device: str
    slice: str
    kind: str
    memory: int


@dataclass(frozen=True, slots=True)
class _Hosting:
    """What a kind of slice holds for a class: variants, fastest first, and what it can do.

    ``rate``: queries/s with the best batch; ``holds``: while violations stay within what is allowed.
    """

    variants: tuple[Candidate, ...]
    rate: float
    holds: float
    max_batch: int


class CoResident:
    """Several variants a slice, one app and SLO class a slice. Deterministic, no solver."""

    name = "co-resident"

    def __init__(self, violation: float = VIOLATION) -> None:
        self._violation = violation

    def allocate(self, problem: Problem) -> Allocation:
        """Always an allocation; raises InvalidInputError for input that is not finite or out of range."""
        check(problem, by_slo=True)
        pools = _pools(problem)
        demand = _demands(problem, sum(map(len, pools)))
        placed: list[tuple[_Unit, _Class, _Hosting]] = []
        for pool in pools:
            able: dict[_Class, _Hosting] = {}
            for asked, qps in demand.items():
                hosting = _hosting(problem, asked, qps, pool[0], self._violation)
                if hosting is not None:
                    able[asked] = hosting
            placed += _divide(pool, able, demand, problem.previous)
        return _answer(problem, placed, demand)


def _demands(problem: Problem, units: int) -> dict[_Class, float]:
    """Queries/s of each class. Where there are fewer slices than classes, apps are served by their tightest SLO."""
    slos: dict[str, set[float]] = {}
    for d in problem.demands:
        slos.setdefault(d.app, set()).add(d.slo)
    apart = sum(map(len, slos.values())) <= units
    demand: dict[_Class, float] = {}
    for d in problem.demands:
        several = len(slos[d.app]) > 1 and apart
        asked = _Class(d.app, d.slo if several else min(slos[d.app]), several)
        demand[asked] = demand.get(asked, 0.0) + d.qps
    return demand


def _pools(problem: Problem) -> list[list[_Unit]]:
    pools: dict[tuple[str, int], list[_Unit]] = {}
    for device in sorted(problem.devices, key=lambda d: d.name):
        for part in device.slices:
            kind = profile_type(device.type, part.profile)
            memory = device.memory_bytes if part.profile == WHOLE else part.memory_bytes
            pools.setdefault((kind, memory), []).append(_Unit(device.name, part.name, kind, memory))
    return [pools[key] for key in sorted(pools)]


def _hosting(problem: Problem, asked: _Class, qps: float, unit: _Unit, violation: float) -> _Hosting | None:
    """None where no variant can be in time on that kind of slice or fits its memory."""
    kept: list[Candidate] = []
    used = 0
    kind, memory = unit.kind, unit.memory
    for v in pareto_front(candidates(problem.catalogue, asked.app, kind, problem.quantile)):
        takes = problem.catalogue.profiles[v.name, kind].memory_bytes
        factor = problem.latency_factor.get((v.name, kind), 1.0)
        slowed = Candidate(v.name, v.accuracy, tuple(factor * s for s in v.latency))
        if slowed.latency[0] <= asked.slo and (not memory or used + takes <= memory):
            kept.append(slowed)
            used += takes
    if not kept:
        return None
    variants = tuple(kept)
    rate = best_rate(variants, asked.slo)
    holds = tolerable_rate(variants, asked.slo, max(1, ceil(qps / rate)), violation)
    largest = max(b for v in variants for b, s in enumerate(v.latency, 1) if s <= asked.slo)
    return _Hosting(variants, rate, max(holds, 0.01 * rate), largest)


def _divide(
    pool: Sequence[_Unit],
    able: Mapping[_Class, _Hosting],
    demand: Mapping[_Class, float],
    previous: Sequence[Placement],
) -> list[tuple[_Unit, _Class, _Hosting]]:
    """Units of a pool to classes, by largest remainder; units keep the class they served where its count allows."""
    if not able:
        return []
    busy = {c: demand[c] / h.holds for c, h in able.items()}
    if not any(busy.values()):
        busy = dict.fromkeys(able, 1.0)
    counts = _counts(len(pool), busy)
    served = {(p.device, p.slice): (p.app, p.slo) for p in previous}
    marks = {(c.app, c.mark): c for c in counts}
    given: list[tuple[_Unit, _Class]] = []
    open_units: list[_Unit] = []
    for unit in pool:
        before = marks.get(served.get((unit.device, unit.slice), ("", 0.0)))
        if before is not None and counts[before] > 0:
            counts[before] -= 1
            given.append((unit, before))
        else:
            open_units.append(unit)
    waiting = [c for c in sorted(counts) for _ in range(counts[c])]
    given += zip(open_units, waiting, strict=True)
    return [(unit, c, able[c]) for unit, c in sorted(given, key=lambda g: (g[0].device, g[0].slice))]


def _counts(units: int, busy: Mapping[_Class, float]) -> dict[_Class, int]:
    """``units`` in proportion to ``busy``, at least one for whoever has any, taken from who has most."""
    total = sum(busy.values())
    exact = {c: units * b / total for c, b in busy.items()}
    counts = {c: int(x) for c, x in exact.items()}
    for c in sorted(exact, key=lambda c: (counts[c] - exact[c], c))[: units - sum(counts.values())]:
        counts[c] += 1
    for c in sorted(c for c, b in busy.items() if b > 0.0 and not counts[c]):
        richest = max(sorted(counts), key=lambda c: counts[c])
        if counts[richest] > 1:
            counts[richest] -= 1
            counts[c] = 1
    return counts


def _answer(
    problem: Problem, placed: Sequence[tuple[_Unit, _Class, _Hosting]], demand: Mapping[_Class, float]
) -> Allocation:
    apps = sorted({c.app for c in demand})
    asked = {app: sum(q for c, q in demand.items() if c.app == app) for app in apps}
    rates = {c: sum(h.rate for _, of, h in placed if of == c) for c in demand}
    held = {(p.device, p.slice): set(p.variants) for p in problem.previous}
    placements: list[Placement] = []
    loads = 0
    for unit, c, hosting in placed:
        names = tuple(v.name for v in reversed(hosting.variants))
        loads += len(set(names) - held.get((unit.device, unit.slice), set()))
        part = _part(c, demand, asked[c.app])
        placements.append(
            Placement(unit.device, c.app, names, part * hosting.rate / rates[c], hosting.max_batch, unit.slice, c.mark)
        )
    fits = {c: min(1.0, rates[c] / q) if q > 0.0 else 1.0 for c, q in demand.items()}
    served = {app: sum(_part(c, demand, asked[app]) * fits[c] for c in demand if c.app == app) for app in apps}
    weight = {c: q * fits[c] for c, q in demand.items() if rates[c] > 0.0}
    total = sum(weight.values())
    promised = {c: _promise(c, placed, demand[c]) for c in weight}
    best = {c: problem.catalogue.best_accuracy(c.app) or 1.0 for c in weight}
    return Allocation(
        placements=tuple(placements),
        served=served,
        objective=sum(w * promised[c][0] / best[c] for c, w in weight.items()) / total if total else 0.0,
        bound=1.0 if total else 0.0,
        loads=loads,
        steps=tuple(f"co-resident: {_said(c)}: {text}" for c, (_, text) in sorted(promised.items())),
        headroom=_headroom(placed, demand),
    )


def _part(c: _Class, demand: Mapping[_Class, float], asked: float) -> float:
    """Of its app's demand; equal parts where there is none."""
    if asked > 0.0:
        return demand[c] / asked
    return 1.0 / sum(1 for other in demand if other.app == c.app)


def _headroom(placed: Sequence[tuple[_Unit, _Class, _Hosting]], demand: Mapping[_Class, float]) -> dict[str, float]:
    """By how much each app's demand may grow while every class is within what it may violate; at least 1."""
    headroom: dict[str, float] = {}
    for c, qps in demand.items():
        holds = sum(h.holds for _, of, h in placed if of == c)
        if qps > 0.0:
            headroom[c.app] = min(headroom.get(c.app, float("inf")), max(1.0, holds / qps))
    return headroom


@lru_cache(maxsize=256)
def _expected(model: SelectionModel) -> Expectations:
    return generate(model).table.expected


def _said(c: _Class) -> str:
    return f"{c.app} ({1e3 * c.slo:g} ms)" if c.marked else c.app


def _promise(asked: _Class, placed: Sequence[tuple[_Unit, _Class, _Hosting]], qps: float) -> tuple[float, str]:
    """Accuracy that the class's tables promise at this demand, and the promise in words: kinds by their share."""
    kinds: dict[str, tuple[int, _Hosting]] = {}
    for unit, c, hosting in placed:
        if c == asked:
            kinds[unit.kind] = (kinds.get(unit.kind, (0, hosting))[0] + 1, hosting)
    rate = sum(n * h.rate for n, h in kinds.values())
    accuracy, words = 0.0, []
    for kind, (n, hosting) in sorted(kinds.items()):
        share = n * hosting.rate / rate
        workers = min(n, MAX_WORKERS)
        load = float(f"{qps * share * workers / n:.2g}")  # two digits: estimates move all the time
        model = SelectionModel(variants=hosting.variants, slo=asked.slo, workers=workers, qps=load)
        expected = _expected(model)
        accuracy += share * expected.accuracy
        words.append(
            f"{n} {kind}, accuracy {expected.accuracy:.4f}, violation {expected.violation:.2g}, "
            f"headroom {hosting.rate / hosting.holds:.2f}"
        )
    return accuracy, "; ".join(words)

"""``co-resident``: every slice hosts several variants of one app, and a selection table picks among them per batch.

Rules.
- Variants off the Pareto front of accuracy and latency, or too slow for the SLO even alone, are left out. Where memory
  does not hold the rest, the fastest come first: without them there is no fallback.
- Slices of a kind are divided among apps in proportion to the slices that each app's demand keeps busy, at least one
  for each app with demand while there are enough. Slices stay with the app that they served where the division allows.
- Shares follow peak rates, so that equal slices get equal shares: a strict round robin, which tables count on.
- The objective is what the tables promise for the demand given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from domain.device import WHOLE
from domain.plan import Placement
from planner.allocation.units import profile_type
from planner.problem import Allocation, Problem
from planner.selection.generate import candidates, generate
from planner.selection.model import MAX_WORKERS, Candidate, SelectionModel, pareto_front
from planner.validation import check


@dataclass(frozen=True, slots=True)
class _Unit:
    device: str
    slice: str
    kind: str
    memory: int


@dataclass(frozen=True, slots=True)
class _Hosting:
    """What a kind of slice holds for an app: variants, fastest first, and what it can do."""

    variants: tuple[Candidate, ...]
    rate: float
    max_batch: int


class CoResident:
    """Several variants a slice, one app a slice. Deterministic, no solver."""

    name = "co-resident"

    def allocate(self, problem: Problem) -> Allocation:
        """Always an allocation; raises InvalidInputError for input that is not finite or out of range."""
        check(problem)
        demand, slo = _demands(problem)
        hostings: dict[tuple[str, str, int], _Hosting | None] = {}
        placed: list[tuple[_Unit, str, _Hosting]] = []
        for pool in _pools(problem):
            kind, memory = pool[0].kind, pool[0].memory
            able: dict[str, _Hosting] = {}
            for app in demand:
                hosting = hostings.setdefault((app, kind, memory), _hosting(problem, app, slo[app], kind, memory))
                if hosting is not None:
                    able[app] = hosting
            placed += _divide(pool, able, demand, problem.previous)
        return _answer(problem, placed, demand, slo)


def _demands(problem: Problem) -> tuple[dict[str, float], dict[str, float]]:
    """Queries/s and the tightest SLO of each app, classes added up."""
    demand: dict[str, float] = {}
    slo: dict[str, float] = {}
    for d in problem.demands:
        demand[d.app] = demand.get(d.app, 0.0) + d.qps
        slo[d.app] = min(slo.get(d.app, d.slo), d.slo)
    return demand, slo


def _pools(problem: Problem) -> list[list[_Unit]]:
    pools: dict[tuple[str, int], list[_Unit]] = {}
    for device in sorted(problem.devices, key=lambda d: d.name):
        for part in device.slices:
            kind = profile_type(device.type, part.profile)
            memory = device.memory_bytes if part.profile == WHOLE else part.memory_bytes
            pools.setdefault((kind, memory), []).append(_Unit(device.name, part.name, kind, memory))
    return [pools[key] for key in sorted(pools)]


def _hosting(problem: Problem, app: str, slo: float, kind: str, memory: int) -> _Hosting | None:
    """None where no variant of ``app`` can be in time on ``kind`` or fits its memory."""
    kept: list[Candidate] = []
    used = 0
    for v in pareto_front(candidates(problem.catalogue, app, kind, problem.quantile)):
        takes = problem.catalogue.profiles[v.name, kind].memory_bytes
        factor = problem.latency_factor.get((v.name, kind), 1.0)
        slowed = Candidate(v.name, v.accuracy, tuple(factor * s for s in v.latency))
        if slowed.latency[0] <= slo and (not memory or used + takes <= memory):
            kept.append(slowed)
            used += takes
    in_time = [(b, s) for v in kept for b, s in enumerate(v.latency, 1) if s <= slo]
    if not in_time:
        return None
    return _Hosting(tuple(kept), max(b / s for b, s in in_time), max(b for b, _ in in_time))


def _divide(
    pool: Sequence[_Unit], able: Mapping[str, _Hosting], demand: Mapping[str, float], previous: Sequence[Placement]
) -> list[tuple[_Unit, str, _Hosting]]:
    """Units of a pool to apps, by largest remainder; units keep the app they served where its count allows."""
    if not able:
        return []
    busy = {app: demand[app] / h.rate for app, h in able.items()}
    if not any(busy.values()):
        busy = dict.fromkeys(able, 1.0)
    total = sum(busy.values())
    exact = {app: len(pool) * b / total for app, b in busy.items()}
    counts = {app: int(x) for app, x in exact.items()}
    for app in sorted(exact, key=lambda a: (counts[a] - exact[a], a))[: len(pool) - sum(counts.values())]:
        counts[app] += 1
    for app in sorted(a for a, b in busy.items() if b > 0.0 and not counts[a]):
        richest = max(sorted(counts), key=lambda a: counts[a])
        if counts[richest] > 1:
            counts[richest] -= 1
            counts[app] = 1
    served = {(p.device, p.slice): p.app for p in previous}
    given: list[tuple[_Unit, str]] = []
    open_units: list[_Unit] = []
    for unit in pool:
        app = served.get((unit.device, unit.slice), "")
        if counts.get(app, 0) > 0:
            counts[app] -= 1
            given.append((unit, app))
        else:
            open_units.append(unit)
    waiting = [app for app in sorted(counts) for _ in range(counts[app])]
    given += zip(open_units, waiting, strict=True)
    return [(unit, app, able[app]) for unit, app in sorted(given, key=lambda g: (g[0].device, g[0].slice))]


def _answer(
    problem: Problem,
    placed: Sequence[tuple[_Unit, str, _Hosting]],
    demand: Mapping[str, float],
    slo: Mapping[str, float],
) -> Allocation:
    rates = {app: sum(h.rate for _, a, h in placed if a == app) for app in demand}
    held = {(p.device, p.slice): set(p.variants) for p in problem.previous}
    placements: list[Placement] = []
    loads = 0
    for unit, app, hosting in placed:
        names = tuple(v.name for v in reversed(hosting.variants))
        loads += len(set(names) - held.get((unit.device, unit.slice), set()))
        share = hosting.rate / rates[app]
        placements.append(Placement(unit.device, app, names, share, hosting.max_batch, unit.slice))
    served = {app: min(1.0, rates[app] / qps) if qps > 0.0 else 1.0 for app, qps in demand.items()}
    weight = {app: demand[app] * served[app] for app in demand if rates[app] > 0.0}
    total = sum(weight.values())
    promised = {app: _promise(app, placed, demand[app], slo[app]) for app in weight}
    best = {app: problem.catalogue.best_accuracy(app) for app in weight}
    return Allocation(
        placements=tuple(placements),
        served=served,
        objective=sum(w * promised[app][0] for app, w in weight.items()) / total if total else 0.0,
        bound=sum(w * best[app] for app, w in weight.items()) / total if total else 0.0,
        loads=loads,
        steps=tuple(f"co-resident: {app}: {text}" for app, (_, text) in sorted(promised.items())),
    )


def _promise(app: str, placed: Sequence[tuple[_Unit, str, _Hosting]], qps: float, slo: float) -> tuple[float, str]:
    """Accuracy that the app's tables promise at this demand, and the promise in words: kinds by their share."""
    kinds: dict[str, tuple[int, _Hosting]] = {}
    for unit, a, hosting in placed:
        if a == app:
            kinds[unit.kind] = (kinds.get(unit.kind, (0, hosting))[0] + 1, hosting)
    rate = sum(n * h.rate for n, h in kinds.values())
    accuracy, words = 0.0, []
    for kind, (n, hosting) in sorted(kinds.items()):
        share = n * hosting.rate / rate
        workers = min(n, MAX_WORKERS)
        model = SelectionModel(variants=hosting.variants, slo=slo, workers=workers, qps=qps * share * workers / n)
        expected = generate(model).table.expected
        accuracy += share * expected.accuracy
        words.append(f"{n} {kind}, accuracy {expected.accuracy:.4f}, violation {expected.violation:.2g}")
    return accuracy, "; ".join(words)

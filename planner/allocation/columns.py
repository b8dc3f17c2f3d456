"""The program's columns: which variants, alone or together, units of each pool may hold, and whom they can answer.

Rules:
- A variant is left out of a pool where another variant of the app is at least as accurate and at least as fast there
  (and, where units hold several, not larger). What is loaded somewhere stays in.
- Where selection tables are made, units hold sets of an app's variants (``table_columns``) instead of one.
- Where units may hold several variants, every set of them that fits the memory is a host, up to a limit for each pool
  beyond which each app keeps fewer variants, spread over its accuracies. Where one of each app is still too many, sets
  of each size are hosts, spread over the apps. Such sets pay below about four devices an app.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import comb, inf

import numpy as np

from sluicegate.domain.models.variant import Variant
from sluicegate.planner.allocation.program import Candidate, Host, Ints, Loaded, PoolKey, Program, Serve
from sluicegate.planner.allocation.rounding import Whole
from sluicegate.planner.allocation.table_columns import TableColumn, host_of, table_columns
from sluicegate.planner.allocation.units import count_empty
from sluicegate.planner.problems.kept_rates import kept
from sluicegate.planner.problems.plan_limits import limits_of
from sluicegate.planner.problems.problem import AppDemand, Problem
from sluicegate.planner.problems.throughput import Throughput, throughput
from sluicegate.profiles.catalogue.catalogue import Catalogue

MAX_SETS = 3000
"""Sets of variants in one pool."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A host before it has a number: variants and their throughput for each demand they can answer."""

    members: tuple[Candidate, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(c.variant.name for c in self.members))


def build(
    problem: Problem,
    pools: Mapping[PoolKey, int],
    loaded: Mapping[Loaded, int],
    *,
    pruned: bool = True,
) -> Program:
    """The program of ``problem`` over ``pools`` (units by pool); ``loaded``: units by pool and what they hold now."""
    demands = tuple(sorted(problem.demands, key=lambda d: (d.app, d.query_class, d.slo)))
    by_app: dict[str, dict[int, AppDemand]] = {}
    for i, demand in enumerate(demands):
        by_app.setdefault(demand.app, {})[i] = demand
    variants = variants_by_app(problem.catalogue)
    best = {app: problem.catalogue.best_accuracy(app) for app in by_app}
    held: dict[PoolKey, set[str]] = {}
    for (key, names, _), count in loaded.items():
        if count:
            held.setdefault(key, set()).update(names)
    hosts: list[Host] = []
    serves: list[Serve] = []
    tabled: Mapping[PoolKey, Sequence[TableColumn]] = {}
    if problem.tables is not None:
        tabled = table_columns(problem, problem.tables, demands, pools)
    for p, key in enumerate(keys := tuple(sorted(pools))):
        if not pools[key]:
            continue
        for column in tabled.get(key, ()):
            serves.extend(column.serves(len(hosts), demands, key.type))
            units = loaded.get(Loaded(key, column.names, column.of.mark), 0)
            hosts.append(host_of(column, p, units, problem.stood.get(column.of.app, 0.0)))
        keep = held.get(key, set()) if pruned else set(problem.catalogue.variants)
        for host in _hosts(problem, key, by_app, variants, keep):
            load = sum(c.load_s for c in host.members)
            stood = min(problem.stood.get(c.variant.app, 0.0) for c in host.members)
            for candidate in host.members:
                serves.extend(serves_of(len(hosts), candidate, demands, best))
            hosts.append(Host(p, host.names, loaded.get(Loaded(key, host.names), 0), load, stood))
    program = Program(
        demands=demands,
        pools=keys,
        counts=tuple(pools[k] for k in keys),
        hosts=tuple(hosts),
        serves=tuple(serves),
        **limits_of(problem),
        empty_units=count_empty(pools, loaded),
    )
    return replace(program, pressed=_pressed(program))


def _pressed(program: Program) -> float:
    """Part of all units that all demand takes at least."""
    least: dict[int, float] = {}
    for way in program.ways:
        least[way.demand] = min(way.need, least.get(way.demand, way.need))
    return min(1.0, sum(least.values()) / max(1, sum(program.counts)))


def _hosts(
    problem: Problem,
    key: PoolKey,
    by_app: Mapping[str, Mapping[int, AppDemand]],
    variants: Mapping[str, Sequence[Variant]],
    keep: Iterable[str],
) -> Iterator[_Held]:
    several = problem.variants_per_device > 1
    if problem.tables is None:
        alone: list[Candidate] = []
        for app, mine in by_app.items():
            alone.extend(prune(candidates(problem, key, variants.get(app, ()), mine), keep, by_memory=several))
        yield from (_Held((c,)) for c in alone)
    if several:
        yield from _sets(problem, key, by_app, variants, keep)


def _sets(
    problem: Problem,
    key: PoolKey,
    by_app: Mapping[str, Mapping[int, AppDemand]],
    variants: Mapping[str, Sequence[Variant]],
    keep: Iterable[str],
) -> Iterator[_Held]:
    """Sets of two or more. k apps on a unit wait for each other, so each has a budget of the least SLO / (k + 1)."""
    limit = problem.variants_per_device
    by_sharing: dict[int, list[Candidate]] = {}
    for sharing in range(1 if problem.tables is None else 2, limit + 1):
        found: list[Candidate] = []
        for app, mine in by_app.items():
            fit = candidates(problem, key, variants.get(app, ()), mine, sharing)
            found.extend(prune(fit, keep, by_memory=True))
        by_sharing[sharing] = found
    slo = {app: min(d.slo for d in mine.values()) for app, mine in by_app.items()}
    fewest = min(by_sharing)
    each = max((sum(c.variant.app == app for c in by_sharing[fewest]) for app in by_app), default=0)
    while len(chosen := list(islice(_listed(by_sharing, each, limit, key), MAX_SETS + 1))) > MAX_SETS and each > 1:
        each -= 1
    if len(chosen) > MAX_SETS:
        chosen = list(_sampled(by_sharing, key))
    for members in chosen:
        apps = {c.variant.app for c in members}
        budget = min(slo[app] for app in apps) / (len(apps) + 1)
        within = tuple(rated(problem, key, c, budget) for c in members)
        if all(c.rates for c in within):
            yield _Held(within)


def _listed(
    by_sharing: Mapping[int, Sequence[Candidate]], each: int, limit: int, key: PoolKey
) -> Iterator[tuple[Candidate, ...]]:
    """All sets that fit, with ``each`` variants an app to choose from. One at a time: there can be far too many."""
    room = key.memory_bytes or inf
    for sharing, all_found in by_sharing.items():
        found = _spread(all_found, each)
        later = [len({c.variant.app for c in found[i:]} - {c.variant.app}) for i, c in enumerate(found)]
        for size in range(2, limit + 1):
            yield from _grown(found, later, 0, size, sharing, room)


def _grown(
    found: Sequence[Candidate], later: Sequence[int], start: int, size: int, sharing: int, room: float, app: str = ""
) -> Iterator[tuple[Candidate, ...]]:
    """Sets of ``size`` of what lies from ``start`` on, with ``sharing`` apps besides ``app``, which stand together.

    ``later``: how many apps come after each one's. What can become no such set is not gone into.
    """
    if not size:
        yield ()
        return
    for i in range(start, len(found) - size + 1):
        own = found[i].variant.app
        lacking = sharing - (own != app)
        left = room - found[i].memory_bytes
        if left >= 0 and 0 <= lacking <= min(later[i], size - 1):
            for others in _grown(found, later, i + 1, size - 1, lacking, left, own):
                yield (found[i], *others)


def _sampled(by_sharing: Mapping[int, Sequence[Candidate]], key: PoolKey) -> Iterator[tuple[Candidate, ...]]:
    """Of the sets of one variant an app, as many of each size, at even distances in their order."""
    by_size = {size: _spread(found, 1) for size, found in by_sharing.items()}
    sizes = [size for size, found in by_size.items() if 2 <= size <= len(found)]
    for size in sizes:
        found = by_size[size]
        count = comb(len(found), size)
        most = min(count, MAX_SETS // len(sizes))
        for i in range(most):
            members = tuple(found[j] for j in _combination(len(found), size, i * count // most))
            if _fits(members, key):
                yield members


def _combination(n: int, size: int, rank: int) -> Iterator[int]:
    """The ``rank``-th of the ways to choose ``size`` of ``n``, in order."""
    for j in range(n):
        with_it = comb(n - j - 1, size - 1) if size else 0
        if rank < with_it:
            yield j
            size -= 1
        else:
            rank -= with_it


def _spread(found: Sequence[Candidate], each: int) -> list[Candidate]:
    """At most ``each`` variants an app: the ends of its range of accuracies and what lies evenly between."""
    by_app: dict[str, list[Candidate]] = {}
    for candidate in found:
        by_app.setdefault(candidate.variant.app, []).append(candidate)
    kept: list[Candidate] = []
    for mine in by_app.values():
        last = len(mine) - 1
        wanted = {last} if each == 1 else {round(i * last / (each - 1)) for i in range(each)}
        kept.extend(c for i, c in enumerate(mine) if i in wanted)
    return kept


def _fits(members: Sequence[Candidate], key: PoolKey) -> bool:
    return not key.memory_bytes or sum(c.memory_bytes for c in members) <= key.memory_bytes


def with_hosts(program: Program, other: Program, whole: Whole) -> tuple[Program, Ints]:
    """The program with the hosts that another one of the same units and demands uses, and how many units have each."""
    number = {(h.pool, h.variants): i for i, h in enumerate(program.hosts) if not h.ranked}
    hosts, serves = list(program.hosts), list(program.serves)
    units = dict.fromkeys(range(len(hosts)), 0)
    for h, host in enumerate(other.hosts):
        at = number.setdefault((host.pool, host.variants), len(hosts))
        if at == len(hosts):
            hosts.append(host)
            serves.extend(replace(other.serves[i], host=at) for i in other.serves_of_host[h])
        units[at] = int(whole.units[h])
    return replace(program, hosts=tuple(hosts), serves=tuple(serves)), np.array(list(units.values()), dtype=np.int64)


def rated(problem: Problem, key: PoolKey, candidate: Candidate, budget: float) -> Candidate:
    """The candidate with throughputs for a budget of ``budget`` seconds a batch."""
    profile = problem.catalogue.profiles[candidate.variant.name, key.type]
    factor = problem.latency_factor.get((candidate.variant.name, key.type), 1.0)
    app = problem.catalogue.apps[candidate.variant.app]
    rate = throughput(
        profile, budget, capacity=problem.capacity, quantile=problem.quantile, factor=factor, rows=app.max_rows
    )
    rate = kept(rate, profile, app, budget, factor=factor)
    rates = dict.fromkeys(candidate.rates, rate) if rate.batch else {}
    return Candidate(candidate.variant, rates, candidate.memory_bytes, candidate.load_s)


def candidates(
    problem: Problem, key: PoolKey, variants: Sequence[Variant], demands: Mapping[int, AppDemand], sharing: int = 1
) -> list[Candidate]:
    """Variants that can answer any of ``demands`` (of one app, by index) on units of ``key``, most accurate first."""
    found: list[Candidate] = []
    for variant in variants:
        profile = problem.catalogue.profiles.get((variant.name, key.type))
        if profile is None or (key.memory_bytes and profile.memory_bytes > key.memory_bytes):
            continue
        factor = problem.latency_factor.get((variant.name, key.type), 1.0)
        rates: dict[int, Throughput] = {}
        for i, demand in demands.items():
            if variant.accuracy < demand.min_accuracy:
                continue
            app, budget = problem.catalogue.apps[demand.app], demand.slo / (sharing + 1)
            rate = throughput(
                profile, budget, capacity=problem.capacity, quantile=problem.quantile, factor=factor, rows=app.max_rows
            )
            rate = kept(rate, profile, app, budget, factor=factor)
            if rate.batch:
                rates[i] = rate
        if rates:
            found.append(Candidate(variant, rates, profile.memory_bytes, profile.load))
    return found


def prune(found: Sequence[Candidate], loaded: Iterable[str], *, by_memory: bool) -> tuple[Candidate, ...]:
    """Leave out what another candidate beats in accuracy, throughput for every demand and, if asked, memory."""
    keep_always = frozenset(loaded)
    rate = {c.variant.name: sum(r.qps for r in c.rates.values()) for c in found}
    order = sorted(found, key=lambda c: (-c.variant.accuracy, -rate[c.variant.name], c.memory_bytes, c.variant.name))
    kept: list[Candidate] = []
    for candidate in order:
        beaten = any(
            all(k in other.rates and other.rates[k].qps >= r.qps for k, r in candidate.rates.items())
            and (not by_memory or other.memory_bytes <= candidate.memory_bytes)
            for other in kept
        )
        if not beaten or candidate.variant.name in keep_always:
            kept.append(candidate)
    return tuple(kept)


def serves_of(
    host: int, candidate: Candidate, demands: Sequence[AppDemand], best: Mapping[str, float]
) -> Iterable[Serve]:
    """What a candidate answers on a host.

    ``best``: accuracy of the best variant by app, which is 1 here: apps may be measured by different metrics.
    """
    variant = candidate.variant
    accuracy = variant.accuracy / best[variant.app] if best[variant.app] > 0.0 else 1.0
    for i, rate in candidate.rates.items():
        need = demands[i].headroom * demands[i].qps / rate.qps
        yield Serve(host, i, variant.name, accuracy, need, rate.batch, rate.qps)


def variants_by_app(catalogue: Catalogue) -> dict[str, list[Variant]]:
    """Variants of each app that has any."""
    grouped: dict[str, list[Variant]] = {}
    for variant in catalogue.variants.values():
        grouped.setdefault(variant.app, []).append(variant)
    return grouped

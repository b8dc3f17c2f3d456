"""From counts to concrete units, moving as little as possible, and to the Allocation that callers see.

Rules:
- In each pool a host keeps min(old, new) of the units that hold it. What it lacks comes from units that hold nothing,
  then from those whose variants are no longer wanted, in the order of their names. The number of loads is thereby the
  lower bound: sum of max(0, new - old) over hosts.
- Where units that hold nothing are a pool of their own, its hosts take those that hold what they ask for and that
  nothing else asks for first: which of two equal pools it was counted in is no reason to load.
- Each unit of a host takes an equal part of each share that is served there. Units with selection tables share by what
  they can answer at most, whatever the program splits: their tables hold for their share, and a share that moves with
  the demand would have them made anew for every plan.
"""

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.plan import Placement
from sluicegate.planner.allocation.program import Host, PoolKey, Program, Unit
from sluicegate.planner.allocation.rounding import SAME, Whole, load_cost
from sluicegate.planner.problems.problem import Allocation


def assign(
    program: Program, whole: Whole, pools: Mapping[PoolKey, Sequence[Unit]]
) -> tuple[tuple[Placement, ...], int]:
    """Placements sorted by device, slice and app; and the (device, variant) pairs that must be loaded."""
    placements: list[Placement] = []
    loads = 0
    left: dict[PoolKey, list[Unit]] = {}
    for key in sorted(program.pools, key=lambda k: k.empty):
        p = program.pools.index(key)
        hosts = [h for h in range(len(program.hosts)) if program.hosts[h].pool == p and whole.units[h] > 0]
        like = left.get(key._replace(empty=False))
        taken, left[key] = _match(program, hosts, whole, [*pools[key], *like] if like else pools[key])
        for host, units in taken.items():
            parts = _parts(program, whole, host)
            for unit in units:
                loads += len(set(program.hosts[host].variants) - set(unit.loaded))
                slo = program.hosts[host].slo
                for app, variants, share, batch in parts:
                    placements.append(Placement(unit.device, app, variants, share, batch, unit.slice, slo))
    placements.sort(key=lambda x: (x.device, x.slice, x.app))
    return tuple(placements), loads


def _match(
    program: Program, hosts: Sequence[int], whole: Whole, units: Sequence[Unit]
) -> tuple[dict[int, list[Unit]], list[Unit]]:
    """The units of each host, and those that are left."""
    taken: dict[int, list[Unit]] = {h: [] for h in hosts}
    wanted = {(program.hosts[h].variants, program.hosts[h].slo): h for h in hosts}
    rest: list[Unit] = []
    for unit in units:
        host = wanted.get((unit.loaded, unit.slo))
        if host is not None and len(taken[host]) < whole.units[host]:
            taken[host].append(unit)
        else:
            rest.append(unit)
    rest.sort(key=lambda u: bool(u.loaded))
    for host in hosts:
        missing = int(whole.units[host]) - len(taken[host])
        if missing > 0:
            chosen = _nearest(program.hosts[host], rest, missing)
            taken[host].extend(chosen)
            if missing < len(rest):
                gone = set(chosen)
                rest = [u for u in rest if u not in gone]
            else:
                rest = []
    return taken, rest


def _nearest(host: Host, rest: Sequence[Unit], missing: int) -> Sequence[Unit]:
    """Units to load a host on: where units hold several variants, those that lack the fewest; in the given order."""
    if len(host.variants) == 1 and all(len(u.loaded) <= 1 for u in rest):
        return rest[:missing]
    wanted = set(host.variants)
    return sorted(rest, key=lambda u: len(wanted - set(u.loaded)))[:missing]


def _parts(program: Program, whole: Whole, host: int) -> list[tuple[str, tuple[str, ...], float, int]]:
    """(app, variants most accurate first, share of the app's demand for one unit, largest batch) of a host."""
    ranked = program.hosts[host].ranked
    if ranked:
        first = program.serves[program.serves_of_host[host][0]]
        return [(program.demands[first.demand].app, ranked, _by_rate(program, whole, host), first.batch)]
    count = int(whole.units[host])
    found: dict[str, tuple[list[tuple[float, str]], float, int]] = {}
    for i in program.serves_of_host[host]:
        serve = program.serves[i]
        app = program.demands[serve.demand].app
        variants, share, batch = found.get(app, ([], 0.0, 0))
        if (-serve.accuracy, serve.variant) not in variants:
            variants.append((-serve.accuracy, serve.variant))
        share += float(whole.shares[i]) * _of_app(program, serve.demand) / count
        found[app] = (variants, share, max(batch, serve.batch))
    return [
        (app, tuple(name for _, name in sorted(variants)), share, batch)
        for app, (variants, share, batch) in sorted(found.items())
    ]


def _by_rate(program: Program, whole: Whole, host: int) -> float:
    """Share of the app's demand for one unit of ``host``, of what units with tables serve of its SLO class."""
    demands = {program.serves[i].demand for i in program.serves_of_host[host]}
    rate = served = 0.0
    for h in np.flatnonzero(whole.units > 0).tolist():
        mine = [i for i in program.serves_of_host[h] if program.serves[i].demand in demands]
        if program.hosts[h].ranked and mine:
            rate += program.hosts[h].rate * float(whole.units[h])
            served += sum(float(whole.shares[i]) * _of_app(program, program.serves[i].demand) for i in mine)
    return served * program.hosts[host].rate / rate


def _of_app(program: Program, demand: int) -> float:
    """Part of its app's demand that a demand is; an equal part where there is none."""
    mine = [d for d in program.demands if d.app == program.demands[demand].app]
    total = sum(d.qps for d in mine)
    return program.demands[demand].qps / total if total > 0.0 else 1.0 / len(mine)


def allocation(
    program: Program,
    whole: Whole,
    gap: float,
    placements: tuple[Placement, ...],
    *,
    loads: int,
    steps: tuple[str, ...],
    nondeterministic: bool = False,
    rough: bool = False,
) -> Allocation:
    """``gap``: in mean accuracy over all demand; what is reported is over served queries."""
    by_class, by_app = served(program, whole)
    total = float(program.weight @ whole.served)
    objective = whole.accuracy / total if total > 0 else 0.0
    return Allocation(
        placements=placements,
        served=by_app,
        objective=objective,
        bound=min(1.0, objective + gap / total) if total > 0 else objective,
        loads=loads,
        steps=steps,
        nondeterministic=nondeterministic,
        served_by_class=by_class,
        headroom=_headroom(program, whole),
        rough=rough,
        load_cost=load_cost(program, whole.units),
    )


def _headroom(program: Program, whole: Whole) -> dict[str, float]:
    """How far the demand of each app on tables may grow while they promise what a plan may ask of them; at least 1."""
    tabled = {host for host in np.flatnonzero(whole.units > 0).tolist() if program.hosts[host].ranked}
    holds: dict[int, float] = {}
    for way in program.ways:
        if way.host in tabled and way.need > 0.0:
            demand = program.demands[way.demand]
            holds[way.demand] = holds.get(way.demand, 0.0) + float(whole.units[way.host]) / way.need * demand.headroom
    found: dict[str, float] = {}
    for d, factor in holds.items():
        app = program.demands[d].app
        if program.demands[d].qps > 0.0:
            found[app] = min(found.get(app, inf), max(1.0, factor))
    return found


def served(program: Program, whole: Whole) -> tuple[dict[tuple[str, QueryClass], float], dict[str, float]]:
    """Served fraction by app and class, and by app. Where nothing is demanded nothing is missing: 1."""
    by_class: dict[tuple[str, QueryClass], tuple[float, float]] = {}
    wanted: dict[str, float] = {}
    answered: dict[str, float] = {}
    for demand, share in zip(program.demands, whole.served.tolist(), strict=True):
        fraction = min(1.0, share) if demand.qps > 0 else 1.0
        # A solver's tolerance is no shortage.
        fraction = 1.0 if fraction > 1.0 - SAME else fraction
        asked, got = by_class.get((demand.app, demand.query_class), (0.0, 0.0))
        by_class[demand.app, demand.query_class] = (asked + demand.qps, got + fraction * demand.qps)
        wanted[demand.app] = wanted.get(demand.app, 0.0) + demand.qps
        answered[demand.app] = answered.get(demand.app, 0.0) + fraction * demand.qps
    by_app = {app: answered[app] / wanted[app] if wanted[app] > 0 else 1.0 for app in sorted(wanted)}
    return {of: got / asked if asked > 0 else 1.0 for of, (asked, got) in by_class.items()}, by_app

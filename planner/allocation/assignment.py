"""From counts to concrete units, moving as little as possible.

Rules:
- In each pool a host keeps min(old, new) of the units that hold it. What it lacks comes from units that hold nothing,
  then from those whose variants are no longer wanted, in the order of their names. The number of loads is thereby the
  lower bound: sum of max(0, new - old) over hosts.
- Each unit of a host takes an equal part of each share that is served there.
"""

from collections.abc import Mapping, Sequence

from sluicegate.domain.plan import Placement
from sluicegate.planner.allocation.program import Host, PoolKey, Program, Unit
from sluicegate.planner.allocation.rounding import Whole


def assign(
    program: Program, whole: Whole, pools: Mapping[PoolKey, Sequence[Unit]]
) -> tuple[tuple[Placement, ...], int]:
    """Placements sorted by device, slice and app; and the (device, variant) pairs that must be loaded."""
    placements: list[Placement] = []
    loads = 0
    for p, key in enumerate(program.pools):
        hosts = [h for h in range(len(program.hosts)) if program.hosts[h].pool == p and whole.units[h] > 0]
        for host, units in _match(program, hosts, whole, pools[key]).items():
            parts = _parts(program, whole, host)
            for unit in units:
                loads += len(set(program.hosts[host].variants) - set(unit.loaded))
                for app, variants, share, batch in parts:
                    placements.append(Placement(unit.device, app, variants, share, batch, unit.slice))
    placements.sort(key=lambda x: (x.device, x.slice, x.app))
    return tuple(placements), loads


def _match(program: Program, hosts: Sequence[int], whole: Whole, units: Sequence[Unit]) -> dict[int, list[Unit]]:
    taken: dict[int, list[Unit]] = {h: [] for h in hosts}
    wanted = {program.hosts[h].variants: h for h in hosts}
    rest: list[Unit] = []
    for unit in units:
        host = wanted.get(unit.loaded)
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
    return taken


def _nearest(host: Host, rest: Sequence[Unit], missing: int) -> Sequence[Unit]:
    """Units to load a host on: where units hold several variants, those that lack the fewest; in the given order."""
    if len(host.variants) == 1 and all(len(u.loaded) <= 1 for u in rest):
        return rest[:missing]
    wanted = set(host.variants)
    return sorted(rest, key=lambda u: len(wanted - set(u.loaded)))[:missing]


def _parts(program: Program, whole: Whole, host: int) -> list[tuple[str, tuple[str, ...], float, int]]:
    """(app, variants most accurate first, share of the app's demand for one unit, largest batch) of a host."""
    count = int(whole.units[host])
    total: dict[str, float] = {}
    classes: dict[str, int] = {}
    for demand in program.demands:
        total[demand.app] = total.get(demand.app, 0.0) + demand.qps
        classes[demand.app] = classes.get(demand.app, 0) + 1
    found: dict[str, tuple[list[tuple[float, str]], float, int]] = {}
    for i in program.serves_of_host[host]:
        serve = program.serves[i]
        demand = program.demands[serve.demand]
        part = demand.qps / total[demand.app] if total[demand.app] > 0 else 1.0 / classes[demand.app]
        variants, share, batch = found.get(demand.app, ([], 0.0, 0))
        if (-serve.accuracy, serve.variant) not in variants:
            variants.append((-serve.accuracy, serve.variant))
        found[demand.app] = (variants, share + float(whole.shares[i]) * part / count, max(batch, serve.batch))
    return [
        (app, tuple(name for _, name in sorted(variants)), share, batch)
        for app, (variants, share, batch) in sorted(found.items())
    ]

"""Why a plan is as it is: capacity and spare by app, what binds, and what one more device would buy.

Rules: rates are rows/s, as demand is (a query of r rows is r). What a device more buys is read off the relaxed program
solved with that device, against the relaxed program without it: more rows served where there is a shortage, else more
accuracy. It is what the fleet could gain, not what rounding to whole devices happens to gain.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sluicegate.domain.fleet.device import profile_type
from sluicegate.domain.plan import Placement
from sluicegate.planner.allocation import goal_chain
from sluicegate.planner.allocation.columns import build
from sluicegate.planner.allocation.linear import Matrix
from sluicegate.planner.allocation.program import PoolKey, Program, Unit
from sluicegate.planner.allocation.solver_types import SolverError
from sluicegate.planner.allocation.units import count_loaded, equal_part, group_units
from sluicegate.planner.problems.kept_rates import kept
from sluicegate.planner.problems.problem import Allocation, Problem, part_served
from sluicegate.planner.problems.throughput import throughput


@dataclass(frozen=True, slots=True)
class AppAccount:
    """One app's capacity and spare. ``capacity_qps``: of all its hosts alone; ``spare``: capacity over demand with
    headroom, less 1.

    ``accuracy``, ``best_accuracy``: in the app's own metric; ``of_best``: the one over the other, which is what the
    plan's objective averages over queries. ``servable``: some variant meets its SLO on some device.
    """

    app: str
    demand_qps: float
    headroom: float
    served: float
    accuracy: float
    best_accuracy: float
    of_best: float
    capacity_qps: float
    spare: float
    servable: bool


@dataclass(frozen=True, slots=True)
class PoolAccount:
    """What one more unit would buy: ``gain_qps`` rows/s served, ``gain_accuracy`` (0..1) in the plan's objective."""

    pool: str
    count: int
    used: int
    binding: bool
    gain_qps: float
    gain_accuracy: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a plan is as it is. ``binding``: one line each, what keeps the plan from being better."""

    apps: tuple[AppAccount, ...]
    pools: tuple[PoolAccount, ...]
    binding: tuple[str, ...]


def explain(problem: Problem, allocation: Allocation, pool_of: Mapping[str, str]) -> Explanation:
    """Account for ``allocation``, which answered ``problem``. ``pool_of``: by device, what its pool is to be called."""
    by_part = equal_part if problem.by_part else None
    units = group_units(problem.devices, problem.previous, by_price=problem.by_price, by_part=by_part)
    program = build(problem, {k: len(u) for k, u in units.items()}, count_loaded(units))
    servable = {program.demands[s.demand].app for s in program.serves}
    names = sorted({d.app for d in problem.demands})
    types = {(d.name, s.name): profile_type(d.type, s.profile) for d in problem.devices for s in d.slices}
    hosts: dict[str, list[Placement]] = {app: [] for app in names}
    for placement in allocation.placements:
        hosts[placement.app].append(placement)
    apps = tuple(_app(problem, allocation, app, hosts[app], types, app in servable) for app in names)
    pools = _pools(program, units, allocation, pool_of)
    return Explanation(apps, pools, tuple(_binding(problem, apps, pools, _money(program))))


def capacity_of(problem: Problem, app: str, variants: Sequence[str], device_type: str) -> float:
    """Rows/s of ``app`` that the fastest of ``variants`` could answer with a slice for itself."""
    slo = min(d.slo for d in problem.demands if d.app == app)
    best = 0.0
    for name in variants:
        profile = problem.catalogue.profiles.get((name, device_type))
        if profile is not None:
            factor = problem.latency_factor.get((name, device_type), 1.0)
            known = problem.catalogue.apps[app]
            rate = throughput(
                profile,
                slo / 2,
                capacity=problem.capacity,
                quantile=problem.quantile,
                factor=factor,
                rows=known.max_rows,
            )
            best = max(best, kept(rate, profile, known, slo / 2, factor=factor).qps)
    return best


def _app(
    problem: Problem,
    allocation: Allocation,
    app: str,
    hosts: Sequence[Placement],
    types: Mapping[tuple[str, str], str],
    servable: bool,
) -> AppAccount:
    demands = [d for d in problem.demands if d.app == app]
    qps = sum(d.qps for d in demands)
    wanted = sum(d.qps * d.headroom for d in demands)
    kinds = Counter((types[p.device, p.slice], p.variants) for p in hosts)
    capacity = sum(n * capacity_of(problem, app, variants, kind) for (kind, variants), n in kinds.items())
    share = sum(p.share for p in hosts)
    mean = sum(p.share * problem.catalogue.variants[p.variants[0]].accuracy for p in hosts) / share if share else 0.0
    best = problem.catalogue.best_accuracy(app)
    return AppAccount(
        app=app,
        demand_qps=qps,
        headroom=wanted / qps if qps else 1.0,
        served=allocation.served.get(app, 0.0),
        accuracy=mean,
        best_accuracy=best,
        of_best=mean / best if best > 0.0 else float(share > 0.0),
        capacity_qps=capacity,
        spare=capacity / wanted - 1.0 if wanted else float("inf"),
        servable=servable,
    )


def _pools(
    program: Program, units: Mapping[PoolKey, Sequence[Unit]], allocation: Allocation, pool_of: Mapping[str, str]
) -> tuple[PoolAccount, ...]:
    busy = {(p.device, p.slice) for p in allocation.placements if p.share > 0}
    used = [sum((u.device, u.slice) in busy for u in units[key]) for key in program.pools]
    base = _relaxed(program, None)
    total = sum(d.qps for d in program.demands)
    found = []
    for p, key in enumerate(program.pools):
        gained = _relaxed(program, p) if base is not None else None
        served = accuracy = 0.0
        if base is not None and gained is not None:
            served = max(0.0, gained[0] - base[0])
            accuracy = max(0.0, gained[1] - base[1])
        binding = served > 1e-6 * total or accuracy > 1e-7
        found.append(
            PoolAccount(_called(key, units[key], pool_of), program.counts[p], used[p], binding, served, accuracy)
        )
    return tuple(found)


def _called(key: PoolKey, units: Sequence[Unit], pool_of: Mapping[str, str]) -> str:
    """Identical units count as one pool, whichever they were listed in; of GPUs that are cut, a pool a profile."""
    _, cut, profile = key.type.partition(":")
    return " + ".join(sorted({pool_of[u.device] for u in units})) + cut + profile


def _relaxed(program: Program, pool: int | None) -> tuple[float, float] | None:
    """Rows/s served and accuracy over them, by the relaxed program (with a unit more in ``pool``)."""
    if not program.serves:
        return None
    if pool is not None:
        program = replace(
            program, counts=_one_more(program.counts, pool), empty_units=_one_more(program.empty_units, pool)
        )
    try:
        solved = goal_chain.run(Matrix(program), program).solved
    except SolverError:
        return None
    served = float(program.weight @ solved.served)
    accuracy = float((program.accuracy * program.weight[program.serve_demand]) @ solved.shares)
    qps = sum(d.qps * s for d, s in zip(program.demands, solved.served.tolist(), strict=True))
    return qps, accuracy / served if served else 0.0


def _one_more(units: Sequence[int], pool: int) -> tuple[int, ...]:
    return tuple(n + (p == pool) for p, n in enumerate(units))


def _money(program: Program) -> tuple[float, float]:
    """What one unit of money an hour more would buy: rows/s served and accuracy."""
    if program.budget is None:
        return 0.0, 0.0
    base, gained = _relaxed(program, None), _relaxed(replace(program, budget=program.budget + 1.0), None)
    if base is None or gained is None:
        return 0.0, 0.0
    return max(0.0, gained[0] - base[0]), max(0.0, gained[1] - base[1])


def _binding(
    problem: Problem, apps: Sequence[AppAccount], pools: Sequence[PoolAccount], money: tuple[float, float]
) -> list[str]:
    lines = [
        f"shortage: {a.app} is served {part_served(a.served)} of {a.demand_qps:.1f} rows/s"
        + ("" if a.servable else "; no variant answers within half its SLO on any of these devices")
        for a in apps
        if a.served < 1.0
    ]
    for p in pools:
        if not p.binding:
            continue
        gains = _gains(p.gain_qps, p.gain_accuracy)
        held = f"all {p.count} devices are needed; " if p.used == p.count else ""
        lines.append(f"pool {p.pool}: {held}one more {gains}")
    if gains := _gains(*money):
        lines.append(f"the budget of {problem.budget:g} an hour binds; one more {gains}")
    content = all(a.served >= 1.0 and a.accuracy >= a.best_accuracy - 1e-6 for a in apps if a.demand_qps > 0)
    floors = [] if content else [d for d in problem.demands if d.min_accuracy > 0]
    lines.extend(
        f"min_accuracy {d.min_accuracy:g} bars the faster variants of {d.app}"
        for d in floors
        if any(v.accuracy < d.min_accuracy for v in problem.catalogue.of_app(d.app))
    )
    if not lines:
        lines.append("nothing binds: every app is served by the best variants that meet its SLO on these devices")
    return lines


def _gains(qps: float, accuracy: float) -> str:
    parts = []
    if qps > 1e-6:
        parts.append(f"serves {qps:.1f} rows/s more")
    if accuracy > 1e-7:
        parts.append(f"adds {100 * accuracy:.3f} points of accuracy, relative to each app's best")
    return " and ".join(parts)

"""Small allocation problems solved by trying every plan, from the problem alone: no solver, no code of the planners.

Rules: one variant a device, strict demand only. Each pool of identical devices is given every multiset of variants (and
idle devices, where there is a budget). An app's share at a variant is at most min(1, capacity / demand with headroom)
of what its devices carry, the most accurate variants are filled first, and spot devices take what the core on demand
leaves them. Every plan there is, is looked at.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement, product

import numpy as np
import numpy.typing as npt

from sluicegate.domain.fleet.device import Device
from sluicegate.planner.problems.problem import AppDemand, Problem

Floats = npt.NDArray[np.float64]
Kind = tuple[str, float, bool]
MAX_PLANS = 400_000


@dataclass(frozen=True)
class Best:
    """The best that exhaustive search finds. ``full``: whether some plan serves everything. ``fair``: the largest
    fraction that every app can have.

    ``accuracy``: the best mean over all queries, each at its app's weight, of accuracy over that of the app's best
    variant, where they can all be served, else 0. ``native``: the same mean of the plan that is best where accuracies
    are added up as they are.
    """

    full: bool
    fair: float
    accuracy: float
    native: float


def exhaust(problem: Problem) -> Best:
    """The best of all plans; ValueError where there are more than MAX_PLANS of them."""
    kinds = sorted({_kind(d) for d in problem.devices})
    counts = [sum(_kind(d) == kind for d in problem.devices) for kind in kinds]
    hosts = [sorted({v for (v, t) in problem.catalogue.profiles if t == kind[0]}) for kind in kinds]
    idle = problem.budget is not None
    fillings = [
        np.array(list(_multisets(len(h) + idle, n)), dtype=np.float64) for h, n in zip(hosts, counts, strict=True)
    ]
    plans = int(np.prod([len(f) for f in fillings]))
    if plans > MAX_PLANS:
        raise ValueError(f"{plans} plans are too many to try; ask for fewer devices or variants")
    rows = np.array(list(product(*(range(len(f)) for f in fillings))), dtype=np.int64)
    if problem.budget is not None:
        used = (f[:, : len(h)].sum(axis=1) for f, h in zip(fillings, hosts, strict=True))
        cost = sum(n[rows[:, p]] * kinds[p][1] for p, n in enumerate(used))
        rows = rows[np.asarray(cost) <= problem.budget + 1e-9]
    asked = [d for d in problem.demands if d.qps > 0]
    total = sum(d.qps * d.weight for d in asked)
    fair, everything = np.ones(len(rows)), np.ones(len(rows), dtype=np.bool_)
    right, added = np.zeros(len(rows)), np.zeros(len(rows))
    for demand in asked:
        offers = []
        for quality, pool, column, share in _offers(problem, demand, kinds, hosts):
            units = fillings[pool][rows[:, pool], column]
            offers.append((quality, kinds[pool][2], np.minimum(1.0, units * share) * (units > 0)))
        served, accuracy = _filled(offers, problem.strict_on_demand, len(rows))
        fair = np.minimum(fair, served)
        everything &= served > 1 - 1e-9
        best = max(v.accuracy for v in problem.catalogue.variants.values() if v.app == demand.app)
        right += demand.weight * demand.qps * accuracy / best
        added += demand.weight * demand.qps * accuracy
    if not everything.any() or not total:
        return Best(bool(everything.any()), float(fair.max()), 0.0, 0.0)
    right, added = right[everything] / total, added[everything]
    return Best(True, float(fair.max()), float(right.max()), float(right[added.argmax()]))


def _kind(device: Device) -> Kind:
    return device.type, device.price, device.spot


def _filled(offers: list[tuple[float, bool, Floats]], core: float, plans: int) -> tuple[Floats, Floats]:
    """Served fraction and accuracy over the whole demand, by plan."""
    room = {away: sum((r for _, a, r in offers if a is away), np.zeros(plans)) for away in (True, False)}
    most = np.minimum(1.0, room[True] + room[False])
    if core > 0:
        most = np.minimum(most, room[False] / core)
    left, away_left, accuracy = most.copy(), (1.0 - core) * most, np.zeros(plans)
    for quality, away, capacity in offers:
        took = np.minimum(capacity, left)
        if away:
            took = np.minimum(took, away_left)
            away_left -= took
        left -= took
        accuracy += quality * took
    return most, accuracy


def _multisets(kinds: int, size: int) -> Iterator[list[int]]:
    if not kinds:
        yield []
        return
    for chosen in combinations_with_replacement(range(kinds), size):
        yield [chosen.count(k) for k in range(kinds)]


def _offers(
    problem: Problem, demand: AppDemand, kinds: list[Kind], hosts: list[list[str]]
) -> list[tuple[float, int, int, float]]:
    """(accuracy, pool, column, share of the demand that one device carries), the most accurate first."""
    found = []
    for pool, (kind, _, _) in enumerate(kinds):
        for column, name in enumerate(hosts[pool]):
            variant = problem.catalogue.variants[name]
            if variant.app != demand.app or variant.accuracy < demand.min_accuracy:
                continue
            rate = _rate(problem, name, kind, demand.slo)
            if rate > 0:
                found.append((variant.accuracy, pool, column, rate / (demand.qps * demand.headroom)))
    return sorted(found, reverse=True)


def _rate(problem: Problem, variant: str, kind: str, slo: float) -> float:
    """Queries/s by the best batch within half the SLO, or by the artifact's rule."""
    profile = problem.catalogue.profiles[variant, kind]
    if problem.capacity == "largest-batch":
        fitting = [p for p in profile.points if p.batch in (1, 2, 4, 8) and p.median < slo / 2]
        return float(int(1000 * fitting[-1].batch / (1000 * fitting[-1].median))) if fitting else 0.0
    known = [(p.batch, p.median) for p in profile.points]
    best = 0.0
    for b in range(1, known[-1][0] + 1):
        seconds = float(np.interp(b, [x for x, _ in known], [s for _, s in known]))
        if seconds <= slo / 2:
            best = max(best, b / seconds)
    return best

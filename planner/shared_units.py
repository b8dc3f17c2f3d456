"""Apps together on units, without a solver: where there are more apps than units, each that fits somewhere is hosted.

Rules:
- Apps that are asked for come first, strict ones before others, and of these what fits on the fewest units and is the
  largest. Each goes where the worst served of the unit's apps is served best. Where one finds no place, another unit's
  app makes room for it, as far as that one fits elsewhere.
- k apps on a unit have SLO / (k + 1) a batch, the least of their SLOs, as everywhere. Each has an even part of the
  unit's second; what it does not need is for the others.
- Of each app a unit holds the variant that serves most in an even part, of those the most accurate, as far as memory
  goes round.
- An app that lacks service then goes to further units where no other loses by it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from sluicegate.domain.models.app import QueryClass
from sluicegate.planner.allocation.columns import candidates, rated, serves_of, variants_by_app
from sluicegate.planner.allocation.program import Candidate, Floats, Host, Loaded, PoolKey, Program, Serve, Unit
from sluicegate.planner.allocation.rounding import Whole, service_of
from sluicegate.planner.allocation.units import count_empty, count_loaded
from sluicegate.planner.problems.plan_limits import limits_of
from sluicegate.planner.problems.problem import AppDemand, Problem

_LEAST = 1e-6
"""Share of a demand for which nothing is loaded."""


@dataclass(frozen=True, slots=True)
class _Held:
    """What a unit holds: a variant of each app, and the share of each demand (by index) that it answers."""

    members: tuple[Candidate, ...]
    shares: Mapping[int, float]
    worst: float
    accuracy: float


class SharedUnits:
    """Which apps each unit is given. Deterministic. ``hostable``: apps that some variant could serve on some unit."""

    def __init__(self, problem: Problem, pools: Mapping[PoolKey, Sequence[Unit]]) -> None:
        self._problem = problem
        self._pools = pools
        self._demands = tuple(sorted(problem.demands, key=lambda d: (d.app, d.query_class, d.slo)))
        self._by_app: dict[str, dict[int, AppDemand]] = {}
        for i, demand in enumerate(self._demands):
            self._by_app.setdefault(demand.app, {})[i] = demand
        self._slo = {app: min(d.slo for d in mine.values()) for app, mine in self._by_app.items()}
        variants = variants_by_app(problem.catalogue)
        self._fit = {
            (key, app): tuple(candidates(problem, key, variants.get(app, ()), mine))
            for key in sorted(pools)
            for app, mine in self._by_app.items()
        }
        self._rated: dict[tuple[PoolKey, str, float], tuple[Candidate, ...]] = {}
        self._units = [key for key in sorted(pools) for _ in pools[key]]
        self._apps: list[tuple[str, ...]] = [() for _ in self._units]
        self.hostable = tuple(sorted({app for (_, app), fit in self._fit.items() if fit}))

    @property
    def needed(self) -> bool:
        """Whether units may hold several variants, and apps are more than units."""
        return self._problem.variants_per_device > 1 and len(self.hostable) > len(self._units) > 0

    def hosted(self) -> tuple[Program, Whole]:
        """A program of the units as they are given to apps, and what they answer."""
        everything = np.ones(len(self._demands))
        for app in sorted(self.hostable, key=self._hardest):
            if not self._put(app, everything):
                self._make_room(app, everything)
        held: dict[int, _Held] = {}
        for u, apps in enumerate(self._apps):
            if apps and (found := self._holding(u, apps, everything)) is not None:
                held[u] = found
        self._widen(held)
        return self._counted(held)

    def _hardest(self, app: str) -> tuple[bool, bool, int, int, float, str]:
        mine = self._by_app[app].values()
        fits = [self._fit[key, app] for key in self._units if self._fit[key, app]]
        size = min((c.memory_bytes for c in chain(*fits)), default=0)
        asked = sum(d.headroom * d.qps for d in mine)
        fastest = max((r.qps for c in chain(*fits) for r in c.rates.values()), default=1.0)
        strict = any(self._is_strict(i) for i in self._by_app[app])
        return asked <= 0.0, not strict, len(fits), -size, -asked / fastest, app

    def _is_strict(self, demand: int) -> bool:
        return self._demands[demand].query_class is QueryClass.STRICT

    def _put(self, app: str, left: Floats, *, but: int | None = None) -> bool:
        """Give it the unit (not ``but``) whose worst served app is best off with it; whether there is any."""
        best: tuple[float, int, float, int] | None = None
        tried: set[tuple[PoolKey, tuple[str, ...]]] = set()
        for u, (key, apps) in enumerate(zip(self._units, self._apps, strict=True)):
            if u == but or (key, apps) in tried or not self._affordable(u):
                continue
            tried.add((key, apps))
            found = self._holding(u, (*apps, app), left)
            if found is not None:
                merit = (found.worst, -len(apps), found.accuracy, -u)
                best = merit if best is None else max(best, merit)
        if best is None:
            return False
        self._apps[-best[-1]] = (*self._apps[-best[-1]], app)
        return True

    def _make_room(self, app: str, left: Floats) -> None:
        """Let an app that fits elsewhere make room for this one."""
        for u, apps in enumerate(self._apps):
            for other in apps:
                stay = tuple(a for a in apps if a != other)
                if self._affordable(u) and self._holding(u, (*stay, app), left) is not None:
                    self._apps[u] = (*stay, app)
                    if self._put(other, left, but=u):
                        return
                    self._apps[u] = apps

    def _affordable(self, unit: int) -> bool:
        """Whether the budget bears this unit beside those in use."""
        if self._problem.budget is None or self._apps[unit]:
            return True
        spent = sum(key.price for key, apps in zip(self._units, self._apps, strict=True) if apps)
        return spent + self._units[unit].price <= self._problem.budget * (1 + 1e-9)

    def _widen(self, held: dict[int, _Held]) -> None:
        """Units for apps that lack service, where no other app loses by it."""
        left = np.ones(len(self._demands))
        for unit in held.values():
            for d, share in unit.shares.items():
                left[d] -= share
        lacking = {app: max(left[d] for d in mine) for app, mine in self._by_app.items() if app in self.hostable}
        for app in sorted(lacking, key=lambda a: (-lacking[a], a)):
            for u in held:
                if max(left[d] for d in self._by_app[app]) <= _LEAST:
                    break
                if app in self._apps[u]:
                    continue
                before = held[u].shares
                free = left.copy()
                for d, share in before.items():
                    free[d] += share
                found = self._holding(u, (*self._apps[u], app), free)
                if found is None or any(found.shares.get(d, 0.0) < s - 1e-9 for d, s in before.items()):
                    continue
                if sum(found.shares[d] for d in self._by_app[app] if d in found.shares) > _LEAST:
                    self._apps[u], held[u] = (*self._apps[u], app), found
                    left = free
                    for d, share in found.shares.items():
                        left[d] -= share

    def _holding(self, unit: int, apps: tuple[str, ...], left: Floats) -> _Held | None:
        """What the unit holds for ``apps``, of whose demands the part ``left`` is to be answered; None: it cannot."""
        if len(apps) > self._problem.variants_per_device:
            return None
        key, apps = self._units[unit], tuple(sorted(apps))
        budget = min(self._slo[app] for app in apps) / (len(apps) + 1)
        options = [self._within(key, app, budget) for app in apps]
        if not all(options):
            return None
        chosen = [min(fit, key=lambda c: (c.memory_bytes, -c.variant.accuracy, c.variant.name)) for fit in options]
        room = (key.memory_bytes or np.inf) - sum(c.memory_bytes for c in chosen)
        if room < 0:
            return None

        def merit(c: Candidate) -> tuple[float, float, int, str]:
            answers = self._answered(key, c, 1.0 / len(apps), left)
            return self._part(c.variant.app, answers, left), c.variant.accuracy, -c.memory_bytes, c.variant.name

        worst_first = sorted(range(len(apps)), key=lambda i: max(merit(c)[0] for c in options[i]))
        for i in worst_first:
            best = max((c for c in options[i] if c.memory_bytes - chosen[i].memory_bytes <= room), key=merit)
            room -= best.memory_bytes - chosen[i].memory_bytes
            chosen[i] = best
        shares: dict[int, float] = {}
        second = 1.0
        times = [self._time(key, c, left) for c in chosen]
        for n, i in enumerate(sorted(range(len(apps)), key=lambda i: times[i])):
            mine = min(times[i], second / (len(apps) - n))
            shares.update(self._answered(key, chosen[i], mine, left))
            second -= mine
        worst = min(self._part(app, shares, left) for app in apps)
        return _Held(tuple(chosen), shares, worst, sum(c.variant.accuracy for c in chosen))

    def _within(self, key: PoolKey, app: str, budget: float) -> tuple[Candidate, ...]:
        known = self._rated.get((key, app, budget))
        if known is None:
            found = (rated(self._problem, key, c, budget) for c in self._fit[key, app])
            known = self._rated[key, app, budget] = tuple(c for c in found if c.rates)
        return known

    def _most(self, key: PoolKey, demand: int, left: Floats) -> float:
        """Share of a demand that a unit may answer: of a strict one, spot units have no more than their part."""
        most = 1.0 - self._problem.strict_on_demand if key.spot and self._is_strict(demand) else 1.0
        return max(0.0, min(float(left[demand]), most))

    def _time(self, key: PoolKey, c: Candidate, left: Floats) -> float:
        """Seconds a second for all that is left of what it can answer."""
        return sum(self._most(key, d, left) * self._need(c, d) for d in c.rates)

    def _need(self, c: Candidate, demand: int) -> float:
        return self._demands[demand].headroom * self._demands[demand].qps / c.rates[demand].qps

    def _answered(self, key: PoolKey, c: Candidate, seconds: float, left: Floats) -> dict[int, float]:
        """Shares of its demands in so many seconds a second, strict ones first."""
        found: dict[int, float] = {}
        for d in sorted(c.rates, key=lambda d: (not self._is_strict(d), d)):
            need = self._need(c, d)
            most = self._most(key, d, left)
            found[d] = most if need * most <= seconds else seconds / need
            seconds = max(0.0, seconds - found[d] * need)
        return found

    def _part(self, app: str, shares: Mapping[int, float], left: Floats) -> float:
        """Of what is left of the app's demand, the part that is answered; 1 where nothing is."""
        asked = sum(left[d] * demand.qps for d, demand in self._by_app[app].items())
        answered = sum(shares.get(d, 0.0) * demand.qps for d, demand in self._by_app[app].items())
        return float(answered / asked) if asked > 0.0 else 1.0

    def _counted(self, held: Mapping[int, _Held]) -> tuple[Program, Whole]:
        """Equal units are one host."""
        keys = tuple(sorted(self._pools))
        best = {app: self._problem.catalogue.best_accuracy(app) for app in self._by_app}
        loaded = count_loaded({key: list(units) for key, units in self._pools.items()})
        number: dict[tuple[PoolKey, tuple[str, ...]], int] = {}
        hosts: list[Host] = []
        serves: list[Serve] = []
        shares: list[float] = []
        counts: list[int] = []
        for u in sorted(held):
            key, members = self._units[u], held[u].members
            names = tuple(sorted(c.variant.name for c in members))
            host = number.setdefault((key, names), len(hosts))
            if host == len(hosts):
                stood = min(self._problem.stood.get(c.variant.app, 0.0) for c in members)
                load = sum(c.load_s for c in members)
                hosts.append(Host(keys.index(key), names, loaded.get(Loaded(key, names), 0), load, stood))
                serves += chain.from_iterable(serves_of(host, c, self._demands, best) for c in members)
                shares += [0.0] * (len(serves) - len(shares))
                counts.append(0)
            counts[host] += 1
            for i, serve in enumerate(serves):
                if serve.host == host:
                    shares[i] += held[u].shares.get(serve.demand, 0.0)
        program = Program(
            demands=self._demands,
            pools=keys,
            counts=tuple(len(self._pools[k]) for k in keys),
            hosts=tuple(hosts),
            serves=tuple(serves),
            **limits_of(self._problem),
            empty_units=count_empty({key: len(units) for key, units in self._pools.items()}, loaded),
        )
        return program, _whole(program, counts, shares)


def _whole(program: Program, counts: Iterable[int], shares: Iterable[float]) -> Whole:
    """The answer in these shares; of a strict demand spot units keep their part of what is answered."""
    kept = np.array(list(shares), dtype=np.float64)
    on_spot = program.spot[program.serve_host] & program.strict[program.serve_demand]
    if program.strict_on_demand > 0:
        firm = np.zeros(len(program.demands))
        np.add.at(firm, program.serve_demand, np.where(on_spot, 0.0, kept))
        spot = np.zeros(len(program.demands))
        np.add.at(spot, program.serve_demand, np.where(on_spot, kept, 0.0))
        most = firm * (1.0 - program.strict_on_demand) / program.strict_on_demand
        part = np.minimum(1.0, most / np.maximum(spot, 1e-12))
        kept = np.where(on_spot, kept * part[program.serve_demand], kept)
    served = np.zeros(len(program.demands))
    np.add.at(served, program.serve_demand, kept)
    served = np.minimum(served, 1.0)
    accuracy = float((program.accuracy * program.weight[program.serve_demand]) @ kept)
    units = np.array(list(counts), dtype=np.int64)
    return Whole(units, kept, served, accuracy, accuracy, service_of(program, served))

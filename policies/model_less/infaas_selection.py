"""Selection on arrival: which variant answers a query that names goals and no model, and where (INFaaS, ATC 2021, 4.2).

Rules.
- An instance (a variant on a worker) is INACTIVE while it is not loaded; else OVERLOADED from its peak rate on, until
  it is below 0.95 of it; else INTERFERED while it takes more than 1.5 times its profile, until below 1.25 times; else
  ACTIVE. The function is total, hence it also goes from INTERFERED to OVERLOADED, which the paper's figure lacks.
- Of the variants with an ACTIVE instance that meet the goals, the cheapest is chosen (then the fastest, then by name),
  on its ACTIVE instance with the lowest rate; with ``packing``, on the fullest one that still has room, so that others
  empty and can be given back.
- Else, of those without one that meet the goals and have a worker of their hardware, the one that is loaded and has run
  soonest, on the least used such worker.
- Else the query is infeasible, and the variant that misses its goals by least is suggested.
- A query may name its model: then only the worker is chosen.
- An interfered instance is to be moved: to idle resources of its worker, else to the least used worker of its hardware,
  else to a new one. It is said once when it begins.

Decisions take O(log variants) of the app that is asked and nothing of others. What changes with instances changes when
they report, not when a query comes; the rate of an instance counts what was sent to it since it last reported.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import assert_never

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.fleet.instance import InstanceState
from sluicegate.domain.query import Goal
from sluicegate.policies.model_less.goal_index import FirstFit, Nearest, Soonest

LEAVES_OVERLOAD, INTERFERES, LEAVES_INTERFERENCE = 0.95, 1.5, 1.25
IDLE = 0.8
"""A worker used less than this has resources to give an interfered instance."""


def instance_state(
    *, loaded: bool, qps: float, peak: float, latency: float, profiled: float, before: InstanceState
) -> InstanceState:
    """By the rules above. Rates in queries/s, latencies in seconds (0: nothing ran)."""
    if not loaded:
        return InstanceState.INACTIVE
    if qps >= peak * (LEAVES_OVERLOAD if before is InstanceState.OVERLOADED else 1.0):
        return InstanceState.OVERLOADED
    if latency > profiled * (LEAVES_INTERFERENCE if before is InstanceState.INTERFERED else INTERFERES):
        return InstanceState.INTERFERED
    return InstanceState.ACTIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalVariant:
    """What selection knows of a variant on its hardware. ``latency``, ``load``: seconds; ``peak``: queries/s.

    ``cost``: money, in any one unit.
    """

    name: str
    app: str
    accuracy: float
    latency: float
    cost: float = 0.0
    load: float = 0.0
    peak: float = inf
    hardware: str = "cpu"


@dataclass(frozen=True, slots=True)
class VariantsRegistered:
    """These are, from now on, all variants of ``app``; none retires it."""

    app: str
    variants: tuple[GoalVariant, ...]


@dataclass(frozen=True, slots=True)
class InstanceReported:
    """Monitoring of one instance: its rate and latency over the last interval. ``loaded`` False: it is gone."""

    app: str
    variant: str
    worker: str
    loaded: bool
    qps: float = 0.0
    latency: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """A worker's utilisation, 0..1. ``alive`` False: it is gone with all its instances."""

    worker: str
    hardware: str
    utilisation: float = 0.0
    alive: bool = True


@dataclass(frozen=True, slots=True)
class Asked:
    """A query of ``app`` that is to be answered within ``latency`` seconds."""

    app: str
    latency: float
    goal: Goal = field(default_factory=Goal)


GoalEvent = VariantsRegistered | InstanceReported | WorkerReported | Asked


@dataclass(frozen=True, slots=True)
class Chosen:
    """Answer with ``variant`` on ``worker``; load it there first where ``load`` says so."""

    variant: str
    worker: str
    load: bool = False


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Nothing meets the goals; ``suggestion`` misses them by least (None where the app has no variant)."""

    suggestion: GoalVariant | None


@dataclass(frozen=True, slots=True)
class Mitigate:
    """Move an interfered instance to ``target``: its own worker (where that is idle), another, or a new one (None)."""

    app: str
    variant: str
    worker: str
    target: str | None


GoalAction = Chosen | Infeasible | Mitigate


class AppGoals:
    """The variants of one app, indexed."""

    __slots__ = ("_active", "_all", "_by_cost", "_by_start", "_inactive", "_nearest", "_places", "_starts", "by_name")

    def __init__(self, variants: Iterable[GoalVariant]) -> None:
        self._by_cost = sorted(variants, key=lambda v: (v.cost, v.latency, v.name))
        self.by_name = {v.name: v for v in self._by_cost}
        self._places = {v.name: i for i, v in enumerate(self._by_cost)}
        accuracies, latencies = [v.accuracy for v in self._by_cost], [v.latency for v in self._by_cost]
        self._active = FirstFit(accuracies, latencies)
        self._nearest = Nearest(accuracies, latencies, [v.cost for v in self._by_cost])
        self._all = FirstFit(accuracies, latencies, present=True)
        self._by_start: dict[str, list[GoalVariant]] = {}
        for v in sorted(self._by_cost, key=lambda v: (v.load + v.latency, v.name)):
            self._by_start.setdefault(v.hardware, []).append(v)
        self._starts = {v.name: i for alike in self._by_start.values() for i, v in enumerate(alike)}
        self._inactive = {hardware: _soonest(alike) for hardware, alike in self._by_start.items()}

    def put(self, name: str, *, active: bool) -> None:
        """Whether the variant has an ACTIVE instance."""
        self._active.put(self._places[name], present=active)
        self._inactive[self.by_name[name].hardware].put(self._starts[name], present=not active)

    def active(self, accuracy: float, latency: float, cost: float) -> GoalVariant | None:
        """The cheapest variant with an ACTIVE instance that meets the goals."""
        place = self._active.first(accuracy, latency)
        if place < 0:
            return None
        found = self._by_cost[place]
        return found if found.cost <= cost else None  # the first is the cheapest

    def inactive(self, accuracy: float, latency: float, cost: float, hardware: Container[str]) -> GoalVariant | None:
        """The one without that is ready soonest on any of ``hardware``."""
        best: GoalVariant | None = None
        least = inf
        for kind, waiting in self._inactive.items():
            place = waiting.first(accuracy, latency, cost) if kind in hardware else -1
            if place >= 0:
                found = self._by_start[kind][place]
                start = waiting.starts[place]
                if best is None or (start, found.name) < (least, best.name):
                    best, least = found, start
        return best

    def feasible(self, accuracy: float, latency: float, cost: float) -> GoalVariant | None:
        """The cheapest that meets the goals, loaded or not."""
        place = self._all.first(accuracy, latency)
        found = self._by_cost[place] if place >= 0 else None
        return found if found is not None and found.cost <= cost else None

    def nearest(self, accuracy: float, latency: float, cost: float) -> GoalVariant | None:
        """What misses the goals by least."""
        if cost < inf:
            place = self._nearest.find_within(accuracy, latency, cost)
        else:
            place = self._nearest.find(accuracy, latency)
        return self._by_cost[place] if place >= 0 else None


def _soonest(alike: Sequence[GoalVariant]) -> Soonest:
    return Soonest(
        [v.load + v.latency for v in alike],
        [v.accuracy for v in alike],
        [v.latency for v in alike],
        [v.cost for v in alike],
    )


@dataclass(slots=True)
class _Instance:
    state: InstanceState = InstanceState.INACTIVE
    qps: float = 0.0


class GoalSelection:
    """Selection on arrival over all apps. ``packing``: fill instances before others are used (online bin packing)."""

    __slots__ = ("_apps", "_instances", "_least", "_workers", "packing")

    def __init__(self, *, packing: bool = False) -> None:
        self.packing = packing
        self._apps: dict[str, AppGoals] = {}
        self._instances: dict[tuple[str, str], dict[str, _Instance]] = {}
        self._workers: dict[str, dict[str, float]] = {}
        self._least: dict[str, str] = {}

    def handle(self, event: GoalEvent, now: float) -> list[GoalAction]:
        """Decide. Raises InvalidInputError for an unknown app, or a model that is not one of its variants."""
        del now
        match event:
            case Asked(app, latency, goal):
                return [self.get_variant(app, latency, goal)]
            case VariantsRegistered(app, variants):
                self._register(app, variants)
                return []
            case InstanceReported():
                return self._report(event)
            case WorkerReported():
                self._report_worker(event)
                return []
            case _:
                assert_never(event)

    def get_variant(self, app: str, latency: float, goal: Goal) -> Chosen | Infeasible:
        """As ``handle`` for an Asked, without the list."""
        known = self._apps.get(app)
        if known is None:
            raise InvalidInputError("app", f"{app!r:.80} is not registered; known: {', '.join(sorted(self._apps))}")
        if goal.model is not None:
            return self._on_a_worker(app, known, goal.model)
        accuracy = goal.accuracy if goal.accuracy is not None else 0.0
        cost = goal.cost if goal.cost is not None else inf
        found = known.active(accuracy, latency, cost)
        if found is not None:
            return Chosen(found.name, self._instance_of(app, found))
        found = known.inactive(accuracy, latency, cost, self._least)
        if found is not None:
            return Chosen(found.name, self._least[found.hardware], load=True)
        return Infeasible(known.nearest(accuracy, latency, cost))

    def state(self, app: str, variant: str, worker: str) -> InstanceState:
        """Of one instance."""
        found = self._instances.get((app, variant), {}).get(worker)
        return found.state if found else InstanceState.INACTIVE

    def _on_a_worker(self, app: str, known: AppGoals, model: str) -> Chosen | Infeasible:
        variant = known.by_name.get(model)
        if variant is None:
            raise InvalidInputError("model", f"{model!r:.80} is no variant of {app}")
        if any(i.state is InstanceState.ACTIVE for i in self._instances.get((app, model), {}).values()):
            return Chosen(model, self._instance_of(app, variant))
        worker = self._least.get(variant.hardware)
        return Infeasible(variant) if worker is None else Chosen(model, worker, load=True)

    def _instance_of(self, app: str, variant: GoalVariant) -> str:
        """An ACTIVE instance; at least one is there."""
        chosen, most = "", None
        best = inf
        for worker, instance in self._instances[app, variant.name].items():
            if instance.state is InstanceState.ACTIVE:
                qps = instance.qps
                rank = -qps if self.packing and qps < variant.peak else qps
                if most is None or rank < best:
                    chosen, most, best = worker, instance, rank
        assert most is not None  # the variant is in the index of those that have one
        most.qps += 1.0  # one more in the second until it reports
        return chosen

    def _register(self, app: str, variants: tuple[GoalVariant, ...]) -> None:
        if not variants:
            self._apps.pop(app, None)
        else:
            self._apps[app] = AppGoals(variants)
        names = {v.name for v in variants}
        for key in [k for k in self._instances if k[0] == app]:
            if key[1] not in names:
                del self._instances[key]
            else:
                self._index(*key)

    def _report(self, event: InstanceReported) -> list[GoalAction]:
        known = self._apps.get(event.app)
        variant = known.by_name.get(event.variant) if known else None
        if variant is None:
            return []  # a worker may still say something of what was retired
        instances = self._instances.setdefault((event.app, event.variant), {})
        instance = instances.setdefault(event.worker, _Instance())
        before = instance.state
        instance.qps = event.qps
        instance.state = instance_state(
            loaded=event.loaded,
            qps=event.qps,
            peak=variant.peak,
            latency=event.latency,
            profiled=variant.latency,
            before=before,
        )
        if not event.loaded:
            del instances[event.worker]
        if instance.state is not before:
            self._index(event.app, event.variant)
        if instance.state is InstanceState.INTERFERED is not before:
            return [Mitigate(event.app, event.variant, event.worker, self._refuge(variant.hardware, event.worker))]
        return []

    def _report_worker(self, event: WorkerReported) -> None:
        pool = self._workers.setdefault(event.hardware, {})
        if event.alive:
            pool[event.worker] = event.utilisation
        else:
            pool.pop(event.worker, None)
            for key, instances in self._instances.items():
                if instances.pop(event.worker, None) is not None:
                    self._index(*key)
        if pool:
            self._least[event.hardware] = min(pool, key=lambda w: (pool[w], w))
        else:
            self._least.pop(event.hardware, None)

    def _index(self, app: str, variant: str) -> None:
        active = any(i.state is InstanceState.ACTIVE for i in self._instances.get((app, variant), {}).values())
        self._apps[app].put(variant, active=active)

    def _refuge(self, hardware: str, worker: str) -> str | None:
        pool = self._workers.get(hardware, {})
        if pool.get(worker, 1.0) < IDLE:
            return worker
        others = [w for w in pool if w != worker and pool[w] < IDLE]
        return min(others, key=lambda w: (pool[w], w)) if others else None

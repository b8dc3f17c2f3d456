"""What an allocation is asked and what it answers. Every named planner maps one to the other."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.plan import Placement
from sluicegate.planner.policy_tables.table_requests import TableRules
from sluicegate.planner.problems.plan_limits import PlanLimits
from sluicegate.profiles.catalogue.catalogue import Catalogue

Capacity = Literal["best-batch", "largest-batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppDemand:
    """Demand of one app and class, rows/s, as it is estimated (headroom not yet added).

    ``headroom``: planned capacity over demand, at least 1. ``spread``: standard deviation over mean of the demand while
    queues cannot bridge it; for planners that choose the headroom themselves, 0 where they must not. ``weight``: of one
    of its queries beside those of other apps.
    """

    app: str
    qps: float
    slo: float
    headroom: float = 1.05
    spread: float = 0.0
    min_accuracy: float = 0.0
    weight: float = 1.0
    query_class: QueryClass = QueryClass.STRICT


@dataclass(frozen=True, slots=True)
class RecutGroup:
    """GPUs, by name and in order, that may be cut otherwise, ``limit`` of them at most. ``free``: not in use yet, so
    that it costs nothing."""

    devices: tuple[str, ...]
    limit: int
    free: bool = False


@dataclass(frozen=True, slots=True)
class Recuts:
    """Which GPUs may be cut otherwise; those in no group keep their slices.

    ``changing``: devices as they will be once they are cut; not among the problem's, since nothing can go there yet.
    """

    groups: tuple[RecutGroup, ...]
    changing: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(PlanLimits):
    """Everything that a plan depends on. ``devices``: alive ones. ``previous``: placements in force (loaded).

    ``latency_factor``: observed over profiled latency by (variant, device type). ``stood``: seconds since each app was
    last given other hosts; a load costs its profiled time x the demand displaced x the chance that it returns (nothing
    where units hold several variants), see ``sluicegate.planner.allocation.program``. ``recuts``: None where devices
    stay as they are. ``tables``: how selection tables are made, where they pick among the variants that a unit holds.
    """

    demands: tuple[AppDemand, ...]
    devices: tuple[Device, ...]
    catalogue: Catalogue
    previous: tuple[Placement, ...] = ()
    capacity: Capacity = "best-batch"
    quantile: Literal["median", "p95"] = "median"
    latency_factor: Mapping[tuple[str, str], float] = field(default_factory=dict)
    variants_per_device: int = 1
    stood: Mapping[str, float] = field(default_factory=dict)
    recuts: Recuts | None = None
    tables: TableRules | None = None

    @property
    def by_price(self) -> bool:
        """Whether devices that differ in price alone, or in being spot, must be told apart."""
        return self.money_weight > 0 or self.budget is not None or self.strict_on_demand > 0

    @property
    def by_part(self) -> bool:
        """Whether a budget is to be spent on devices that are cut, and are paid for whole, whatever is used of them."""
        return self.budget is not None and any(d.price > 0 and len(d.slices) > 1 for d in self.devices)

    def rent(self, names: Collection[str]) -> float:
        """What these devices cost an hour."""
        return sum(d.price for d in self.devices if d.name in names)

    def worth(self, found: "Allocation") -> tuple[float, ...]:
        """What answers to it are compared by, on whatever devices: the least share and the total of strict demands,
        of the others, then accuracy less what loads cost. What solvers leave to their tolerances does not count."""
        asked: dict[tuple[str, QueryClass], float] = {}
        for d in self.demands:
            asked[d.app, d.query_class] = asked.get((d.app, d.query_class), 0.0) + d.qps * d.weight
        total = sum(asked.values()) or 1.0
        service: list[float] = []
        for kind in (QueryClass.STRICT, QueryClass.BEST_EFFORT):
            served = [(s, asked.get(of, 0.0) / total) for of, s in found.served_by_class.items() if of[1] is kind]
            service += [min((s for s, _ in served), default=1.0), sum(s * part for s, part in served)]
        return (*(round(part, 5) for part in service), found.objective - found.load_cost)

    def merged(self) -> "Problem":
        """The same without SLO classes: demands of an app and class added up, at the tightest SLO."""
        found: dict[tuple[str, QueryClass], AppDemand] = {}
        for d in self.demands:
            known = found.get((d.app, d.query_class))
            if known is not None:
                d = replace(known, qps=known.qps + d.qps, slo=min(known.slo, d.slo))
            found[d.app, d.query_class] = d
        return replace(self, demands=tuple(found.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """An answer. ``objective`` and ``bound``: mean over served queries, each at its app's weight, of accuracy over that
    of the app's best variant (0..1), so that apps of different metrics weigh alike; ``gap`` = bound - objective.

    ``served``: fraction of each app's demand. ``loads``: (device, variant) pairs not in ``previous``.
    ``served_by_class``: the same as ``served`` by (app, class). ``headroom``: by app, where the planner chose another.
    ``geometries``: slices of GPUs that are to be cut otherwise, where nothing is placed meanwhile; None where that was
    not thought about.
    ``steps``: what was solved, in order, and what came out. Same problem, same allocation, unless ``nondeterministic``.
    ``rough``: whether a better one may be found by searching, and was not looked for. ``load_cost``: what its loads are
    taken to cost, in accuracy over all demand.
    """

    placements: tuple[Placement, ...]
    served: Mapping[str, float]
    objective: float
    bound: float
    loads: int = 0
    steps: tuple[str, ...] = ()
    nondeterministic: bool = False
    served_by_class: Mapping[tuple[str, QueryClass], float] = field(default_factory=dict)
    headroom: Mapping[str, float] = field(default_factory=dict)
    geometries: Mapping[str, tuple[Slice, ...]] | None = None
    rough: bool = False
    load_cost: float = 0.0

    @property
    def gap(self) -> float:
        """How far from optimal it can be, in accuracy (0..1)."""
        return max(0.0, self.bound - self.objective)


class Planner(Protocol):
    """A named way to allocate. Pure and deterministic."""

    @property
    def name(self) -> str:
        """What it is called in settings and reports."""
        ...

    def allocate(self, problem: Problem) -> Allocation:
        """Always returns an allocation, with what can be served; raises InvalidInputError for NaN or negative input."""
        ...


def part_served(share: float) -> str:
    """``share`` of a demand that is not served whole, in percent: never told as all of it."""
    return f"{min(share, 0.999):.1%}"

"""The aggregated program: pools of identical devices, hosts (what a device may hold), serves (who is served there).

Rules:
- A unit is one slice of one device. Units of the same type, slice profile and memory are one pool: they are
  interchangeable, so counting them has the optimum of the program with a variable for each device.
- A host is a set of variants that a unit of a pool may hold; n_h (integer) units hold it. A serve is one demand
  answered by one variant of a host; f_s in [0, 1] is the share of the demand answered there. A unit has one second a
  second: sum over its serves of need_s * f_s <= n_h, need_s = headroom * demand / throughput, and f_s <= n_h.
- A serve runs in a lane of its host, and each lane has the unit's second: what a unit answers of the load that it bears
  easily, and of what comes on top, are lanes (``sluicegate.planner.allocation.table_columns``). Elsewhere all serves of
  a host share one lane.
- Loads: a unit that is given another variant takes an average unit's part of all demand, 1 / units, away from where it
  was. Once that demand returns it has no place until something was loaded again: for load_s_h seconds, less the
  ``NOTICED`` ones that it takes to be seen anyhow. What is gained lasts until then: as long again as the app's hosts
  have stood (``stood``), at least ``CALM`` seconds. Where units are to spare the demand finds a place all the same: it
  counts by the part of the units that is needed at least (``pressed``). So a load costs, in the objective,
  ``price`` x pressed x ``RETURNS`` (load_s_h - NOTICED) / units / max(CALM, stood). Where a load holds the unit up
  (``loads`` exclusive) it loses its part for certain besides, for load_s_h. Units that hold nothing displace nothing:
  it counts by the part of a pool that holds something (``group_units`` may keep the two apart).
- Money: sum of price_h * n_h <= budget. A core on demand: of what is served of a strict demand, at least the part
  ``strict_on_demand`` is served by units that are not spot.
- Everything is sorted by name: the order in which apps or devices are listed changes nothing.

After Proteus (ASPLOS 2024), section 4, with its Equations 1-6 corrected: shares instead of queries, the objective
divided by the total, capacity once for each unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.problems.plan_limits import Loads, PlanLimits
from sluicegate.planner.problems.problem import AppDemand
from sluicegate.planner.problems.throughput import Throughput

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
NOTICED = 1.0
"""Seconds after which a burst is seen: two counts."""
CALM = 10.0
"""Seconds that what a plan gains is expected to last, at least."""
RETURNS: Mapping[Loads, float] = {"beside": 1 / 3, "exclusive": 3.0}
"""Demand that is missed once it returns, over what a unit carries on average: chosen by simulation, by what a unit does
while it loads (docs/reference/proteus.md)."""


class PoolKey(NamedTuple):
    """What makes units interchangeable. ``type``: what profiles are filed under.

    ``device``: set where units are not to be taken as interchangeable. ``empty``: they hold nothing, where that counts.
    """

    type: str
    memory_bytes: int = 0
    price: float = 0.0
    spot: bool = False
    device: str = ""
    empty: bool = False


class Unit(NamedTuple):
    """One slice of one device and what it holds now, for which SLO class (0: all)."""

    device: str
    slice: str
    loaded: tuple[str, ...] = ()
    slo: float = 0.0


class Loaded(NamedTuple):
    """What units of a pool hold, for which SLO class (0: all)."""

    pool: PoolKey
    variants: tuple[str, ...]
    slo: float = 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant that can answer some demand in a pool. ``rates``: throughput by index of the demand."""

    variant: Variant
    rates: Mapping[int, Throughput]
    memory_bytes: int
    load_s: float


@dataclass(frozen=True, slots=True)
class Host:
    """A set of variants that units of ``pool`` may hold, sorted by name. ``loaded``: units that hold it now.

    ``stood``: seconds since its app was last given other hosts (of several apps the least). ``ranked``: the variants,
    most accurate first, where a selection table picks one for each batch; ``slo``: the SLO class it is for, 0: all;
    ``rate``: queries/s that a unit answers in the best batches of the fastest of them.
    """

    pool: int
    variants: tuple[str, ...]
    loaded: int
    load_s: float
    stood: float
    ranked: tuple[str, ...] = ()
    slo: float = 0.0
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Serve:
    """A demand answered by one variant of a host. ``need``: units it takes to answer all of the demand there.

    ``accuracy``: of the variant, over that of its app's best one (0..1). ``lane``: of the host.
    """

    host: int
    demand: int
    variant: str
    accuracy: float
    need: float
    batch: int
    qps: float
    lane: int = 0


class Way(NamedTuple):
    """A demand answered by a host, all its lanes together. ``accuracy``: of the best one."""

    demand: int
    host: int
    need: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Program(PlanLimits):
    """Columns and rows, in a fixed order. A demand of zero asks for nothing and may get what is left over.

    ``empty_units``: those that hold nothing, by pool. ``pressed``: part of all units (0..1) that the whole demand takes
    where each app is served by its fastest hosts.
    """

    demands: tuple[AppDemand, ...]
    pools: tuple[PoolKey, ...]
    counts: tuple[int, ...]
    hosts: tuple[Host, ...]
    serves: tuple[Serve, ...]
    empty_units: tuple[int, ...]
    pressed: float = 1.0

    @cached_property
    def need(self) -> Floats:
        """Units for the whole demand, by serve."""
        return np.array([s.need for s in self.serves], dtype=np.float64)

    @cached_property
    def accuracy(self) -> Floats:
        """Accuracy by serve, that of each app's best variant being 1."""
        return np.array([s.accuracy for s in self.serves], dtype=np.float64)

    @cached_property
    def serve_host(self) -> Ints:
        """Host by serve."""
        return np.array([s.host for s in self.serves], dtype=np.int64)

    @cached_property
    def serve_lane(self) -> Ints:
        """Lane by serve, counted over all hosts."""
        number: dict[tuple[int, int], int] = {}
        lanes = [number.setdefault((s.host, s.lane), len(number)) for s in self.serves]
        return np.array(lanes, dtype=np.int64)

    @cached_property
    def lane_host(self) -> Ints:
        """Host by lane."""
        found = np.zeros(int(self.serve_lane.max()) + 1 if self.serves else 0, dtype=np.int64)
        found[self.serve_lane] = self.serve_host
        return found

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        """Who can be answered by which hosts, in order of serves."""
        found: dict[tuple[int, int], tuple[float, float]] = {}
        for s in self.serves:
            rate, accuracy = found.get((s.demand, s.host), (0.0, 0.0))
            found[s.demand, s.host] = (rate + 1.0 / max(s.need, 1e-12), max(accuracy, s.accuracy))
        return tuple(Way(d, h, 1.0 / rate, accuracy) for (d, h), (rate, accuracy) in found.items())

    @cached_property
    def serve_demand(self) -> Ints:
        """Demand by serve."""
        return np.array([s.demand for s in self.serves], dtype=np.int64)

    @cached_property
    def host_pool(self) -> Ints:
        """Pool by host."""
        return np.array([h.pool for h in self.hosts], dtype=np.int64)

    @cached_property
    def rent(self) -> Floats:
        """Price an hour of a unit, by host."""
        return np.array([self.pools[h.pool].price for h in self.hosts], dtype=np.float64)

    @cached_property
    def spot(self) -> npt.NDArray[np.bool_]:
        """Whether its units may be taken away, by host."""
        return np.array([self.pools[h.pool].spot for h in self.hosts], dtype=np.bool_)

    @cached_property
    def loaded(self) -> Ints:
        """Units that hold it now, by host."""
        return np.array([h.loaded for h in self.hosts], dtype=np.int64)

    @cached_property
    def load_s(self) -> Floats:
        """Seconds to load, by host."""
        return np.array([h.load_s for h in self.hosts], dtype=np.float64)

    @cached_property
    def load_price(self) -> Floats:
        """What giving one unit to a host costs, in the objective, by host."""
        holding = np.zeros(len(self.pools))
        np.add.at(holding, self.host_pool, self.loaded)
        part = np.minimum(1.0, holding / np.maximum(1, self.pool_count))
        if self.loads == "free":
            return np.zeros(len(self.hosts))
        slow = np.maximum(0.0, self.load_s - NOTICED)
        missed = RETURNS[self.loads] * slow + (self.load_s if self.loads == "exclusive" else 0.0)
        lasts = np.array([max(CALM, h.stood) for h in self.hosts])
        units = max(1, int(self.pool_count.sum()))
        return np.asarray(self.price * self.pressed * missed / units / lasts * part[self.host_pool])

    @cached_property
    def pool_count(self) -> Ints:
        """Units by pool."""
        return np.array(self.counts, dtype=np.int64)

    @cached_property
    def weight(self) -> Floats:
        """Share of the whole demand, each query at the weight of its app, by demand."""
        value = np.array([d.qps * d.weight for d in self.demands], dtype=np.float64)
        total = value.sum()
        return value / total if total > 0 else value

    @cached_property
    def strict(self) -> npt.NDArray[np.bool_]:
        """Whether the demand is strict, by demand."""
        return np.array([d.query_class is QueryClass.STRICT for d in self.demands], dtype=np.bool_)

    @cached_property
    def served_somewhere(self) -> npt.NDArray[np.bool_]:
        """Whether any host can answer it, by demand."""
        found = np.zeros(len(self.demands), dtype=np.bool_)
        found[self.serve_demand] = True
        return found

    @cached_property
    def serves_of_host(self) -> tuple[tuple[int, ...], ...]:
        """Indices of serves, by host."""
        lists: list[list[int]] = [[] for _ in self.hosts]
        for i, serve in enumerate(self.serves):
            lists[serve.host].append(i)
        return tuple(tuple(x) for x in lists)

    @cached_property
    def unit_limit(self) -> Ints:
        """Units beyond which more of a host are useless: ceil of the need of all it answers, by host."""
        by_lane = np.zeros(len(self.lane_host))
        np.add.at(by_lane, self.serve_lane, self.need)
        total = np.zeros(len(self.hosts))
        np.maximum.at(total, self.lane_host, by_lane)
        useful = np.maximum(1, np.ceil(total - 1e-9))
        return np.asarray(np.minimum(useful, self.pool_count[self.host_pool]), dtype=np.int64)

    @cached_property
    def independent(self) -> bool:
        """Whether every host answers one app, by one variant a lane: apps are independent once counts are given."""
        return all(len(h.variants) == 1 or h.ranked for h in self.hosts)

    @property
    def priced(self) -> bool:
        """Whether loads or money count, so that host counts need columns of their own."""
        return (
            bool(self.load_price.any())
            or self.max_loads is not None
            or self.money_weight > 0
            or self.budget is not None
        )

    def affordable(self, units: Ints) -> bool:
        """Whether these units, by host, keep within the budget."""
        return self.budget is None or float(self.rent @ units) <= self.budget * (1 + 1e-9) + 1e-9

    def allowed(self, units: Ints) -> bool:
        """Whether these units, by host, keep within the budget and the number of loads."""
        if not self.affordable(units):
            return False
        return self.max_loads is None or int(np.maximum(0, self.loads_beyond_empty(units)).sum()) <= self.max_loads

    def loads_beyond_empty(self, units: Ints) -> Ints:
        """Units loaded anew, less those that hold nothing, by pool: how many in use are, or, below 0, how many that
        hold nothing are not."""
        anew = np.maximum(0, units - self.loaded)
        loads = np.bincount(self.host_pool, weights=anew, minlength=len(self.pools))
        return np.asarray(loads - np.array(self.empty_units), dtype=np.int64)

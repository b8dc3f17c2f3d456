"""The aggregated program: pools of identical devices, hosts (what a device may hold), serves (who is served there).

Rules:
- A unit is one slice of one device. Units of the same type, slice profile and memory are one pool: they are
  interchangeable, so counting them has the optimum of the program with a variable for each device.
- A host is a set of variants that a unit of a pool may hold; n_h (integer) units hold it. A serve is one demand
  answered by one variant of a host; f_s in [0, 1] is the share of the demand answered there. A unit has one second a
  second: sum over its serves of need_s * f_s <= n_h, need_s = headroom * demand / throughput, and f_s <= n_h.
- A variant is left out of a pool where another variant of the app is at least as accurate and at least as fast there
  (and, where units hold several, not larger). What is loaded somewhere stays in.
- Everything is sorted by name: the order in which apps or devices are listed changes nothing.

After Proteus (ASPLOS 2024), section 4, with its Equations 1-6 corrected: shares instead of queries, the objective
divided by the total, capacity once for each unit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from domain.app import QueryClass
from domain.device import WHOLE, Device
from domain.plan import Placement
from domain.variant import Variant
from planner.capacity import Throughput, throughput
from planner.problem import AppDemand, Problem
from profiles.catalogue import Catalogue

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class PoolKey(NamedTuple):
    """What makes units interchangeable. ``type``: what profiles are filed under."""

    type: str
    memory_bytes: int = 0
    price: float = 0.0
    spot: bool = False

    @property
    def label(self) -> str:
        """A short name for reports."""
        return f"{self.type} (spot)" if self.spot else self.type


class Unit(NamedTuple):
    """One slice of one device and what it holds now."""

    device: str
    slice: str
    loaded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant that can answer some demand in a pool. ``rates``: throughput by index of the demand."""

    variant: Variant
    rates: Mapping[int, Throughput]
    memory_bytes: int
    load_s: float


@dataclass(frozen=True, slots=True)
class Host:
    """A set of variants that units of ``pool`` may hold, sorted by name. ``loaded``: units that hold it now."""

    pool: int
    variants: tuple[str, ...]
    loaded: int
    load_s: float


@dataclass(frozen=True, slots=True)
class Serve:
    """A demand answered by one variant of a host. ``need``: units it takes to answer all of the demand there."""

    host: int
    demand: int
    variant: str
    accuracy: float
    need: float
    batch: int
    qps: float


@dataclass(frozen=True)
class Program:
    """Columns and rows, in a fixed order. A demand of zero asks for nothing and may get what is left over."""

    demands: tuple[AppDemand, ...]
    pools: tuple[PoolKey, ...]
    counts: tuple[int, ...]
    hosts: tuple[Host, ...]
    serves: tuple[Serve, ...]
    switching_weight: float = 0.0
    max_loads: int | None = None
    money_weight: float = 0.0
    empty_units: int = 0
    candidates: Mapping[tuple[int, str], tuple[Candidate, ...]] = field(default_factory=dict)

    @cached_property
    def need(self) -> Floats:
        """Units for the whole demand, by serve."""
        return np.array([s.need for s in self.serves], dtype=np.float64)

    @cached_property
    def accuracy(self) -> Floats:
        """Accuracy by serve."""
        return np.array([s.accuracy for s in self.serves], dtype=np.float64)

    @cached_property
    def serve_host(self) -> Ints:
        """Host by serve."""
        return np.array([s.host for s in self.serves], dtype=np.int64)

    @cached_property
    def serve_demand(self) -> Ints:
        """Demand by serve."""
        return np.array([s.demand for s in self.serves], dtype=np.int64)

    @cached_property
    def host_pool(self) -> Ints:
        """Pool by host."""
        return np.array([h.pool for h in self.hosts], dtype=np.int64)

    @cached_property
    def loaded(self) -> Ints:
        """Units that hold it now, by host."""
        return np.array([h.loaded for h in self.hosts], dtype=np.int64)

    @cached_property
    def load_s(self) -> Floats:
        """Seconds to load, by host."""
        return np.array([h.load_s for h in self.hosts], dtype=np.float64)

    @cached_property
    def pool_count(self) -> Ints:
        """Units by pool."""
        return np.array(self.counts, dtype=np.int64)

    @cached_property
    def weight(self) -> Floats:
        """Share of the whole demand, by demand."""
        qps = np.array([d.qps for d in self.demands], dtype=np.float64)
        total = qps.sum()
        return qps / total if total > 0 else qps

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
        total = np.zeros(len(self.hosts))
        np.add.at(total, self.serve_host, self.need)
        useful = np.maximum(1, np.ceil(total - 1e-9))
        return np.asarray(np.minimum(useful, self.pool_count[self.host_pool]), dtype=np.int64)

    @cached_property
    def independent(self) -> bool:
        """Whether every host answers one app with one variant: apps are then independent once counts are given."""
        return all(len(h.variants) == 1 for h in self.hosts)

    @property
    def priced(self) -> bool:
        """Whether loads or money count, so that host counts need columns of their own."""
        return self.switching_weight > 0 or self.max_loads is not None or self.money_weight > 0


def profile_type(device_type: str, slice_profile: str) -> str:
    """Device type that profiles of a slice are filed under: the device's own for a whole one, else "type:profile"."""
    return device_type if slice_profile == WHOLE else f"{device_type}:{slice_profile}"


def group_units(
    devices: Iterable[Device], previous: Iterable[Placement], *, by_price: bool
) -> dict[PoolKey, list[Unit]]:
    """Units by pool, pools and units sorted. ``by_price``: spot and dear devices are pools of their own."""
    held: dict[tuple[str, str], set[str]] = {}
    for placement in previous:
        held.setdefault((placement.device, placement.slice), set()).update(placement.variants)
    pools: dict[PoolKey, list[Unit]] = {}
    for device in sorted(devices, key=lambda d: d.name):
        for part in device.slices:
            memory = device.memory_bytes if part.profile == WHOLE else part.memory_bytes
            price, spot = (device.price, device.spot) if by_price else (0.0, False)
            key = PoolKey(profile_type(device.type, part.profile), memory, price, spot)
            loaded = held.get((device.name, part.name))
            unit = Unit(device.name, part.name, tuple(sorted(loaded)) if loaded else ())
            pools.setdefault(key, []).append(unit)
    return dict(sorted(pools.items()))


def build(
    problem: Problem, pools: Mapping[PoolKey, int], loaded: Mapping[tuple[PoolKey, tuple[str, ...]], int]
) -> Program:
    """The program of ``problem`` over ``pools`` (units by pool); ``loaded``: units by pool and what they hold now."""
    demands = tuple(sorted(problem.demands, key=lambda d: (d.app, d.query_class)))
    keys = tuple(sorted(pools))
    held: dict[PoolKey, set[str]] = {}
    for (key, names), count in loaded.items():
        if count:
            held.setdefault(key, set()).update(names)
    by_app: dict[str, list[int]] = {}
    for i, demand in enumerate(demands):
        by_app.setdefault(demand.app, []).append(i)
    variants = _variants_by_app(problem.catalogue)
    hosts: list[Host] = []
    serves: list[Serve] = []
    kept: dict[tuple[int, str], tuple[Candidate, ...]] = {}
    for p, key in enumerate(keys):
        if not pools[key]:
            continue
        for app, indices in by_app.items():
            found = candidates(problem, key, variants.get(app, ()), {i: demands[i] for i in indices})
            kept[p, app] = prune(found, held.get(key, ()))
            for candidate in kept[p, app]:
                names = (candidate.variant.name,)
                hosts.append(Host(p, names, loaded.get((key, names), 0), candidate.load_s))
                serves.extend(_serves(len(hosts) - 1, candidate, demands))
    return Program(
        demands=demands,
        pools=keys,
        counts=tuple(pools[k] for k in keys),
        hosts=tuple(hosts),
        serves=tuple(serves),
        switching_weight=problem.switching_weight,
        max_loads=problem.max_loads,
        money_weight=problem.money_weight,
        empty_units=sum(pools.values()) - sum(n for (_, names), n in loaded.items() if names),
        candidates=kept,
    )


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
            rate = throughput(
                profile, demand.slo / (sharing + 1), capacity=problem.capacity, quantile=problem.quantile, factor=factor
            )
            if rate.batch:
                rates[i] = rate
        if rates:
            found.append(Candidate(variant, rates, profile.memory_bytes, profile.load))
    return found


def prune(found: Sequence[Candidate], loaded: Iterable[str] = (), *, by_memory: bool = False) -> tuple[Candidate, ...]:
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


def _serves(host: int, candidate: Candidate, demands: Sequence[AppDemand]) -> Iterable[Serve]:
    for i, rate in candidate.rates.items():
        need = demands[i].headroom * demands[i].qps / rate.qps
        yield Serve(host, i, candidate.variant.name, candidate.variant.accuracy, need, rate.batch, rate.qps)


def _variants_by_app(catalogue: Catalogue) -> dict[str, list[Variant]]:
    grouped: dict[str, list[Variant]] = {}
    for variant in catalogue.variants.values():
        grouped.setdefault(variant.app, []).append(variant)
    return grouped

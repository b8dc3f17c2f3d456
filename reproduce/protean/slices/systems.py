"""Named systems: how each places, dispatches, cuts and buys. A scenario's system starts from one of these."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from reproduce.protean.baselines import STRATEGIES, strategy
from reproduce.protean.geometry_demand import first_cut, lasting
from reproduce.protean.gpu_choice import DISPATCHES
from reproduce.protean.slices.cluster import Rules
from reproduce.protean.slices.controls import JointControl, ProteanControl
from reproduce.protean.slices.oracle import OracleControl, Way
from reproduce.protean.slices.slices_fields import SliceScenario, SystemSpec
from reproduce.protean.slices.spot import BoughtNodes
from reproduce.protean.slices.workload import Workload
from reproduce.protean.slices.world import Control, World
from sluicegate.domain.errors import ConfigurationError
from sluicegate.planner.capacity.procurement import Mode, Prices
from sluicegate.planner.geometry.mig_tables import TABLES, Geometry, parse_geometry
from sluicegate.policies.placement.slice_queue_port import SlicePlacement
from sluicegate.policies.placement.strict import StrictRoom
from sluicegate.profiles.catalogue.slowdown import SlowdownTable


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system by name: how it places, dispatches, cuts and buys.

    ``geometry``: at the start; None: the scenario's own, or for the joint rule what it chooses before any demand is
    known. ``reserve``: of strict-room.
    """

    placement: str
    dispatch: str = "round-robin"
    reconfiguration: str = "none"
    geometry: str | None = None
    procurement: Mode = "on-demand"
    reserve: int = 0
    keep_alive_s: float | None = None


_PROTEAN = System(placement="strict-first", reconfiguration="protean", geometry="4g+3g", procurement="hybrid")

SYSTEMS: Mapping[str, System] = {
    "joint": System(placement="strict-room", reconfiguration="joint", procurement="hybrid"),
    "protean": _PROTEAN,
    # PROTEAN's geometry with our queue, and ours with its: whose share of a gain is what.
    "protean-queue": replace(_PROTEAN, placement="strict-room"),
    "joint-geometry": System(placement="strict-first", reconfiguration="joint", procurement="hybrid"),
    "protean-published": replace(_PROTEAN, reconfiguration="protean-published"),
    "oracle": System(placement="strict-room", reconfiguration="oracle", procurement="hybrid"),
    "infless": System(placement="fifo-shared", geometry="7g"),
    "molecule": System(placement="fifo-time-shared", geometry="7g"),
    "naive": System(placement="weighted-round-robin", geometry="4g+2g+1g"),
    "mig-only": System(placement="round-robin-time-shared", geometry="4g+3g"),
    "mps-mig": System(placement="round-robin-shared", geometry="4g+3g"),
    "smart": System(placement="class-slices", geometry="4g+3g"),
    "gpulet": System(placement="capped-shared", geometry="7g"),
    "spot-only": replace(_PROTEAN, procurement="spot-only"),
}
"""By name."""


def system_of(scenario: SliceScenario, label: str) -> System:
    """The system called ``label``. Raises ConfigurationError."""
    spec = scenario.systems.get(label) or SystemSpec()
    base = SYSTEMS.get(spec.like or label)
    if base is None:
        known = ", ".join(SYSTEMS)
        raise ConfigurationError(
            f"systems.{label}: no system is called {spec.like or label!r}; name one with like: {known}"
        )
    given = {k: v for k, v in spec.model_dump(exclude={"like"}).items() if v is not None}
    return replace(base, **given)


def world_of(scenario: SliceScenario, label: str, workload: Workload, seed: int) -> World:
    """A world that is about to begin."""
    system = system_of(scenario, label)
    table = scenario.table()
    containers = scenario.containers
    r = scenario.reconfiguration
    rules = Rules(
        make_queue=_queue(system, table),
        geometry=_geometry(scenario, system),
        reshape_s=r.reshape_s,
        fraction=r.fraction,
        # The joint plan weighs changes itself: its wishes need not be repeated.
        patience=1 if system.reconfiguration == "joint" else r.patience,
        published=system.reconfiguration == "protean-published",
        cold_start_s=containers.cold_start_s,
        keep_alive_s=containers.keep_alive_s if system.keep_alive_s is None else system.keep_alive_s,
    )
    p = scenario.procurement
    nodes = BoughtNodes(
        system.procurement,
        p.market(),
        Prices(p.on_demand_price, p.spot_price),
        np.random.default_rng([seed, 4]),
        core=p.core if system.procurement == "hybrid" else 0,
    )
    return World(
        workload,
        table,
        TABLES[scenario.gpus.type],
        scenario.gpus.count,
        rules,
        dispatch=DISPATCHES[system.dispatch](table),
        control=_control(scenario, system, table, workload, seed),
        nodes=nodes,
    )


def _geometry(scenario: SliceScenario, system: System) -> Geometry:
    if system.geometry is None and system.reconfiguration == "joint":
        table, strict, multiplier = scenario.table(), scenario.workload.strict, scenario.workload.slo_multiplier
        kept = lasting(TABLES[scenario.gpus.type], table, strict, scenario.opposite(), multiplier=multiplier)
        return first_cut(kept, table, strict, multiplier=multiplier)
    return parse_geometry(system.geometry or scenario.gpus.geometry)


class _MakeQueue:
    """Makes a GPU's queue; an object, so that worlds can be copied and pickled."""

    def __init__(self, system: System, table: SlowdownTable, reserve: int | None = None) -> None:
        self._system, self._table, self._reserve = system, table, reserve

    def __call__(self) -> SlicePlacement:
        if self._system.placement == StrictRoom.name:
            return StrictRoom(self._table, reserve=self._system.reserve if self._reserve is None else self._reserve)
        return strategy(self._system.placement, self._table)


def _queue(system: System, table: SlowdownTable, reserve: int | None = None) -> _MakeQueue:
    return _MakeQueue(system, table, reserve)


def _control(
    scenario: SliceScenario, system: System, table: SlowdownTable, workload: Workload, seed: int
) -> Control | None:
    r = scenario.reconfiguration
    multiplier = scenario.workload.slo_multiplier
    match system.reconfiguration:
        case "protean" | "protean-published":
            return ProteanControl(
                period=r.protean_period_s,
                window=r.window_s,
                multiplier=multiplier,
                published=system.reconfiguration == "protean-published",
            )
        case "joint":
            return JointControl(
                period=r.joint_period_s,
                multiplier=multiplier,
                change_weight=r.change_weight,
                gpu_type=scenario.gpus.type,
                registered=scenario.opposite(),
            )
        case "oracle":
            usual, others = _ways(table)
            rivals = {"joint": "joint", "protean": "protean"}
            plain = scenario.model_copy(update={"systems": dict.fromkeys(rivals)})
            shadows = {name: world_of(plain, name, workload, seed) for name in rivals}
            return OracleControl(usual, others, period=r.oracle_period_s, multiplier=multiplier, shadows=shadows)
        case _:
            return None


def _ways(table: SlowdownTable) -> tuple[dict[str, Way], dict[str, Way]]:
    """The usual ways to place, and every queue with every dispatch."""
    queues = {name: _queue(System(placement=name), table) for name in STRATEGIES}
    queues["strict-room, reserve"] = _queue(System(placement=StrictRoom.name), table, 1)
    every = {
        f"{queue}, {dispatch}": Way(make_queue, partial(make, table))
        for queue, make_queue in queues.items()
        for dispatch, make in DISPATCHES.items()
    }
    usual = [
        *(f"{StrictRoom.name}, {d}" for d in ("round-robin", "least-slowdown")),
        f"{StrictRoom.name}, reserve, round-robin",
        "strict-first, round-robin",
    ]
    return {name: every.pop(name) for name in usual}, every

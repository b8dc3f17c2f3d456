"""The control plane of a scenario: planners, and capacity that comes and goes beside them."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fleet.device import Device
from sluicegate.planner.allocation.solver_types import Limits
from sluicegate.planner.capacity.core import CapacityCore
from sluicegate.planner.capacity.cores import load_core, model_less_core, spot_core
from sluicegate.planner.capacity.procurement import CostMeter, Prices
from sluicegate.planner.control.controller_settings import ControllerSettings
from sluicegate.planner.control.core import CoreSettings, PlannerCore
from sluicegate.planner.estimates.demand_estimate import demand_settings
from sluicegate.planner.geometry.geometry_search import GeometrySettings
from sluicegate.planner.geometry.recut_tracker import ChangeSettings
from sluicegate.planner.model_less.scaling_planners import TICK, UNHURRIED
from sluicegate.planner.policy_tables.table_requests import TableRules
from sluicegate.planner.problems.plan_limits import Loads, limits_of
from sluicegate.planner.problems.problem import Planner
from sluicegate.planner.registry import planner_of
from sluicegate.policies.model_less.instance_states import LEASE, InstanceIndex
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.simulator.engine.control_plane import ControlPlane
from sluicegate.simulator.engine.elastic_control import CapacityModel, ElasticControl, SpotNotice
from sluicegate.simulator.engine.faults import Failure
from sluicegate.simulator.engine.modelled_tables import TableModel
from sluicegate.simulator.engine.planned_control import Controlled, PlannerModel
from sluicegate.simulator.scenario.mdp_scenario import rated_by
from sluicegate.simulator.scenario.scenario_fields import PlannerSpec, Scenario

_MARKET = 3
_SEARCHED = Limits(nodes=50)
"""Nodes of the search of a geometry, as live, without its limit in seconds."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Selection tables. ``rules``: by which plans rate slices that hold several variants; ``model``: how making them is
    modelled, where planners publish them too."""

    rules: TableRules
    model: TableModel | None


def control_of(
    scenario: Scenario,
    timer: Callable[[], float],
    catalogue: Catalogue,
    devices: tuple[Device, ...],
    tables: TableRules | None,
) -> ControlPlane:
    """The control plane of ``scenario``. ``timer``: wall seconds, to measure solves. ``tables``: how planners make
    selection tables, if they do. Raises ConfigurationError."""
    spec = scenario.planner
    searched = GeometrySettings(limits=_SEARCHED)
    chosen = planner_of(spec, geometries=searched)

    def make_planner() -> Planner:
        return planner_of(spec, geometries=searched) if spec.scales else chosen

    hop = scenario.simulation.control_ms / 1e3
    rated = rated_by(scenario.tables, scenario.policies)
    model = None
    if tables is not None and scenario.tables is not None:
        model = TableModel(make_s=scenario.tables.make_s, library=tables.library)
    made = Tables(rated, model) if rated is not None else None
    loads = scenario.simulation.loads
    plans = control(spec, make_planner, timer, catalogue=catalogue, devices=devices, hop=hop, loads=loads, tables=made)
    meter = _meter(scenario, devices)
    inner: ControlPlane = _scaled(scenario, plans, devices, meter) if spec.scales else plans
    return elastic(scenario, inner, catalogue, devices, meter)


def _scaled(scenario: Scenario, plans: Controlled, devices: tuple[Device, ...], meter: CostMeter) -> ControlPlane:
    """Model-less scaling beside each planner."""
    spec, scaling = scenario.planner, scenario.scaling
    model = CapacityModel(
        driven=spec.spare,
        others=scaling.spare if scaling is not None else (),
        start_s=spec.start_s,
        heartbeat=scenario.simulation.heartbeat_s,
    )

    def make_core() -> CapacityCore:
        return model_less_core(spec.spare, devices, InstanceIndex(), timeout=spec.device_timeout_s, lease=LEASE)

    inner: ControlPlane = plans
    for beside in plans.running:
        inner = ElasticControl(inner, make_core, model, meter=meter, beside=beside)
    return inner


def _meter(scenario: Scenario, devices: tuple[Device, ...]) -> CostMeter:
    """Of ``devices`` at their own prices; where instances are bought, of spare ones alone: the bill has the others."""
    counted = {d.name for d in devices} if scenario.procurement is None else _spare(scenario)
    return CostMeter(Prices(0.0, 0.0), {d.name: Prices(d.price, d.price) for d in devices if d.name in counted})


def _spare(scenario: Scenario) -> frozenset[str]:
    return frozenset((*scenario.planner.spare, *(scenario.scaling.spare if scenario.scaling is not None else ())))


def control(
    spec: PlannerSpec,
    make_planner: Callable[[], Planner],
    timer: Callable[[], float],
    *,
    catalogue: Catalogue,
    devices: tuple[Device, ...],
    hop: float,
    loads: Loads,
    tables: Tables | None,
) -> Controlled:
    """The planners of a run, ``make_planner`` of what is behind each. ``tables``: where workers choose among variants.
    Raises ConfigurationError."""
    unhurried = spec.scales or tables is not None
    patience = max(spec.patience_s, UNHURRIED) if unhurried else spec.patience_s
    rules = controller_settings(spec, loads, tables.rules if tables is not None else None)
    published = tables.rules if tables is not None and tables.model is not None else None
    settings = CoreSettings(rules=rules, lease=spec.lease_s, patience=patience, tables=published)
    names = [f"planner{i}" for i in range(spec.planners)]
    for failure in spec.failures:
        if failure.planner not in names:
            raise ConfigurationError(f"planner.failures: {failure.planner!r} is none of {', '.join(names)}")
    model = PlannerModel(
        solve_s=spec.latency_s,
        hop_s=hop,
        planners=spec.planners,
        failures=tuple(Failure(f.planner, f.at_s, f.until_s or inf) for f in spec.failures),
        tables=(tables.model if tables is not None else None) or TableModel(),
    )
    return Controlled(
        lambda holder: PlannerCore(catalogue, holder=holder, settings=settings, devices=devices),
        make_planner,
        model,
        timer,
    )


def elastic(
    scenario: Scenario, inner: ControlPlane, catalogue: Catalogue, devices: tuple[Device, ...], meter: CostMeter
) -> ControlPlane:
    """``inner``, and elastic capacity beside it where the scenario has any. Raises ConfigurationError."""
    scaling, bought, heartbeat = scenario.scaling, scenario.procurement, scenario.simulation.heartbeat_s
    others = {*(scaling.spare if scaling is not None else ()), *(d.name for d in devices if d.spot and bought)}
    if both := sorted(others & {*scenario.planner.spare}):
        raise ConfigurationError(f"planner.spare: {both[0]!r} is driven by scaling or procurement already")
    if scaling is not None:
        rules = scaling.rules()
        inner = ElasticControl(
            inner,
            lambda: load_core(rules, catalogue, devices, scenario.planner.quantile),
            CapacityModel(
                driven=scaling.spare,
                others=scenario.planner.spare,
                period=scaling.period_s,
                heartbeat=heartbeat,
                start_s=scaling.start_s,
            ),
            meter=meter,
        )
    if bought is not None:
        spot = tuple(d.name for d in devices if d.spot)
        for notice in bought.notices:
            if notice.device not in spot:
                raise ConfigurationError(f"procurement.notices: {notice.device!r} is no spot device")
        if scaling is not None and (both := sorted({*scaling.spare} & {*spot})):
            raise ConfigurationError(f"scaling.spare: {both[0]!r} is a spot device; procurement looks after those")
        market = bought.rules()
        rng = np.random.default_rng([scenario.seed, _MARKET])
        model = CapacityModel(
            driven=spot,
            period=bought.poll_s,
            heartbeat=heartbeat,
            start_s=bought.start_s,
            notices=tuple(SpotNotice(n.device, n.at_s, n.deadline_s) for n in bought.notices),
            boot_s=bought.boot_s,
            granted=lambda: bool(rng.random() >= bought.p_rev),
        )
        inner = ElasticControl(inner, lambda: spot_core(market, devices, _spare(scenario)), model)
    return inner


def controller_settings(
    spec: PlannerSpec, loads: Loads = "beside", tables: TableRules | None = None
) -> ControllerSettings:
    """Settings of the controller, here and live; ``loads``: as executors do; ``tables``: by which plans rate slices.
    Raises ConfigurationError."""
    shares = spec.name.startswith("allocation") and spec.geometry != "protean" and not spec.takes_its_place
    return ControllerSettings(
        plan_period=min(spec.period_s, TICK) if spec.scales else spec.period_s,
        burst_interval=spec.burst_interval_s,
        device_timeout=spec.device_timeout_s,
        headroom=spec.headroom,
        capacity=spec.capacity,
        quantile=spec.quantile,
        variants_per_device=spec.variants_per_device or (None if shares else 1),
        **limits_of(spec, loads),
        geometry=spec.geometry,
        changes=ChangeSettings(patience=spec.geometry_patience_s, rest=spec.geometry_rest_s),
        demand=demand_settings(spec.demand, "planner.demand"),
        tables=tables,
    )

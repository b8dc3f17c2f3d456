"""Cores of elastic capacity as they are set, live and simulated."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.profile import Quantile
from sluicegate.planner.capacity.autoscaling import Autoscaler, ScalingSettings, units
from sluicegate.planner.capacity.core import CapacityCore
from sluicegate.planner.capacity.load_scaling import LoadScaling
from sluicegate.planner.capacity.model_less_control import Instances, LiveScaling, ModelLessScaling
from sluicegate.planner.capacity.procurement import CostMeter, Mode, Prices, Procurement
from sluicegate.planner.capacity.spare_pool import ElasticFleet
from sluicegate.planner.capacity.spot_capacity import BOOT_TIMEOUT, SpotCapacity
from sluicegate.profiles.catalogue.catalogue import Catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRules:
    """Settings of capacity that follows the load. ``spare``: devices that have a worker only while the load needs it,
    in the order in which they are started.

    ``keep_alive``: seconds for which the largest number wanted is kept. ``headroom``: capacity over load. ``lead``:
    seconds that a worker takes to serve. ``start_timeout``: silence after which one is started again.
    """

    spare: tuple[str, ...]
    keep_alive: float
    headroom: float
    lead: float
    settle: float
    patience: float
    start_timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotRules:
    """Settings of spot capacity. ``on_demand_price``: money an hour of a spot device's replacement. Times in
    seconds."""

    on_demand_price: float
    mode: Mode
    interval: float
    settle: float
    boot_timeout: float = BOOT_TIMEOUT


def load_core(rules: LoadRules, catalogue: Catalogue, devices: Sequence[Device], quantile: Quantile) -> CapacityCore:
    """As many workers as the load needs. Raises ConfigurationError for spare devices that cannot serve."""
    by_name = {d.name: d for d in devices}
    if unknown := sorted(set(rules.spare) - by_name.keys()):
        raise ConfigurationError(f"scaling.spare: {unknown[0]!r} is not among the devices")
    types = sorted({by_name[name].type for name in rules.spare})
    if len(types) > 1:
        raise ConfigurationError(f"scaling.spare: devices of one type only, not {', '.join(types)}")
    found = units(catalogue, types[0], quantile)
    if not found:
        raise ConfigurationError(f"scaling.spare: no app has a variant that is fast enough on {types[0]}")
    autoscaler = Autoscaler({u.variant: u.batch for u in found.values()}, ScalingSettings(keep_alive=rules.keep_alive))
    fleet = ElasticFleet(
        len(by_name) - len(rules.spare),
        rules.spare,
        settle=rules.settle,
        patience=rules.patience,
        start_timeout=rules.start_timeout,
    )
    served = partial(units, device_type=types[0], quantile=quantile)
    return CapacityCore(
        LoadScaling(found, autoscaler, fleet, headroom=rules.headroom, lead=rules.lead, units_of=served)
    )


def spot_core(rules: SpotRules, devices: Sequence[Device], driven: Collection[str] = ()) -> CapacityCore:
    """Spot devices come and go by notice. ``driven``: devices that others start and end, and count what they cost.

    Raises ConfigurationError where none is spot.
    """
    spot = tuple(d.name for d in devices if d.spot)
    if not spot:
        raise ConfigurationError("procurement: no device is set as spot; nothing could be taken back")
    prices = {d.name: Prices(rules.on_demand_price if d.spot else d.price, d.price) for d in devices}
    rule = SpotCapacity(
        Procurement(spot, rules.mode),
        CostMeter(Prices(rules.on_demand_price, 0.0), prices),
        spot=spot,
        always=[d.name for d in devices if not d.spot and d.name not in driven],
        interval=rules.interval,
        settle=rules.settle,
        boot_timeout=rules.boot_timeout,
    )
    return CapacityCore(rule)


def model_less_core(
    spare: Sequence[str], devices: Sequence[Device], instances: Instances, *, timeout: float, lease: float
) -> CapacityCore:
    """What goes with a planner that scales. ``timeout``: seconds of silence after which a worker is dead; ``lease``:
    that a record of an instance counts. Raises ConfigurationError for spare devices that are none."""
    types = {d.name: d.type for d in devices}
    if unknown := sorted(set(spare) - types.keys()):
        raise ConfigurationError(f"planner.spare: {unknown[0]!r} is not among the devices")
    scaling = LiveScaling({name: types[name] for name in spare}, timeout=timeout)
    return CapacityCore(ModelLessScaling(scaling, instances, lease=lease))

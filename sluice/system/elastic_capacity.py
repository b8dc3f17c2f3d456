"""Capacity that comes and goes: settings of drivers, scaling and procurement, and the stages made of them.

Off by default. Workers of spare and of spot devices are started and ended by the driver, not by ``sluice up worker``.
"""

import ipaddress
import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fleet.device import Device
from sluicegate.sluice.settings.endpoint_settings import Seconds, Section

if TYPE_CHECKING:
    from sluicegate.executors.drivers.provider import NoticeSource
    from sluicegate.executors.drivers.worker_drivers import WorkerDriver
    from sluicegate.planner.capacity.core import CapacityCore
    from sluicegate.sluice.system.system import System
    from sluicegate.stages.runtime.supervisor import Stage

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class DriverSettings(Section):
    """What starts and ends workers. "tasks": in this process; "processes": ``sluice up worker`` (kafka:// only).

    "compose": ``docker compose up --scale worker-<device>=1`` with ``compose_file``; with ``dry_run`` the commands are
    only written to the log. ``grace_s``: seconds that a process has to drain before it is killed.
    """

    name: Literal["tasks", "processes", "compose"] = "tasks"
    grace_s: Seconds = 30.0
    compose_file: Path = Path("compose/docker-compose.yml")
    dry_run: bool = False


class ScalingSettings(Section):
    """``spare``: devices that have a worker only while the load needs it, in the order in which they are started.

    ``keep_alive_s``: for how long the largest number wanted is kept. ``headroom``: capacity over load. ``lead_s``:
    seconds that a worker takes to serve. ``start_timeout_s``: silence after which one is started again.
    """

    spare: tuple[str, ...] = Field(min_length=1)
    keep_alive_s: NotNegative = 600.0
    headroom: float = Field(default=1.2, ge=1, le=10)
    lead_s: NotNegative = 10.0
    period_s: Seconds = 1.0
    settle_s: NotNegative = 3.0
    patience_s: Seconds = 60.0
    start_timeout_s: Seconds = 30.0


class ProcurementSettings(Section):
    """Devices with ``spot: true`` can be taken back; all others are the core that stays on demand.

    ``notices``: a file, or an http(s) address on this machine, that lists notices; elsewhere (a metadata service) only
    with ``notices_remote``. ``on_demand_price``: money an hour of a spot device's replacement; what it costs on spot is
    the device's own price. ``provider``: "simulated" grants spot with 1 - ``p_rev``, instances are up after ``boot_s``.
    """

    notices: str
    notices_remote: bool = False
    mode: Literal["hybrid", "spot-only"] = "hybrid"
    provider: Literal["simulated"] = "simulated"
    on_demand_price: NotNegative
    p_rev: Probability = 0.0
    boot_s: NotNegative = 20.0
    poll_s: Seconds = 1.0
    interval_s: Seconds = 60.0
    settle_s: NotNegative = 3.0
    seed: int = Field(default=0, ge=0)

    @field_validator("notices")
    @classmethod
    def _given(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("is empty; give a file or an http:// address")
        return value

    @model_validator(mode="after")
    def _near(self) -> "ProcurementSettings":
        if self.is_address and not self.notices_remote and not _loopback(urlsplit(self.notices).hostname or ""):
            raise ValueError(
                f"notices: {self.notices!r:.100} is not on this machine; set notices_remote if that is meant"
            )
        return self

    @property
    def is_address(self) -> bool:
        """Whether notices come over HTTP."""
        return self.notices.startswith(("http://", "https://"))


def driven(
    scaling: ScalingSettings | None, procurement: ProcurementSettings | None, devices: Sequence[Device]
) -> set[str]:
    """Devices whose workers a driver starts and ends. Raises ConfigurationError."""
    names = {d.name for d in devices}
    spare = set(scaling.spare) if scaling else set()
    if unknown := sorted(spare - names):
        raise ConfigurationError(f"scaling.spare: {unknown[0]!r} is not among the settings' devices")
    spot = {d.name for d in devices if d.spot} if procurement else set()
    if procurement and not spot:
        raise ConfigurationError("procurement: no device is set as spot; nothing could be taken back")
    if both := sorted(spare & spot):
        raise ConfigurationError(f"scaling.spare: {both[0]!r} is a spot device; procurement looks after those")
    return spare | spot


def scaler(system: "System") -> "Stage":
    """The stage ``scaler``. Raises ConfigurationError where nothing is to be scaled."""
    from sluicegate.stages.capacity.stage import CapacityStage

    chosen = system.settings.scaling
    if chosen is None:
        raise ConfigurationError("stage 'scaler': no spare devices are set; give scaling.spare")
    handle = system.recording(load_core(system, chosen).handle, "scaler")
    return CapacityStage("scaler", system.connections, handle, driver=driver(system), period=chosen.period_s)


def load_core(system: "System", chosen: ScalingSettings) -> "CapacityCore":
    """As many workers as the load needs. Raises ConfigurationError for devices that cannot serve."""
    from sluicegate.planner.capacity.autoscaling import Autoscaler, units
    from sluicegate.planner.capacity.autoscaling import ScalingSettings as Rule
    from sluicegate.planner.capacity.core import CapacityCore
    from sluicegate.planner.capacity.load_scaling import LoadScaling
    from sluicegate.planner.capacity.spare_pool import ElasticFleet

    by_name = {d.name: d for d in system.devices}
    types = sorted({by_name[name].type for name in chosen.spare})
    if len(types) > 1:
        raise ConfigurationError(f"scaling.spare: devices of one type only, not {', '.join(types)}")
    found = units(system.catalogue, types[0], system.settings.planner.quantile)
    if not found:
        raise ConfigurationError(f"scaling.spare: no app has a variant that is fast enough on {types[0]}")
    autoscaler = Autoscaler({u.variant: u.batch for u in found.values()}, Rule(keep_alive=chosen.keep_alive_s))
    fleet = ElasticFleet(
        len(by_name) - len(chosen.spare),
        chosen.spare,
        settle=chosen.settle_s,
        patience=chosen.patience_s,
        start_timeout=chosen.start_timeout_s,
    )
    return CapacityCore(LoadScaling(found, autoscaler, fleet, headroom=chosen.headroom, lead=chosen.lead_s))


def procurement(system: "System") -> "Stage":
    """The stage ``procurement``. Raises ConfigurationError where nothing is bought."""
    from sluicegate.executors.drivers.simulated_provider import SimulatedProvider
    from sluicegate.planner.capacity.procurement import Prices
    from sluicegate.stages.capacity.stage import CapacityStage, Market

    chosen = system.settings.procurement
    if chosen is None:
        raise ConfigurationError("stage 'procurement': nothing is bought; set procurement.notices")
    provider = SimulatedProvider(
        Prices(chosen.on_demand_price, 0.0),
        p_rev=chosen.p_rev,
        draw=random.Random(chosen.seed).random,  # noqa: S311 (a pretended market)
        now=system.clock.wall,
        boot=chosen.boot_s,
    )
    return CapacityStage(
        "procurement",
        system.connections,
        system.recording(spot_core(system, chosen).handle, "procurement"),
        driver=driver(system),
        period=chosen.poll_s,
        market=Market(_source(chosen), provider),
    )


def spot_core(system: "System", chosen: ProcurementSettings) -> "CapacityCore":
    """Spot devices come and go by notice."""
    from sluicegate.planner.capacity.core import CapacityCore
    from sluicegate.planner.capacity.procurement import CostMeter, Prices, Procurement
    from sluicegate.planner.capacity.spot_capacity import SpotCapacity

    spot = tuple(d.name for d in system.devices if d.spot)
    prices = {d.name: Prices(chosen.on_demand_price if d.spot else d.price, d.price) for d in system.devices}
    rule = SpotCapacity(
        Procurement(spot, chosen.mode),
        CostMeter(Prices(chosen.on_demand_price, 0.0), prices),
        spot=spot,
        always=[d.name for d in system.devices if not d.spot],
        interval=chosen.interval_s,
        settle=chosen.settle_s,
    )
    return CapacityCore(rule)


def driver(system: "System") -> "WorkerDriver":
    """As ``drivers`` says. Raises ConfigurationError."""
    from sluicegate.executors.drivers.worker_drivers import ComposeWorkers, WorkerProcesses, WorkerTasks, note_command

    chosen = system.settings.drivers
    if chosen.name == "tasks":
        return WorkerTasks(lambda device, stop: system.worker(device).run(stop))
    if system.settings.broker.startswith("memory:"):
        raise ConfigurationError(
            f"drivers.name: {chosen.name!r} needs kafka://; the embedded broker is this process's own"
        )
    if chosen.name == "compose":
        return ComposeWorkers(chosen.compose_file, run=note_command if chosen.dry_run else None)
    return WorkerProcesses(_command(system), grace=chosen.grace_s)


def _command(system: "System") -> Callable[[str], Sequence[str]]:
    """Workers run with these very settings, written down; secrets come by the environment, as here."""
    system.run_folder.mkdir(parents=True, exist_ok=True)
    file = system.run_folder / "worker-settings.json"
    file.write_text(json.dumps(_plain(system)), encoding="utf-8")
    return lambda device: (
        *(sys.executable, "-m", "sluicegate.sluice.main", "up", "worker"),
        *("--device", device, "--settings", str(file)),
    )


def _plain(system: "System") -> dict[str, Any]:
    """Without what listens: a port is one process's."""
    return system.settings.model_dump(mode="json", exclude={"http", "web", "metrics"}, exclude_none=True)


def _source(chosen: ProcurementSettings) -> "NoticeSource":
    from sluicegate.executors.drivers.notice_sources import file_notices, http_notices

    return http_notices(chosen.notices) if chosen.is_address else file_notices(Path(chosen.notices))


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""The stages of capacity that comes and goes, and the driver that starts and ends workers for them.

Off by default. Workers of spare and of spot devices are started and ended by the driver, not by ``sluice up worker``.
"""

import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.settings.elastic_settings import ProcurementSettings
from sluicegate.sluice.settings.handed_down import child_environment, write_down
from sluicegate.sluice.system.roles.worker import worker_stage
from sluicegate.sluice.system.system import System

if TYPE_CHECKING:
    from sluicegate.executors.drivers.provider import NoticeSource
    from sluicegate.executors.drivers.worker_drivers import WorkerDriver
    from sluicegate.stages.runtime.supervisor import Stage


def scaler(system: System) -> "Stage":
    """The stage ``scaler``. Raises ConfigurationError where nothing is to be scaled."""
    from sluicegate.planner.capacity.cores import load_core
    from sluicegate.stages.capacity.stage import CapacityStage

    chosen = system.settings.scaling
    if chosen is None:
        raise ConfigurationError("stage 'scaler': no spare devices are set; give scaling.spare")
    core = load_core(chosen.rules(), system.catalogue, system.devices, system.settings.planner.quantile)
    handle = system.recording(core.handle, "scaler")
    return CapacityStage("scaler", system.connections, handle, driver=driver(system), period=chosen.period_s)


def procurement(system: System) -> "Stage":
    """The stage ``procurement``. Raises ConfigurationError where nothing is bought."""
    from sluicegate.executors.drivers.simulated_provider import SimulatedProvider
    from sluicegate.planner.capacity.cores import spot_core
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
        system.recording(spot_core(chosen.rules(), system.devices).handle, "procurement"),
        driver=driver(system),
        period=chosen.poll_s,
        market=Market(_source(chosen), provider),
    )


def driver(system: System) -> "WorkerDriver":
    """As ``drivers`` says. Raises ConfigurationError."""
    from sluicegate.executors.drivers.worker_drivers import ComposeWorkers, WorkerProcesses, WorkerTasks, note_command

    chosen = system.settings.drivers
    if chosen.name == "tasks":
        return WorkerTasks(partial(_serve, system))
    if system.settings.broker.startswith("memory:"):
        raise ConfigurationError(
            f"drivers.name: {chosen.name!r} needs kafka://; the embedded broker is this process's own"
        )
    if chosen.name == "compose":
        return ComposeWorkers(chosen.compose_file, run=note_command if chosen.dry_run else None)
    return WorkerProcesses(_command(system), grace=chosen.grace_s, environment=child_environment(system.settings))


async def _serve(system: System, device: str, stop: asyncio.Event) -> None:
    """A worker of this process, which may come again."""
    worker = worker_stage(system, system.device(device))
    try:
        await worker.run(stop)
    finally:
        system.telemetry.over(worker.name)


def _command(system: System) -> Callable[[str], Sequence[str]]:
    """Workers run with these very settings, written down; secrets come by the environment, as here."""
    file = system.run_folder / "worker-settings.json"
    write_down(system.settings, file)
    return lambda device: (
        *(sys.executable, "-m", "sluicegate.sluice.main", "up", "worker"),
        *("--device", device, "--settings", str(file)),
    )


def _source(chosen: ProcurementSettings) -> "NoticeSource":
    from sluicegate.executors.drivers.notice_sources import file_notices, http_notices

    return http_notices(chosen.notices) if chosen.is_address else file_notices(Path(chosen.notices))

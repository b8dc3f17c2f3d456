"""Model-less scaling, wired: the stage beside the planner, its spare devices, the driver that starts their workers."""

from typing import TYPE_CHECKING

from domain.errors import ConfigurationError
from planner.scaling.live import LiveScaling
from planner.scaling.planners import ScalingPlanner
from sluice.capacity import driver
from stages.planner import PlannerStage
from stages.run import Stage
from stages.scaling import ScalingStage

if TYPE_CHECKING:
    from sluice.wiring import System


def scaling(system: "System", stage: PlannerStage, planner: ScalingPlanner) -> Stage:
    """The stage ``scaling``. Raises ConfigurationError for spare devices that are none."""
    settings = system.settings.planner
    types = {device.name: device.type for device in system.devices}
    if unknown := sorted(set(settings.spare) - types.keys()):
        raise ConfigurationError(f"planner.spare: {unknown[0]!r} is not among the settings' devices")
    return ScalingStage(
        broker=system.broker,
        producer=system.producer,
        topics=system.topics,
        clock=system.clock,
        planner=planner,
        scaling=LiveScaling({name: types[name] for name in settings.spare}, timeout=settings.device_timeout_s),
        driver=driver(system),
        leads=stage.leads,
        telemetry=system.telemetry,
    )

"""Model-less scaling, wired: the stage beside the planner, its spare devices, the driver that starts their workers."""

from typing import TYPE_CHECKING

from sluicegate.domain.errors import ConfigurationError
from sluicegate.planner.capacity.model_less_control import LiveScaling
from sluicegate.planner.model_less.scaling_planners import ScalingPlanner
from sluicegate.sluice.system.elastic_capacity import driver
from sluicegate.stages.capacity.model_less_stage import ScalingStage
from sluicegate.stages.planner.stage import PlannerStage
from sluicegate.stages.runtime.supervisor import Stage

if TYPE_CHECKING:
    from sluicegate.sluice.system.system import System


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

"""Model-less scaling, wired: the stage beside the planner, its spare devices, the driver that starts their workers."""

from sluicegate.domain.errors import ConfigurationError
from sluicegate.planner.capacity.core import CapacityCore
from sluicegate.planner.capacity.model_less_control import LiveScaling, ModelLessScaling
from sluicegate.planner.model_less.scaling_planners import ScalingPlanner
from sluicegate.policies.model_less.instance_states import LEASE, InstanceIndex
from sluicegate.sluice.system.elastic_capacity import driver
from sluicegate.sluice.system.system import System
from sluicegate.stages.capacity.stage import BesidePlanner, CapacityStage
from sluicegate.stages.planner.stage import PlannerStage
from sluicegate.stages.runtime.supervisor import Stage


def scaling(system: System, stage: PlannerStage, planner: ScalingPlanner) -> Stage:
    """The stage ``scaling``. Raises ConfigurationError for spare devices that are none."""
    settings = system.settings.planner
    types = {device.name: device.type for device in system.devices}
    if unknown := sorted(set(settings.spare) - types.keys()):
        raise ConfigurationError(f"planner.spare: {unknown[0]!r} is not among the settings' devices")
    spare = {name: types[name] for name in settings.spare}
    rule = LiveScaling(spare, timeout=settings.device_timeout_s)
    core = CapacityCore(ModelLessScaling(rule, InstanceIndex(), lease=LEASE))
    return CapacityStage(
        "scaling",
        system.connections,
        system.recording(core.handle, "scaling"),
        driver=driver(system),
        planner=BesidePlanner(planner, stage.leads),
    )

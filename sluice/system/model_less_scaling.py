"""Model-less scaling, wired: the stage beside the planner, its spare devices, the driver that starts their workers."""

from sluicegate.planner.capacity.cores import model_less_core
from sluicegate.planner.model_less.wishes import FollowsWishes
from sluicegate.policies.model_less.instance_states import LEASE, InstanceIndex
from sluicegate.sluice.system.elastic_capacity import driver
from sluicegate.sluice.system.system import System
from sluicegate.stages.capacity.stage import BesidePlanner, CapacityStage
from sluicegate.stages.planner.stage import PlannerStage
from sluicegate.stages.runtime.supervisor import Stage


def scaling(system: System, stage: PlannerStage, planner: FollowsWishes) -> Stage:
    """The stage ``scaling``. Raises ConfigurationError for spare devices that are none."""
    settings = system.settings.planner
    timeout = settings.device_timeout_s
    core = model_less_core(settings.spare, system.devices, InstanceIndex(), timeout=timeout, lease=LEASE)
    return CapacityStage(
        "scaling",
        system.connections,
        system.recording(core.handle, "scaling"),
        driver=driver(system),
        planner=BesidePlanner(planner, stage.leads),
    )

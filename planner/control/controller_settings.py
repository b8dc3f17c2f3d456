"""What can be set of the planner stage's decisions."""

from dataclasses import dataclass, field
from typing import Literal

from sluicegate.domain.models.profile import Quantile
from sluicegate.planner.estimates.demand_estimate import DemandSettings
from sluicegate.planner.estimates.host_strain import StrainSettings
from sluicegate.planner.estimates.profile_drift import LatencySettings
from sluicegate.planner.geometry.recut_tracker import ChangeSettings
from sluicegate.planner.policy_tables.table_requests import TableRules
from sluicegate.planner.problems.plan_limits import PlanLimits
from sluicegate.planner.problems.problem import Capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings(PlanLimits):
    """Seconds unless said otherwise. ``headroom``: a uniform one instead of each app's own.

    ``variants_per_device``: None is as many as it takes to host every app. ``geometry``: whether GPUs may be cut
    otherwise; "joint" asks the planner, which must be one that answers how, "protean" follows PROTEAN's rule, which
    asks nobody. ``tables``: how selection tables are made, where workers choose among the variants of a slice.
    """

    plan_period: float = 10.0
    burst_interval: float = 1.0
    burst_period: float = 3.0
    device_timeout: float = 2.0
    join_grace: float = 0.25
    solve_timeout: float = 60.0
    load_failure_hold: float = 60.0
    publish_change: float = 0.01
    served_enough: float = 0.999
    calm_plans: int = 2
    headroom: float | None = None
    capacity: Capacity = "best-batch"
    quantile: Quantile = "median"
    variants_per_device: int | None = 1
    geometry: Literal["off", "joint", "protean"] = "off"
    demand: DemandSettings = field(default_factory=DemandSettings)
    latency: LatencySettings = field(default_factory=LatencySettings)
    strain: StrainSettings = field(default_factory=StrainSettings)
    changes: ChangeSettings = field(default_factory=ChangeSettings)
    tables: TableRules | None = None

"""How capacity that comes and goes is set, by settings and scenarios alike."""

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from sluicegate.profiles.formats.field_types import Names, NotNegative, Seconds, Share

if TYPE_CHECKING:
    from sluicegate.planner.capacity.cores import LoadRules, SpotRules


class LoadFields(BaseModel):
    """Scaling by load. ``spare``: devices that have a worker only while the load needs it, in the order in which they
    are started.

    ``keep_alive_s``: for how long the largest number wanted is kept. ``headroom``: capacity over load. ``lead_s``:
    seconds that a worker takes to serve. ``period_s``: between two looks at demand. A worker that is wanted no more is
    ended once it hosts and holds nothing, ``settle_s`` after its device was withdrawn at the earliest and
    ``patience_s`` after it at the latest. ``start_timeout_s``: silence after which one is started again.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    spare: Names = Field(min_length=1)
    keep_alive_s: NotNegative = 600.0
    headroom: float = Field(default=1.2, ge=1, le=10)
    lead_s: NotNegative = 10.0
    period_s: Seconds = 1.0
    settle_s: NotNegative = 3.0
    patience_s: Seconds = 60.0
    start_timeout_s: Seconds = 30.0

    def rules(self) -> "LoadRules":
        """For the core."""
        from sluicegate.planner.capacity.cores import LoadRules

        return LoadRules(
            spare=self.spare,
            keep_alive=self.keep_alive_s,
            headroom=self.headroom,
            lead=self.lead_s,
            settle=self.settle_s,
            patience=self.patience_s,
            start_timeout=self.start_timeout_s,
        )


class SpotFields(BaseModel):
    """Spot capacity. ``on_demand_price``: money an hour of a spot device's replacement; what it costs on spot is the
    device's own price. Spot is granted with 1 - ``p_rev``; instances are up after ``boot_s``. ``mode``: whether on
    demand stands in where spot is refused (hybrid). ``poll_s``: between two looks at notices and at what was ordered;
    ``interval_s``: between two requests for spot, where a device runs on demand or (spot-only) has no instance.
    ``settle_s``: that the worker of a withdrawn device is kept at least, for routers to switch.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["hybrid", "spot-only"] = "hybrid"
    on_demand_price: NotNegative
    p_rev: Share = 0.0
    boot_s: NotNegative = 20.0
    poll_s: Seconds = 1.0
    interval_s: Seconds = 60.0
    settle_s: NotNegative = 3.0

    def rules(self) -> "SpotRules":
        """For the core."""
        from sluicegate.planner.capacity.cores import SpotRules
        from sluicegate.planner.capacity.spot_capacity import BOOT_TIMEOUT

        return SpotRules(
            on_demand_price=self.on_demand_price,
            mode=self.mode,
            interval=self.interval_s,
            settle=self.settle_s,
            boot_timeout=max(BOOT_TIMEOUT, 2.0 * self.boot_s),
        )

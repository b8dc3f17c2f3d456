"""What a plan may change and cost: declared once, for problems, programs and the settings that they come from."""

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sluicegate.profiles.formats.field_types import NotNegative, Share

Loads = Literal["beside", "exclusive", "free"]
"""What a device does while it loads: it serves, or stands still; or loads are taken to cost nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """What a plan may change and cost, each as ``PlanLimitFields`` says."""

    price: float = 1.0
    loads: Loads = "beside"
    max_loads: int | None = None
    money_weight: float = 0.0
    budget: float | None = None
    strict_on_demand: float = 0.0


class PlanLimitFields(BaseModel):
    """What a plan may change and cost, in settings, scenarios and problem files alike.

    ``price``: accuracy (0..1) that a query which is not answered in time costs: the higher, the more capacity is kept
    ready and the less is loaded. ``loads``: what a device does while it loads: it serves (beside), stands still
    (exclusive), or loads are taken to cost nothing (free); left out, what the executor does. ``max_loads``: slices that
    serve now and may be loaded anew (empty ones may always be). ``money_weight``: accuracy that one unit of price an
    hour is worth. ``budget``: what the devices in use may cost an hour in all. ``strict_on_demand``: part (0..1) of
    what is served of each strict demand that must be served by devices that are not spot, and so stays when spot
    devices are taken away.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    price: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 1.0
    loads: Loads | None = None
    max_loads: int | None = Field(default=None, ge=0)
    money_weight: NotNegative = 0.0
    budget: NotNegative | None = None
    strict_on_demand: Share = 0.0


def limits_of(known: PlanLimits | PlanLimitFields, loads: Loads = "beside") -> dict[str, Any]:
    """Its limits by name, for what else has them. ``loads``: what the executor does."""
    return {**{limit.name: getattr(known, limit.name) for limit in fields(PlanLimits)}, "loads": known.loads or loads}

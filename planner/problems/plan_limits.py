"""What a plan may change and cost: declared once, for problems, programs and the settings that they come from."""

from dataclasses import dataclass, fields
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from sluicegate.profiles.formats.field_types import NotNegative, Share

SWITCHING_WEIGHT = 3.0
"""Of the price of loads, by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """What a plan may change and cost.

    ``switching_weight``: of the price of a load (0: loads are free). ``max_loads``: slices that serve now and may be
    loaded anew (empty ones may always be). ``money_weight``: accuracy (0..1) that one unit of price an hour is worth.
    ``budget``: what the devices in use may cost an hour in all. ``strict_on_demand``: part (0..1) of what is served of
    each strict demand that must be served by devices that are not spot, and so stays when spot devices are taken away.
    """

    switching_weight: float = SWITCHING_WEIGHT
    max_loads: int | None = None
    money_weight: float = 0.0
    budget: float | None = None
    strict_on_demand: float = 0.0


class PlanLimitFields(BaseModel):
    """The same as fields of settings, scenarios and problem files."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    switching_weight: NotNegative = SWITCHING_WEIGHT
    max_loads: int | None = Field(default=None, ge=0)
    money_weight: NotNegative = 0.0
    budget: NotNegative | None = None
    strict_on_demand: Share = 0.0


def limits_of(known: PlanLimits | PlanLimitFields) -> dict[str, Any]:
    """Its limits by name, for what else has them."""
    return {limit.name: getattr(known, limit.name) for limit in fields(PlanLimits)}

"""Which planner makes plans, as settings and scenarios say it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

from sluicegate.planner.problems.plan_limits import PlanLimitFields
from sluicegate.profiles.formats.field_types import Names, Seconds, Text

KNOW_NO_BUDGET = frozenset({"scaling-greedy", "scaling-ilp"})
"""Planners by name with which a budget is refused: scaling spends as its answer takes."""


def no_budget_of(name: str) -> str:
    """Why a budget is refused with the planner called ``name``."""
    return f"{name} knows none: choose another planner, or leave budget out"


class PlannerChoice(BaseModel):
    """A planner by ``name``. Model-less ``scaling``, once a second: "plan" has it use as few units as its answer takes;
    in its place "greedy" replicates, upgrades and downgrades instances by their cost, and "ilp" solves for the least
    cost. With all three, variants that queries ask for are loaded on demand, and what interferes is mitigated.
    ``spare``: devices whose workers are started when they are needed.

    ``geometry``: "joint" cuts GPUs otherwise as demand moves, where their workers can do that, once it has moved for
    ``geometry_patience_s``; "protean" by PROTEAN's rule, between two geometries. Each GPU not again for
    ``geometry_rest_s``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Text = "allocation"
    scaling: Literal["off", "greedy", "ilp", "plan"] = "off"
    spare: Names = ()
    geometry: Literal["off", "joint", "protean"] = "off"
    geometry_patience_s: Seconds = 5.0
    geometry_rest_s: Seconds = 60.0

    @property
    def scales(self) -> bool:
        """Whether instances and workers come and go."""
        return self.scaling != "off"

    @property
    def takes_its_place(self) -> bool:
        """Whether scaling makes the plans, not the planner by name."""
        return self.scaling in {"greedy", "ilp"}

    @model_validator(mode="after")
    def _one_planner(self) -> "PlannerChoice":
        if self.takes_its_place and (self.name != "allocation" or self.geometry != "off"):
            raise ValueError(
                f"scaling: {self.scaling} takes the place of the planner: leave name and geometry as they are, or set "
                "scaling to plan"
            )
        if self.spare and not self.scales:
            raise ValueError("spare: set scaling to plan, greedy or ilp, which starts their workers")
        return self


class LimitedPlannerChoice(PlanLimitFields, PlannerChoice):
    """The same with what its plans may change and cost."""

    @model_validator(mode="after")
    def _who_keeps_to_a_budget(self) -> "LimitedPlannerChoice":
        if self.takes_its_place and self.budget is not None:
            raise ValueError(f"budget: scaling {self.scaling} knows none: set scaling to plan, or leave budget out")
        if self.name in KNOW_NO_BUDGET and self.budget is not None:
            raise ValueError(f"budget: {no_budget_of(self.name)}")
        return self

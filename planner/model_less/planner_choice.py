"""Which planner makes plans, as settings and scenarios say it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

from sluicegate.profiles.formats.field_types import Names, Seconds, Text


class PlannerChoice(BaseModel):
    """A planner by ``name``, or model-less ``scaling`` in its place: "greedy" replicates, upgrades and downgrades
    instances by their cost, "ilp" solves for the least cost, both once a second; variants that queries ask for are
    loaded on demand, what interferes is mitigated. ``spare``: devices whose workers it starts when they are needed.

    ``geometry``: "joint" cuts GPUs otherwise as demand moves, where their workers can do that, once it has moved for
    ``geometry_patience_s``; "protean" by PROTEAN's rule, between two geometries. Each GPU not again for
    ``geometry_rest_s``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Text = "allocation"
    scaling: Literal["off", "greedy", "ilp"] = "off"
    spare: Names = ()
    geometry: Literal["off", "joint", "protean"] = "off"
    geometry_patience_s: Seconds = 5.0
    geometry_rest_s: Seconds = 60.0

    @property
    def scales(self) -> bool:
        """Whether plans are made by scaling."""
        return self.scaling != "off"

    @model_validator(mode="after")
    def _one_planner(self) -> "PlannerChoice":
        if self.scales and (self.name != "allocation" or self.geometry != "off"):
            raise ValueError("scaling takes the place of the planner: leave name and geometry as they are")
        if self.spare and not self.scales:
            raise ValueError("spare: set scaling to greedy or ilp, which starts their workers")
        return self

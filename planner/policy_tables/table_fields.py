"""How selection tables are made and watched, as fields of settings and scenarios."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sluicegate.profiles.formats.field_types import NotNegative, Positive


class TableFields(BaseModel):
    """How selection tables are made, where workers batch by ``table``.

    ``hop_s``: seconds from a query's arrival to its place in a worker's queue; ``margin``: factor on profiled
    latencies, for executions that vary; ``arrival_shape``: of the Gamma gaps between arrivals that tables expect, 1 is
    Poisson, below 1 bursty; ``batching``: "maximal" runs all that wait, "variable" the best number of them; ``late``:
    what cannot be in time is served all the same, or dropped; ``phases``: groups of turns that tables tell apart, 1 for
    none, and none are where ``arrival_shape`` times the workers is no whole number, nor more than that; ``turns_s``:
    how often routers then tell workers the turns they have given; ``max_violation``: promised at most by a table that
    is published; ``watch_s``: over which promises are compared with what came of them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    hop_s: NotNegative = 0.005
    margin: float = Field(default=1.03, ge=1, le=10)
    criterion: Literal["query", "decision"] = "query"
    violation_price: float = Field(default=0.5, ge=0, le=1e9)
    grid: int = Field(default=100, ge=1, le=1000)
    arrival_shape: float = Field(default=1.0, ge=0.05, le=100, allow_inf_nan=False)
    batching: Literal["maximal", "variable"] = "maximal"
    late: Literal["serve", "drop"] = "serve"
    phases: int = Field(default=1, ge=1, le=16)
    turns_s: float = Field(default=0.005, ge=0, le=1, allow_inf_nan=False)
    watch_s: Positive = 10.0
    spacing: float = Field(default=0.01, ge=1e-4, le=1)
    max_violation: float = Field(default=0.05, gt=0, le=1)

    @model_validator(mode="after")
    def _told_apart(self) -> "TableFields":
        if self.phases > 1 and (self.batching == "variable" or self.late == "drop"):
            raise ValueError("phases: are told apart only with batching maximal and late serve")
        return self

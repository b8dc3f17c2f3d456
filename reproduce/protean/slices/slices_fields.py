"""The fields of a scenario of sliced GPUs (``kind: gpu-slices``). Unknown fields are errors; units are in the names."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from reproduce.protean.baselines import STRATEGIES
from reproduce.protean.slices.spot import SpotMarket
from sluicegate.domain.errors import ConfigurationError
from sluicegate.planner.geometry.mig_tables import TABLES, parse_geometry
from sluicegate.profiles.catalogue.slowdown import SlowdownTable, VariantDemand
from sluicegate.profiles.formats.field_errors import field_errors
from sluicegate.profiles.formats.field_types import Positive
from sluicegate.simulator.arrivals.trace_fields import TraceSpec

KIND = "gpu-slices"
BOUND = "bound"
"""Among the systems: what none of them exceeds."""
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
_GB = 1 << 30


class Section(BaseModel):
    """A part of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSpec(Section):
    """A variant's batches: ``solo_ms`` on the whole GPU, ``rdf`` by slice profile, ``fbr`` and ``fbr_by_slice``.

    ``group`` and ``interference`` say from which models the other class is drawn.
    """

    group: str = "vision"
    interference: str = "low"
    batch: int = Field(default=1, ge=1, le=4096)
    solo_ms: Positive
    memory_gb: NotNegative
    fbr: NotNegative
    rdf: Mapping[str, Positive]
    fbr_by_slice: Mapping[str, NotNegative] = Field(default_factory=dict)


class BurstSpec(Section):
    """What arrives between two bursts comes with the second, within ``width_ms``; gaps are Gamma with ``shape``."""

    gap_s: Positive
    width_ms: Positive = 50.0
    shape: Positive = 4.0


class WorkloadSpec(Section):
    """Strict queries for one model; best-effort ones for a model redrawn every ``redraw_s`` from the opposite class.

    ``best_effort``: the models to draw from instead. ``slo_multiplier``: SLO over the time alone on the whole GPU.
    """

    strict: str
    best_effort: tuple[str, ...] = ()
    strict_share: Share = 0.5
    redraw_s: Positive = 20.0
    slo_multiplier: Positive = 3.0
    max_wait_ms: Positive = 50.0
    bursts: BurstSpec | None = None


class GpusSpec(Section):
    """A group of equal GPUs. ``count`` GPUs, cut like ``geometry`` at the start where a system says nothing else."""

    type: str = "a100"
    count: int = Field(default=8, ge=1, le=1000)
    geometry: str = "4g+3g"

    @model_validator(mode="after")
    def _known(self) -> "GpusSpec":
        if self.type not in TABLES:
            raise ValueError(f"type {self.type!r} has no placement table; there are {', '.join(TABLES)}")
        _check_geometry(self.type, self.geometry)
        return self


class ReconfigurationSpec(Section):
    """When geometries are thought about. ``period_s``: between ticks of a rule; ``window_s``.

    Best-effort arrivals that are on a GPU at a time (PROTEAN).
    """

    reshape_s: NotNegative = 2.0
    fraction: Share = 0.3
    patience: int = Field(default=3, ge=1)
    protean_period_s: Positive = 2.0
    window_s: Positive = 0.3
    joint_period_s: Positive = 2.5
    change_weight: NotNegative = 0.05
    oracle_period_s: Positive = 10.0


class ContainerSpec(Section):
    """A batch without a warm container waits ``cold_start_s``; idle ones are kept ``keep_alive_s``."""

    cold_start_s: NotNegative = 0.0
    keep_alive_s: NotNegative = 600.0


class ProcurementSpec(Section):
    """Prices are money an hour for one GPU. ``core``: GPUs of a hybrid fleet that are always on demand."""

    p_rev: Share = 0.0
    on_demand_price: NotNegative
    spot_price: NotNegative
    interval_s: Positive = 60.0
    notice_s: Annotated[float, Field(ge=30.0, le=3600.0)] = 60.0
    boot_s: NotNegative = 20.0
    core: int = Field(default=0, ge=0)

    def market(self) -> SpotMarket:
        """The provider's habits."""
        return SpotMarket(p_rev=self.p_rev, interval_s=self.interval_s, notice_s=self.notice_s, boot_s=self.boot_s)


class SystemSpec(Section):
    """A system, by what differs from the named one that it starts from (``like``; default: its own name)."""

    like: str | None = None
    placement: str | None = None
    reserve: int | None = Field(default=None, ge=0)
    dispatch: Literal["round-robin", "one-turn", "least-slowdown"] | None = None
    reconfiguration: Literal["none", "protean", "protean-published", "joint", "oracle"] | None = None
    geometry: str | None = None
    procurement: Literal["hybrid", "spot-only", "on-demand"] | None = None
    keep_alive_s: NotNegative | None = None


class SliceScenario(Section):
    """A whole scenario. ``reference``: figures of others, shown beside ours."""

    kind: Literal["gpu-slices"]
    name: str = "slices"
    description: str = ""
    duration_s: Positive = 240.0
    warm_up_s: NotNegative = 10.0
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    gpus: GpusSpec = Field(default_factory=GpusSpec)
    models: Mapping[Name, ModelSpec] = Field(min_length=1)
    workload: WorkloadSpec
    traces: TraceSpec
    reconfiguration: ReconfigurationSpec = Field(default_factory=ReconfigurationSpec)
    containers: ContainerSpec = Field(default_factory=ContainerSpec)
    procurement: ProcurementSpec
    parameters: Mapping[Name, tuple[str, ...]] = Field(default_factory=dict)
    systems: Mapping[Name, SystemSpec | None] = Field(min_length=1)
    reference: Mapping[str, Mapping[str, float]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> "SliceScenario":
        for name in (self.workload.strict, *self.workload.best_effort):
            if name not in self.models:
                raise ValueError(f"workload: {name!r} is not one of models")
        for label, system in self.systems.items():
            if system is None:
                continue
            if label == BOUND and system.model_fields_set:
                raise ValueError(f"systems.{BOUND} takes no options: it is what no system exceeds")
            if system.geometry is not None:
                _check_geometry(self.gpus.type, system.geometry)
            if system.placement is not None and system.placement not in STRATEGIES:
                raise ValueError(
                    f"systems.{label}.placement: {system.placement!r} is not one of {', '.join(STRATEGIES)}"
                )
        if BOUND in self.systems and self.procurement.p_rev > 0.0:
            raise ValueError(f"systems.{BOUND} holds where no GPU is taken back: set procurement.p_rev to 0")
        if not self.opposite():
            raise ValueError(f"workload.strict: no model is of the class opposite to {self.workload.strict}'s")
        return self

    def opposite(self) -> tuple[str, ...]:
        """Models that best-effort queries are drawn from: other interference class, same group where there are any."""
        if self.workload.best_effort:
            return self.workload.best_effort
        mine = self.models[self.workload.strict]
        others = [n for n, m in self.models.items() if m.interference != mine.interference]
        near = [n for n in others if self.models[n].group == mine.group]
        if near:
            return tuple(near)
        low = [n for n in others if self.models[n].interference == "low"]
        return tuple(low or others)

    def table(self) -> SlowdownTable:
        """What is known of the models. Raises InvalidInputError."""
        return SlowdownTable(
            {
                name: VariantDemand(
                    name=name,
                    solo=m.solo_ms / 1e3,
                    memory_bytes=int(m.memory_gb * _GB),
                    rdf={"7g": 1.0, **m.rdf},
                    fbr=m.fbr,
                    fbr_by_profile=m.fbr_by_slice,
                    batch=m.batch,
                )
                for name, m in self.models.items()
            }
        )


def slice_scenario(document: Mapping[str, Any], what: str = "scenario") -> SliceScenario:
    """Validate. Raises ConfigurationError that names every wrong field in one line."""
    try:
        return SliceScenario.model_validate(document)
    except ValidationError as error:
        raise ConfigurationError(f"{what}: {field_errors(error, SliceScenario, 'scenario')}") from error


def _check_geometry(gpu: str, text: str) -> None:
    try:
        geometry = parse_geometry(text)
    except Exception as error:
        raise ValueError(str(error)) from error
    if not TABLES[gpu].valid(geometry):
        raise ValueError(f"geometry {text!r} cannot be placed on {gpu}")

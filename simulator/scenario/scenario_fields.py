"""The fields of a scenario file. Times carry their unit in the name; unknown fields are errors.

Every section is a pydantic model, so that a file is understood whole or refused with the names of its wrong fields.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from sluicegate.domain.models.app import Promise, QueryClass, WeaklyHard
from sluicegate.planner.capacity.capacity_fields import LoadFields, SpotFields
from sluicegate.planner.model_less.planner_choice import LimitedPlannerChoice
from sluicegate.planner.policy_tables.table_fields import TableFields
from sluicegate.policies.routing.registry import default_routing
from sluicegate.profiles.formats.catalogue_json import WeaklyHardDocument
from sluicegate.profiles.formats.field_types import (
    Factor,
    Finite,
    LoadTime,
    Name,
    Names,
    NotNegative,
    PathOfFile,
    Positive,
    Share,
    Text,
    Weight,
    distinct,
)
from sluicegate.simulator.arrivals.trace_fields import TraceSpec
from sluicegate.simulator.engine.service_times import ServiceMode
from sluicegate.simulator.scenario.fault_fields import (
    ExecutorFailureSpec,
    FailureSpec,
    SlowBatches,
    StarvedHostSpec,
    StragglerSpec,
    Until,
)
from sluicegate.simulator.scenario.section import Section

Period = Annotated[float, Field(ge=1e-3, le=1e7, allow_inf_nan=False)]
"""Seconds: so many that a clock moves by them, however far from 0 it is in a run."""
Length = Annotated[int, Field(ge=1, le=1 << 24)]
Latencies = Mapping[Annotated[int, Field(ge=1, le=4096)], Positive | tuple[Positive, Positive]]


def _named_apart(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    distinct([part.name for part in parts])
    return parts


class PromiseSpec(Section):
    """What the app's stream was promised."""

    max_consecutive: int | None = Field(default=None, ge=0, le=1_000_000)
    weakly_hard: tuple[WeaklyHardDocument, ...] = ()


class WishSpec(Section):
    """What a ``share`` of an app's queries ask of their own, as a live query does. ``client``: who asks."""

    share: Share
    latency_ms: Positive | None = None
    accuracy: Share | None = None
    cost: NotNegative | None = None
    model: Name | None = None
    query_class: QueryClass | None = Field(default=None, alias="class")
    priority: int = Field(default=0, ge=0, lt=1 << 31)
    client: Annotated[str, Field(max_length=256)] = ""
    rows: int = Field(default=1, ge=1, le=4096)


class AppAsks(Section):
    """What an app asks. What is left out stays as the catalogue has it. ``variants``: by name, all where left out."""

    slo_ms: Positive | None = None
    query_class: QueryClass | None = Field(default=None, alias="class")
    min_accuracy: Share | None = None
    weight: Weight | None = None
    promise: PromiseSpec | None = None
    variants: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None


class RegistrationSpec(AppAsks):
    """At ``at_s`` the app is registered, anew or once more with what is said here, or (``retired``) served no more."""

    at_s: NotNegative
    app: Name
    retired: bool = False


class AppSpec(AppAsks):
    """An app, as it is registered at the start, unless ``at_start`` says that it comes later.

    ``lengths``: those of its queries' inputs, all equally likely, where its variants' latency goes with the length.
    ``queries``: what some of them ask of their own. ``max_rows``: that one may carry; as in the catalogue where left
    out, 16 where that is inline.
    """

    at_start: bool = True
    max_rows: Annotated[int, Field(ge=1, le=4096)] | None = None
    lengths: Annotated[tuple[Length, ...], Field(max_length=100_000)] = ()
    queries: tuple[WishSpec, ...] = ()

    @model_validator(mode="after")
    def _within_all(self) -> "AppSpec":
        if sum(wish.share for wish in self.queries) > 1.0 + 1e-9:
            raise ValueError("queries: their shares are more than all queries")
        return self


class InlineVariant(Section):
    """A variant and its profile, written in the scenario.

    ``latency_ms``: by device type, then by batch size, the median or [median, p95]. Where inputs vary in length it is
    that of the longest, ``length``; ``shorter_latency_ms`` is by length, then as ``latency_ms``.
    """

    name: Name
    app: Name
    accuracy: Share
    memory_mb: NotNegative = 0.0
    load_s: LoadTime = 1.0
    latency_ms: Mapping[str, Latencies]
    length: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    shorter_latency_ms: Mapping[Length, Mapping[str, Latencies]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _on_its_devices(self) -> "InlineVariant":
        for length, by_kind in self.shorter_latency_ms.items():
            if others := sorted(by_kind.keys() - self.latency_ms.keys()):
                raise ValueError(f"shorter_latency_ms.{length}.{others[0]}: latency_ms has no such device type")
        return self


class CatalogueSpec(Section):
    """Where profiles come from: ``inline`` variants, our own catalogue's folder, or the papers' data.

    ``options``: further arguments of the reader of proteus-csv (batch_sizes, variants, families, load) or ramsis-json
    (tasks, models, table, max_batch, load).
    """

    format: Literal["inline", "sluice", "proteus-csv", "ramsis-json"] = "inline"
    path: PathOfFile | None = None
    variants: Annotated[tuple[InlineVariant, ...], AfterValidator(_named_apart)] = ()
    options: Mapping[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> "CatalogueSpec":
        if self.format == "inline" and not self.variants:
            raise ValueError("an inline catalogue lists its variants")
        if self.format != "inline" and self.path is None:
            raise ValueError(f"format {self.format} needs a path")
        if self.format == "inline" and self.path is not None:
            raise ValueError("path: an inline catalogue has none; leave it out")
        if self.format != "inline" and self.variants:
            raise ValueError(f"variants: format {self.format} reads them; leave them out")
        return self


class SliceSpec(Section):
    """A part of a device. ``profile``: "whole", or one such as 3g: its latencies are those of the device type
    ``<type>:3g``, and of GPUs, where nobody gave them, reckoned from the whole one's.

    ``instance``: slices that name the same one share its compute and bandwidth, by MPS.
    """

    name: Name
    profile: Text = "whole"
    memory_mb: NotNegative = 0.0
    instance: Name | None = None


class DeviceSpec(Section):
    """A group of equal devices. ``count`` equal devices, named ``<name><number>`` (name: the type by default).

    ``geometry``: of GPUs that plans may cut otherwise, how they are cut at the start, such as 4g+3g; ``slices``: those
    of devices that stay as they are.
    """

    type: Name
    count: int = Field(default=1, ge=1, le=100_000)
    name: Name | None = None
    memory_mb: NotNegative = 0.0
    price: NotNegative = 0.0
    spot: bool = False
    slices: Annotated[tuple[SliceSpec, ...], AfterValidator(_named_apart)] = ()
    geometry: Text | None = None

    @model_validator(mode="after")
    def _cut_one_way(self) -> "DeviceSpec":
        if self.geometry is not None and self.slices:
            raise ValueError("geometry and slices: a GPU that is cut by its geometry has the slices of that")
        return self


def _named(value: Any) -> Any:
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, dict | _PolicyFields):
        return value
    raise ValueError("give a name, or {name: ..., option: value}")


class _PolicyFields(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    name: Text

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


PolicySpec = Annotated[_PolicyFields, BeforeValidator(_named)]
"""A policy by name, or {name: ..., option: value, ...}."""


class PoliciesSpec(Section):
    """Policies by name. ``admission``: null lets everything in, as no live system does. ``turns``: of apps that share a
    slice. ``routing``: where left out, by ``default_routing``. ``quantile``: of profiled latencies, that deadlines
    count on.
    """

    admission: PolicySpec | None = _PolicyFields(name="deadline")
    routing: PolicySpec | None = None
    batching: PolicySpec = Field(default_factory=lambda: _PolicyFields(name="adaptive"))
    turns: Literal["urgency", "duty-cycle"] = "urgency"
    quantile: Literal["median", "p95"] = "p95"


class PlannerFailureSpec(Section):
    """A planner (planner0, ...) dies without a word, and returns unless ``until_s`` is left out."""

    planner: Name
    at_s: NotNegative
    until_s: Until | None = None


class PlannerSpec(LimitedPlannerChoice, Section):
    """The planner by name, and the core around it. Defaults are those of the live system.

    ``latency_s``: seconds a plan takes to be made, or "measured" (then equal seeds may differ); where an urgent one
    takes longer than ``patience_s``, a heuristic stands in. ``planners``: how many run; one leads, another takes over
    where it is silent for ``lease_s``. ``headroom``: one for all apps instead of each app's own. ``demand``: settings
    of the demand estimate (alpha, window, z, ...). ``start_s``: seconds until the worker of a ``spare`` serves, once it
    is started.
    """

    planners: int = Field(default=1, ge=1, le=16)
    lease_s: Positive = 3.0
    patience_s: Positive = 1.0
    failures: tuple[PlannerFailureSpec, ...] = ()
    latency_s: NotNegative | Literal["measured"] = 0.0
    period_s: Positive = 10.0
    burst_interval_s: Positive = 1.0
    device_timeout_s: Positive = 2.0
    headroom: Annotated[float, Field(ge=1.0, le=1e3)] | None = None
    capacity: Literal["best-batch", "largest-batch"] = "best-batch"
    quantile: Literal["median", "p95"] = "p95"
    variants_per_device: Annotated[int, Field(ge=1, le=64)] | None = None
    demand: Mapping[Name, Finite] = Field(default_factory=dict)
    start_s: NotNegative = 5.0


class SimulationSpec(Section):
    """The physics. ``shared``: device types whose slices share one processor. ``loads``: beside serving, or not.

    ``bandwidth``: by variant, what a batch takes of a processor or MIG instance that slices share; others take all.
    While that adds up to more than 1, all take so many times as long.

    ``to_router_ms``/``to_device_ms``: hops of a query; the second takes up to ``hop_spread_ms`` longer, and queries of
    one device keep their order. ``control_ms``: of plans and acknowledgements.
    ``warm_up_s``: that control and devices run before the first arrival; five seconds where left out, and longer where
    the slowest load is: a system is started before it is used.
    """

    service: ServiceMode = "median"
    slow_batches: SlowBatches = Field(default_factory=SlowBatches)
    to_router_ms: NotNegative = 0.0
    to_device_ms: NotNegative = 0.0
    hop_spread_ms: NotNegative = 0.0
    control_ms: NotNegative = 0.0
    heartbeat_s: Period = 0.5
    warm_up_s: Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)] | None = None
    drain_s: Positive = 600.0
    loads: Literal["beside", "exclusive"] = "beside"
    shared: Names = ()
    bandwidth: Mapping[Name, Annotated[float, Field(gt=0, le=4)]] = Field(default_factory=dict)
    failures: tuple[FailureSpec, ...] = ()
    executor_failures: tuple[ExecutorFailureSpec, ...] = ()
    executor_start_s: Positive = 0.5
    stragglers: tuple[StragglerSpec, ...] = ()
    starved_hosts: tuple[StarvedHostSpec, ...] = ()


class SlicesSpec(Section):
    """Slices of GPUs. ``step_s``: seconds to make or destroy one; others as live (``worker.slices``).

    What a batch takes of what ``executors`` share is the catalogue's, or ``simulation.bandwidth``.
    """

    choice: Literal["plan", "strict-first", "strict-room"] = "plan"
    drain_s: Positive = 5.0
    rdf: Mapping[Text, Factor] = Field(default_factory=dict)
    executors: Mapping[Text, Annotated[int, Field(ge=1, le=64)]] = Field(default_factory=dict)
    step_s: NotNegative = 0.5


class TablesSpec(TableFields, Section):
    """Selection tables that planners make and publish for every plan, as live, where batching is by ``table``.

    ``make_s``: seconds that a table takes to be made, or "measured" (then equal seeds may differ).
    """

    make_s: NotNegative | Literal["measured"] = 0.2


class ScalingSpec(LoadFields, Section):
    """Scaling by load, as live. ``start_s``: seconds until a worker that was started serves."""

    period_s: Period = 1.0
    start_s: NotNegative = 5.0


class NoticeSpec(Section):
    """At ``at_s`` it is told that the instance of a spot device is taken back at ``deadline_s``."""

    device: Name
    at_s: NotNegative
    deadline_s: Positive

    @model_validator(mode="after")
    def _told_before(self) -> "NoticeSpec":
        if self.deadline_s < self.at_s:
            raise ValueError(f"deadline_s: {self.deadline_s:g} is before at_s, {self.at_s:g}")
        return self


class ProcurementSpec(SpotFields, Section):
    """Spot capacity, as live, taken back by ``notices``. ``start_s``: seconds until a worker that is started serves."""

    notices: tuple[NoticeSpec, ...] = ()
    poll_s: Period = 1.0
    start_s: NotNegative = 5.0


def _pairs(value: Any) -> Any:
    """m,K as on the command line, or pairs of them."""
    if not isinstance(value, str):
        return value
    return [part.split(",") for part in value.split(";")]


Misses = Annotated[int, Field(ge=0, le=100_000)]
Window = Annotated[int, Field(ge=1, le=100_000)]
Rows = Annotated[int, Field(ge=1, le=64)]


class PromiseLoadSpec(Section):
    """An app with a promise gets ``queries`` strict queries, at ``share_of_bound`` of what is announced for it.

    ``mk``: pairs m,K; ``mcd``: most misses in a row. ``rows`` of a query: a number, or the least and the most.
    """

    app: Name
    mk: Annotated[tuple[tuple[Misses, Window], ...], BeforeValidator(_pairs)] = ()
    mcd: Misses | None = None
    rows: Rows | tuple[Rows, Rows] = 1
    share_of_bound: float = Field(default=0.8, gt=0.0, le=1.0)
    queries: int = Field(default=50_000, ge=1, le=10_000_000)

    @model_validator(mode="after")
    def _sound(self) -> "PromiseLoadSpec":
        if self.mcd is None and not self.mk:
            raise ValueError("give mk or mcd: what is promised")
        return self

    @field_validator("mk")
    @classmethod
    def _pairs_sound(cls, pairs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        for m, k in pairs:
            if m >= k:
                raise ValueError(f"{m},{k} is not 0 <= m < K")
        return pairs

    @field_validator("rows")
    @classmethod
    def _least_first(cls, rows: int | tuple[int, int]) -> int | tuple[int, int]:
        if not isinstance(rows, int) and rows[0] > rows[1]:
            raise ValueError(f"{rows[0]} to {rows[1]}: give the least first")
        return rows

    @property
    def least_and_most(self) -> tuple[int, int]:
        """Rows."""
        return (self.rows, self.rows) if isinstance(self.rows, int) else self.rows

    def promised(self) -> Promise:
        """The domain's noun."""
        return Promise(max_consecutive=self.mcd, weakly_hard=tuple(WeaklyHard(m, k) for m, k in self.mk))


class Scenario(Section):
    """A whole scenario. ``apps``: those simulated, in the order of trace shares (default: all of the catalogue).

    ``parameters``: one name for several fields, by dotted names: ``workers: [devices.0.count]`` lets ``workers=70`` set
    them all. ``systems``: named overrides, compared side by side. ``reference``: figures of others, shown beside ours.
    """

    name: Text = "scenario"
    description: str = ""
    duration_s: Positive | None = None
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    catalogue: CatalogueSpec
    apps: Mapping[str, AppSpec | None] | None = None
    registrations: tuple[RegistrationSpec, ...] = ()
    devices: tuple[DeviceSpec, ...] = Field(min_length=1)
    traces: TraceSpec
    policies: PoliciesSpec = Field(default_factory=PoliciesSpec)
    planner: PlannerSpec = Field(default_factory=PlannerSpec)
    simulation: SimulationSpec = Field(default_factory=SimulationSpec)
    slices: SlicesSpec = Field(default_factory=SlicesSpec)
    tables: TablesSpec | None = None
    scaling: ScalingSpec | None = None
    procurement: ProcurementSpec | None = None
    promise: PromiseLoadSpec | None = None
    parameters: Mapping[Name, tuple[Text, ...]] = Field(default_factory=dict)
    systems: Mapping[Name, Mapping[str, Any]] = Field(default_factory=dict)
    reference: Mapping[Text, Mapping[Text, Finite]] = Field(default_factory=dict)

    @field_validator("systems")
    @classmethod
    def _of_the_same_seeds(cls, systems: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
        for name, overrides in systems.items():
            if "seed" in overrides:
                raise ValueError(f"{name}.seed: all systems are compared with the same seeds; leave it out")
        return systems

    @property
    def routes_by(self) -> PolicySpec:
        """What routes."""
        policies = self.policies
        return policies.routing or _PolicyFields(
            name=default_routing(policies.batching.name, scales=self.planner.scales)
        )

"""Settings: one YAML file, environment overrides (``SLUICE_…``, nested by ``__``), validated at start-up."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError
from typing_extensions import override

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, Promise, WeaklyHard
from sluicegate.executors.devices.fake_gpus import fake_gpus
from sluicegate.planner.geometry.mig_tables import TABLES
from sluicegate.planner.model_less.planner_choice import LimitedPlannerChoice
from sluicegate.planner.policy_tables.table_fields import TableFields
from sluicegate.policies.promises.keeper import Hops
from sluicegate.policies.routing.registry import default_routing
from sluicegate.profiles.formats.bounded_yaml import read_mapping
from sluicegate.profiles.formats.catalogue_json import Bytes, Label
from sluicegate.profiles.formats.field_errors import field_errors
from sluicegate.profiles.formats.field_types import NotNegative, Seconds, Share, Text, Weight, distinct
from sluicegate.sluice.settings.elastic_settings import DriverSettings, ProcurementSettings, ScalingSettings
from sluicegate.sluice.settings.endpoint_settings import (
    GrpcSettings,
    HttpSettings,
    LogSettings,
    MetricsSettings,
    Section,
    SigningSettings,
    TracingSettings,
    WebSettings,
    refuse_secrets,
)
from sluicegate.sluice.settings.gpu_settings import CudaSettings, SliceSettings, readable_fake
from sluicegate.sluice.settings.kafka_section import KafkaSection
from sluicegate.sluice.settings.named_secrets import named_secrets
from sluicegate.sluice.settings.object_settings import ObjectSettings
from sluicegate.sluice.settings.topic_settings import TopicsSection
from sluicegate.sluice.settings.unknown_names import unknown_variables, unreadable_variables
from sluicegate.streams.source_proofs import SourceKeys
from sluicegate.streams.topics import NAME, PREFIX

Served = Annotated[str, Field(pattern=NAME)]
"""What names an app or device, and so topics."""


class DeviceSettings(Section):
    """A device that this deployment has. ``type`` names its pool and must be profiled in the catalogue.

    ``memory_bytes``: that its models may take; 0: enough for anything. ``price``: money an hour. ``spot``: it can be
    taken back (``procurement``). ``threads``: of a CPU worker, as its type was profiled with (``cpu2``: 2). ``cores``:
    what its executors are pinned to (default: nothing). ``gpu``: which GPU of its worker's machine it is, as ``sluice
    devices list`` numbers them.
    """

    name: Served
    type: Label = "cpu"
    memory_bytes: Bytes = 0
    price: NotNegative = 0.0
    spot: bool = False
    threads: int = Field(default=1, ge=1, le=256)
    cores: tuple[Annotated[int, Field(ge=0, le=4095)], ...] = ()
    gpu: int | None = Field(default=None, ge=0, le=1023)

    def device(self) -> Device:
        """The domain's noun."""
        return Device(name=self.name, type=self.type, memory_bytes=self.memory_bytes, price=self.price, spot=self.spot)


class AdmissionSettings(Section):
    """Limits on what comes from outside. Sizes in bytes, times in seconds.

    ``policy``: "deadline" admits what can still be in time; "sustainable" also keeps arrivals within what the devices
    sustain for ever under each app's promise, by ``mode``: "enforce" rejects the rest, "degrade" lets in as much as the
    fastest variants of the plan sustain, "observe" only announces.

    ``shares``: clients of an app (``ce_source``) share what plans host for it, by ``weights`` (1 where none is given):
    who asks for more gets what the others leave. Of an app with a promise they share its bound (policy "sustainable"),
    always. Who asks alone has all of it.
    ``source_keys_file``: lines of a source and its key: queries of these sources must be signed with it, so that nobody
    asks in another's name; ``proven``: those of all others get a dead letter. ``priorities``: the highest priority that
    a client may ask for (0 where none is given), like ``weights``; None: any.
    ``hop_ms``: how long a query with a promise is on its way to its device at most; a tenth of its SLO where left out.
    ``max_body_bytes``: of a query; ``max_element_bytes``: of one text (element of a BYTES input) in it.
    """

    policy: Literal["deadline", "sustainable"] = "deadline"
    mode: Literal["enforce", "degrade", "observe"] = "enforce"
    hop_ms: NotNegative | None = None
    shares: bool = True
    weights: dict[str, Seconds] = Field(default_factory=dict, max_length=1000)
    priorities: dict[str, Annotated[int, Field(ge=0, lt=2**31)]] | None = Field(default=None, max_length=1000)
    source_keys_file: Path | None = None
    proven: bool = False
    max_body_bytes: int = Field(default=1_000_000, gt=0)
    max_element_bytes: int = Field(default=1_000_000, gt=0)
    max_skew_s: Seconds = 5.0
    max_latency_s: Seconds = 600.0
    dedupe_window_s: Seconds = 600.0
    dedupe_entries: int = Field(default=500_000, gt=0)

    def source_keys(self) -> SourceKeys | None:
        """Of sources that prove themselves; None where nobody needs to. Raises ConfigurationError."""
        keys = named_secrets("admission.source_keys_file", self.source_keys_file)
        if not keys and not self.proven:
            return None
        keyed = {source: key.encode() for source, key in keys.items()}
        return SourceKeys(keys=keyed, required=self.proven, skew=self.max_skew_s)

    def hops(self) -> Hops:
        """The policies' noun."""
        return Hops(None if self.hop_ms is None else self.hop_ms / 1e3)


class PromiseSettings(Section):
    """What each stream of an app is promised: at most ``max_consecutive`` misses in a row, and each (m, K).

    ``weakly_hard``: pairs [m, K], at most m misses among any K consecutive strict queries. ``partitions``: of its query
    and admitted topics; streams are counted by their keys, and queries without one by their partition.
    """

    max_consecutive: int | None = Field(default=None, ge=0, le=1_000_000)
    weakly_hard: tuple[tuple[int, int], ...] = ()
    partitions: int = Field(default=1, ge=1, le=1024)

    @field_validator("weakly_hard")
    @classmethod
    def _sound(cls, pairs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        for m, k in pairs:
            if not 0 <= m < k <= 100_000:
                raise ValueError(f"[{m}, {k}] is not 0 <= m < K <= 100000")
        return pairs

    def promise(self) -> Promise:
        """The domain's noun."""
        return Promise(
            max_consecutive=self.max_consecutive, weakly_hard=tuple(WeaklyHard(m, k) for m, k in self.weakly_hard)
        )


class WorkerSettings(Section):
    """Settings of workers. ``batching``: a policy by name, with its options. ``executor``: what runs the variants.

    ``turns``: on a slice that hosts several apps the executor goes to the most urgent query, or round in a duty cycle
    with batches sized so that one cycle and one batch fit every SLO.

    ``guard_s``: seconds that policies which wait keep back for hops and late timers, unless the options say otherwise.
    ``run_timeout_factor``, ``run_timeout_floor_s``: a batch that takes longer than so many times its profiled 95th
    percentile, and longer than the floor, hangs: its process is killed and started again. Where it runs on one thread
    of a CPU so does one that had the processor for a quarter of that, or for 1.5 s less where that is more. So does a
    load that takes longer than so many times its profiled time, and longer than ``load_timeout_floor_s``.
    ``quantile``: of profiled latencies, that deadlines count on: in batches, in routers and at admission alike.
    ``memory_margin_mb``: that an executor on a CPU may take beyond what it needs once its models are loaded; a batch
    that asks for more fails, and nothing else (0: no limit). ``cuda``, ``slices``: of devices that are GPUs.
    """

    batching: Text = "adaptive"
    batching_options: dict[str, Any] = Field(default_factory=dict)
    turns: Literal["urgency", "duty-cycle"] = "urgency"
    guard_s: NotNegative = 0.005
    quantile: Literal["median", "p95"] = "p95"
    executor: Literal["onnx", "emulated"] = "onnx"
    heartbeat_s: Seconds = 0.5
    max_in_flight: int = Field(default=4000, gt=0)
    run_timeout_factor: float = Field(default=10.0, ge=1, le=1000)
    run_timeout_floor_s: Seconds = 2.0
    load_timeout_floor_s: Seconds = 20.0
    memory_margin_mb: int = Field(default=512, ge=0, le=1 << 20)
    cuda: CudaSettings = CudaSettings()
    slices: SliceSettings = SliceSettings()


class PlannerSettings(LimitedPlannerChoice, Section):
    """Settings of the planner. Periods in seconds.

    ``period_s``: between two plans where nothing presses. ``device_timeout_s``: silence after which a device counts as
    dead. ``lease_s``: silence of the leader after which another planner takes over, the same for all planners of a
    system. ``quantile``: of profiled latencies, that plans and elastic capacity count on (deadlines:
    ``worker.quantile``). ``headroom``: factor on demand, the same for all apps (by default each app's own, from its
    variance).
    ``variants_per_device``: hosted at most on one device, where several pay (None: one; where there are more apps than
    devices, as many as it takes to host every app, by ``allocation`` on GPUs that stay as they are cut).
    ``estimate``: of demand, by name: ``alpha``, the weight of a new second; ``z``, ``headroom_floor``,
    ``headroom_cap``: headroom is 1 + z times the spread of demand, between the two; ``sharp``, ``sustained``: a burst
    is a second, or two, with so many times what the plan covers, and ``window`` the seconds whose largest rate counts
    then; ``min_qps``, the least demand that is estimated; ``queue_time``, ``dispersion_alpha``, ``dispersion_cap``,
    ``tolerance``: how that spread is reckoned. ``demand``: "plain" takes admission's counts as they come, "faust" the
    windows that stages ``demand`` make of them (kafka:// only); up to ``demand_partitions`` of these share the work.
    """

    period_s: Seconds = 10.0
    device_timeout_s: Seconds = 2.0
    lease_s: float = Field(default=3.0, ge=0.5, le=300, allow_inf_nan=False)
    quantile: Literal["median", "p95"] = "p95"
    headroom: float | None = Field(default=None, ge=1.0, allow_inf_nan=False)
    variants_per_device: int | None = Field(default=None, ge=1, le=8)
    demand: Literal["plain", "faust"] = "plain"
    estimate: dict[Text, NotNegative] = Field(default_factory=dict)
    demand_partitions: int = Field(default=1, ge=1, le=64)


class FaustSettings(Section):
    """Stages ``demand``. ``port``: of their web views, always on loopback."""

    port: int = Field(default=6066, ge=1, le=65535)


class Settings(BaseSettings):
    """Everything that can be set. Environment beats file, file beats defaults.

    ``delivery``: "at_least_once" may answer twice what was in flight when a process died, and what a router had sent on
    behind a query that it held; "exactly_once" never does, by transactions (kafka:// only), at some tens of
    milliseconds a hop. All processes of a system must agree. ``chained``:
    where admission and routers share a process, a query goes from one to the other without the admitted topic.
    ``member``: a name that no other process of the same stages has; started again under it within the session timeout,
    a process reads on at once what it read before (static membership), also after a kill. ``disk_floor_bytes``: where
    less is free for ``runs``, nothing starts. ``routing``: where left out, by accuracy and slack, and by the plan's
    shares where workers choose variants or instances come and go. ``embedded_log_mb``: above it the embedded broker
    lets go of what was read. ``outcomes_mb``: MiB of a run's outcomes that the stage ``sink`` keeps; beyond it the
    older half goes.
    """

    model_config = SettingsConfigDict(env_prefix="SLUICE_", env_nested_delimiter="__", extra="forbid", frozen=True)

    broker: Text = "memory://"
    prefix: Annotated[str, Field(pattern=PREFIX)] = "sluice"
    home: Path = Field(default_factory=lambda: Path.home() / ".sluicegate")
    catalogue: Path | None = None
    apps: Annotated[tuple[Served, ...], AfterValidator(distinct)] = ()
    devices: tuple[DeviceSettings, ...] = ()
    fake_gpu: Text | None = None
    partitions: int = Field(default=2, ge=1, le=1024)
    delivery: Literal["at_least_once", "exactly_once"] = "at_least_once"
    chained: bool = True
    member: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,200}$")
    slo_s: dict[Served, Seconds] = Field(default_factory=dict)
    slo_classes_s: dict[Served, tuple[Seconds, ...]] = Field(default_factory=dict)
    min_accuracy: dict[Served, Share] = Field(default_factory=dict)
    weights: dict[Served, Weight] = Field(default_factory=dict)
    promises: dict[Served, PromiseSettings] = Field(default_factory=dict)
    admission: AdmissionSettings = AdmissionSettings()
    routing: Text | None = None
    worker: WorkerSettings = WorkerSettings()
    planner: PlannerSettings = PlannerSettings()
    faust: FaustSettings = FaustSettings()
    tables: TableFields = TableFields()
    drivers: DriverSettings = DriverSettings()
    scaling: ScalingSettings | None = None
    procurement: ProcurementSettings | None = None
    http: HttpSettings = HttpSettings()
    grpc: GrpcSettings = GrpcSettings()
    web: WebSettings = WebSettings()
    metrics: MetricsSettings = MetricsSettings()
    kafka: KafkaSection = KafkaSection()
    topics: TopicsSection = TopicsSection()
    objects: ObjectSettings = ObjectSettings()
    signing: SigningSettings = SigningSettings()
    tracing: TracingSettings = TracingSettings()
    log: LogSettings = LogSettings()
    runs: Path | None = None
    disk_floor_bytes: int = Field(default=64 << 20, ge=0)
    embedded_log_mb: int = Field(default=256, ge=16, le=65_536)
    outcomes_mb: int = Field(default=1024, ge=1, le=1_000_000)
    record: bool = False

    @field_validator("broker")
    @classmethod
    def _known_scheme(cls, value: str) -> str:
        if not value.startswith(("memory://", "kafka://", "memory+http://", "file://")):
            raise ValueError("must start with memory://, kafka://, memory+http:// or file://")
        return value

    @field_validator("devices")
    @classmethod
    def _distinct(cls, devices: tuple[DeviceSettings, ...]) -> tuple[DeviceSettings, ...]:
        distinct([device.name for device in devices])
        return devices

    @field_validator("fake_gpu")
    @classmethod
    def _known_gpu(cls, value: str | None) -> str | None:
        return readable_fake(value)

    @classmethod
    @override
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment first: what is passed in comes from the file (or from a command's options, see ``load``)."""
        del settings_cls, dotenv_settings, file_secret_settings
        return env_settings, init_settings

    @property
    def routes_by(self) -> str:
        """The routing policy."""
        return self.routing or default_routing(self.worker.batching, scales=self.planner.scales)

    @property
    def kept_runs(self) -> Path:
        """Where topics of finished runs are kept: ``runs``, or beside what else is kept in ``home``."""
        return self.runs if self.runs is not None else self.home / "runs"

    def partitions_of(self, apps: Sequence[str], promised: Collection[str] = ()) -> dict[str, int]:
        """Partitions of each app's topics: where something is promised as many as that says, one by default.

        ``promised``: apps that bring a promise of their own; what the settings say of an app counts before that.
        """
        said = {name: p.partitions if p.promise().active else self.partitions for name, p in self.promises.items()}
        return {name: said.get(name, 1 if name in promised else self.partitions) for name in apps}

    def as_set(self, app: App) -> App:
        """``app`` as these settings change it."""
        promised = self.promises.get(app.name)
        return replace(
            app,
            slo=self.slo_s.get(app.name, app.slo),
            slo_classes=tuple(sorted(self.slo_classes_s.get(app.name, ()))),
            min_accuracy=self.min_accuracy.get(app.name, app.min_accuracy),
            weight=self.weights.get(app.name, app.weight),
            promise=app.promise if promised is None else promised.promise(),
        )

    def all_devices(self) -> tuple[Device, ...]:
        """Devices as set, or the fake GPUs; by default one CPU device a core, two at least."""
        if self.fake_gpu is not None:
            if self.devices:
                raise ConfigurationError("fake_gpu: its GPUs are the devices; leave out devices in the settings")
            kind, count = fake_gpus(self.fake_gpu)
            memory = TABLES[kind].largest_bytes
            return tuple(Device(name=f"gpu{i}", type=kind, memory_bytes=memory) for i in range(count))
        if self.devices:
            return tuple(d.device() for d in self.devices)
        count = max(2, len(os.sched_getaffinity(0)))
        return tuple(Device(name=f"cpu{i}", type="cpu") for i in range(count))


class _Alone(Settings):
    """The same, of what is passed in and nothing else."""

    @classmethod
    @override
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Not the environment."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


def settings_of(what: str, values: Mapping[str, Any]) -> Settings:
    """Settings of these values alone, whatever the environment says. Raises ConfigurationError as ``load`` does."""
    try:
        return _Alone(**values)
    except ValidationError as error:
        raise ConfigurationError(f"{what}: {field_errors(error, Settings)}") from error


def load(file: Path | None = None, **overrides: Any) -> Settings:
    """Read settings from ``file`` (YAML), then the environment, then ``overrides`` (a command's options; None: unset).

    Raises ConfigurationError: one line naming each wrong field, or variable of the environment that sets nothing.
    """
    if wrong := unknown_variables(os.environ, Settings):
        raise ConfigurationError(f"environment: {'; '.join(wrong)}")
    values: dict[str, Any] = {}
    if file is not None:
        values = read_mapping(file, f"settings {file}", empty=True)
        refuse_secrets(values, f"settings {file}", Settings)
    try:
        settings = Settings(**values)
        changed = {name: value for name, value in overrides.items() if value is not None}
        return settings.model_copy(update=_validated(changed)) if changed else settings
    except ValidationError as error:
        raise ConfigurationError(f"{file or 'settings'}: {field_errors(error, Settings)}") from error
    except SettingsError as error:
        names = " or ".join(unreadable_variables(os.environ, error)) or str(error)
        raise ConfigurationError(f'{names}: give JSON, such as ["digits"] or {{"digits": 1}}') from error


def _validated(changed: dict[str, Any]) -> dict[str, Any]:
    whole = _Alone.model_validate(changed)  # the environment is below them
    return {name: getattr(whole, name) for name in changed}

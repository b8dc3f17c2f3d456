"""Names of all topics, from one prefix, and what to create.

Names of apps and devices become parts of topic names: letters, digits, ``-`` and ``_``, at most 64, none of them a dot,
so that two names never give one topic.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sluicegate.domain.errors import InvalidInputError
from sluicegate.streams.ports import TopicSpec

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
"""Of an app or device."""
PREFIX = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}(\.[A-Za-z0-9][A-Za-z0-9_-]{0,31}){0,2}$"
_NAME, _PREFIX = re.compile(NAME), re.compile(PREFIX)

MAX_RECORD_BYTES = 16 << 20
"""Limit of query and result topics: well above what admission accepts, so that it can reject what is too large."""


def check_topic_name(name: object) -> str:
    """``name`` if Kafka takes it as a topic name, which is also safe as a folder name. Raises InvalidInputError."""
    if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in {".", ".."}:
        raise InvalidInputError("topic", f"{name!r:.100} is no topic name; use 1 to 249 of A-Z a-z 0-9 . _ -")
    return name


def check_name(field: str, name: object) -> str:
    """``name`` if it can name an app or device. Raises InvalidInputError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInputError(
            field, f"{name!r:.100} is no valid name; use 1 to 64 of A-Z a-z 0-9 _ -, a letter or digit first"
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """How the topics of one class are kept. What is None is left to ``kafka.*`` or to the broker.

    ``retention_s``: seconds that a record is kept at least, None: for ever; what is compacted has none.
    ``compaction_lag_s``: seconds for which older records of a key are kept too. ``compression``: as the broker stores
    batches. ``max_bytes``: of a record.
    """

    retention_s: float | None = None
    segment_s: float | None = None
    compaction_lag_s: float | None = None
    replication: int | None = None
    min_insync_replicas: int | None = None
    compression: str | None = None
    max_bytes: int | None = None

    def spec(self, name: str, *, partitions: int = 1, compacted: bool = False, broker_time: bool = False) -> TopicSpec:
        """A topic of this class."""
        return TopicSpec(
            name=name,
            partitions=partitions,
            compacted=compacted,
            broker_time=broker_time,
            retention_s=self.retention_s,
            segment_s=self.segment_s,
            compaction_lag_s=self.compaction_lag_s,
            replication=self.replication,
            min_insync_replicas=self.min_insync_replicas,
            compression=self.compression,
            max_message_bytes=self.max_bytes,
        )


_YEAR_S = 31_536_000.0
_DAY = TopicPolicy(retention_s=86_400.0, max_bytes=MAX_RECORD_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicies:
    """A policy for each class of topics."""

    queries: TopicPolicy = _DAY
    admitted: TopicPolicy = _DAY
    work: TopicPolicy = _DAY
    results: TopicPolicy = _DAY
    dead_letters: TopicPolicy = _DAY
    metrics: TopicPolicy = TopicPolicy(retention_s=3_600.0)
    control: TopicPolicy = TopicPolicy(max_bytes=MAX_RECORD_BYTES)

    def status(self) -> TopicPolicy:
        """Of the status topic, a control topic whose history is whole as long as results are: the audit of promises
        reads there when safe mode was announced."""
        kept = _YEAR_S if self.results.retention_s is None else min(_YEAR_S, self.results.retention_s)
        return replace(self.control, compaction_lag_s=max(kept, self.control.compaction_lag_s or 0.0))


DEFAULT_POLICIES = TopicPolicies()


@dataclass(frozen=True, slots=True)
class Topics:
    """Topic names. ``prefix`` separates systems on one broker."""

    prefix: str = "sluice"

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise InvalidInputError(
                "prefix", f"{self.prefix!r:.100}; use up to three names of A-Z a-z 0-9 _ - joined by dots"
            )

    def queries(self, app: str) -> str:
        """What producers write; key: query id or stream key."""
        return f"{self.prefix}.app.{check_name('app', app)}.queries"

    def admitted(self, app: str) -> str:
        """Validated queries; key: query id."""
        return f"{self.prefix}.app.{check_name('app', app)}.admitted"

    def work(self, device: str) -> str:
        """Queries routed to a device; key: app; one partition."""
        return f"{self.prefix}.device.{check_name('device', device)}.work"

    def results(self, app: str) -> str:
        """One terminal outcome a query; key: query id."""
        return f"{self.prefix}.app.{check_name('app', app)}.results"

    @property
    def demand(self) -> str:
        """Counts of arrivals; key: app."""
        return f"{self.prefix}.metrics.demand"

    @property
    def demand_windows(self) -> str:
        """Counts of the last seconds, totals; key: app; compacted."""
        return f"{self.prefix}.metrics.demand-windows"

    @property
    def devices_metrics(self) -> str:
        """Heartbeats; key: device."""
        return f"{self.prefix}.metrics.devices"

    @property
    def turns(self) -> str:
        """Turns that routers have given; key: app."""
        return f"{self.prefix}.metrics.turns"

    @property
    def routers(self) -> str:
        """Routers that live; key: app."""
        return f"{self.prefix}.metrics.routers"

    @property
    def plan(self) -> str:
        """Plan epochs; compacted."""
        return f"{self.prefix}.control.plan"

    @property
    def policies(self) -> str:
        """Selection tables; compacted."""
        return f"{self.prefix}.control.policies"

    @property
    def registry(self) -> str:
        """Apps, variants, profiles; compacted."""
        return f"{self.prefix}.control.registry"

    @property
    def devices(self) -> str:
        """Inventory; compacted."""
        return f"{self.prefix}.control.devices"

    @property
    def instances(self) -> str:
        """Variant instances; compacted."""
        return f"{self.prefix}.control.instances"

    @property
    def acks(self) -> str:
        """Plan acknowledgements; compacted."""
        return f"{self.prefix}.control.acks"

    @property
    def status(self) -> str:
        """Leader lease, safe mode; compacted."""
        return f"{self.prefix}.control.status"

    @property
    def dead_letters(self) -> str:
        """What could not be understood; key: query id where known."""
        return f"{self.prefix}.dead-letters"

    @property
    def control(self) -> tuple[str, ...]:
        """All compacted topics."""
        return (self.plan, self.policies, self.registry, self.devices, self.instances, self.acks, self.status)

    @property
    def admission_group(self) -> str:
        """Group of all admission stages."""
        return f"{self.prefix}.admission"

    @property
    def sink_group(self) -> str:
        """Group of all sinks."""
        return f"{self.prefix}.sink"

    @property
    def demand_group(self) -> str:
        """Group of all that count demand by windows, and the beginning of their changelogs' names."""
        return f"{self.prefix}.demand"

    def router_group(self, app: str) -> str:
        """Group of the routers of ``app``."""
        return f"{self.prefix}.router.{check_name('app', app)}"

    def worker_group(self, device: str) -> str:
        """Whose offsets the worker of ``device`` commits."""
        return f"{self.prefix}.worker.{check_name('device', device)}"

    @property
    def swept_group(self) -> str:
        """Whose offsets planners commit: up to where they have moved what dead devices left."""
        return f"{self.prefix}.swept"

    def is_queries(self, topic: str) -> bool:
        """Whether ``topic`` carries what producers write."""
        return topic.endswith(".queries") and self.app_of(topic) is not None

    def is_results(self, topic: str) -> bool:
        """Whether ``topic`` carries outcomes."""
        return topic.endswith(".results") and self.app_of(topic) is not None

    def device_of(self, topic: str) -> str | None:
        """The device whose work ``topic`` carries."""
        prefix = f"{self.prefix}.device."
        name = topic.removeprefix(prefix).removesuffix(".work")
        return name if topic == f"{prefix}{name}.work" and "." not in name else None

    def app_of(self, topic: str) -> str | None:
        """The app whose queries, admitted queries or results ``topic`` carries."""
        parts = topic.removeprefix(f"{self.prefix}.app.").split(".")
        known = topic.startswith(f"{self.prefix}.app.") and len(parts) == 2
        return parts[0] if known and parts[1] in {"queries", "admitted", "results"} else None

    def specs(
        self,
        apps: Iterable[str],
        devices: Iterable[str] = (),
        *,
        partitions: int | Mapping[str, int] = 1,
        policies: TopicPolicies = DEFAULT_POLICIES,
        demand_partitions: int = 1,
    ) -> tuple[TopicSpec, ...]:
        """Topics to create. ``partitions``: of an app's topics, for all or by app (1 where it is not named).

        Work topics have one partition: a device reads its own and no rebalance touches it.
        """
        specs = []
        for app in apps:
            count = partitions if isinstance(partitions, int) else partitions.get(app, 1)
            specs += [
                policies.queries.spec(self.queries(app), partitions=count),
                policies.admitted.spec(self.admitted(app), partitions=count),
                policies.results.spec(self.results(app), partitions=count, broker_time=True),
            ]
        specs += [policies.work.spec(self.work(device)) for device in devices]
        specs.append(policies.metrics.spec(self.demand, partitions=demand_partitions))
        specs += [policies.metrics.spec(name) for name in (self.devices_metrics, self.turns, self.routers)]
        specs.append(TopicPolicy().spec(self.demand_windows, compacted=True))
        specs += [policies.control.spec(name, compacted=True) for name in self.control if name != self.status]
        specs.append(policies.status().spec(self.status, compacted=True, broker_time=True))
        specs.append(policies.dead_letters.spec(self.dead_letters))
        return tuple(specs)

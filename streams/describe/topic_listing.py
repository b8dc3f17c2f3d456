"""The topics of a system as a list for people: what each carries, who writes and reads it, how long it is kept."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sluicegate.streams.describe.acls import Rule, rules
from sluicegate.streams.ports import TopicSpec
from sluicegate.streams.topics import Topics

_CARRIES = {
    "queries": (
        "query id, or the stream's key",
        "What producers write: CloudEvents around Open Inference Protocol v2.",
    ),
    "admitted": ("query id", "Validated queries, classed, deadline stamped."),
    "results": ("query id", "Exactly one terminal outcome a query."),
    "work": ("app", "Queries routed to one device; one partition, assigned explicitly."),
    "metrics.demand": ("app", "Rows that came in, twice a second, by SLO class."),
    "metrics.demand-windows": ("app", "The same by half seconds, the last seconds of each app; made by Faust."),
    "metrics.devices": ("device", "Heartbeats: queue, utilisation, loaded variants, measured latencies."),
    "metrics.turns": ("app", "Turns given to workers so far, where selection tables tell phases apart."),
    "metrics.routers": ("app", "Routers that live, twice a second."),
    "control.plan": ("`plan`", "The newest plan, with epoch and fences."),
    "control.policies": ("table", "Selection tables."),
    "control.registry": ("name", "Apps, variants, profiles."),
    "control.devices": ("device@stage", "What stages note of devices: leave it out, what it costs now."),
    "control.instances": ("instance", "Variant instances."),
    "control.acks": ("device", "Which epoch each device has staged."),
    "control.status": ("subject", "Safe mode, shortage, wrong profiles, who said so."),
    "dead-letters": ("query id where known", "Records that could not be understood, with `__dlq.errors.*` headers."),
}


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic. ``writers`` and ``readers`` are roles. ``retention_s``: None for ever, as what is compacted is;
    ``lag_s``: for which that is whole."""

    name: str
    key: str
    carries: str
    partitions: int
    compacted: bool
    retention_s: float | None
    lag_s: float | None
    writers: tuple[str, ...]
    readers: tuple[str, ...]

    @property
    def kept(self) -> str:
        """How long, in words."""
        if self.compacted:
            return f"newest of each key, all of {self.lag_s / 3600:g} h" if self.lag_s else "newest of each key"
        return "for ever" if self.retention_s is None else f"{self.retention_s / 3600:g} h"


def listed(topics: Topics, apps: Sequence[str], specs: Iterable[TopicSpec]) -> tuple[TopicInfo, ...]:
    """All topics of ``specs``, described."""
    allowed = [rule for rule in rules(topics, apps) if rule.resource == "topic" and rule.role != "audit"]
    return tuple(_info(topics, spec, allowed) for spec in specs)


def as_markdown(found: Iterable[TopicInfo]) -> str:
    """The reference page."""
    lines = [
        "# Topics",
        "",
        "By `sluice topics --markdown` for apps `digits`, `signals` and devices `cpu0`, `cpu1`: a test",
        "keeps it so. The prefix (`sluice`) is a setting. `sluice topics --create` makes those that do not exist;",
        "nothing is ever created by being written to. How long records are kept and how they are packed is a setting",
        "of each class of topics (`topics.queries`, `.admitted`, `.work`, `.results`, `.dead_letters`, `.metrics`,",
        "`.control`), as are copies (without them as `kafka.replication` and `kafka.min_insync_replicas` or the broker",
        "say). `sluice topics --check` compares those that exist, `--apply` changes them. `sluice describe asyncapi`",
        "prints the records' schemas.",
        "",
        "| topic | key | partitions | kept | carries | written by | read by |",
        "|---|---|---|---|---|---|---|",
    ]
    for info in found:
        writers, readers = (", ".join(roles) or "-" for roles in (info.writers, info.readers))
        told = (f"`{info.name}`", info.key, info.partitions, info.kept, info.carries, writers, readers)
        lines.append(f"| {' | '.join(str(cell) for cell in told)} |")
    return "\n".join(lines) + "\n"


def _info(topics: Topics, spec: TopicSpec, allowed: Iterable[Rule]) -> TopicInfo:
    rest = spec.name.removeprefix(f"{topics.prefix}.")
    key, carries = _CARRIES.get(rest) or _CARRIES[rest.rsplit(".", 1)[-1]]
    may = [rule for rule in allowed if rule.name == spec.name or (rule.prefixed and spec.name.startswith(rule.name))]
    return TopicInfo(
        spec.name,
        key,
        carries,
        spec.partitions,
        spec.compacted,
        spec.retention_s,
        spec.compaction_lag_s,
        tuple(dict.fromkeys(rule.role for rule in may if "Write" in rule.operations)),
        tuple(dict.fromkeys(rule.role for rule in may if "Read" in rule.operations)),
    )

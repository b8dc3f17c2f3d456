"""What a topic is configured as on Apache Kafka, and how far one that exists is from it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.ports import TopicSpec, TopicState

_BATCH_OVERHEAD = 64 << 10
_SEGMENTS = 8
_SHORTEST_SEGMENT = 60.0


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that a topic has otherwise than it should. ``has`` None: the topic does not exist.

    ``remedy``: what would have to be done by hand, "" where it can be applied.
    """

    topic: str
    what: str
    has: str | None
    wants: str
    remedy: str = ""


def configs(spec: TopicSpec, settings: KafkaSettings) -> dict[str, str]:
    """All that is said of ``spec``; what is not is the broker's to say."""
    told = {
        "cleanup.policy": "compact" if spec.compacted else "delete",
        "message.timestamp.type": "LogAppendTime" if spec.broker_time else "CreateTime",
    }
    if spec.compacted:
        if spec.compaction_lag_s is not None:
            told["min.compaction.lag.ms"] = _ms(spec.compaction_lag_s)
    else:
        told["retention.ms"] = "-1" if spec.retention_s is None else _ms(spec.retention_s)
    if spec.segment_s is not None:
        told["segment.ms"] = _ms(spec.segment_s)
    elif spec.retention_s is not None and not spec.compacted:
        # Only whole segments are deleted, and never the newest: a week long, unless it is said.
        told["segment.ms"] = _ms(max(_SHORTEST_SEGMENT, spec.retention_s / _SEGMENTS))
    least = settings.min_insync_replicas if spec.min_insync_replicas is None else spec.min_insync_replicas
    if least is not None:
        told["min.insync.replicas"] = str(least)
    if spec.compression is not None:
        told["compression.type"] = spec.compression
    if spec.max_message_bytes is not None:
        # The broker counts a whole batch: no batch of small records may be refused for it.
        told["max.message.bytes"] = str(max(spec.max_message_bytes, settings.batch_bytes + _BATCH_OVERHEAD))
    return told


def differences(
    specs: Iterable[TopicSpec], found: Mapping[str, TopicState], settings: KafkaSettings
) -> tuple[Difference, ...]:
    """What is missing or otherwise than ``specs`` say, topic by topic."""
    told: list[Difference] = []
    for spec in specs:
        state = found.get(spec.name)
        if state is None:
            told.append(Difference(spec.name, "topic", None, f"{spec.partitions} partitions"))
            continue
        told += _of_partitions(spec, state)
        copies = spec.replication or settings.replication
        if copies is not None and copies != state.replication:
            by_hand = "move its replicas with kafka-reassign-partitions.sh"
            told.append(Difference(spec.name, "replication", str(state.replication), str(copies), by_hand))
        told += [
            Difference(spec.name, key, state.configs[key], wanted)
            for key, wanted in configs(spec, settings).items()
            if key in state.configs and state.configs[key] != wanted
        ]
    return tuple(told)


def _of_partitions(spec: TopicSpec, state: TopicState) -> list[Difference]:
    if spec.partitions == state.partitions:
        return []
    if spec.partitions < state.partitions:
        by_hand = "a topic cannot lose partitions: set `partitions` to what it has, or make it anew"
    else:
        by_hand = "stop the stages, then kafka-topics.sh --alter --partitions: keys move to other partitions"
    return [Difference(spec.name, "partitions", str(state.partitions), str(spec.partitions), by_hand)]


def _ms(seconds: float) -> str:
    return str(int(1e3 * seconds))

"""What a consumer reads, checked where it is made, and whether that exists."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.ports import RebalanceListener, TopicPartition

START_AT = ("committed", "beginning", "end")


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a consumer reads: topics, shared with its group where it has one, or partitions of its own.

    See ``sluicegate.streams.ports.Broker.consumer`` for each. Raises ConfigurationError for what no broker can serve.
    """

    topics: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    group: str | None = None
    member: str | None = None
    start_at: str = "committed"
    listener: RebalanceListener | None = None
    exclusive: bool = False

    def __post_init__(self) -> None:
        if bool(self.topics) == bool(self.partitions):
            raise ConfigurationError("a consumer reads topics or explicit partitions: give one of the two")
        if self.start_at not in START_AT:
            raise ConfigurationError(f"start_at {self.start_at!r}: give one of {', '.join(START_AT)}")

    @property
    def shared(self) -> bool:
        """Whether its partitions are given out by the group."""
        return self.group is not None and not self.partitions

    @property
    def named(self) -> frozenset[str]:
        """All topics that it is about."""
        return frozenset((*self.topics, *(tp.topic for tp in self.partitions)))

    def explicit(self, counts: Mapping[str, int]) -> tuple[TopicPartition, ...]:
        """The partitions that it reads by itself, topic by topic; none for a member of a group.

        ``counts``: topic -> partitions, of those that exist. Raises ConfigurationError for what does not.
        """
        check_topics(self.topics, counts)
        check_partitions(self.partitions, counts)
        if self.shared:
            return ()
        return self.partitions or tuple(
            TopicPartition(t, p) for t in sorted(set(self.topics)) for p in range(counts[t])
        )


def check_topics(topics: Iterable[str], counts: Mapping[str, int]) -> None:
    """Raises ConfigurationError for a topic that is not in ``counts``, topic -> partitions."""
    for topic in sorted(topics):
        if topic not in counts:
            raise ConfigurationError(f"topic {topic!r} does not exist; create it before it is read")


def check_partitions(partitions: Iterable[TopicPartition], counts: Mapping[str, int]) -> None:
    """Raises ConfigurationError for a partition that is not in ``counts``, topic -> partitions."""
    for tp in partitions:
        check_topics((tp.topic,), counts)
        if not 0 <= tp.partition < counts[tp.topic]:
            raise ConfigurationError(
                f"topic {tp.topic!r} has no partition {tp.partition}; it has {counts[tp.topic]}, counted from 0"
            )

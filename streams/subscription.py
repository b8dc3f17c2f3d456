"""What a consumer reads, checked where it is made."""

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

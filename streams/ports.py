"""The ports of the log: what a stage may ask of a broker, whichever it is.

Semantics are those of Apache Kafka: a topic has partitions, a partition is an ordered log with offsets, a consumer
reads from positions and commits offsets for its group. ``memory://`` and ``kafka://`` pass one conformance suite.
"""

from asyncio import Future
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from sluicegate.domain.errors import ConfigurationError, SluiceError

Headers = tuple[tuple[str, bytes], ...]


class LostPartitionError(SluiceError):
    """This partition is not this consumer's (any more): a rebalance gave it to another, who goes on from the commit."""


class BrokerError(SluiceError):
    """The broker answered with an error, or not at all: trying again may help."""


class UnreachableError(ConfigurationError):
    """No broker answers: it may not be up yet, or the address or what it is told of this client is wrong."""


class UnknownTopicError(ConfigurationError):
    """There is no such topic, or no such partition of it: it was not created yet, or it was deleted."""


class MemberTakenError(ConfigurationError):
    """Another consumer reads as the member of a group that this one is named as."""

    def __init__(self, member: str | None, group: str | None) -> None:
        super().__init__(f"member {member!r} of group {group!r} was taken by another consumer: give each its own name")


class FencedError(BrokerError):
    """Another has taken over: nothing is written here any more."""


class LettersNotTakenError(BrokerError):
    """Nothing was written, because some letters are such as their topics never take, too large for one: those at the
    indexes ``letters``, or, where there are several and only the broker knows which, at least one of them."""

    def __init__(self, message: str, letters: tuple[int, ...]) -> None:
        super().__init__(message)
        self.letters = letters


class LettersWithoutTopicError(BrokerError):
    """Nothing was written, because the topics of the letters at the indexes ``letters`` do not exist (any more)."""

    def __init__(self, message: str, letters: tuple[int, ...]) -> None:
        super().__init__(message)
        self.letters = letters


class DeliveryError(BrokerError):
    """A record was not acknowledged by the broker: it may or may not have been written."""


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int


class Record(NamedTuple):
    """A record as it was read. ``timestamp``: seconds since the epoch, given by the producer or the broker."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: float

    @property
    def place(self) -> str:
        """Topic, partition and offset, for logs."""
        return f"{self.topic}/{self.partition}/{self.offset}"


class Unreadable(Record):
    """An offset whose record cannot be read: no key, value or headers, but ``why``."""

    why = ""

    @classmethod
    def at(cls, topic: str, partition: int, offset: int, timestamp: float, why: str) -> "Unreadable":
        """The record at this place, as far as there is one."""
        record = cls(topic, partition, offset, None, None, (), timestamp)
        record.why = why
        return record


class Written(NamedTuple):
    """Where a record went: the acknowledgement of a send."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic to create. ``compacted`` keeps the newest record of each key (and older ones for ``compaction_lag_s``),
    else ``retention_s`` (None: for ever).

    ``broker_time``: records get the time of their writing by the broker's clock, not their producer's. What only
    Apache Kafka knows (segments, copies, compression) others pass over; None leaves it to the client's settings or to
    the broker.
    """

    name: str
    partitions: int = 1
    compacted: bool = False
    retention_s: float | None = None
    max_message_bytes: int | None = None
    broker_time: bool = False
    segment_s: float | None = None
    compaction_lag_s: float | None = None
    replication: int | None = None
    min_insync_replicas: int | None = None
    compression: str | None = None


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as the broker has it. ``configs``: what counts there, whoever set it; empty where it may not be asked."""

    partitions: int
    replication: int
    configs: Mapping[str, str]


class Producer(Protocol):
    """Shared by all that write in one process. Order is kept within a partition."""

    async def start(self) -> None:
        """Connect. Idempotent."""
        ...

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> Future[Written]:
        """Queue a record; await the returned future for its acknowledgement (or add a callback to it).

        Awaiting ``send`` itself waits only while the buffer is full. Without ``partition`` the key's hash decides.
        Raises InvalidInputError for a record over the size limit, UnknownTopicError for an unknown topic or partition.
        The future fails with DeliveryError, or with InvalidInputError where only the broker knows the limit.
        ``timestamp`` is kept to the millisecond.
        """
        ...

    def try_send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> Future[Written] | None:
        """As ``send``, where the record can be queued without waiting; None where it cannot: then use ``send``."""
        ...

    async def flush(self) -> None:
        """Wait until all that was sent is acknowledged."""
        ...

    async def stop(self) -> None:
        """Flush and disconnect."""
        ...


@dataclass(slots=True)
class Letter:
    """A record to be written; nobody changes it (not frozen: one is made for each query of each hop, which costs).

    ``partition`` None: the key's hash decides. ``timestamp``: seconds.
    """

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp: float | None = None


class Transactions(Protocol):
    """Writes records and commits offsets as one, under an id: who starts with the same id ends this one for good."""

    async def start(self) -> None:
        """Connect, and fence whoever used the id before; what they had begun and not committed is undone."""
        ...

    async def write(self, letters: Sequence[Letter], offsets: Mapping[TopicPartition, int], group: str) -> None:
        """All of it, or nothing. Raises FencedError once the id is another's, BrokerError where it may be tried again,
        LettersNotTakenError or LettersWithoutTopicError where that takes other letters."""
        ...

    async def stop(self) -> None:
        """Disconnect."""
        ...


class RebalanceListener(Protocol):
    """Told of partitions taken and given in a group: all of a member's at each rebalance, or only those that change
    hands, as the group's protocol has it. What is not named stays, and is read on."""

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """These partitions go to others after this returns: finish and commit what is theirs."""
        ...

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """These partitions are ours from now on."""
        ...


class Consumer(Protocol):
    """Reads partitions: assigned explicitly, or shared in a group by subscription."""

    async def start(self) -> None:
        """Connect and join. Idempotent."""
        ...

    async def get_many(self, *, wait: float, max_records: int = 500) -> Sequence[Record]:
        """Records in offset order within each partition; waits at most ``wait`` seconds for the first.

        What cannot be read (a codec that is not installed, a damaged batch) comes as ``Unreadable``, each offset of it.
        Other tasks get a turn at least once a call. What a listener raised is raised here. A position below the
        beginning (retention went past it) goes on at the beginning, or at the end with ``start_at`` "end".
        """
        ...

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics from now on, as the member of its group that it is; the listener is told as ever.

        Raises ConfigurationError for explicit partitions, a topic that does not exist, or before ``start``.
        """
        ...

    def assignment(self) -> frozenset[TopicPartition]:
        """Partitions read at present."""
        ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these; membership and positions stay."""
        ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these again."""
        ...

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from ``offset``. Raises LostPartitionError where the partition is not ours; so do the next two."""
        ...

    async def position(self, partition: TopicPartition) -> int:
        """Offset of the next record to be read."""
        ...

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record for the group that everything below these offsets is done."""
        ...

    async def committed(self, partition: TopicPartition) -> int | None:
        """The group's committed offset, None where there is none."""
        ...

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """First offset still kept."""
        ...

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Offset that the next record will get."""
        ...

    async def offsets_for_times(self, times: Mapping[TopicPartition, float]) -> Mapping[TopicPartition, int | None]:
        """First offset whose timestamp (seconds) is at or after the given one; None past the end."""
        ...

    async def stop(self) -> None:
        """Leave the group and disconnect. Commits nothing by itself."""
        ...


class Admin(Protocol):
    """Topics: created, never auto-created."""

    async def create_topics(self, topics: Iterable[TopicSpec]) -> None:
        """Create those that do not exist; existing ones stay as they are. Returns once they can be used."""
        ...

    async def partitions(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Partition count of each topic that exists."""
        ...

    async def topics(self) -> frozenset[str]:
        """Names of all topics."""
        ...

    async def limits(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Bytes that a record of each topic that exists may have. Producers made by the same broker keep to them."""
        ...

    async def committed(self, group: str, partition: TopicPartition) -> int | None:
        """Committed offset of another group."""
        ...


@runtime_checkable
class TellsStates(Protocol):
    """An admin that knows how topics are kept."""

    async def states(self, topics: Iterable[str]) -> Mapping[str, TopicState]:
        """Those of ``topics`` that exist, as the broker has them."""
        ...


class Broker(Protocol):
    """A connection factory: one a process, made by ``streams.connect(url)``."""

    @property
    def url(self) -> str:
        """Without credentials."""
        ...

    def producer(self) -> Producer:
        """A new producer."""
        ...

    def consumer(
        self,
        *,
        topics: Sequence[str] = (),
        partitions: Sequence[TopicPartition] = (),
        group: str | None = None,
        member: str | None = None,
        start_at: str = "committed",
        listener: RebalanceListener | None = None,
        exclusive: bool = False,
    ) -> Consumer:
        """A new consumer: of ``topics`` as a member of ``group`` (``member``: static id), or of ``partitions``.

        ``start_at``: "committed" (else the beginning), "beginning" or "end"; a member of a group starts there only
        where nothing is committed. With explicit partitions ``group`` only names whose offsets are committed. A static
        member that comes back within the session timeout finds its partitions as it left them. ``exclusive``: one
        member of the group reads everything, the others stand by; all of them must say so.
        """
        ...

    def transactions(self, transactional_id: str) -> Transactions:
        """A new writer of transactions. Raises ConfigurationError where the broker has none."""
        ...

    def admin(self) -> Admin:
        """Topic administration."""
        ...

    async def close(self) -> None:
        """Close all that this made."""
        ...

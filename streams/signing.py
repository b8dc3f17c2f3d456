"""Control and metrics records signed by those who hold a key, and read past where they are not.

Rules.
- Of topics of a system's control and metrics each record carries a header: the time of writing (milliseconds, 8 bytes)
  and the HMAC-SHA256 over it, topic, key and value, so that no record can be changed or put elsewhere.
- To a reader what is unsigned, or signed with another key, is unreadable; the log says so, a line a second. What is
  unsigned is taken where ``required`` is off: while a system goes over to signing.
- Records of metrics topics count while they are ``FRESH``, and once: one that is written once more says nothing, or the
  last heartbeats of who is dead could be repeated. On compacted topics the newest word stays, and what is older is
  refused by epochs and terms.
- Everything else (queries, work, results) passes untouched: producers and clients hold no key.
"""

import hmac
import logging
import struct
import time
from asyncio import Future
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sluicegate.streams.ports import (
    Admin,
    Broker,
    Consumer,
    Headers,
    Producer,
    RebalanceListener,
    Record,
    TopicPartition,
    Transactions,
    Unreadable,
    Written,
)

log = logging.getLogger(__name__)

HEADER = "sluice-signature"
FRESH = 60.0
"""Seconds that a record of a metrics topic counts, by clocks that may differ by as much."""
_TIME = struct.Struct(">q")
_LENGTHS = struct.Struct(">iii")
_SIZE = _TIME.size + 32
_LINE_EVERY = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """A key and what it is for: the system whose topics begin with ``prefix``.

    ``required``: what is unsigned is not read.
    """

    prefix: str
    key: bytes = field(repr=False)
    required: bool = True

    def covers(self, topic: str) -> bool:
        """Whether records of ``topic`` are signed."""
        return topic.startswith((f"{self.prefix}.control.", f"{self.prefix}.metrics."))

    def perishes(self, topic: str) -> bool:
        """Whether records of ``topic`` count for a while, and once."""
        return topic.startswith(f"{self.prefix}.metrics.")

    def signature(self, topic: str, key: bytes | None, value: bytes | None, at: float) -> bytes:
        """What the header holds of a record written ``at``."""
        told = _TIME.pack(round(at * 1e3))
        name = topic.encode()
        sizes = _LENGTHS.pack(len(name), -1 if key is None else len(key), -1 if value is None else len(value))
        return told + hmac.digest(self.key, b"".join((told, sizes, name, key or b"", value or b"")), "sha256")

    def flaw(self, record: Record, now: float) -> str:
        """Why ``record`` says nothing; "" where it counts."""
        held = [value for name, value in record.headers if name == HEADER]
        if not held:
            return "is not signed" if self.required else ""
        if len(held) > 1 or len(held[0]) != _SIZE:
            return "is not signed as records are"
        at = _TIME.unpack_from(held[0])[0] / 1e3
        if not hmac.compare_digest(held[0], self.signature(record.topic, record.key, record.value, at)):
            return "is signed with another key"
        if self.perishes(record.topic) and abs(now - at) > FRESH:
            return f"was signed {now - at:.0f} s ago"
        return ""


class Signatures:
    """What one reader makes of signed records: a record of a metrics topic that is on the log once more, in whichever
    partition, says nothing; one that is read once more does."""

    def __init__(self, signing: Signing) -> None:
        self._signing = signing
        self._seen: OrderedDict[tuple[str, bytes], tuple[int, int, float]] = OrderedDict()  # -> partition, offset, when

    def flaw(self, record: Record, now: float) -> str:
        """Why ``record`` says nothing; "" where it counts."""
        return self._signing.flaw(record, now) or self._repeated(record, now)

    def _repeated(self, record: Record, now: float) -> str:
        held = [value for name, value in record.headers if name == HEADER]
        if not held or not self._signing.perishes(record.topic):
            return ""
        while self._seen and next(iter(self._seen.values()))[2] < now - 3 * FRESH:
            self._seen.popitem(last=False)
        found = self._seen.setdefault((record.topic, held[0]), (record.partition, record.offset, now))
        same = found[0] == record.partition and found[1] >= record.offset
        return "" if same else "was written before"


class SignedBroker:
    """A broker whose control and metrics records are signed, as ``signing`` says: ``inner`` does all else.

    ``wall``: seconds since the epoch.
    """

    def __init__(self, inner: Broker, signing: Signing, wall: Callable[[], float] = time.time) -> None:
        self.inner = inner
        self.signing = signing
        self._wall = wall

    @property
    def url(self) -> str:
        """Without credentials."""
        return self.inner.url

    def producer(self) -> Producer:
        """A new producer."""
        return _SigningProducer(self.inner.producer(), self.signing, self._wall)

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
        """A new consumer; of queries, work and results it is the inner broker's own."""
        made = self.inner.consumer(
            topics=topics,
            partitions=partitions,
            group=group,
            member=member,
            start_at=start_at,
            listener=listener,
            exclusive=exclusive,
        )
        covered = any(self.signing.covers(topic) for topic in (*topics, *(p.topic for p in partitions)))
        return _VerifyingConsumer(made, self.signing, self._wall) if covered else made

    def transactions(self, transactional_id: str) -> Transactions:
        """A new writer of transactions, which write queries and results alone."""
        return self.inner.transactions(transactional_id)

    def admin(self) -> Admin:
        """Topic administration."""
        return self.inner.admin()

    async def close(self) -> None:
        """Close all that this made."""
        await self.inner.close()


def unsigned(broker: Broker) -> Broker:
    """What is behind the signing, if anything signs."""
    return broker.inner if isinstance(broker, SignedBroker) else broker


class _SigningProducer:
    def __init__(self, inner: Producer, signing: Signing, wall: Callable[[], float]) -> None:
        self._inner = inner
        self._signing = signing
        self._wall = wall

    async def start(self) -> None:
        await self._inner.start()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> "Future[Written]":
        headers = self._signed(topic, key, value, headers)
        return await self._inner.send(topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp)

    def try_send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> "Future[Written] | None":
        headers = self._signed(topic, key, value, headers)
        return self._inner.try_send(topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp)

    async def flush(self) -> None:
        await self._inner.flush()

    async def stop(self) -> None:
        await self._inner.stop()

    def _signed(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> Headers:
        if not self._signing.covers(topic):
            return headers
        return (*headers, (HEADER, self._signing.signature(topic, key, value, self._wall())))


class _VerifyingConsumer:
    def __init__(self, inner: Consumer, signing: Signing, wall: Callable[[], float]) -> None:
        self._inner = inner
        self._signing = signing
        self._wall = wall
        self._signatures = Signatures(signing)
        self._told = float("-inf")
        self._untold = 0

    async def start(self) -> None:
        await self._inner.start()

    async def get_many(self, *, wait: float, max_records: int = 500) -> Sequence[Record]:
        records = await self._inner.get_many(wait=wait, max_records=max_records)
        now = self._wall()
        return [self._verified(record, now) for record in records]

    def _verified(self, record: Record, now: float) -> Record:
        if isinstance(record, Unreadable) or not self._signing.covers(record.topic):
            return record
        flaw = self._signatures.flaw(record, now)
        if not flaw:
            return record
        self._tell(record, flaw)
        return Unreadable.at(record.topic, record.partition, record.offset, record.timestamp, flaw)

    def _tell(self, record: Record, flaw: str) -> None:
        since = time.monotonic()
        if since - self._told < _LINE_EVERY:
            self._untold += 1
            return
        more = f" ({self._untold} more since the last such line)" if self._untold else ""
        self._told, self._untold = since, 0
        log.warning("%s offset %d %s: it is passed over%s", record.topic, record.offset, flaw, more)

    async def subscribe(self, topics: Iterable[str]) -> None:
        await self._inner.subscribe(topics)

    def assignment(self) -> frozenset[TopicPartition]:
        return self._inner.assignment()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._inner.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._inner.resume(partitions)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        await self._inner.seek(partition, offset)

    async def position(self, partition: TopicPartition) -> int:
        return await self._inner.position(partition)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        await self._inner.commit(offsets)

    async def committed(self, partition: TopicPartition) -> int | None:
        return await self._inner.committed(partition)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        return await self._inner.beginning_offsets(partitions)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        return await self._inner.end_offsets(partitions)

    async def offsets_for_times(self, times: Mapping[TopicPartition, float]) -> Mapping[TopicPartition, int | None]:
        return await self._inner.offsets_for_times(times)

    async def stop(self) -> None:
        await self._inner.stop()

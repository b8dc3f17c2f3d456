"""What a fetch of Apache Kafka holds, read so that a batch which cannot be costs its own offsets and nothing else.

Rules. A batch whose checksum is wrong, whose codec is unknown or not installed, that unpacks to more than
``MAX_UNPACKED`` bytes or whose records are malformed gives an ``UnreadableRecord`` for each of its offsets that was not
read before, and reading goes on behind it. Where its checksum is wrong its header is not believed either: one offset is
given up, and the broker asked again for the next. The client by itself would raise, having lost what it had read
before in the same fetch, and raise again at each start.
"""

import gzip
import io
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aiokafka.codec
import aiokafka.record.default_records
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.structs import ConsumerRecord
from typing_extensions import override

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.ports import Headers

MAX_UNPACKED = 64 << 20
"""Bytes that a compressed batch may unpack to: some KiB of zstd unpack to what no machine holds."""

_FIRST_GUESS = 64 << 10
_unpacking = threading.local()


@dataclass
class UnreadableRecord(ConsumerRecord):  # type: ignore[misc]
    """An offset whose record cannot be read, and why."""

    why: str = ""

    @classmethod
    def at(cls, partition: Any, offset: int, why: str, timestamp: int = 0) -> "UnreadableRecord":
        """At ``partition`` (topic, number) and ``offset``; milliseconds."""
        topic, number = partition
        return cls(topic, number, offset, timestamp, 0, None, None, None, -1, -1, (), why)


def headers_of(found: Iterable[tuple[str, bytes | None]]) -> Headers:
    """Headers as the ports have them: one without a value, as Kafka allows it, has one of no bytes."""
    return tuple([(name, b"" if held is None else held) for name, held in found])


def check_codec(name: str | None) -> None:
    """Raise ConfigurationError where this process cannot write (and so not read) batches compressed so."""
    if name is not None and not getattr(aiokafka.codec, f"has_{name}")():
        raise ConfigurationError(
            f"kafka.compression: {name} needs the package cramjam, which is not installed; "
            f"pip install 'aiokafka[{name}]', or choose gzip"
        )


def read_past_faults(inner: Any, tell: Callable[[UnreadableRecord], None] | None = None) -> None:
    """Have a started client of aiokafka give ``UnreadableRecord`` where it would raise.

    ``tell``: called of each as it is read, which may be again, by the task (and thread) that reads.
    """
    if isinstance(inner._fetcher._records, _Fetched):
        return
    fetched = _Fetched()
    fetched.tell = tell
    for partition, result in inner._fetcher._records.items():
        fetched[partition] = result
    inner._fetcher._records = fetched


class _Fetched(OrderedDict[Any, Any]):
    """The client's fetches by partition: each is read by ``_Batches`` instead of the client's own reader."""

    tell: Callable[[UnreadableRecord], None] | None = None

    @override
    def __setitem__(self, partition: Any, result: Any) -> None:
        read = getattr(result, "_partition_records", None)
        if type(read) is PartitionRecords:
            result._partition_records = _Batches(read, self.tell)
        super().__setitem__(partition, result)


class _Batches(PartitionRecords):  # type: ignore[misc]
    """Takes over from ``read``, of which nothing was read yet."""

    def __init__(self, read: PartitionRecords, tell: Callable[[UnreadableRecord], None] | None) -> None:
        self.__dict__.update(read.__dict__)
        self._tell = tell
        self._records_iterator = self._unpack_records()

    def _unpack_records(self) -> Iterator[Any]:
        while self._records.has_next():
            try:
                batch = self._records.next_batch()
                why = "" if batch.validate_crc() else "the checksum of its batch is wrong"
                passed_over = not why and self._passed_over(batch)
            except Exception as error:
                why = _told(error)
            if why:
                yield self._unreadable(why)
                return
            if not passed_over:
                yield from self._records_of(batch)
            self.next_fetch_offset = batch.next_offset

    def _passed_over(self, batch: Any) -> bool:
        """Whether it holds nothing to read: a mark of a transaction, or records of one that was undone."""
        if batch.producer_id is not None:
            self._consume_aborted_up_to(batch.base_offset)
            if batch.is_control_batch and self._contains_abort_marker(batch):
                self._aborted_producers.discard(batch.producer_id)
            if batch.is_transactional and batch.producer_id in self._aborted_producers:
                return True
        return bool(batch.is_control_batch)

    def _records_of(self, batch: Any) -> Iterator[Any]:
        try:
            with _bounded():
                records = iter(batch)
            for record in records:
                if record.offset >= self.next_fetch_offset:
                    self.next_fetch_offset = record.offset + 1
                    yield self._consumer_record(self._tp, record)
        except Exception as error:
            why = _told(error)
            self.next_fetch_offset = max(self.next_fetch_offset, batch.base_offset)
            while self.next_fetch_offset < batch.next_offset:
                yield self._unreadable(why, batch.max_timestamp)

    def _unreadable(self, why: str, timestamp: int = 0) -> UnreadableRecord:
        offset = self.next_fetch_offset
        self.next_fetch_offset = offset + 1
        found = UnreadableRecord.at(self._tp, offset, why, timestamp)
        if self._tell is not None:
            self._tell(found)
        return found


def _told(error: Exception) -> str:
    """Why a batch could not be read, in a few words."""
    return f"its batch cannot be unpacked: {str(error) or type(error).__name__}"[:300]


# The client unpacks whatever it is given: while our batches are read, its codecs are bounded ones.


@contextmanager
def _bounded() -> Iterator[None]:
    _unpacking.ours = True
    try:
        yield
    finally:
        _unpacking.ours = False


def _unless_ours(theirs: Callable[[Any], Any], ours: Callable[[Any], bytes]) -> Callable[[Any], Any]:
    return lambda payload: (ours if getattr(_unpacking, "ours", False) else theirs)(payload)


def _too_large() -> ValueError:
    return ValueError(f"it unpacks to more than {MAX_UNPACKED} bytes")


def _gzip(payload: Any) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(payload)) as packed:
        unpacked = packed.read(MAX_UNPACKED + 1)
    if len(unpacked) > MAX_UNPACKED:
        raise _too_large()
    return unpacked


def _by_cramjam(name: str) -> Callable[[Any], bytes]:
    def unpack(payload: Any) -> bytes:
        codec = getattr(aiokafka.codec.cramjam, name)
        size = min(MAX_UNPACKED, max(_FIRST_GUESS, 8 * len(payload)))
        while True:
            unpacked = bytearray(size)
            try:
                length = codec.decompress_into(payload, unpacked)
                return bytes(memoryview(unpacked)[:length])
            except aiokafka.codec.cramjam.DecompressionError as error:
                if "write whole buffer" not in str(error):
                    raise
                if size == MAX_UNPACKED:
                    raise _too_large() from error
                size = min(MAX_UNPACKED, 8 * size)

    return unpack


def _snappy(payload: Any) -> bytes:
    if sum(aiokafka.codec.cramjam.snappy.decompress_raw_len(block) for block in _blocks(payload)) > MAX_UNPACKED:
        raise _too_large()
    return bytes(aiokafka.codec.snappy_decode(payload))


def _blocks(payload: Any) -> Iterable[Any]:
    """Of a stream as Java's library writes it, each with its length before it; else the payload itself."""
    if not aiokafka.codec._detect_xerial_stream(payload):
        yield payload
        return
    rest = memoryview(payload)[16:]
    while rest:
        size = int.from_bytes(rest[:4], "big", signed=True)
        if not 0 < size <= len(rest) - 4:
            raise ValueError(f"a block of {size} bytes")
        yield rest[4 : 4 + size]
        rest = rest[4 + size :]


def _bound_codecs() -> None:
    ours = {"gzip": _gzip, "snappy": _snappy, "lz4": _by_cramjam("lz4"), "zstd": _by_cramjam("zstd")}
    # Written in Python or, as a rule, compiled: each has names of its own for what unpacks.
    reading = sys.modules[aiokafka.record.default_records.DefaultRecordBatch.__module__]
    for name, unpack in ours.items():
        setattr(reading, f"{name}_decode", _unless_ours(getattr(aiokafka.codec, f"{name}_decode"), unpack))


_bound_codecs()

"""One partition of the memory broker: an ordered log with offsets, retention and compaction. Pure, no IO.

Rules. Offsets grow by one a record and are never given twice. Retention moves the beginning forward; compaction
leaves gaps behind, keeps the newest record of each key and the last record whatever its key, and never changes what an
offset holds. A tombstone (value None) outlives one compaction, so that readers that follow closely see it.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import inf
from operator import itemgetter

from sluicegate.domain.errors import InvalidInputError
from sluicegate.streams.ports import Headers, Record, TopicPartition

_RECORD_OVERHEAD = 180
_HEADER_OVERHEAD = 110
_COMPACT_AFTER = 256
_offset_of = itemgetter(0)

_Kept = tuple[int, bytes | None, bytes | None, Headers, float]
"""Offset, key, value, headers, timestamp: a plain tuple of plain values, which the garbage collector lets be. A log of
Records, which it does not, would make each full collection stop the process for longer and longer."""
_new = tuple.__new__


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Bytes that a record is counted as: what it holds, and about what Python needs around it."""
    size = _RECORD_OVERHEAD + _HEADER_OVERHEAD * len(headers)
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    for name, held in headers:
        size += len(name) + len(held)
    return size


class PartitionLog:
    """Appended to and read by offset. ``watchers`` are called after each append, by the caller of ``append``'s owner.

    ``retention_s``: seconds that a record is kept at least, None for ever; ``compaction_lag_s``: the same of one whose
    key has a newer one. ``max_bytes``: cap on what is kept; above it the oldest eighth goes.
    """

    __slots__ = (
        "_clean", "_cleaned_to", "_compacted", "_dense", "_lag", "_max_bytes", "_next", "_partition", "_records",
        "_retention", "_start", "_topic", "bytes", "watchers",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        compacted: bool = False,
        retention_s: float | None = None,
        compaction_lag_s: float = 0.0,
        max_bytes: int | None = None,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._compacted = compacted
        self._retention = retention_s
        self._lag = compaction_lag_s
        self._max_bytes = max_bytes
        self._records: list[_Kept] = []
        self._start = 0
        self._next = 0
        self._dense = True
        self._clean = 0
        self._cleaned_to = 0
        self.bytes = 0
        self.watchers: dict[Callable[[], None], None] = {}

    @property
    def start(self) -> int:
        """First offset still kept (its record may have been compacted away)."""
        return self._start

    @property
    def end(self) -> int:
        """Offset that the next record gets."""
        return self._next

    @property
    def place(self) -> TopicPartition:
        """Whose records these are."""
        return TopicPartition(self._topic, self._partition)

    def __len__(self) -> int:
        return len(self._records)

    def before(self, offset: int) -> int:
        """Records that are kept of those below ``offset``."""
        return min(self._index(offset), len(self._records)) if self._records else 0

    def older(self, timestamp: float) -> int:
        """Of the oldest eighth those records that all were written before ``timestamp``."""
        count = 0
        while count < len(self._records) // 8 and self._records[count][4] < timestamp:
            count += 1
        return count

    def append(
        self, key: bytes | None, value: bytes | None, headers: Headers, timestamp: float, now: float, size: int
    ) -> int:
        """Add a record that counts as ``size`` bytes (``record_bytes``), return its offset. A compacted partition
        refuses records without a key."""
        if self._compacted and key is None:
            raise InvalidInputError("key", f"missing, but topic {self._topic} is compacted: give each record a key")
        offset = self._next
        self._records.append((offset, key, value, headers, timestamp))
        self._next = offset + 1
        self.bytes += size
        if self._compacted:
            if len(self._records) - self._clean > max(_COMPACT_AFTER, self._clean):
                self.compact(now)
        elif self._retention is not None or self._max_bytes is not None:
            self._retain(now)
        return offset

    def restore(self, records: Sequence[Record], start: int, end: int) -> None:
        """Take over the content of a stored partition: ``records`` ascending in offset within [start, end)."""
        self._records = [(r.offset, r.key, r.value, r.headers, r.timestamp) for r in records]
        self._start, self._next = start, end
        self._dense = not records or records[-1].offset - records[0].offset + 1 == len(records)
        self.bytes = sum(record_bytes(r.key, r.value, r.headers) for r in records)

    def read(self, offset: int, limit: int) -> list[Record]:
        """Up to ``limit`` records from ``offset`` on; none at the end. ``start <= offset <= end``."""
        if offset >= self._next:
            return []
        at = self._index(offset)
        topic, partition = self._topic, self._partition
        return [_new(Record, (topic, partition, *kept)) for kept in self._records[at : at + limit]]

    def offset_at(self, timestamp: float) -> int | None:
        """First offset whose record's timestamp is at or after ``timestamp``; producers may give them unordered."""
        return next((kept[0] for kept in self._records if kept[4] >= timestamp), None)

    def compact(self, now: float) -> None:
        """Keep the newest record of each key, and all of less than the lag before ``now``. Tombstones that a compaction
        has seen before go."""
        newest = {key: offset for offset, key, _, _, _ in self._records}
        last = self._next - 1
        whole_since = now - self._lag if self._lag else inf
        kept = [
            record
            for record in self._records
            if record[0] == last
            or record[4] >= whole_since
            or (newest[record[1]] == record[0] and (record[2] is not None or record[0] >= self._cleaned_to))
        ]
        if len(kept) != len(self._records):
            self._dense = False
            self._records = kept
            self.bytes = sum(record_bytes(key, value, headers) for _, key, value, headers, _ in kept)
        self._clean = len(kept)
        self._cleaned_to = self._next

    def drop_oldest(self, count: int) -> None:
        """Forget the ``count`` oldest records."""
        gone = self._records[:count]
        if not gone:
            return
        del self._records[:count]
        self.bytes -= sum(record_bytes(key, value, headers) for _, key, value, headers, _ in gone)
        self._start = gone[-1][0] + 1

    def _index(self, offset: int) -> int:
        if not self._records:
            return 0
        if self._dense:
            return max(0, offset - self._records[0][0])
        return bisect_left(self._records, offset, key=_offset_of)

    def _retain(self, now: float) -> None:
        # An eighth at a time: deleting from the front of a list costs its length.
        records = self._records
        if self._max_bytes is not None and self.bytes > self._max_bytes and len(records) > 1:
            self.drop_oldest(max(1, len(records) // 8))
        if self._retention is None:
            return
        oldest_kept = now - self._retention
        eighth = len(records) // 8
        if records[eighth][4] < oldest_kept:
            count = eighth
            while count < len(records) - 1 and records[count][4] < oldest_kept:
                count += 1
            self.drop_oldest(max(1, count))

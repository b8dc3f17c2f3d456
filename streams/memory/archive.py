"""Topics kept in a folder: ``topics.json`` and one file a partition, ``topics/<topic>/<partition>.log``.

A partition file is ``SLUICELOG1`` and blocks of (raw length, stored length, CRC-32 of the raw bytes; each u32 little
endian) and zlib data; a block holds whole records: offset u64, timestamp f64, key length i32, value length i32 (-1:
none), header count u32, key, value, then each header as name length u32, value length u32, name, value. The manifest is
written last: a folder without one was not kept to the end. What is read is not trusted: names, lengths, checksums and
the order of offsets are checked.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from sluicegate.domain.errors import ConfigurationError, SluiceError
from sluicegate.streams.ports import Record, TopicPartition, TopicSpec
from sluicegate.streams.topics import check_topic_name

MANIFEST = "topics.json"
FOLDER = "topics"
_MAGIC = b"SLUICELOG1"
_BLOCK = struct.Struct("<III")
_RECORD = struct.Struct("<QdiiI")
_HEADER = struct.Struct("<II")
_BLOCK_BYTES = 256 * 1024
_MAX_BLOCK_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """Offsets [start, end) and the records that are left of them."""

    start: int
    end: int
    records: Sequence[Record]


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic and its partitions, in order. ``gave_way``: the cap on memory may have taken some of it."""

    spec: TopicSpec
    partitions: tuple[StoredPartition, ...]
    gave_way: bool


Offsets = Mapping[tuple[str, TopicPartition], int]


def write_folder(folder: Path, topics: Sequence[StoredTopic], offsets: Offsets) -> None:
    """Write everything. Raises ConfigurationError where the folder cannot be written."""
    try:
        manifest = folder / MANIFEST
        manifest.unlink(missing_ok=True)
        for topic in topics:
            inside = folder / FOLDER / check_topic_name(topic.spec.name)
            inside.mkdir(parents=True, exist_ok=True)
            for number, partition in enumerate(topic.partitions):
                _write_partition(inside / f"{number}.log", partition)
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = manifest.with_suffix(".part")
        unfinished.write_bytes(orjson.dumps(_manifest(topics, offsets), option=orjson.OPT_INDENT_2))
        unfinished.replace(manifest)
    except OSError as error:
        raise ConfigurationError(f"cannot keep topics in {folder}: {error.strerror}; choose another folder") from error


def read_folder(folder: Path) -> tuple[list[StoredTopic], dict[tuple[str, TopicPartition], int]]:
    """Topics and committed offsets as they were kept. Raises ConfigurationError where they are absent or damaged."""
    try:
        manifest = orjson.loads((folder / MANIFEST).read_bytes())
        topics = [_read_topic(folder, entry) for entry in manifest["topics"]]
        offsets = {
            (str(group), TopicPartition(str(topic), int(partition))): int(offset)
            for group, topic, partition, offset in manifest["offsets"]
        }
    except OSError as error:
        told = f"no topics are kept in {folder} ({error.strerror}: {error.filename})"
        raise ConfigurationError(f"{told}; give the folder of a run that has {MANIFEST}, below runs/") from error
    except (ValueError, KeyError, TypeError, struct.error, zlib.error, SluiceError) as error:
        why = f"{MANIFEST} lacks {error}" if isinstance(error, KeyError) else error
        raise ConfigurationError(f"the topics kept in {folder} are damaged: {why}") from error
    return topics, offsets


def _manifest(topics: Sequence[StoredTopic], offsets: Offsets) -> dict[str, Any]:
    return {
        "format": 1,
        "topics": [
            {
                **asdict(t.spec),
                "offsets": [[p.start, p.end, len(p.records)] for p in t.partitions],
                "gave_way": t.gave_way,
            }
            for t in topics
        ],
        "offsets": [[group, tp.topic, tp.partition, offset] for (group, tp), offset in sorted(offsets.items())],
    }


def _write_partition(path: Path, partition: StoredPartition) -> None:
    with path.open("wb") as file:
        file.write(_MAGIC)
        for raw in _blocks(partition.records):
            stored = zlib.compress(raw, 1)
            file.write(_BLOCK.pack(len(raw), len(stored), zlib.crc32(raw)))
            file.write(stored)


def _blocks(records: Sequence[Record]) -> Iterator[bytes]:
    parts: list[bytes] = []
    size = 0
    for record in records:
        for part in pack_record(record):
            parts.append(part)
            size += len(part)
        if size >= _BLOCK_BYTES:
            yield b"".join(parts)
            parts.clear()
            size = 0
    if parts:
        yield b"".join(parts)


def pack_record(record: Record) -> Iterator[bytes]:
    """The record as it is stored, in parts to be joined; topic and partition are known from elsewhere."""
    key, value = record.key, record.value
    yield _RECORD.pack(
        record.offset,
        record.timestamp,
        -1 if key is None else len(key),
        -1 if value is None else len(value),
        len(record.headers),
    )
    if key is not None:
        yield key
    if value is not None:
        yield value
    for name, held in record.headers:
        encoded = name.encode()
        yield _HEADER.pack(len(encoded), len(held))
        yield encoded
        yield held


def _read_topic(folder: Path, entry: Mapping[str, Any]) -> StoredTopic:
    name = check_topic_name(entry["name"])
    spec = TopicSpec(
        name=name,
        partitions=int(entry["partitions"]),
        compacted=bool(entry["compacted"]),
        retention_s=entry["retention_s"],
        max_message_bytes=entry["max_message_bytes"],
        broker_time=bool(entry.get("broker_time", False)),
        segment_s=entry.get("segment_s"),
        compaction_lag_s=entry.get("compaction_lag_s"),
        replication=entry.get("replication"),
        min_insync_replicas=entry.get("min_insync_replicas"),
        compression=entry.get("compression"),
    )
    if len(entry["offsets"]) != spec.partitions:
        raise ValueError(f"{name} has {spec.partitions} partitions but {len(entry['offsets'])} are listed")
    partitions = []
    for number, (start, end, count) in enumerate(entry["offsets"]):
        records = list(_read_partition(folder / FOLDER / name / f"{number}.log", name, number))
        offsets = [r.offset for r in records]
        if len(records) != count or offsets != sorted(set(offsets)):
            raise ValueError(f"{name}/{number}: {len(records)} records in its file, {count} listed")
        if offsets and not 0 <= start <= offsets[0] <= offsets[-1] < end:
            raise ValueError(f"{name}/{number}: offsets {offsets[0]}..{offsets[-1]} are outside [{start}, {end})")
        partitions.append(StoredPartition(int(start), int(end), records))
    return StoredTopic(spec, tuple(partitions), bool(entry.get("gave_way", True)))


def _read_partition(path: Path, topic: str, partition: int) -> Iterator[Record]:
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError(f"{path} is no partition file")
        while head := file.read(_BLOCK.size):
            raw_length, stored_length, checksum = _BLOCK.unpack(head)
            if raw_length > _MAX_BLOCK_BYTES or stored_length > _MAX_BLOCK_BYTES:
                raise ValueError(f"{path}: a block of {raw_length} bytes")
            stored = file.read(stored_length)
            raw = zlib.decompressobj().decompress(stored, raw_length or 1)
            if len(stored) != stored_length or len(raw) != raw_length or zlib.crc32(raw) != checksum:
                raise ValueError(f"{path}: a block is cut short or its checksum does not match")
            yield from unpack_records(raw, topic, partition)


def unpack_records(raw: bytes, topic: str, partition: int) -> Iterator[Record]:
    """Records of ``pack_record``, one after the other. Raises ValueError or struct.error for anything else."""
    at = 0
    while at < len(raw):
        offset, timestamp, key_length, value_length, header_count = _RECORD.unpack_from(raw, at)
        at += _RECORD.size
        key, at = _take(raw, at, key_length)
        value, at = _take(raw, at, value_length)
        headers = []
        for _ in range(header_count):
            name_length, held_length = _HEADER.unpack_from(raw, at)
            name, at = _take(raw, at + _HEADER.size, name_length)
            held, at = _take(raw, at, held_length)
            headers.append(((name or b"").decode(), held or b""))
        yield Record(topic, partition, offset, key, value, tuple(headers), timestamp)


def _take(raw: bytes, at: int, length: int) -> tuple[bytes | None, int]:
    if length < 0:
        return None, at
    if at + length > len(raw):
        raise ValueError("a record runs past its block")
    return raw[at : at + length], at + length

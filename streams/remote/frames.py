"""What goes over the wire between a memory log and its remote clients: JSON, or JSON followed by packed records.

A frame is the length of its JSON (u32, little endian), the JSON, and the bytes of its blocks one after the other, with
``blocks`` in the JSON listing [topic, partition, bytes] of each. Records are packed as in
``sluicegate.streams.memory.archive``.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from sluicegate.domain.errors import InvalidInputError
from sluicegate.streams.memory.archive import pack_record, unpack_records
from sluicegate.streams.ports import Record, TopicPartition

CALL_HEADER = "Sluice-Log"
"""Every call carries it: a web page of another origin cannot, unasked."""
FRAME_TYPE = "application/octet-stream"
MAX_CALL_BYTES = 32 << 20
MAX_ANSWER_BYTES = 16 << 20
MAX_WAIT = 5.0
MAX_RECORDS = 5000
_LENGTH = struct.Struct("<I")


def encode_frame(head: dict[str, Any], blocks: Sequence[tuple[str, int, Sequence[Record]]]) -> bytes:
    """A frame of ``head`` and blocks of records."""
    packed = [
        (topic, partition, b"".join(p for r in records for p in pack_record(r))) for topic, partition, records in blocks
    ]
    text = orjson.dumps({**head, "blocks": [(topic, partition, len(raw)) for topic, partition, raw in packed]})
    return b"".join((_LENGTH.pack(len(text)), text, *(raw for _, _, raw in packed)))


def decode_frame(frame: bytes) -> tuple[dict[str, Any], list[tuple[str, int, list[Record]]]]:
    """Head and blocks. Raises InvalidInputError for anything malformed."""
    try:
        (length,) = _LENGTH.unpack_from(frame)
        at = _LENGTH.size + length
        head = orjson.loads(frame[_LENGTH.size : at])
        blocks = []
        for topic, partition, size in head["blocks"]:
            if not isinstance(topic, str) or type(partition) is not int or type(size) is not int or size < 0:
                raise ValueError("a block is not named properly")
            raw = frame[at : at + size]
            if len(raw) != size:
                raise ValueError("a block is cut short")
            blocks.append((topic, partition, list(unpack_records(raw, topic, partition))))
            at += size
        if at != len(frame):
            raise ValueError("bytes are left over")
    except (ValueError, KeyError, TypeError, IndexError, struct.error) as error:
        raise InvalidInputError("body", f"is no frame of records ({error!s:.100})") from error
    return head, blocks


def decode_partitions(field: str, listed: object) -> Iterator[tuple[TopicPartition, float | None]]:
    """[[topic, partition], …] or [[topic, partition, number], …]. Raises InvalidInputError for anything else."""
    if not isinstance(listed, list) or len(listed) > MAX_RECORDS:
        raise InvalidInputError(field, f"give a list of up to {MAX_RECORDS} partitions")
    for entry in listed:
        if (
            not isinstance(entry, list)
            or len(entry) not in (2, 3)
            or not isinstance(entry[0], str)
            or type(entry[1]) is not int
            or (len(entry) == 3 and type(entry[2]) not in (int, float))
        ):
            raise InvalidInputError(field, f"{entry!r:.60}: give [topic, partition] or [topic, partition, number]")
        yield TopicPartition(entry[0], entry[1]), entry[2] if len(entry) == 3 else None

"""Batches as no honest client writes them: raw ones for the broker's door, damage done to those that it keeps."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.record.util import calc_crc32c

_CRC = 17
_ATTRIBUTES = 21
_HEAD = 61


def with_attributes(batch: bytearray, codec: int) -> None:
    """Have a batch say that it is compressed by codec number ``codec``."""
    (attributes,) = struct.unpack_from(">h", batch, _ATTRIBUTES)
    struct.pack_into(">h", batch, _ATTRIBUTES, (attributes & ~7) | codec)
    seal(batch)


def seal(batch: bytearray) -> None:
    """Give it the right checksum."""
    struct.pack_into(">I", batch, _CRC, calc_crc32c(bytes(batch[_ATTRIBUTES:])))


def flip_payload(batch: bytearray) -> None:
    """One bit of what the batch holds, behind its header."""
    batch[_HEAD + 3] ^= 0x10


def damage(data: Path, topic: str, number: int, how: Callable[[bytearray], None], partition: int = 0) -> None:
    """Change the batch that is ``number`` in the only segment of a topic; its length stays."""
    (segment,) = (data / f"{topic}-{partition}").glob("*.log")
    with segment.open("r+b") as file:
        at = 0
        for _ in range(number):
            file.seek(at)
            at += 12 + struct.unpack(">qi", file.read(12))[1]
        file.seek(at)
        length = 12 + struct.unpack(">qi", file.read(12))[1]
        file.seek(at)
        batch = bytearray(file.read(length))
        how(batch)
        assert len(batch) == length
        file.seek(at)
        file.write(batch)


async def write_batch(
    servers: str, topic: str, values: list[bytes], *, compression: str | None = None, more: Any = (), partition: int = 0
) -> int:
    """One batch of these values, as another program would write it; returns its first offset."""
    producer = AIOKafkaProducer(
        bootstrap_servers=servers, compression_type=compression, max_request_size=64 << 20, max_batch_size=128 << 20
    )
    await producer.start()
    try:
        batch = producer.create_batch()
        for value in values:
            assert batch.append(key=b"key", value=value, timestamp=None, headers=list(more)) is not None
        done = await producer.send_batch(batch, topic, partition=partition)
        return int((await done).offset)
    finally:
        await producer.stop()

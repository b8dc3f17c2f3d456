"""Frames between an executor and its child process: length, JSON header, raw tensor bytes. No pickle.

``prefix`` (16 bytes: magic, header bytes, body bytes) | ``header`` (a JSON object, at most MAX_HEADER) | ``body`` (the
tensors named by header["tensors"] as [name, datatype, shape], one after the other, little-endian, row-major; of BYTES
with a fourth entry, the bytes that it has).
Rules. Lengths are checked before anything is allocated. Buffers are gathered and scattered by the kernel: a batch is
stacked by listing its queries' buffers, and nothing is joined in Python.
"""

import socket
import struct
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import orjson

from sluicegate.domain.models.tensor import BYTES, DATATYPE_BYTES, Tensor, element_ends

PREFIX = struct.Struct("<4sIQ")
MAGIC = b"SLX1"
MAX_HEADER = 1 << 20
MAX_BODY = 1 << 31
"""Bytes of tensors in one frame."""
_MOST_BUFFERS = 512
"""Buffers handed to the kernel at once; IOV_MAX is 1024."""

Header = dict[str, Any]
Described = tuple[str, str, tuple[int, ...], *tuple[int, ...]]
"""Name, datatype and shape of a tensor; of BYTES also the bytes that it has."""
Buffer = bytes | bytearray | memoryview


class FrameError(Exception):
    """The other side does not keep to the format: the connection is of no further use."""


def pack(header: Header, buffers: Sequence[Buffer] = ()) -> list[memoryview]:
    """The buffers of one frame, in order, none of them copied."""
    views = [memoryview(b).cast("B") for b in buffers]
    head = orjson.dumps(header)
    body = sum(map(len, views))
    if len(head) > MAX_HEADER or body > MAX_BODY:
        raise FrameError(f"a frame of {len(head)} + {body} bytes is over the limit of {MAX_HEADER} + {MAX_BODY}")
    return [memoryview(PREFIX.pack(MAGIC, len(head), body) + head), *(v for v in views if len(v))]


def lengths(prefix: Buffer) -> tuple[int, int]:
    """Bytes of header and body. Raises FrameError beyond the limits."""
    magic, head, body = PREFIX.unpack(prefix)
    if magic != MAGIC or head > MAX_HEADER or body > MAX_BODY:
        raise FrameError(f"not a frame, or over the limit: {magic!r}, header {head}, body {body} bytes")
    return head, body


def parse_header(data: Buffer) -> Header:
    """The header as an object. Raises FrameError."""
    try:
        header = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise FrameError(f"the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise FrameError("the header is not an object")
    return header


def unpack_tensors(described: object, body: memoryview) -> tuple[Tensor, ...]:
    """Tensors as views of ``body``. Raises FrameError unless they fill it exactly."""
    tensors: list[Tensor] = []
    start = 0
    for name, datatype, shape, size in layout(described):
        data = body[start : start + size]
        if datatype == BYTES:
            check_elements(name, shape, data)
        tensors.append(Tensor(name, datatype, shape, data))
        start += size
    if start != len(body):
        raise FrameError(f"tensors of {start} bytes in a body of {len(body)}")
    return tuple(tensors)


def describe(tensor: Tensor) -> Described:
    """As it stands in a header."""
    named = (tensor.name, tensor.datatype, tensor.shape)
    return (*named, len(tensor.data)) if tensor.datatype == BYTES else named


def check_elements(name: str, shape: tuple[int, ...], data: Buffer) -> None:
    """Raise FrameError unless ``data`` is a BYTES tensor of this shape."""
    try:
        element_ends(memoryview(data), prod(shape))
    except ValueError as error:
        raise FrameError(f"{name}: {error}") from error


def layout(described: object) -> list[tuple[str, str, tuple[int, ...], int]]:
    """(name, datatype, shape, bytes) of each tensor that a header describes. Raises FrameError."""
    found = []
    try:
        for name, datatype, extents, *told in described:  # type: ignore[attr-defined]
            shape = tuple(int(e) for e in extents)
            size = DATATYPE_BYTES[datatype]
            for extent in shape:
                if extent < 0:
                    raise ValueError("negative extent")
                size *= extent
            if datatype == BYTES:
                least, (size,) = size, map(int, told)
                if size < least:
                    raise ValueError("fewer bytes than elements take")
            found.append((str(name), str(datatype), shape, size))
    except (TypeError, ValueError, KeyError) as error:
        raise FrameError(f"tensors are described as {str(described)[:200]}") from error
    return found


def advance(pending: list[memoryview], sent: int) -> None:
    """Drop the first ``sent`` bytes from ``pending``."""
    done = 0
    while sent and done < len(pending):
        if sent < len(pending[done]):
            pending[done] = pending[done][sent:]
            break
        sent -= len(pending[done])
        done += 1
    del pending[:done]


def send_some(sock: socket.socket, pending: list[memoryview]) -> None:
    """One gathering send; what was taken leaves ``pending``. BlockingIOError when the socket is full."""
    advance(pending, sock.sendmsg(pending[:_MOST_BUFFERS]))


def send_blocking(sock: socket.socket, frame: Iterable[memoryview]) -> None:
    """Send a frame over a blocking socket."""
    pending = list(frame)
    while pending:
        send_some(sock, pending)


def receive_blocking(sock: socket.socket, into: memoryview) -> bool:
    """Fill ``into`` from a blocking socket. False if the other side closed before the first byte."""
    got = 0
    while got < len(into):
        count = sock.recv_into(into[got:])
        if count == 0:
            if got:
                raise FrameError("the connection ended within a frame")
            return False
        got += count
    return True

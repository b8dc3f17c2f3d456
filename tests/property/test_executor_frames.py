"""Frames to and from a child process: whole, in pieces, and hostile."""

import asyncio
import socket
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.domain.models.tensor import BYTES, DATATYPE_BYTES, Tensor, split_rows
from sluicegate.executors.onnx.channel import Channel, ChannelClosedError
from sluicegate.executors.onnx.framing import (
    MAGIC,
    MAX_BODY,
    PREFIX,
    FrameError,
    advance,
    describe,
    lengths,
    pack,
    parse_header,
    receive_blocking,
    unpack_tensors,
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    datatype = draw(st.sampled_from(sorted(DATATYPE_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)))
    size = DATATYPE_BYTES[datatype]
    for extent in shape:
        size *= extent
    data = draw(st.binary(min_size=size, max_size=size))
    if datatype == BYTES:
        elements = draw(st.lists(st.binary(max_size=5), min_size=prod(shape), max_size=prod(shape)))
        data = b"".join(len(one).to_bytes(4, "little") + one for one in elements)
    return Tensor(draw(st.text(min_size=1, max_size=5)), datatype, shape, data)


@settings(max_examples=60)
@given(st.lists(tensors(), max_size=4))
def test_tensors_survive_a_frame(sent: list[Tensor]) -> None:
    frame = b"".join(pack({"id": 1, "tensors": [describe(t) for t in sent]}, [t.data for t in sent]))
    head, body = lengths(frame[: PREFIX.size])
    assert len(frame) == PREFIX.size + head + body
    header = parse_header(frame[PREFIX.size : PREFIX.size + head])
    assert list(unpack_tensors(header["tensors"], memoryview(frame)[PREFIX.size + head :])) == sent


@settings(max_examples=60)
@given(st.lists(st.binary(min_size=1, max_size=6), max_size=6), st.integers(0, 40))
def test_what_was_sent_leaves_the_pending_buffers(buffers: list[bytes], sent: int) -> None:
    pending = [memoryview(b) for b in buffers]
    advance(pending, sent)
    assert b"".join(pending) == b"".join(buffers)[sent:]
    assert all(len(view) for view in pending)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 5), max_size=6), st.integers(1, 3))
def test_split_rows_gives_each_query_its_rows(rows: list[int], width: int) -> None:
    total = sum(rows)
    data = bytes(range(256))[: total * width]
    parts = split_rows([Tensor("y", "UINT8", (total, width), data)], rows)
    assert [part[0].shape for part in parts] == [(r, width) for r in rows]
    assert b"".join(part[0].data for part in parts) == data


def test_outputs_of_another_number_of_rows_are_not_split() -> None:
    with pytest.raises(ValueError, match="not 3 rows"):
        split_rows([Tensor("y", "UINT8", (2, 1), b"ab")], [1, 2])


@pytest.mark.parametrize(
    "prefix",
    [PREFIX.pack(b"HTTP", 1, 1), PREFIX.pack(MAGIC, 1 << 30, 1), PREFIX.pack(MAGIC, 1, MAX_BODY + 1)],
)
def test_a_hostile_prefix_is_refused_before_anything_is_allocated(prefix: bytes) -> None:
    with pytest.raises(FrameError):
        lengths(prefix)


@pytest.mark.parametrize("header", [b"", b"[]", b"{", b"\xff"])
def test_a_hostile_header_is_refused(header: bytes) -> None:
    with pytest.raises(FrameError):
        parse_header(header)


@pytest.mark.parametrize(
    "described",
    [None, 3, [1], [["y", "FP13", [1]]], [["y", "FP32", [-1]]], [["y", "FP32", ["a"]]], [["y", "FP32", [2]]]],
)
def test_a_hostile_description_of_tensors_is_refused(described: object) -> None:
    with pytest.raises(FrameError):
        unpack_tensors(described, memoryview(bytes(4)))


async def test_replies_out_of_order_and_in_pieces_reach_their_requests() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(ours)
        first, second = channel.request({"op": "a"}), channel.request({"op": "b"})
        abandoned = channel.request({"op": "c"})
        abandoned.cancel()
        replies = b"".join(b"".join(pack({"id": i}, [bytes([i]) * 3])) for i in (3, 2, 99, 1))
        for start in range(0, len(replies), 7):
            theirs.sendall(replies[start : start + 7])
            await asyncio.sleep(0)
        assert bytes((await second).body) == b"\2\2\2"
        assert bytes((await first).body) == b"\1\1\1"
        channel.close()


def answering(header: bytes) -> bytes:
    return PREFIX.pack(MAGIC, len(header), 0) + header


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", "not a frame"),
        (answering(b"[1]"), "not an object"),
        (answering(b'{"id": [1]}'), "no request"),
        (answering(b'{"ok": true}'), "no request"),
    ],
    ids=["another protocol", "a list", "a strange number", "no number"],
)
async def test_a_child_that_breaks_the_format_fails_all_requests(sent: bytes, told: str) -> None:
    ours, theirs = socket.socketpair()
    ended = []
    with theirs:
        channel = Channel(ours, lambda: ended.append(True))
        waiting = channel.request({"op": "a"})
        theirs.sendall(sent)
        with pytest.raises(ChannelClosedError, match=told):
            await asyncio.wait_for(waiting, 10.0)
        with pytest.raises(ChannelClosedError):
            await channel.request({"op": "b"})
        assert ended == [True]
        assert not channel.open


def test_a_connection_that_ends_within_a_frame_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(b"abc")
        theirs.close()
        with pytest.raises(FrameError):
            receive_blocking(ours, memoryview(bytearray(4)))
        assert receive_blocking(ours, memoryview(bytearray(4))) is False

"""Tables as bytes at the bounds of what they may hold, and what is said of those beyond."""

import struct
import zlib
from hashlib import sha256
from typing import Any

import orjson
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.table import DROP, Expectations, SelectionTable, Spread
from sluicegate.planner.policy_tables.keys import Shelf, TableName, decode_name, encode_name
from sluicegate.planner.policy_tables.table_codec import MAGIC, decode, encode

NONE = Spread(0.0, 0.0, 0.0)
TABLE = SelectionTable(
    app="a",
    worker_class="gpu",
    variants=("v", "w"),
    slo=0.25,
    qps=12.5,
    workers=3,
    slacks=(0.0, 0.1, 0.25),
    actions=bytes([DROP, 0, 1, 0, 0, 1]),
    batches=bytes([1, 1, 1, 1, 2, 2]),
    expected=Expectations(
        accuracy=0.7, violation=0.1, mean_batch=1.5, utilisation=0.5, accuracy_spread=NONE, batch_spread=NONE,
        response_spread=NONE,
    ),
    fingerprint="f",
)  # fmt: skip


def signed(body: bytes) -> bytes:
    return MAGIC + sha256(body).digest() + body


def packed(content: bytes | None = None, **changes: Any) -> bytes:
    """The table with another header and content, and the checksum of these."""
    data = encode(TABLE)[36:]
    (length,) = struct.unpack(">I", data[:4])
    head = orjson.dumps({**orjson.loads(data[4 : 4 + length]), **changes})
    if content is None:
        content = TABLE.actions + TABLE.batches
    return signed(struct.pack(">I", len(head)) + head + zlib.compress(content))


def test_a_table_at_its_bounds_is_taken() -> None:
    assert decode(packed()) == TABLE
    assert decode(packed(qps=0)).qps == 0.0
    assert decode(packed(workers=1)).workers == 1
    assert decode(packed(assumptions={"share": 1e-9, "slowdown.v": 1.5, "grid": "100", "arrival_shape": -1})).share
    assert decode(packed(assumptions={"share": 1.0})).share == 1.0
    maximal = decode(packed(TABLE.actions, maximal=True))
    assert (maximal.actions, maximal.batches) == (TABLE.actions, b"")
    phased = decode(packed(phases=2, slacks=[0, 0.1, 0.25], content=TABLE.actions + bytes([1] * 6)))
    assert (phased.longest, phased.phases) == (1, 2)
    nothing_ready = decode(packed(slacks=[0.0], content=TABLE.actions + bytes([1, 2, 3, 4, 5, 6])))
    assert nothing_ready.longest == 6


@pytest.mark.parametrize("value", ["inf", "nan", "-inf", -0.5])
@pytest.mark.parametrize("name", ["slo", "qps"])
def test_what_is_no_time_or_load_is_refused(name: str, value: float | str) -> None:
    with pytest.raises(InvalidInputError, match=r"table: slo .*, qps .*, workers 3"):
        decode(packed(**{name: value}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slo": 0}, "slo 0.0, qps 12.5, workers 3"),
        ({"workers": 0}, "slo 0.25, qps 12.5, workers 0"),
        ({"slacks": [0.05, 0.1, 0.25]}, "do not ascend from 0"),
        ({"slacks": [0, 0.1, 0.1]}, "do not ascend from 0"),
        ({"slacks": [0, 0.1, "inf"]}, "do not ascend from 0"),
        ({"slacks": []}, "6 of them do not fill the slack grid"),
        ({"slacks": [0, 0.1, 0.2, 0.25]}, "6 of them do not fill the slack grid"),
        ({"phases": 0}, "6 of them do not fill the slack grid"),
        ({"variants": ["v"]}, "name variant 1 of 1"),
        ({"assumptions": {"share": "inf"}}, "is 'inf', no number above 0"),
        ({"assumptions": {"slo_class": 0}}, "is 0, no number above 0"),
        ({"assumptions": {"share": 1.01}}, r"share: is 1\.01, no part of the queries"),
        ({"assumptions": {"share": 1e-320}}, r"share: is 1e-320, no part of the queries"),
        ({"cells": 0}, r"0 is not in 1\.\.8388608"),
        ({"cells": 8388609}, r"8388609 is not in 1\.\.8388608"),
        ({"cells": 8388608}, "hold 12 bytes instead of 16777216"),
        ({"cells": 5}, "hold 11 bytes instead of 10"),
        ({"cells": 7}, "hold 12 bytes instead of 14"),
        ({"maximal": True}, "hold 7 bytes instead of 6"),
    ],
)
def test_a_header_that_does_not_go_with_its_table_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        decode(packed(**changes))


def test_of_a_stream_that_is_too_long_one_byte_more_is_read_and_no_more() -> None:
    with pytest.raises(InvalidInputError, match="hold 13 bytes instead of 12"):
        decode(packed(bytes(5_000_000)))


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ((1, 2, 1, 1, 2, 2), "take 2 of 1 queries"),
        ((1, 1, 2, 1, 2, 2), "take 2 of 1 queries"),
        ((1, 1, 1, 3, 2, 2), "take 3 of 2 queries"),
        ((1, 1, 1, 1, 2, 0), "take 0 of 2 queries"),
    ],
)
def test_a_batch_takes_at_least_one_and_at_most_all_that_are_queued(batches: tuple[int, ...], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        decode(packed(TABLE.actions + bytes(batches)))


def test_bytes_that_do_not_hold_their_header_are_refused() -> None:
    whole = encode(TABLE)
    assert whole[:4] == b"SLT1"
    for short in (b"SLT2" + whole[4:], whole[:39], b""):
        with pytest.raises(InvalidInputError, match="does not begin as a selection table"):
            decode(short)
    with pytest.raises(InvalidInputError, match="does not match its content"):
        decode(whole + b"\0")
    head = b"{}"
    for length in (3, (1 << 20) + 1):
        with pytest.raises(InvalidInputError, match=f"of {length} bytes does not fit"):
            decode(signed(struct.pack(">I", length) + head))
    with pytest.raises(InvalidInputError, match=f"of {(1 << 20) + 1} bytes does not fit"):
        decode(signed(struct.pack(">I", (1 << 20) + 1) + bytes((1 << 20) + 1)))
    with pytest.raises(InvalidInputError, match=r"is malformed \(KeyError\('cells'\)\)"):
        decode(signed(struct.pack(">I", 2) + head))


def test_the_key_of_a_table_has_an_slo_above_0_and_a_load_of_at_least_0() -> None:
    name = TableName(Shelf("a", "gpu:3g", 0.25), 0.0)
    assert decode_name(b'["a","gpu:3g",0.25,0]') == name
    assert encode_name(name) == b'["a","gpu:3g",0.25,0.0]'
    for slo, qps in ((0, 1), ('"inf"', 1), (0.25, -1), (0.25, '"inf"'), (0.25, '"nan"')):
        with pytest.raises(InvalidInputError, match="has no SLO above 0 and load of at least 0"):
            decode_name(f'["a","gpu:3g",{slo},{qps}]'.encode())
    with pytest.raises(InvalidInputError, match=r"is not \[app, kind, SLO, load\]"):
        decode_name(None)

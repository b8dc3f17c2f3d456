"""BYTES in bodies and hops: what is written is read again, and a length that lies is refused by the field's name."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.tensor import BYTES, Tensor, element_ends, elements, joined, split_rows
from sluicegate.domain.outcome import Outcome, OutcomeKind, Reason
from sluicegate.domain.plan import Epoch
from sluicegate.streams.ports import Headers, Record
from sluicegate.streams.records import codec, oip
from tests.models.text_models import APP

NOW = 1_800_000_000.0
PAIR: dict[str, Any] = {"name": "pair", "datatype": "BYTES", "shape": [2, 2], "data": ["cat", "", "Öl", "a\0b"]}
WEIGHT: dict[str, Any] = {"name": "weight", "datatype": "FP32", "shape": [2], "data": [0.5, 2]}
NOTE: dict[str, Any] = {"name": "note", "datatype": "BYTES", "shape": [2], "data": ["short", "rather a longer one"]}
LIMITS = codec.Limits(max_body_bytes=4000, max_element_bytes=40)


def record(value: bytes, headers: Headers = ()) -> Record:
    """A query record."""
    return Record("sluice.app.words.queries", 1, 7, b"q1", value, (("ce_id", b"q1"), *headers), NOW)


def decode(*inputs: dict[str, Any]) -> codec.QueryMessage:
    """Of a JSON body."""
    return codec.decode_query(record(orjson.dumps({"inputs": inputs})), APP, LIMITS, NOW)


def decode_raw(*inputs: dict[str, Any], raw: bytes) -> codec.QueryMessage:
    """Of a body with raw tensors."""
    head = orjson.dumps({"inputs": inputs})
    length = (("inference-header-content-length", str(len(head)).encode()),)
    return codec.decode_query(record(head + raw, length), APP, LIMITS, NOW)


def raw_tensor(tensor: dict[str, Any], size: int) -> dict[str, Any]:
    """The same, raw."""
    return {k: v for k, v in tensor.items() if k != "data"} | {"parameters": {"binary_data_size": size}}


def test_texts_come_as_strings_as_base64_and_raw_and_are_the_same() -> None:
    plain = decode(PAIR, WEIGHT, NOTE)
    assert plain.query.rows == 2
    assert elements(plain.tensors[0].data, 4) == [b"cat", b"", "Öl".encode(), b"a\0b"]
    nested = decode({**PAIR, "data": [["cat", ""], ["Öl", "a\0b"]]}, WEIGHT, NOTE)
    coded = {**PAIR, "data": ["Y2F0", "", "w5Zs", "YQBi"], "parameters": {"content_type": "base64"}}
    pair, note = (joined(s.encode() for s in t["data"]) for t in (PAIR, NOTE))
    raw = decode_raw(raw_tensor(PAIR, len(pair)), WEIGHT, raw_tensor(NOTE, len(note)), raw=pair + note)
    for other in (nested, decode(coded, WEIGHT, NOTE), raw):
        assert [bytes(t.data) for t in other.tensors] == [bytes(t.data) for t in plain.tensors]


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"data": ["a", "b", "c"]}, "inputs[0].data", Reason.INVALID),
        ({"data": [["a", "b"], ["c"]]}, "inputs[0].data", Reason.INVALID),
        ({"data": [["a", "b", "c", "d"]]}, "inputs[0].data", Reason.INVALID),
        ({"data": [["a"], ["b"], ["c"], ["d"]]}, "inputs[0].data", Reason.INVALID),
        ({"data": ["a", "b", "c", 4]}, "inputs[0].data", Reason.INVALID),
        ({"data": ["a", "b", "c", None]}, "inputs[0].data", Reason.INVALID),
        ({"data": "abcd"}, "inputs[0].data", Reason.INVALID),
        ({"shape": [1 << 40, 1 << 20]}, "inputs[0].data", Reason.INVALID),
        ({"shape": [4, 1]}, "inputs.pair.shape", Reason.INVALID),
        ({"parameters": {"content_type": "base64"}, "data": ["!"] * 4}, "inputs[0].data", Reason.INVALID),
        ({"parameters": {"content_type": "zip"}}, "inputs[0].parameters.content_type", Reason.INVALID),
        (
            {"parameters": {"content_type": "base64"}, "data": ["AA==", "/w==", "AA==", "AA=="]},
            "inputs.pair.data[1]",
            Reason.INVALID,
        ),
        ({"data": ["", "", "x" * 41, ""]}, "inputs.pair.data[2]", Reason.TOO_LARGE),
    ],
)
def test_what_is_wrong_with_a_text_is_named(change: dict[str, Any], field: str, reason: Reason) -> None:
    with pytest.raises(codec.RejectedQueryError) as caught:
        decode({**PAIR, **change}, WEIGHT, NOTE)
    assert (caught.value.field, caught.value.reason) == (field, reason)


@pytest.mark.parametrize("count", [3, 5])
def test_too_few_texts_and_too_many_are_counted(count: int) -> None:
    with pytest.raises(codec.RejectedQueryError, match=rf"holds {count} values; shape \[2, 2\] takes 4"):
        decode({**PAIR, "data": ["a"] * count}, WEIGHT, NOTE)


def test_the_setting_that_bounds_an_element_is_named() -> None:
    with pytest.raises(codec.RejectedQueryError, match=r"41 bytes; at most 40 \(admission.max_element_bytes\)"):
        decode({**PAIR, "data": ["x" * 41, "", "", ""]}, WEIGHT, NOTE)


def test_an_element_just_within_the_limit_is_taken() -> None:
    assert decode({**PAIR, "data": ["x" * 40, "", "", ""]}, WEIGHT, NOTE).query.rows == 2


LYING = {
    "a length beyond the end": b"\xff\xff\xff\xff" + b"ab",
    "a length of more than there is": b"\x03\0\0\0ab",
    "bytes left over": joined([b"a"]) + b"\0",
    "an element too few": joined([b"a", b"b", b"c"]),
    "an element too many": joined([b"a"] * 5),
    "half a length": joined([b"a", b"b", b"c"]) + b"\0\0",
}


@pytest.mark.parametrize("raw", LYING.values(), ids=LYING)
def test_raw_lengths_that_lie_are_refused(raw: bytes) -> None:
    note = joined([b"x", b"y"])
    with pytest.raises(codec.RejectedQueryError) as caught:
        decode_raw(raw_tensor(PAIR, len(raw)), WEIGHT, raw_tensor(NOTE, len(note)), raw=raw + note)
    assert caught.value.field in {"inputs[0].data", "inputs[0].parameters.binary_data_size"}
    with pytest.raises(ValueError, match="4 elements"):
        element_ends(raw, 4)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=40))
def test_elements_are_read_as_they_were_joined(parts: list[bytes]) -> None:
    data = joined(parts)
    assert elements(data, len(parts)) == parts == elements(memoryview(data), len(parts))


def test_a_batchs_rows_of_unequal_length_go_to_their_queries() -> None:
    rows = [[b"a", b""], [b"bb" * 200, b"c"], [b"", b""], [b"\xff", b"dd"]]
    stacked = Tensor("said", BYTES, (4, 2), joined(one for row in rows for one in row))
    numbers = Tensor("n", "INT64", (4,), bytes(range(32)))
    parts = split_rows([stacked, numbers], [1, 2, 1])
    assert [elements(part[0].data, 2 * part[0].rows) for part in parts] == [rows[0], rows[1] + rows[2], rows[3]]
    assert [bytes(part[1].data) for part in parts] == [bytes(range(8)), bytes(range(8, 24)), bytes(range(24, 32))]


def test_hops_carry_texts_beside_numbers_and_refuse_what_is_cut_wrongly() -> None:
    message = decode(PAIR, WEIGHT, NOTE)
    work = codec.encode_work(message, epoch=Epoch(3, 4), slice="s")
    found = codec.decode_work(Record("w", 0, 0, work.key, work.value, work.headers, NOW))
    assert [(t.name, t.shape, bytes(t.data)) for t in found.tensors] == [
        (t.name, t.shape, bytes(t.data)) for t in message.tensors
    ]
    value = work.value or b""
    for changed in (value[:-1], value + b"\0", b"\x09" + value[1:], value[:7] + b"\xff" + value[8:]):
        with pytest.raises(InvalidInputError):
            codec.decode_work(Record("w", 0, 0, work.key, changed, work.headers, NOW))


@pytest.mark.parametrize("said", [[b"yes", "nö".encode(), b""], [b"\xff\xd8\xff", b"", b"\0"]])
def test_outcomes_say_texts_as_strings_and_other_bytes_as_base64(said: list[bytes]) -> None:
    query = decode(PAIR, WEIGHT, NOTE).query
    outputs = (Tensor("said", BYTES, (3,), joined(said)), Tensor("n", "INT64", (3,), bytes(24)))
    message = codec.encode_outcome(Outcome.of(query, OutcomeKind.ANSWERED, NOW + 0.01, variant="v"), outputs)
    told = orjson.loads(message.value or b"")["outputs"][0]
    assert all(isinstance(one, str) for one in told["data"]) and ("parameters" in told) == (b"\0" in said)
    found = codec.decode_outcome(Record("r", 0, 0, message.key, message.value, message.headers, NOW)).outputs()
    assert [(t.name, t.datatype, t.shape, bytes(t.data)) for t in found] == [
        (t.name, t.datatype, t.shape, bytes(t.data)) for t in outputs
    ]


def test_a_query_that_is_written_is_read_again_in_both_forms() -> None:
    message = decode(PAIR, WEIGHT, NOTE)
    for binary in (True, False):
        again = codec.encode_query("q1", message.tensors, app="words", now=NOW, binary=binary)
        found = codec.decode_query(Record("t", 0, 0, again.key, again.value, again.headers, NOW), APP, LIMITS, NOW)
        assert [bytes(t.data) for t in found.tensors] == [bytes(t.data) for t in message.tensors]


def test_a_body_of_many_empty_texts_is_bounded_by_its_own_size() -> None:
    body = {"inputs": [{**PAIR, "shape": [200, 2], "data": [""] * 400}, WEIGHT, NOTE]}
    with pytest.raises(InvalidInputError, match="rows"):
        oip.decode_inputs(body, None, APP.inputs, APP.max_rows, LIMITS)

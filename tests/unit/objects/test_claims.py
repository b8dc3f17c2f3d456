"""References in queries: only what the deployment allows, whatever is written; and they come through every hop."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import BYTES, Tensor, TensorSpec
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.plan import Epoch
from sluicegate.streams.objects.claims import Claim, ObjectRules, check_prefix, claim_of
from sluicegate.streams.ports import Record
from sluicegate.streams.records import codec

NOW = 1_800_000_000.0
DIGEST = "ab" * 32
RULES = ObjectRules(prefixes=("s3://bucket/queries/", "file:///srv/in/", "memory://held/"), max_bytes=1000)
LIMITS = codec.Limits(objects=RULES)
APP = App(
    name="toy",
    slo=1.0,
    inputs=(TensorSpec("image", "FP32", (4,)), TensorSpec("flag", "BOOL", ()), TensorSpec("note", BYTES, ())),
)
IMAGE: dict[str, Any] = {
    "name": "image", "datatype": "FP32", "shape": [2, 4],
    "data": {"ref": "s3://bucket/queries/a/7.bin", "sha256": DIGEST, "bytes": 32},
}  # fmt: skip
FLAG: dict[str, Any] = {"name": "flag", "datatype": "BOOL", "shape": [2], "data": [True, False]}
NOTE: dict[str, Any] = {
    "name": "note", "datatype": "BYTES", "shape": [2],
    "data": {"ref": "file:///srv/in/note", "sha256": "cd" * 32, "bytes": 40},
}  # fmt: skip


def decode(*inputs: dict[str, Any], limits: codec.Limits = LIMITS) -> codec.QueryMessage:
    """Of a JSON body."""
    record = Record("q", 0, 0, b"q1", orjson.dumps({"inputs": inputs}), (("ce_id", b"q1"),), NOW)
    return codec.decode_query(record, APP, limits, NOW)


def refusal(change: dict[str, Any], **limits: Any) -> codec.RejectedQueryError:
    """Of an image that refers otherwise."""
    with pytest.raises(codec.RejectedQueryError) as caught:
        decode({**IMAGE, "data": {**IMAGE["data"], **change}}, FLAG, NOTE, **limits)
    return caught.value


def test_a_reference_stands_for_the_data_and_comes_through_every_hop() -> None:
    message = decode(NOTE, FLAG, IMAGE)
    assert [(place, claim.bytes) for place, claim in message.claims] == [(0, 32), (2, 40)]
    assert [len(t.data) for t in message.tensors] == [0, 2, 0] and message.query.rows == 2
    admitted = codec.encode_admitted(message)
    read = codec.decode_admitted(Record("a", 0, 0, admitted.key, admitted.value, admitted.headers, NOW))
    work = codec.encode_work(read, epoch=Epoch(1, 2), slice="s", turn=5)
    found = codec.decode_work(Record("w", 0, 0, work.key, work.value, work.headers, NOW))
    assert (found.claims, found.turn, found.slice) == (message.claims, 5, "s")
    assert [(t.name, t.shape, bytes(t.data)) for t in found.tensors] == [
        (t.name, t.shape, bytes(t.data)) for t in message.tensors
    ]


def test_what_one_query_refers_to_is_told_from_what_another_does() -> None:
    one, other = (
        decode(IMAGE, FLAG, NOTE),
        decode({**IMAGE, "data": {**IMAGE["data"], "sha256": "ef" * 32}}, FLAG, NOTE),
    )
    records = [codec.encode_admitted(message) for message in (one, other)]
    read = [Record("a", 0, 0, r.key, r.value, r.headers, NOW) for r in records]
    assert read[0].value == read[1].value
    assert codec.content_of(read[0], one.claims) != codec.content_of(read[1], other.claims)


def test_without_prefixes_no_query_refers_to_anything() -> None:
    assert "objects.prefixes" in str(refusal({}, limits=codec.DEFAULT_LIMITS))


@pytest.mark.parametrize(
    "ref",
    [
        "s3://bucket/queries/../results/1",
        "s3://bucket/queries/a/../../x",
        "s3://bucket/queries/%2e%2e/x",
        "s3://bucket/queries/./x",
        "s3://bucket/queries//x",
        "s3://bucket/queries/",
        "s3://bucket/queries",
        "s3://bucket/queriesx/1",
        "s3://bucket@evil/queries/1",
        "S3://bucket/queries/1",
        "s3://bucket/queries/a?versionId=1",
        "s3://bucket/queries/a#b",
        "s3://bucket/queries/*",
        "s3://bucket/queries/a::http://169.254.169.254/x",
        "s3://bucket/queries/a\\..\\b",
        "s3://bucket/queries/.hidden",
        "http://169.254.169.254/latest/meta-data/",
        "https://example.org/x",
        "file:///etc/passwd",
        "file:///srv/in/../../etc/passwd",
        "file://srv/in/x",
        "/srv/in/x",
        "simplecache::s3://bucket/queries/1",
        "",
        "s3://bucket/queries/\x00",
        "s3://bucket/queries/ä",
        "s3://bucket/queries/" + "x" * 2000,
    ],
)
def test_what_lies_elsewhere_or_climbs_is_refused(ref: str) -> None:
    assert refusal({"ref": ref}).field == "inputs[0].data.ref"


@given(st.text(max_size=40))
def test_whatever_follows_a_prefix_stays_below_it(key: str) -> None:
    claim = Claim(f"file:///srv/in/{key}", DIGEST, 32)
    try:
        RULES.check("x", claim)
    except InvalidInputError:
        return
    parts = key.split("/")
    assert all(part and not part.startswith(".") for part in parts) and not set(key) & set("%?#*\\\0 ")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sha256": "AB" * 32}, "sha256"),
        ({"sha256": "ab"}, "sha256"),
        ({"sha256": None}, "sha256"),
        ({"bytes": 31}, "bytes"),
        ({"bytes": 33}, "bytes"),
        ({"bytes": "32"}, "bytes"),
        ({"bytes": True}, "bytes"),
        ({"bytes": 0}, "bytes"),
        ({"bytes": 1 << 60}, "bytes"),
        ({"ref": 7}, "ref"),
    ],
)
def test_what_is_wrong_with_a_reference_is_named(change: dict[str, Any], field: str) -> None:
    assert refusal(change).field == f"inputs[0].data.{field}"


def test_a_reference_with_anything_else_in_it_or_to_too_much_is_refused() -> None:
    assert "'token'" in str(refusal({"token": "x"}))
    with pytest.raises(codec.RejectedQueryError, match=r"at most 1000 \(objects\.max_bytes\) are taken"):
        decode(IMAGE, FLAG, {**NOTE, "data": {**NOTE["data"], "bytes": 1001}})


@pytest.mark.parametrize(
    "prefix",
    [
        "s3://bucket/",
        "s3://bucket/a.b/c/",
        "file:///srv/in/",
        "file:///home/me/.sluicegate/in/",
        "memory://x/",
        "gs://b/",
    ],
)
def test_places_that_can_be_set(prefix: str) -> None:
    assert check_prefix(prefix) == prefix


@pytest.mark.parametrize(
    "prefix",
    ["", "s3://", "s3:///", "s3://bucket", "file:///", "file://srv/in/", "file:///srv/../etc/", "http://example.org/in/",
     "https://x/y/", "ftp://x/y/", "s3://user:secret@bucket/", "s3://bucket/a b/", "zip://a/::s3://b/", "/srv/in/"],
)  # fmt: skip
def test_places_that_cannot(prefix: str) -> None:
    with pytest.raises(ValueError, match="names no place"):
        check_prefix(prefix)


@pytest.mark.parametrize(
    "told", [[], ["r"], ["s3://b/x", "zz", 32], ["s3://b/x", DIGEST, 31], ["s3://b/x", DIGEST, -1]]
)
def test_hop_records_of_a_stranger_are_refused(told: list[Any]) -> None:
    work = codec.encode_work(decode(IMAGE, FLAG, NOTE), epoch=Epoch(1, 2), slice="s")
    packed = orjson.loads(dict(work.headers)["sluice"])
    packed[11][0][3] = told
    headers = tuple((n, orjson.dumps(packed) if n == "sluice" else held) for n, held in work.headers)
    with pytest.raises(InvalidInputError):
        codec.decode_work(Record("w", 0, 0, work.key, work.value, headers, NOW))


def test_outcomes_say_where_an_output_lies_and_give_the_others() -> None:
    query = decode(IMAGE, FLAG, NOTE).query
    outputs = (Tensor("scores", "FP32", (2, 3), bytes(24)), Tensor("label", "INT64", (2,), bytes(16)))
    claim = Claim("s3://bucket/results/toy/" + DIGEST, DIGEST, 24)
    outcome = Outcome.of(query, OutcomeKind.ANSWERED, NOW + 0.1, variant="v")
    message = codec.encode_outcome(outcome, outputs, claims={"scores": claim})
    found = codec.decode_outcome(Record("r", 0, 0, message.key, message.value, message.headers, NOW))
    assert [t.name for t in found.outputs()] == ["label"]
    assert found.claims() == ((Tensor("scores", "FP32", (2, 3), b""), claim),)
    whole = codec.with_outputs(found, [outputs[0]])
    assert [(t.name, bytes(t.data)) for t in whole.outputs()] == [(t.name, t.data) for t in outputs]
    assert whole.claims() == ()
    assert claim_of("x", claim.document()) == claim

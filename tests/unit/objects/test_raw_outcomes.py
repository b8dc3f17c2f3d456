"""Outcomes whose tensors are raw, for whoever asked so: the same is read of them, by us and by the client."""

from typing import Any

import numpy as np
import orjson
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.tensor import BYTES, Tensor, joined
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.query import Query
from sluicegate.stages.fronts.oip_responses import Asked, respond
from sluicegate.streams.objects.claims import Claim
from sluicegate.streams.ports import Headers, Record
from sluicegate.streams.records import codec
from sluicegate_client.over_topics import answer_of

NOW = 1_800_000_000.0
SCORES = np.array([[0.1, np.nan, -np.inf], [1e-30, 2.0, 3.0]], "<f4")
OUTPUTS = (
    Tensor("scores", "FP32", (2, 3), SCORES.tobytes()),
    Tensor("said", BYTES, (2,), joined([b"\xff\xd8", "länger".encode()])),
    Tensor("label", "INT64", (2,), np.array([7, 1 << 40], "<i8").tobytes()),
)
LENGTH = "inference-header-content-length"


def written(*, raw: bool, kind: OutcomeKind = OutcomeKind.ANSWERED, **more: Any) -> Record:
    """The record of an outcome."""
    outcome = Outcome.of(Query("q1", "toy", NOW, NOW + 1, source="/me"), kind, NOW + 0.1, variant="v")
    carried: Headers = (("ce_tenant", b"a"), *((codec.TAKES_RAW,) if raw else ()))
    outputs = OUTPUTS if kind is OutcomeKind.ANSWERED else ()
    message = codec.encode_outcome(outcome, outputs, carried=carried, **more)
    return Record("t.app.toy.results", 0, 0, message.key, message.value, message.headers, NOW)


def contents(tensors: Any) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    """What can be compared: NaN is not itself."""
    return [(t.name, t.datatype, t.shape, bytes(t.data)) for t in tensors]


def test_raw_tensors_are_read_to_the_bit_and_the_outcome_is_the_same() -> None:
    raw, plain = (codec.decode_outcome(written(raw=raw)) for raw in (True, False))
    assert contents(raw.outputs()) == contents(OUTPUTS)
    assert raw.outcome == plain.outcome and plain.raw is None
    assert np.isnan(np.frombuffer(plain.outputs()[0].data, "<f4")[2]), "JSON has no infinity"
    told = dict(written(raw=True).headers)
    assert told["content-type"] == b"application/octet-stream" and told["accept"] == b"application/octet-stream"
    assert LENGTH not in dict(written(raw=False).headers)


def test_what_was_not_answered_and_what_another_accepts_is_json_alone() -> None:
    assert codec.decode_outcome(written(raw=True, kind=OutcomeKind.EXPIRED)).raw is None
    outcome = Outcome.of(Query("q1", "toy", NOW, NOW + 1), OutcomeKind.ANSWERED, NOW)
    message = codec.encode_outcome(outcome, OUTPUTS, carried=(("accept", b"*/*"),))
    assert orjson.loads(message.value or b"")["outputs"][2]["data"] == [7, 1 << 40]


def test_people_see_raw_outcomes_as_json_on_one_line() -> None:
    shown = codec.outcome_json(written(raw=True))
    assert b"\n" not in shown
    outputs = {o["name"]: o for o in orjson.loads(shown)["outputs"]}
    assert outputs["scores"]["data"][1:3] == [None, None] and outputs["label"]["data"] == [7, 1 << 40]
    assert outputs["said"]["parameters"] == {"content_type": "base64"}


def test_what_lies_elsewhere_is_not_among_the_raw_ones() -> None:
    claim = Claim("s3://b/out/toy/" + "ab" * 32, "ab" * 32, 24)
    found = codec.decode_outcome(written(raw=True, claims={"scores": claim}))
    assert contents(found.outputs()) == contents(OUTPUTS[1:]) and found.claims()[0][1] == claim
    whole = codec.with_outputs(found, [OUTPUTS[0]])
    assert contents(whole.outputs()) == contents(OUTPUTS)


@pytest.mark.parametrize("length", [b"", b"0", b"-1", b"ten", b"99999999", b"9" * 40, b"5"])
def test_a_length_that_lies_is_refused(length: bytes) -> None:
    record = written(raw=True)
    headers = tuple((name, length if name == LENGTH else held) for name, held in record.headers)
    with pytest.raises(InvalidInputError):
        codec.decode_outcome(record._replace(headers=headers))
    assert b"malformed" in codec.outcome_json(record._replace(headers=headers))


@pytest.mark.parametrize("change", [lambda value: value[:-1], lambda value: value + b"\0"])
def test_tensors_cut_short_or_followed_by_more_are_refused(change: Any) -> None:
    record = written(raw=True)
    found = codec.decode_outcome(record._replace(value=change(record.value)))
    with pytest.raises(InvalidInputError):
        found.outputs()
    assert b"malformed" in codec.outcome_json(record._replace(value=change(record.value)))


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("binary", [True, False])
def test_a_front_answers_the_same_whichever_it_was(raw: bool, binary: bool) -> None:
    result = codec.decode_outcome(written(raw=raw))
    made, length = respond(result, Asked("mine", {"label": binary, "said": False}))
    body = orjson.loads(made[:length])
    label, said = body["outputs"][1], body["outputs"][0]
    assert body["id"] == "mine" and said["data"] == ["/9g=", "bMOkbmdlcg=="]
    if binary:
        assert length is not None and made[length:] == OUTPUTS[2].data and label["parameters"]["binary_data_size"] == 16
    else:
        assert length is None and label["data"] == [7, 1 << 40]


@pytest.mark.parametrize("raw", [True, False])
def test_the_client_reads_both(raw: bool) -> None:
    record = written(raw=raw)
    answer = answer_of(record.value or b"", dict(record.headers).get(LENGTH))
    assert answer.outcome.on_time and answer.outputs["label"].tolist() == [7, 1 << 40]
    assert answer.outputs["said"].tolist() == [b"\xff\xd8", "länger".encode()]
    assert np.isnan(answer.outputs["scores"][0][1]) and orjson.loads(answer.body)["id"] == "q1"
    with pytest.raises((ValueError, KeyError, TypeError)):
        answer_of((record.value or b"")[:40], dict(record.headers).get(LENGTH))


@pytest.mark.parametrize(("length", "field"), [(b"0", LENGTH), (b"-1", LENGTH), (b"9" * 12, LENGTH), (b"1", "outcome")])
def test_a_length_that_no_body_has_is_told_apart_from_json_cut_short(length: bytes, field: str) -> None:
    record = written(raw=True)
    headers = tuple((name, length if name == LENGTH else held) for name, held in record.headers)
    with pytest.raises(InvalidInputError) as refused:
        codec.decode_outcome(record._replace(headers=headers))
    assert refused.value.field == field


def test_an_outcome_says_in_headers_who_asked_and_who_answered_where_somebody_did() -> None:
    query, asks = Query("q1", "toy", NOW, NOW + 1, source="/me"), (("a-first", b"1"), ("z-last", b"2"))
    answered = Outcome.of(query, OutcomeKind.ANSWERED, NOW + 0.1, variant="v", device="d7")
    expired = Outcome.of(Query("q2", "toy", NOW, NOW + 1), OutcomeKind.EXPIRED, NOW + 1.1)
    for outcome, device, source in ((answered, "d7", "/me"), (expired, None, "")):
        message = codec.encode_outcome(outcome, (), carried=asks)
        record = Record("t.app.toy.results", 0, 0, message.key, message.value, message.headers, NOW)
        assert codec.outcome_device(record) == device
        assert codec.query_source_of(record) == source
        assert message.headers[-2:] == asks
        assert dict(message.headers)["ce_source"] == b"/app/toy"


def test_results_are_shown_on_one_line_as_they_stand_and_as_malformed_where_that_cannot_be() -> None:
    record = written(raw=False)
    assert codec.outcome_json(record._replace(value=b'{"a":\n 1}')) == b'{"a":1}'
    assert codec.outcome_json(record._replace(value=b"not\njson")) == b'{"malformed":"not\\njson"}'
    assert codec.outcome_json(record._replace(value=b"not json")) == b'{"malformed":"not json"}'
    assert codec.outcome_json(record._replace(value=b"\xff")) == '{"malformed":"\ufffd"}'.encode()
    deep = b"[" * 300 + b"]" * 300
    assert b"malformed" in codec.outcome_json(record._replace(value=b"\n" + deep))
    assert codec.outcome_json(record._replace(value=None)) == b"{}"

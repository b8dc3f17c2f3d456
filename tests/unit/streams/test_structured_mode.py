"""CloudEvents in structured mode are read as the same event in binary mode is."""

from base64 import b64encode
from typing import Any

import orjson
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.streams.ports import Record
from sluicegate.streams.records import codec
from sluicegate.streams.records.structured_mode import in_binary_mode

APP = App(name="toy", slo=0.25, inputs=(TensorSpec("x", "FP32", (2,)),), max_rows=4)
BODY = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, -2.0]}]}
NOW = 1.7e9


def event(**more: Any) -> dict[str, Any]:
    told = {"specversion": "1.0", "id": "q1", "source": "/me", "type": "t", "data": BODY, **more}
    return {name: held for name, held in told.items() if held is not ...}


def record(value: Any, content: bytes = b"application/cloudevents+json; charset=utf-8") -> Record:
    value = value if isinstance(value, bytes) else orjson.dumps(value)
    return Record("s.app.toy.queries", 1, 7, b"stream", value, (("content-type", content), ("baggage", b"b=1")), NOW)


def decode(given: Record) -> codec.QueryMessage:
    return codec.decode_query(given, APP, codec.DEFAULT_LIMITS, NOW)


def test_an_event_is_the_same_in_both_modes() -> None:
    extended = event(tenant="red", retries=3, hot=True, expirytime="2023-11-14T22:13:25+00:00", traceparent="junk")
    found = decode(record(extended))
    headers = (("ce_id", b"q1"), ("ce_source", b"/me"), ("ce_expirytime", b"2023-11-14T22:13:25+00:00"))
    binary = decode(Record("s.app.toy.queries", 1, 7, b"stream", orjson.dumps(BODY), headers, NOW))
    assert all(getattr(found.query, name) == getattr(binary.query, name) for name in binary.query.__slots__)
    assert found.query.deadline == pytest.approx(NOW + 5.0, abs=1e-6) and found.query.key == ("toy", "/me", "q1")
    assert [bytes(t.data) for t in found.tensors] == [bytes(t.data) for t in binary.tensors]
    back = (("baggage", b"b=1"), ("ce_tenant", b"red"), ("ce_retries", b"3"), ("ce_hot", b"true"))
    assert found.carried == back == codec.carried_if_it_can_be(record(extended))


def test_what_is_asked_of_a_record_alone_knows_structured_mode_too() -> None:
    given = record(event())
    assert (codec.query_id_of(given), codec.source_of_query(given)) == ("q1", "/me")
    assert codec.query_id_of(record(b"{")) is None and codec.source_of_query(record(b"{")) == ""


def test_data_may_be_base64() -> None:
    packed = b64encode(orjson.dumps(BODY)).decode()
    assert decode(record(event(data=..., data_base64=packed))).query.rows == 1


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (b"", "body"),
        (b"[1]", "body"),
        (b"\xff", "body"),
        (event(Tenant="x"), "body"),
        (event(tenant=1.5), "body.tenant"),
        (event(tenant={"a": 1}), "body.tenant"),
        (event(datacontenttype="text/xml"), "body.datacontenttype"),
        (event(datacontenttype=3), "body.datacontenttype"),
        (event(data=..., data_base64="!"), "body.data_base64"),
        (event(data=..., data_base64=7), "body.data_base64"),
    ],
)
def test_what_is_no_event_is_refused_by_its_field(value: Any, field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        in_binary_mode(record(value))
    assert caught.value.field == field
    with pytest.raises(codec.UnattributableError):
        decode(record(value))


@pytest.mark.parametrize("value", [event(data=...), event(data=[1]), event(specversion="2.0"), event(data="text")])
def test_an_event_with_an_id_whose_data_say_nothing_is_rejected_under_its_id(value: Any) -> None:
    with pytest.raises(codec.RejectedQueryError) as caught:
        decode(record(value))
    assert caught.value.query.key == ("toy", "/me", "q1")


def test_batches_of_events_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="content-type"):
        in_binary_mode(record([event()], b"application/cloudevents-batch+json"))


def test_what_is_not_structured_is_left_as_it_is() -> None:
    given = record(b"anything", b"application/octet-stream")
    assert in_binary_mode(given) is given

"""CloudEvents: in structured mode they are read as in binary mode; what their headers say, and what goes along."""

from base64 import b64encode
from typing import Any

import orjson
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.domain.outcome import Reason
from sluicegate.streams.ports import Record
from sluicegate.streams.records import codec
from sluicegate.streams.records.cloudevents import (
    along,
    carried,
    check_id,
    query_headers,
    readable_traceparent,
    source_of,
    traceparent_in,
    with_traceparent,
)
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


LIMITS = codec.Limits(max_body_bytes=90_000)


def test_an_event_over_the_limit_is_refused_before_it_is_read() -> None:
    no_json = b"x" * (120_000 + (64 << 10))
    with pytest.raises(codec.UnattributableError, match="is no JSON"):
        codec.decode_query(record(no_json), APP, LIMITS, NOW)
    with pytest.raises(codec.UnattributableError, match="has 185537 bytes; an event may have 185536 at most"):
        codec.decode_query(record(no_json + b"x"), APP, LIMITS, NOW)
    named = record(no_json + b"x")
    named = named._replace(headers=(("ce_id", b"q7"), ("ce_source", b"/me"), *named.headers))
    with pytest.raises(codec.RejectedQueryError) as caught:
        codec.decode_query(named, APP, LIMITS, NOW)
    assert (caught.value.query.id, caught.value.reason) == ("q7", Reason.TOO_LARGE)


def test_what_goes_along_is_not_looked_for_in_an_event_over_the_limit() -> None:
    own, told = ("baggage", b"b=1"), ("ce_tenant", b"red")
    within, over = (record(event(tenant="red", data="x" * size)) for size in (100_000, 200_000))
    assert codec.carried_if_it_can_be(within, LIMITS) == (own, told) == codec.carried_if_it_can_be(over)
    assert codec.carried_if_it_can_be(over, LIMITS) == (own,)


def test_data_as_large_as_the_limit_may_be_base64() -> None:
    body = orjson.dumps(BODY)
    packed = b64encode(body + b" " * (LIMITS.max_body_bytes - len(body))).decode()
    event_of = record(event(data=..., data_base64=packed, tenant="red" * 5_000))
    assert codec.decode_query(event_of, APP, LIMITS, NOW).query.rows == 1


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


DEEP = b"[" * 1000 + b"]" * 1000
FAIRLY = b"[" * 300 + b"]" * 300
"""As deep as can be read, and deeper than can be written."""


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (DEEP, "body"),
        (orjson.dumps(event(data=...)).replace(b"}", b',"data":' + DEEP + b"}"), "body.data"),
        (orjson.dumps(event(data=...)).replace(b"}", b',"data":' + FAIRLY + b"}"), "body.data"),
        (orjson.dumps(event(data=...)).replace(b"}", b',"data_base64":' + DEEP + b"}"), "body.data_base64"),
        (orjson.dumps(event()).replace(b'"/me"', DEEP), "body.source"),
        (orjson.dumps(event(datacontenttype=7)).replace(b":7}", b":" + DEEP + b"}"), "body.datacontenttype"),
    ],
)
def test_an_event_that_is_nested_deeply_is_a_dead_letter_like_any_other(value: bytes, field: str) -> None:
    given = record(value)
    with pytest.raises(codec.UnattributableError) as caught:
        decode(given)
    assert caught.value.field == field
    assert codec.query_id_of(given) is None
    letter = codec.dead_letter(given, caught.value, stage="admission", now=NOW)
    assert letter.value == value and letter.key == b"stream"


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


TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


def test_trace_context_takes_the_place_of_what_was_there_and_leaves_the_rest() -> None:
    headers = (("accept", b"x"), ("traceparent", b"old"), ("x-request-id", b"7"))
    rest = (("accept", b"x"), ("x-request-id", b"7"))
    assert with_traceparent(headers, TRACE) == (("traceparent", TRACE.encode()), *rest)
    assert with_traceparent(headers, None) == rest
    assert (traceparent_in(with_traceparent(headers, TRACE)), traceparent_in(headers), traceparent_in(rest)) == (
        TRACE,
        None,
        None,
    )


@pytest.mark.parametrize(
    "text",
    [
        TRACE.replace("00-", "ff-"),
        TRACE.replace("a" * 32, "0" * 32),
        TRACE.replace("b" * 16, "0" * 16),
        TRACE.upper(),
        TRACE + "0",
        TRACE[1:],
        None,
    ],
)
def test_what_is_no_trace_context_is_none(text: str | None) -> None:
    assert readable_traceparent(TRACE) == TRACE
    assert readable_traceparent(text) is None


def test_of_a_request_goes_along_what_traces_and_correlates_whatever_its_case() -> None:
    given = [
        ("Correlation-Id", "c7"), ("X-Request-ID", "r3"), ("baggage", "b=1"), ("TraceParent", TRACE),
        ("tracestate", "s"), ("reply-to", "elsewhere"), ("ce_tenant", "red"), ("accept", "application/octet-stream"),
    ]  # fmt: skip
    assert along(given) == (
        ("correlation-id", b"c7"), ("x-request-id", b"r3"), ("baggage", b"b=1"), ("traceparent", TRACE.encode()),
        ("tracestate", b"s"),
    )  # fmt: skip
    assert along([("baggage", "b"), ("traceparent", "junk")]) == (("baggage", b"b"),)


@pytest.mark.parametrize(("size", "fits"), [(16_384 - 7, True), (16_384 - 6, False)])
def test_sixteen_kibibytes_of_names_and_values_go_along(size: int, fits: bool) -> None:
    headers = (("baggage", b"x" * size), ("content-type", b"y" * 9))
    if fits:
        assert carried(headers) == headers[:1]
        return
    with pytest.raises(InvalidInputError) as refused:
        carried(headers)
    assert (refused.value.field, "16385 bytes" in refused.value.problem) == ("headers", True)


@pytest.mark.parametrize(
    ("query_id", "fine"),
    [
        ("x" * 256, True),
        ("x" * 257, False),
        ("\u00e9" * 128, True),
        ("\u00e9" * 129, False),
        ("", False),
        ("a\n", False),
    ],
)
def test_an_id_has_printable_characters_and_at_most_256_bytes(query_id: str, fine: bool) -> None:
    if fine:
        assert check_id("ce_id", query_id) == query_id
        return
    with pytest.raises(InvalidInputError) as refused:
        check_id("ce_id", query_id)
    assert refused.value.field == "ce_id"


@pytest.mark.parametrize(("source", "fine"), [(b"x" * 256, True), (b"x" * 257, False), (b"", True), (b"\xff", False)])
def test_a_source_has_at_most_256_printable_characters(source: bytes, fine: bool) -> None:
    if fine:
        assert source_of({"ce_source": source}) == source.decode()
        return
    with pytest.raises(InvalidInputError) as refused:
        source_of({"ce_source": source})
    assert refused.value.field == "ce_source"


def test_the_headers_of_a_query_say_when_it_expires_how_much_is_json_and_how_long_the_way_back_is() -> None:
    plain = query_headers("q1", app="toy", source="me", now=NOW)
    assert plain == (
        ("ce_specversion", b"1.0"),
        ("ce_id", b"q1"),
        ("ce_source", b"/me"),
        ("ce_type", b"sluicegate.query"),
        ("ce_subject", b"toy"),
        ("ce_time", b"2023-11-14T22:13:20+00:00"),
        ("content-type", b"application/json"),
    )
    more = query_headers(
        "q1", app="toy", source="me", now=NOW, expires=NOW + 0.25, json_length=7, traceparent=TRACE, delivery_s=0.0125,
        carried=(("baggage", b"b"),),
    )  # fmt: skip
    assert more[6:] == (
        ("ce_expirytime", b"2023-11-14T22:13:20.250000+00:00"),
        ("content-type", b"application/octet-stream"),
        ("inference-header-content-length", b"7"),
        ("traceparent", TRACE.encode()),
        ("delivery-ms", b"12.500"),
        ("baggage", b"b"),
    )

"""What admission's codec says of queries that are wrong: the field, the value, and who is told."""

import math
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import App, Promise, QueryClass
from sluicegate.domain.models.tensor import Tensor, TensorSpec
from sluicegate.domain.outcome import Outcome, OutcomeKind, Reason
from sluicegate.domain.plan import NO_EPOCH, Epoch
from sluicegate.domain.query import Goal, Query
from sluicegate.streams.ports import Headers, Record
from sluicegate.streams.records import codec, oip
from sluicegate.streams.records.hop_records import admitted_key

NOW = 1_800_000_000.0
APP = App(
    name="digits",
    slo=0.2,
    query_class=QueryClass.BEST_EFFORT,
    inputs=(TensorSpec("image", "FP32", (2, 2)), TensorSpec("flag", "BOOL", ())),
    max_rows=4,
)
IMAGE: dict[str, Any] = {"name": "image", "datatype": "FP32", "shape": [1, 2, 2], "data": [1, 2.5, 3, 4]}
FLAG: dict[str, Any] = {"name": "flag", "datatype": "BOOL", "shape": [1], "data": [True]}


def record(
    body: Any, *, headers: Headers = (("ce_id", b"q1"),), key: bytes | None = b"q1", timestamp: float = NOW
) -> Record:
    """A query record."""
    value = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
    return Record("sluice.app.digits.queries", 3, 9, key, value, headers, timestamp)


def decode(body: Any, **more: Any) -> codec.QueryMessage:
    """Decoded, with limits to test against."""
    return codec.decode_query(record(body, **more), APP, codec.Limits(max_body_bytes=10_000), NOW)


def asked(**parameters: Any) -> dict[str, Any]:
    """A good body with these parameters."""
    return {"parameters": parameters, "inputs": [IMAGE, FLAG]}


def test_a_plain_query_takes_class_slo_and_stream_from_its_app() -> None:
    message = decode({"inputs": [FLAG, IMAGE]})
    query = message.query
    assert (query.id, query.app, query.rows, query.sequence, query.stream) == ("q1", "digits", 1, 9, "digits")
    assert query.query_class is QueryClass.BEST_EFFORT and query.goal is None and query.priority == 0
    assert (query.arrival, query.deadline) == (NOW, NOW + 0.2)
    assert [t.name for t in message.tensors] == ["image", "flag"]
    assert np.frombuffer(message.tensors[0].data, "<f4").tolist() == [1, 2.5, 3, 4]


@pytest.mark.parametrize(
    ("shape", "fits"),
    [([1, 5, 2], True), ([1, 8, 2], True), ([1, 9, 2], False), ([1, 5, 3], False), ([1, 10], False), ([1, 1, 2], True)],
)
def test_rows_of_an_input_that_varies_may_be_shorter_in_length_alone(shape: list[int], fits: bool) -> None:
    app = App(name="digits", slo=0.2, inputs=(TensorSpec("text", "FP32", (8, 2), varying=True),))
    tensor = {"name": "text", "datatype": "FP32", "shape": shape, "data": [0.5] * math.prod(shape)}
    came = record({"inputs": [tensor]})
    if fits:
        (found,) = codec.decode_query(came, app, codec.DEFAULT_LIMITS, NOW).tensors
        assert found.shape == tuple(shape)
    else:
        with pytest.raises(InvalidInputError, match=r"must be \[rows, 1 to 8, 2\]"):
            codec.decode_query(came, app, codec.DEFAULT_LIMITS, NOW)


def test_nested_data_is_the_same_as_flat_data() -> None:
    nested = {**IMAGE, "data": [[[1, 2.5], [3, 4]]]}
    assert decode({"inputs": [nested, FLAG]}).tensors == decode({"inputs": [IMAGE, FLAG]}).tensors


def test_parameters_are_carried() -> None:
    query = decode(asked(latency_ms=50, accuracy=0.9, cost=2, model="conv8", priority=3, **{"class": "strict"})).query
    assert query.deadline == NOW + 0.05 and query.query_class is QueryClass.STRICT and query.priority == 3
    assert query.goal == Goal(0.9, 2.0, "conv8")


def test_timeout_is_latency_in_microseconds_as_triton_has_it() -> None:
    assert decode(asked(timeout=50_000)).query.deadline == NOW + 0.05
    assert decode(asked(timeout=50_000, latency_ms=50)).query.deadline == NOW + 0.05
    assert decode(asked(timeout=0)).query.deadline == NOW + 0.2


def test_a_key_that_is_not_the_id_is_the_stream() -> None:
    assert decode(asked(), key=b"camera-7").query.stream == "camera-7"
    assert decode(asked(), key=None).query.stream == "digits"


def test_expiry_time_beats_latency() -> None:
    headers = (("ce_id", b"q1"), ("ce_expirytime", b"2027-01-15T08:00:01.5Z"))
    assert decode(asked(latency_ms=50), headers=headers).query.deadline == NOW + 1.5
    offset = (("ce_id", b"q1"), ("ce_expirytime", b"2027-01-15T09:00:01+01:00"))
    assert decode(asked(), headers=offset).query.deadline == NOW + 1.0


def test_the_way_back_makes_the_deadline_earlier_by_half_of_the_time_at_most() -> None:
    def deadline(body: Any, told: bytes, app: App = APP) -> float:
        came = record(body, headers=(("ce_id", b"q1"), ("delivery-ms", told)))
        return codec.decode_query(came, app, codec.DEFAULT_LIMITS, NOW).query.deadline

    assert deadline(asked(), b"12.5") == pytest.approx(NOW + 0.2 - 0.0125, abs=1e-6)
    assert deadline(asked(latency_ms=50), b"40") == pytest.approx(NOW + 0.025, abs=1e-6)
    promised = replace(APP, promise=Promise(max_consecutive=2))
    assert deadline(asked(), b"12.5", promised) == NOW + 0.2
    assert deadline(asked(), b"12.5", replace(APP, slo_classes=(0.1, 0.2))) == NOW + 0.2


@pytest.mark.parametrize(
    ("timestamp", "arrival"),
    [(NOW - 2, NOW - 2), (NOW - 60, NOW - 5), (NOW + 60, NOW + 5), (-1.0, NOW - 5), (float("nan"), NOW + 5)],
)
def test_a_producers_clock_counts_within_the_skew_only(timestamp: float, arrival: float) -> None:
    query = decode(asked(latency_ms=100), timestamp=timestamp).query
    assert (query.arrival, query.deadline) == (arrival, arrival + 0.1)


def test_the_id_may_stand_in_the_body_alone() -> None:
    assert decode({"id": "from-body", "inputs": [IMAGE, FLAG]}, headers=()).query.id == "from-body"
    both = record({"id": "from-body", "inputs": [IMAGE, FLAG]})
    assert codec.decode_query(both, APP, codec.DEFAULT_LIMITS, NOW).query.id == "q1" == codec.query_id_of(both)


def test_trace_context_goes_along_where_it_is_well_formed() -> None:
    good = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
    assert decode(asked(), headers=(("ce_id", b"q1"), ("traceparent", good))).carried == (("traceparent", good),)
    assert decode(asked(), headers=(("ce_id", b"q1"), ("traceparent", b"junk"))).carried == ()


def test_what_correlates_and_extends_comes_back_and_nothing_else_does() -> None:
    extension = (
        ("ce_tenant", b"\xffred"),
        ("tracestate", b"a=1"),
        ("Kafka_CorrelationId", b"7"),
        ("ce_tenant", b"blue"),
    )
    given = (("ce_id", b"q1"), ("ce_source", b"/me"), *extension, ("ce_type", b"t"), ("x-secret", b"s"))
    assert decode(asked(), headers=given).carried == extension


def test_more_than_can_be_carried_along_is_refused() -> None:
    most = codec.MAX_CARRIED - len("baggage")
    fits = (("ce_id", b"q1"), ("baggage", b"b" * most))
    assert decode(asked(), headers=fits).carried == fits[1:]
    too_much = (("ce_id", b"q1"), ("baggage", b"b" * (most + 1)))
    with pytest.raises(codec.RejectedQueryError, match=r"headers: .*at most"):
        decode(asked(), headers=too_much)
    assert codec.carried_if_it_can_be(record(asked(), headers=too_much)) == ()


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (None, ()),
        (b"", ()),
        (b"\x00\xff", ()),
        ({"inputs": [IMAGE, FLAG]}, ()),
        ({"id": 7, "inputs": [IMAGE, FLAG]}, ()),
        ({"id": "", "inputs": [IMAGE, FLAG]}, ()),
        (asked(), (("ce_id", b""),)),
        (asked(), (("ce_id", b"\xff\xfe"),)),
        (asked(), (("ce_id", b"a\nb"),)),
        (asked(), (("ce_id", b"x" * 300),)),
        (b"x" * 20_000, ()),
    ],
)
def test_what_has_no_readable_id_can_only_be_a_dead_letter(body: Any, headers: Headers) -> None:
    with pytest.raises(codec.UnattributableError):
        decode(body, headers=headers)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (None, "body"),
        (b"", "body"),
        (b"{", "body"),
        (b"[1]", "body"),
        (b'{"inputs": [{"data": [NaN]}]}', "body"),
        ({}, "inputs"),
        ({"inputs": {}}, "inputs"),
        ({"inputs": []}, "inputs"),
        ({"inputs": "image"}, "inputs"),
        ({"inputs": [3]}, "inputs[0]"),
        ({"inputs": [IMAGE]}, "inputs"),
        ({"inputs": [IMAGE, FLAG, {**FLAG, "name": "more"}]}, "inputs"),
        ({"inputs": [IMAGE, IMAGE]}, "inputs[1].name"),
        ({"inputs": [{**IMAGE, "name": ""}, FLAG]}, "inputs[0].name"),
        ({"inputs": [{**IMAGE, "datatype": "STRING"}, FLAG]}, "inputs[0].datatype"),
        ({"inputs": [{**IMAGE, "datatype": "BYTES"}, FLAG]}, "inputs[0].data"),
        ({"inputs": [{**IMAGE, "datatype": "FP64"}, FLAG]}, "inputs.image.datatype"),
        ({"inputs": [{**IMAGE, "shape": [1, 4]}, FLAG]}, "inputs.image.shape"),
        ({"inputs": [{**IMAGE, "shape": [2, 2, 2]}, FLAG]}, "inputs[0].data"),
        ({"inputs": [{**IMAGE, "shape": [0, 2, 2]}, FLAG]}, "inputs[0].shape"),
        ({"inputs": [{**IMAGE, "shape": [1, 2, True]}, FLAG]}, "inputs[0].shape"),
        ({"inputs": [{**IMAGE, "shape": [1] * 9}, FLAG]}, "inputs[0].shape"),
        ({"inputs": [{**IMAGE, "data": [1, 2, 3]}, FLAG]}, "inputs[0].data"),
        ({"inputs": [{**IMAGE, "data": [[1, 2], [3]]}, FLAG]}, "inputs[0].data"),
        ({"inputs": [{**IMAGE, "data": [[1, 2, 3, 4]]}, FLAG]}, "inputs[0].data"),
        ({"inputs": [{**IMAGE, "data": ["1", "2", "3", "4"]}, FLAG]}, "inputs[0].data"),
        ({"inputs": [{**IMAGE, "data": [1, 2, None, 4]}, FLAG]}, "inputs[0].data"),
        ({"inputs": [{**IMAGE, "data": [1, 2, 1e300, 4]}, FLAG]}, "inputs[0].data[2]"),
        ({"inputs": [{**IMAGE, "data": 7}, FLAG]}, "inputs[0].data"),
        ({"inputs": [IMAGE, {**FLAG, "data": [1]}]}, "inputs[1].data"),
        ({"inputs": [IMAGE, {**FLAG, "shape": [2], "data": [True, False]}]}, "inputs.flag.shape"),
        (asked(latency_ms="soon"), "parameters.latency_ms"),
        (asked(latency_ms=True), "parameters.latency_ms"),
        (asked(latency_ms=0), "parameters.latency_ms"),
        (asked(latency_ms=-5), "parameters.latency_ms"),
        (asked(latency_ms=1e9), "parameters.latency_ms"),
        (asked(latency_ms=10, timeout=20), "parameters.timeout"),
        (asked(latency_ms=10, timeout=20_000), "parameters.timeout"),
        (asked(latency_ms=20, timeout=10_000), "parameters.timeout"),
        (asked(timeout=-1), "parameters.timeout"),
        (asked(accuracy=1.5), "parameters.accuracy"),
        (asked(cost=-1), "parameters.cost"),
        (asked(cost=1e13), "parameters.cost"),
        (asked(model=""), "parameters.model"),
        (asked(priority=-1), "parameters.priority"),
        (asked(priority=1.5), "parameters.priority"),
        (asked(**{"class": "vip"}), "parameters.class"),
        (asked(latency_ms=600_000.1), "parameters.latency_ms"),
        (asked(timeout=600_000_100), "parameters.timeout"),
        (asked(accuracy=-0.001), "parameters.accuracy"),
        (asked(accuracy=1.001), "parameters.accuracy"),
        (asked(model="m" * 129), "parameters.model"),
        (asked(model=7), "parameters.model"),
        (asked(priority=1 << 31), "parameters.priority"),
        (asked(priority=True), "parameters.priority"),
        (asked(accuracy=0.5, latency=3, latency_ms=3), "parameters.latency"),
        (asked(timeout=3, triton_trace=True, urgency=1), "parameters.urgency"),
        ({"parameters": [], "inputs": [IMAGE, FLAG]}, "parameters"),
    ],
)
def test_what_is_wrong_with_a_known_query_is_named(body: Any, field: str) -> None:
    with pytest.raises(codec.RejectedQueryError) as caught:
        decode(body)
    error = caught.value
    assert (error.field, error.query.id, error.reason) == (field, "q1", Reason.INVALID)
    outcome = Outcome.of(error.query, OutcomeKind.REJECTED, NOW + 1, reason=error.reason, detail=str(error))
    assert outcome.kind is OutcomeKind.REJECTED and outcome.detail is not None and field in outcome.detail
    assert (outcome.arrival, outcome.deadline, outcome.at) == (NOW, NOW + 0.2, NOW + 1)


@pytest.mark.parametrize(
    "parameters",
    [
        {"latency_ms": 600_000},
        {"timeout": 600_000_000},
        {"timeout": 0},
        {"latency_ms": 20, "timeout": 20_000},
        {"accuracy": 0},
        {"accuracy": 1},
        {"cost": 0},
        {"cost": 10**12},
        {"model": "m" * 128},
        {"priority": (1 << 31) - 1},
        {"triton_trace": True, "sequence_id": 7, "headers": {}},
    ],
)
def test_what_may_just_be_asked_is_taken(parameters: dict[str, Any]) -> None:
    assert decode(asked(**parameters)).query.id == "q1"


def test_who_misspells_a_parameter_is_told_which_is_meant_and_else_which_there_are() -> None:
    with pytest.raises(codec.RejectedQueryError, match=r"latency_mss: is unknown; did you mean latency_ms\?"):
        decode(asked(accuracy=0.5, latency_mss=3))
    with pytest.raises(codec.RejectedQueryError, match="known: latency_ms, timeout, accuracy, cost, class, prio"):
        decode(asked(zzz=3))


def test_tensors_of_our_own_are_told_apart_by_where_they_lie_and_what_is_none_is_refused() -> None:
    claim = {"ref": "s3://b/x", "sha256": "ab" * 32, "bytes": 16}
    body = {"outputs": [IMAGE, {**IMAGE, "name": "far", "data": claim}, {**FLAG, "data": [False]}]}
    here = oip.decode_tensors(body, "outputs")
    assert [(tensor.name, len(tensor.data)) for tensor in here] == [("image", 16), ("flag", 1)]
    ((far, told),) = oip.decode_claims(body, "outputs")
    assert (far.name, far.shape, far.data, told.ref, told.bytes) == ("far", (1, 2, 2), b"", "s3://b/x", 16)
    for wrong, field in (([IMAGE, 3], "outputs[1]"), ("image", "outputs"), (None, "outputs")):
        with pytest.raises(InvalidInputError) as refused:
            oip.decode_tensors({"outputs": wrong}, "outputs")
        assert refused.value.field == field
    assert oip.decode_claims({"outputs": [IMAGE, 3]}, "outputs") == ()


@pytest.mark.parametrize(("size", "fine"), [(16, True), (15, False), (17, False)])
def test_what_lies_elsewhere_is_as_large_as_its_tensor(size: int, fine: bool) -> None:
    entry = {**IMAGE, "data": {"ref": "s3://b/x", "sha256": "ab" * 32, "bytes": size}}
    if fine:
        assert oip.decode_claim("inputs[0]", entry)[1].bytes == 16
        return
    with pytest.raises(InvalidInputError) as refused:
        oip.decode_claim("inputs[0]", entry)
    assert refused.value.field == "inputs[0].data.bytes"


@pytest.mark.parametrize(
    ("datatype", "data", "fine"),
    [
        ("UINT8", [0, 255], True),
        ("UINT8", [0, 256], False),
        ("UINT8", [-1, 255], False),
        ("INT8", [-128, 127], True),
        ("INT8", [-129, 127], False),
        ("INT8", [-128, 128], False),
        ("INT16", [1.0, 2.0], False),
        ("BOOL", [True, False], True),
        ("BOOL", [1, 0], False),
        ("FP32", [1, 2], True),
        ("FP32", [True, False], False),
        ("FP16", [65_504, 0], True),
        ("FP16", [70_000, 0], False),
        ("UINT64", [2**64 - 1, 0], True),
        ("UINT64", [2**63, -1], False),
        ("INT64", [2**63 - 1, -(2**63)], True),
    ],
)
def test_numbers_are_of_the_kind_and_within_the_range_of_their_datatype(
    datatype: str, data: list[object], fine: bool
) -> None:
    body = {"outputs": [{"name": "x", "datatype": datatype, "shape": [2], "data": data}]}
    if fine:
        (tensor,) = oip.decode_tensors(body, "outputs")
        assert np.frombuffer(tensor.data, oip.DTYPES[datatype]).tolist() == data
        return
    app = App(name="x", slo=0.2, inputs=(TensorSpec("x", datatype, ()),), max_rows=2)
    with pytest.raises(codec.RejectedQueryError) as refused:
        codec.decode_query(record({"inputs": body["outputs"]}), app, codec.DEFAULT_LIMITS, NOW)
    assert refused.value.field.startswith("inputs[0].data")


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ((("ce_specversion", b"0.3"),), "ce_specversion"),
        ((("content-type", b"application/cloudevents-batch+json"),), "content-type"),
        ((("ce_expirytime", b"tomorrow"),), "ce_expirytime"),
        ((("ce_expirytime", b"2027-01-15T08:00:00"),), "ce_expirytime"),
        ((("delivery-ms", b"soon"),), "delivery-ms"),
        ((("delivery-ms", b"-1"),), "delivery-ms"),
        ((("delivery-ms", b"nan"),), "delivery-ms"),
        ((("inference-header-content-length", b"-3"),), "inference-header-content-length"),
        ((("inference-header-content-length", b"99999"),), "inference-header-content-length"),
    ],
)
def test_headers_that_are_wrong_are_named(headers: Headers, field: str) -> None:
    with pytest.raises(codec.RejectedQueryError) as caught:
        decode(asked(), headers=(("ce_id", b"q1"), *headers))
    assert caught.value.field == field


def test_what_is_too_large_is_told_apart() -> None:
    for body, told in (
        (b"x" * 10_001, r"10001 bytes; at most 10000 \(admission.max_body_bytes\) are taken"),
        (
            {"inputs": [{**IMAGE, "shape": [5, 2, 2], "data": [0] * 20}, {**FLAG, "shape": [5], "data": [True] * 5}]},
            "5 rows; at most 4 are taken",
        ),
    ):
        with pytest.raises(codec.RejectedQueryError, match=told) as caught:
            decode(body)
        assert caught.value.reason is Reason.TOO_LARGE


def binary(image: bytes, flag: bytes, **change: Any) -> tuple[bytes, Headers]:
    """A body with raw tensors, its JSON changed, and its headers."""
    entries = [
        {"name": "image", "datatype": "FP32", "shape": [1, 2, 2], "parameters": {"binary_data_size": len(image)}},
        {"name": "flag", "datatype": "BOOL", "shape": [1], "parameters": {"binary_data_size": len(flag)}},
    ]
    entries[0].update(change)
    head = orjson.dumps({"inputs": entries})
    return head + image + flag, (("ce_id", b"q1"), ("inference-header-content-length", str(len(head)).encode()))


def test_raw_tensors_are_taken_as_they_are() -> None:
    image = np.array([1, 2, 3, 4], "<f4").tobytes()
    body, headers = binary(image, b"\x01")
    message = decode(body, headers=headers)
    assert [bytes(t.data) for t in message.tensors] == [image, b"\x01"]


@pytest.mark.parametrize(
    ("image", "flag", "change", "field"),
    [
        (b"\x00" * 12, b"\x01", {}, "inputs[0].parameters.binary_data_size"),
        (b"\x00" * 16, b"\x02", {}, "inputs[1].data"),
        (b"\x00" * 16, b"", {}, "inputs[1].parameters.binary_data_size"),
        (b"\x00" * 16, b"\x01", {"parameters": {"binary_data_size": 1 << 60}}, "inputs[0].parameters.binary_data_size"),
        (np.array([1, np.nan, 3, 4], "<f4").tobytes(), b"\x01", {}, "inputs[0].data[1]"),
        (np.array([1, 2, -np.inf, 4], "<f4").tobytes(), b"\x01", {}, "inputs[0].data[2]"),
    ],
)
def test_raw_tensors_that_are_wrong_are_named(image: bytes, flag: bytes, change: Any, field: str) -> None:
    body, headers = binary(image, flag, **change)
    with pytest.raises(codec.RejectedQueryError) as caught:
        decode(body, headers=headers)
    assert caught.value.field == field


def test_bytes_after_the_last_tensor_and_missing_ones_are_refused() -> None:
    body, headers = binary(b"\x00" * 16, b"\x01")
    for changed in (body + b"x", body[:-1]):
        with pytest.raises(codec.RejectedQueryError):
            decode(changed, headers=headers)
    with pytest.raises(codec.RejectedQueryError, match="content-length is missing"):
        decode(orjson.loads(body[: int(headers[1][1])]))


def test_integers_keep_to_their_datatype() -> None:
    app = App(name="a", slo=1.0, inputs=(TensorSpec("x", "UINT8", (2,)),))
    for data, good in (([0, 255], True), ([0, 256], False), ([-1, 0], False), ([1.5, 2], False), ([2**70, 0], False)):
        body = {"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 2], "data": data}]}
        if good:
            assert (
                bytes(codec.decode_query(record(body), app, codec.DEFAULT_LIMITS, NOW).tensors[0].data) == b"\x00\xff"
            )
        elif 2**70 not in data:
            with pytest.raises(codec.RejectedQueryError, match=r"inputs\[0\].data"):
                codec.decode_query(record(body), app, codec.DEFAULT_LIMITS, NOW)
    huge = b'{"inputs":[{"name":"x","datatype":"UINT8","shape":[1,2],"data":[1180591620717411303424,0]}]}'
    with pytest.raises(codec.RejectedQueryError):
        codec.decode_query(record(huge), app, codec.DEFAULT_LIMITS, NOW)


def test_a_producer_cannot_make_a_query_with_an_unusable_id() -> None:
    with pytest.raises(InvalidInputError, match="id"):
        codec.encode_query("", (), app="digits", now=NOW)


def test_a_dead_letter_holds_the_record_and_says_why() -> None:
    headers = (("ce_id", b"q1"), ("__dlq.errors.reason", b"forged"))
    source = record(b"{", headers=headers)
    letter = codec.dead_letter(source, InvalidInputError("body", "is not JSON"), stage="admission", now=NOW)
    about = dict(letter.headers)
    assert (letter.value, letter.key, about["ce_id"]) == (b"{", b"q1", b"q1")
    assert [name for name, _ in letter.headers].count("__dlq.errors.reason") == 1
    assert about["__dlq.errors.reason"] == b"invalid" and about["__dlq.errors.field"] == b"body"
    assert about["__dlq.errors.stage"] == b"admission" and about["__dlq.errors.message"] == b"body: is not JSON"
    assert about["__dlq.errors.timestamp"] == b"1800000000.000000"
    read_back = Record("dead", 0, 0, letter.key, letter.value, letter.headers, NOW)
    assert codec.dead_letter_origin(read_back) == ("sluice.app.digits.queries", 3, 9)
    assert codec.dead_letter_origin(source) is None and codec.dead_letter_reason(record(b"", headers=())) == ""


def test_a_duplicate_id_is_told_as_such() -> None:
    error = InvalidInputError("ce_id", f"{codec.DUPLICATE_ID} 'q1'; give each query its own")
    letter = codec.dead_letter(record(asked()), error, stage="admission", now=NOW)
    assert codec.dead_letter_reason(Record("d", 0, 0, None, b"", letter.headers, NOW)) == codec.DUPLICATE_ID


def test_dead_letters_are_bounded_and_say_what_was_cut() -> None:
    source = record(b"x" * (3 << 20), headers=tuple((f"h{i}", b"y" * 1000) for i in range(100)), key=b"k" * 5000)
    letter = codec.dead_letter(source, InvalidInputError("body", "z" * 5000), stage="s", now=NOW)
    about = dict(letter.headers)
    assert len(letter.value or b"") == 1 << 20 and about["__dlq.errors.value-bytes"] == str(3 << 20).encode()
    assert int(about["__dlq.errors.headers-dropped"]) > 0 and len(letter.key or b"") <= 1024
    assert sum(len(name) + len(held) for name, held in letter.headers) < 80_000


def test_an_outcome_is_an_open_inference_protocol_response_that_says_why() -> None:
    outcome = Outcome(
        query_id="q1", app="digits", kind=OutcomeKind.ANSWERED, arrival=NOW, deadline=NOW + 1, at=NOW + 2,
        variant="conv8", accuracy=0.95, device="cpu0", slice="whole", epoch=(1, 4), policy="deadline", batch_size=3,
    )  # fmt: skip
    message = codec.encode_outcome(outcome, (Tensor("label", "INT64", (2,), np.array([7, 3], "<i8").tobytes()),))
    body = orjson.loads(message.value or b"")
    assert (body["model_name"], body["model_version"], body["id"]) == ("digits", "conv8", "q1")
    assert body["outputs"] == [{"name": "label", "datatype": "INT64", "shape": [2], "data": [7, 3]}]
    assert body["parameters"]["late"] is True and body["parameters"]["epoch"] == [1, 4] and "error" not in body
    assert message.key == b"q1"
    dropped = Outcome(
        query_id="q2", app="digits", kind=OutcomeKind.DROPPED, arrival=NOW, deadline=NOW, at=NOW, reason=Reason.SHED
    )
    body = orjson.loads(codec.encode_outcome(dropped, ()).value or b"")
    assert body["error"] == "dropped: shed" and "outputs" not in body


def test_outputs_that_are_no_numbers_come_back_as_nan() -> None:
    outcome = Outcome(query_id="q", app="a", kind=OutcomeKind.ANSWERED, arrival=1.0, deadline=2.0, at=1.5)
    scores = Tensor("y", "FP32", (1, 3), np.array([1, np.nan, np.inf], "<f4").tobytes())
    message = codec.encode_outcome(outcome, (scores,))
    (decoded,) = codec.decode_outcome(Record("r", 0, 0, message.key, message.value, message.headers, NOW)).outputs()
    assert np.frombuffer(decoded.data, "<f4").tolist()[0] == 1.0
    assert np.isnan(np.frombuffer(decoded.data, "<f4")[1:]).all()


def test_a_hop_passes_a_single_tensor_on_without_a_copy() -> None:
    app = App(name="a", slo=1.0, inputs=(TensorSpec("x", "FP32", (2,)),))
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
    message = codec.decode_query(record(body), app, codec.DEFAULT_LIMITS, NOW)
    admitted = codec.encode_admitted(message)
    assert admitted.value is message.tensors[0].data


HOP = Query(
    "q1", "a", NOW, NOW + 0.5, 2, QueryClass.STRICT, "s", 4, 3, Goal(accuracy=0.75, model="m"), 5, "/shop"
)  # fmt: skip
X, Y = Tensor("x", "UINT8", (2, 3), b"abcdef"), Tensor("y", "FP32", (2,), b"12345678")


def hop(message: codec.Message, packed: list[Any] | None = None) -> Record:
    """As it is read; with this in its header."""
    assert message.headers[5][0] == "sluice"
    own = message.headers[5] if packed is None else ("sluice", orjson.dumps(packed))
    headers = (*message.headers[:5], own, *message.headers[6:])
    return Record("hop", 0, 1, message.key, message.value, headers, NOW)


def fields_of(query: Query) -> list[object]:
    """Two of the same are not equal by themselves."""
    return [getattr(query, field) for field in query.__slots__]


def test_a_hop_record_says_all_of_its_query_in_one_header_behind_what_outsiders_read() -> None:
    message = codec.encode_work(codec.QueryMessage(HOP, (X, Y)), epoch=Epoch(3, 7), slice="4g.0", turn=9)
    assert (message.key, message.value) == (b"a", b"abcdef12345678")
    assert message.headers[:5] == (
        ("ce_specversion", b"1.0"),
        ("ce_id", b"q1"),
        ("ce_source", b"/app/a"),
        ("ce_type", b"sluicegate.work"),
        ("content-type", b"application/octet-stream"),
    )
    assert orjson.loads(message.headers[5][1]) == [
        1, ["q1", "/shop"], "a", NOW, NOW + 0.5, [2, 5], "strict", "s", 4, 3, [0.75, None, "m"],
        [["x", "UINT8", [2, 3]], ["y", "FP32", [2]]], [3, 7], "4g.0", 9,
    ]  # fmt: skip
    read = codec.decode_work(hop(message))
    assert (fields_of(read.query), read.epoch, read.slice, read.turn) == (fields_of(HOP), Epoch(3, 7), "4g.0", 9)


def test_what_is_not_known_of_a_query_is_left_out_of_its_hop_record() -> None:
    bare = Query("q2", "a", NOW, NOW + 0.5, 2)
    admitted = codec.encode_admitted(codec.QueryMessage(bare, (X,)))
    assert dict(admitted.headers)["ce_type"] == b"sluicegate.admitted"
    assert orjson.loads(admitted.headers[5][1]) == [
        1, "q2", "a", NOW, NOW + 0.5, 2, "strict", "", -1, 0, None, [["x", "UINT8", [2, 3]]], None, None,
    ]  # fmt: skip
    work = codec.decode_work(hop(admitted))
    assert (fields_of(work.query), work.epoch, work.slice, work.turn) == (fields_of(bare), NO_EPOCH, "", -1)
    uncounted = codec.encode_work(codec.QueryMessage(bare, (X,)), epoch=Epoch(3, 7), slice="4g.0")
    assert codec.decode_work(hop(uncounted)).turn == -1


def test_a_single_tensor_is_read_as_it_came_and_several_as_views_of_what_came() -> None:
    one = hop(codec.encode_admitted(codec.QueryMessage(HOP, (X,))))
    assert codec.decode_admitted(one).tensors[0].data is one.value
    two = hop(codec.encode_admitted(codec.QueryMessage(HOP, (X, Y))))
    views = [tensor.data for tensor in codec.decode_admitted(two).tensors]
    assert [bytes(view) for view in views] == [b"abcdef", b"12345678"]
    assert all(isinstance(view, memoryview) and view.obj is two.value for view in views)


@pytest.mark.parametrize(("stream", "key"), [("s", b"s"), ("a", b"q1"), ("", b"q1")])
def test_an_admitted_query_is_keyed_by_its_stream_and_by_its_id_where_that_is_the_app_s_own(
    stream: str, key: bytes
) -> None:
    assert admitted_key(replace(HOP, stream=stream)) == key


@pytest.mark.parametrize(
    ("place", "value", "fine"),
    [
        (0, 2, False),
        (1, 7, False),
        (1, ["q1"], False),
        (3, 1e12, True),
        (3, -1e12, True),
        (4, 1.001e12, False),
        (4, -1.001e12, False),
        (4, 1_700_000_000, True),
        (4, True, False),
        (1, ["q" * 256, "s" * 256], True),
        (1, ["q" * 257, "s"], False),
        (1, ["q", "s" * 257], False),
        (2, "a" * 257, False),
        (5, 2, True),
        (5, 1, False),
        (5, 3, False),
        (5, 0, False),
        (5, True, False),
        (5, 2.0, False),
        (5, [2, 0], False),
        (6, "loose", False),
        (7, "s" * 256, True),
        (7, "s" * 257, False),
        (8, 2**63 - 1, True),
        (8, 2**63, False),
        (8, 1 - 2**63, True),
        (8, -(2**63), False),
        (10, [0.5, 2.0, None], True),
        (10, [0.5, 2.0], False),
        (11, [], False),
        (11, [["x", "UINT8", [2, 3]], ["y", "FP32", [3]]], False),
        (11, [["x", "UINT8", [2, 3]], ["y", "FP32", [1]]], False),
        (11, [["x", "UINT8", [2, 3]], ["y", "INT16", [2, 2]]], True),
        (11, [["x", "UINT8", [2, 3]], ["y", "FP64", [1]]], False),
        (11, [["x", "UINT8", [2, 3]], ["y", "FP64", []]], False),
        (11, [["x", "UINT8", [2, 3]], ["y", "FP64", [0]]], False),
        (11, [["x", "UINT8", [2, 7]]], True),
        (11, [["x", "UINT8", [14]]], False),
        (12, [3], False),
        (13, 4, False),
        (13, "4" * 257, False),
        (14, 1, True),
        (14, 0, False),
    ],
)
def test_what_stages_do_not_write_is_refused_by_the_name_of_their_header(place: int, value: Any, fine: bool) -> None:
    message = codec.encode_work(codec.QueryMessage(HOP, (X, Y)), epoch=Epoch(3, 7), slice="4g.0", turn=9)
    packed = orjson.loads(message.headers[5][1])
    packed[place] = value
    if fine:
        codec.decode_work(hop(message, packed))
        return
    with pytest.raises(InvalidInputError) as refused:
        codec.decode_work(hop(message, packed))
    assert refused.value.field == "sluice"


def test_integers_beyond_63_bits_in_json_are_exact() -> None:
    value = [0, 2**63 + 1, 2**64 - 1]
    body = {"inputs": [{"name": "x", "datatype": "UINT64", "shape": [3], "data": value}]}
    (tensor,) = oip.decode_tensors(body, "inputs")
    assert memoryview(tensor.data).cast("Q").tolist() == value


@pytest.mark.parametrize(
    ("source", "priority", "taken"),
    [("/a", 7, 5), ("/a", 3, 3), ("/a/b", 7, 5), ("/c", 2**31 - 1, 0), ("/http/x", 9, 9), ("", 4, 0)],
)
def test_nobody_has_a_higher_priority_than_is_his(source: str, priority: int, taken: int) -> None:
    headers = (("ce_id", b"q1"), *((("ce_source", source.encode()),) if source else ()))
    given = record(asked(priority=priority), headers=headers)
    capped = codec.Limits(priorities={"/a": 5, "/http": 10})
    assert codec.decode_query(given, APP, capped, NOW).query.priority == taken
    assert codec.decode_query(given, APP, codec.DEFAULT_LIMITS, NOW).query.priority == priority


DEEP = b"[" * 1000 + b"]" * 1000


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"parameters": DEEP, "inputs": []}', "parameters"),
        (b'{"parameters": {"latency_ms": DEEP}, "inputs": [IMAGE]}', "parameters.latency_ms"),
        (b'{"parameters": {"class": DEEP}, "inputs": [IMAGE]}', "parameters.class"),
        (b'{"parameters": {"priority": DEEP}, "inputs": [IMAGE]}', "parameters.priority"),
        (b'{"parameters": {"model": DEEP}, "inputs": [IMAGE]}', "parameters.model"),
        (b'{"inputs": [{"name": DEEP}]}', "inputs[0].name"),
        (b'{"inputs": [{"name": "image", "datatype": DEEP}]}', "inputs[0].datatype"),
        (b'{"inputs": [{"name": "image", "datatype": "FP32", "shape": DEEP}]}', "inputs[0].shape"),
        (b'{"inputs": [{"name": "image", "datatype": "FP32", "shape": [1], "data": DEEP}]}', "inputs[0].data"),
        (b'{"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": DEEP}]}', "inputs[0].data"),
    ],
)
def test_what_is_nested_deeply_is_named_like_anything_else_that_is_wrong(body: bytes, field: str) -> None:
    with pytest.raises(codec.RejectedQueryError) as caught:
        decode(body.replace(b"DEEP", DEEP).replace(b"IMAGE", orjson.dumps(IMAGE) + b"," + orjson.dumps(FLAG)))
    assert caught.value.field == field


def test_an_id_that_is_nested_deeply_is_none() -> None:
    body = b'{"id": ' + DEEP + b', "inputs": []}'
    with pytest.raises(codec.UnattributableError):
        decode(body, headers=())
    assert codec.query_id_of(record(body, headers=())) is None


@pytest.mark.parametrize("nested", [False, True])
def test_one_long_text_among_numbers_makes_no_array_of_such_texts(nested: bool) -> None:
    values: list[Any] = ["x" * 3000, *[""] * 800]
    data = [[[value]] for value in values] if nested else values
    tracemalloc.start()
    try:
        with pytest.raises(codec.RejectedQueryError, match="holds values that are no FP32"):
            decode({"inputs": [{**IMAGE, "data": data}, FLAG]})
        assert tracemalloc.get_traced_memory()[1] < 1_000_000  # as an array they take 10 MB
    finally:
        tracemalloc.stop()

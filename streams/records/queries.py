"""Query records: what producers write, validated into a domain Query and its tensors; and builders for producers.

Rules. The id is ``ce_id``, else the body's ``id``; a record without either can only be a dead letter, and so is one
whose ``ce_source`` cannot be read: the two and the app are a query's identity. Attributes are ``ce_`` headers, or stand
beside the data in one JSON object (structured mode). Arrival is the record's timestamp, brought within ``max_skew_s``
of now. The deadline is ``ce_expirytime``, else arrival plus the latency asked for (``latency_ms``; or ``timeout``, in
microseconds as Triton defines it, 0 meaning not given), else plus the app's SLO; less ``delivery-ms``, which whoever
asks measured of the way back, but for half of the time at most, and not for an app with promises or classes of SLO,
which are reckoned with the time asked for. The stream is the record's key where
that is not the query's id, else the app. A parameter that nobody knows is refused, for what it asks would not be given;
those that clients of the protocol send by themselves, and that ask nothing of a server as this one is, are taken and
passed over.
"""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

import orjson

from sluicegate.domain.errors import InvalidInputError, shown
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.models.tensor import Tensor, length_of
from sluicegate.domain.outcome import Reason
from sluicegate.domain.query import Goal, Query, for_source
from sluicegate.profiles.formats.field_errors import meant
from sluicegate.streams.ports import Headers, Record
from sluicegate.streams.records import oip
from sluicegate.streams.records.cloudevents import (
    DELIVERY,
    JSON_LENGTH,
    JSON_LENGTH_HEADER,
    carried,
    check_envelope,
    check_id,
    id_of,
    parse_time,
    query_headers,
    source_of,
)
from sluicegate.streams.records.codec_types import (
    DEFAULT_LIMITS,
    Limits,
    Message,
    QueryMessage,
    RejectedQueryError,
    TooLargeError,
    UnattributableError,
)
from sluicegate.streams.records.structured_mode import headers_in_binary_mode, in_binary_mode

_MAX_COST = 1e12
_MAX_PRIORITY = 1 << 31
_MAX_DELIVERY = 1e6
_CLASSES = {c.value: c for c in QueryClass}
PARAMETERS = ("latency_ms", "timeout", "accuracy", "cost", "class", "priority", "model")
"""What a query may ask."""
PASSED_OVER = (
    "binary_data_output", "sequence_id", "sequence_start", "sequence_end",  # Triton's extensions
    "content_type", "headers",  # of KServe's and MLServer's clients
)  # fmt: skip
_KNOWN = frozenset((*PARAMETERS, *PASSED_OVER))
_RESERVED = "triton_"


def decode_query(record: Record, app: App, limits: Limits, now: float) -> QueryMessage:
    """Validate one query record of ``app``.

    Raises UnattributableError where no id can be read, RejectedQueryError where one can. A deadline that is past or
    far ahead is not judged here: admission policies do that.
    """
    no_event: InvalidInputError | None = None
    try:
        record = in_binary_mode(record, limits)
    except InvalidInputError as error:
        no_event = error
    headers = dict(record.headers)
    body: dict[str, Any] | None = None
    raw: memoryview | None = None
    try:
        source = source_of(headers)
        query_id = id_of(headers)
        if query_id is None:
            if no_event is not None:
                raise no_event
            body, raw = _parse(record, headers, limits)
            query_id = _body_id(body)
    except InvalidInputError as error:
        raise UnattributableError(error.field, error.problem) from error
    arrival = _within(record.timestamp, now - limits.max_skew_s, now + limits.max_skew_s)
    try:
        if no_event is not None:
            raise no_event
        check_envelope(headers)
        if body is None:
            body, raw = _parse(record, headers, limits)
        return _decode(record, headers, body, raw, app, limits, query_id, source, arrival)
    except InvalidInputError as error:
        reason = Reason.TOO_LARGE if isinstance(error, TooLargeError) else Reason.INVALID
        raise RejectedQueryError(
            error, query_id=query_id, source=source, app=app, arrival=arrival, reason=reason
        ) from error


def query_id_of(record: Record) -> str | None:
    """Id of the query that a query, admitted, work, result or dead-letter record is about, None where unreadable."""
    try:
        record = in_binary_mode(record)
        headers = dict(record.headers)
        query_id = id_of(headers)
        if query_id is None and record.value:
            query_id = _body_id(oip.parse(record.value, _json_length(headers))[0])
    except InvalidInputError:
        return None
    return query_id


def source_of_query(record: Record) -> str:
    """Who asks by a record of a query topic; "" where that is not told, or cannot be read."""
    try:
        return source_of(dict(headers_in_binary_mode(record)))
    except InvalidInputError:
        return ""


def carried_if_it_can_be(record: Record, limits: Limits = DEFAULT_LIMITS) -> Headers:
    """What goes back with the outcome of a query that is refused: nothing where that is too large. An event over its
    limit is not looked into."""
    try:
        return carried(headers_in_binary_mode(record, limits))
    except InvalidInputError:
        return ()


def encode_query(
    query_id: str,
    tensors: Iterable[Tensor],
    *,
    app: str,
    now: float,
    source: str = "client",
    parameters: Mapping[str, Any] | None = None,
    expires: float | None = None,
    stream: str | None = None,
    traceparent: str | None = None,
    binary: bool = True,
) -> Message:
    """A query record for ``app``'s query topic.

    ``parameters``: ``latency_ms``, ``accuracy``, ``cost``, ``class``, ``priority``, ``model``. ``expires``: absolute
    deadline in seconds, in place of a latency. ``stream``: key whose order promises count on; by default the id is the
    key. ``binary``: tensors raw after the JSON (smaller and faster), else within it.
    """
    listed = tuple(tensors)
    body: dict[str, Any] = {"id": check_id("id", query_id)}
    if parameters:
        body["parameters"] = dict(parameters)
    body["inputs"] = [oip.binary_tensor(t) if binary else oip.json_tensor(t) for t in listed]
    value = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    json_length = None
    if binary:
        json_length = len(value)
        value = b"".join((value, *(t.data for t in listed)))
    headers = query_headers(
        query_id, app=app, source=source, now=now, expires=expires, json_length=json_length, traceparent=traceparent
    )
    return Message(value, (stream if stream is not None else query_id).encode(), headers)


def _parse(record: Record, headers: Mapping[str, bytes], limits: Limits) -> tuple[dict[str, Any], memoryview | None]:
    value = record.value
    if not value:
        raise InvalidInputError("body", "is empty; send an Open Inference Protocol request")
    if len(value) > limits.max_body_bytes:
        most = f"at most {limits.max_body_bytes} (admission.max_body_bytes) are taken"
        raise TooLargeError("body", f"has {len(value)} bytes; {most}")
    return oip.parse(value, _json_length(headers))


def _json_length(headers: Mapping[str, bytes]) -> bytes | None:
    length = headers.get(JSON_LENGTH)
    return length if length is not None else headers.get(JSON_LENGTH_HEADER)


def _body_id(body: Mapping[str, Any]) -> str:
    query_id = body.get("id")
    if query_id is None:
        raise InvalidInputError("ce_id", "is missing; give each query an id, in this header or in its body")
    return check_id("id", query_id)


def _decode(
    record: Record,
    headers: dict[str, bytes],
    body: Mapping[str, Any],
    raw: memoryview | None,
    app: App,
    limits: Limits,
    query_id: str,
    source: str,
    arrival: float,
) -> QueryMessage:
    parameters = body.get("parameters")
    if parameters is None:
        parameters = {}
    elif not isinstance(parameters, dict):
        raise InvalidInputError("parameters", f"is {shown(parameters)}; give an object")
    elif not _KNOWN.issuperset(parameters):
        _refuse_unknown(parameters)
    tensors, rows, claims = oip.decode_inputs(body, raw, app.inputs, app.max_rows, limits)
    latency = _latency(parameters, limits)
    expiry = headers.get("ce_expirytime")
    if expiry is not None:
        deadline = parse_time("ce_expirytime", expiry)
    else:
        deadline = arrival + (app.slo if latency is None else latency)
    if DELIVERY in headers:
        deadline -= _delivery(headers[DELIVERY], app, deadline - arrival)
    key = record.key
    query = Query(
        query_id,
        app.name,
        arrival,
        deadline,
        rows,
        _query_class(parameters, app.query_class),
        app.name if not key or key == query_id.encode() else key.decode(errors="replace")[:256],
        record.offset,
        _priority(parameters, limits, source),
        _goal(parameters),
        length_of(app.inputs, tensors) if app.inputs else 0,
        source,
    )
    return QueryMessage(query, tensors, carried(record.headers), claims)


def _delivery(told: bytes, app: App, within: float) -> float:
    try:
        delivery = float(told) / 1e3
    except ValueError:
        delivery = -1.0
    if not 0.0 <= delivery < _MAX_DELIVERY:
        raise InvalidInputError(DELIVERY, f"is {told[:20]!r}; give milliseconds, 0 or more, or leave the header out")
    if app.promise.active or app.slo_classes:
        return 0.0
    return max(0.0, min(delivery, within / 2))


def _refuse_unknown(parameters: Mapping[str, Any]) -> None:
    for name in parameters:
        if name not in _KNOWN and not name.startswith(_RESERVED):
            hint = meant(name[:60], PARAMETERS) or f"; known: {', '.join(PARAMETERS)}"
            raise InvalidInputError(f"parameters.{name:.60}", f"is unknown{hint}")


def _within(value: float, low: float, high: float) -> float:
    if low <= value <= high:
        return value
    return low if value < low else high


def _number(parameters: Mapping[str, Any], name: str) -> float | None:
    value = parameters.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInputError(f"parameters.{name}", f"is {shown(value)}; give a number")
    if isinstance(value, int):
        try:
            value = float(value)
        except OverflowError:
            value = float("inf")
    if not isfinite(value):
        raise InvalidInputError(f"parameters.{name}", "is not finite; give a finite number")
    return value


def _latency(parameters: Mapping[str, Any], limits: Limits) -> float | None:
    latency_ms = _number(parameters, "latency_ms")
    timeout_us = _number(parameters, "timeout") or None
    if latency_ms is not None and timeout_us is not None and abs(timeout_us / 1e3 - latency_ms) > 1e-6 * latency_ms:
        raise InvalidInputError(
            "parameters.timeout",
            f"is {timeout_us:g} us, but latency_ms is {latency_ms:g}; give one of the two, or the same time in both",
        )
    if latency_ms is None and timeout_us is None:
        return None
    name = "latency_ms" if latency_ms is not None else "timeout"
    seconds = latency_ms / 1e3 if latency_ms is not None else (timeout_us or 0.0) / 1e6
    if not 0.0 < seconds <= limits.max_latency_s:
        raise InvalidInputError(
            f"parameters.{name}", f"means {seconds:g} s; it must be above 0 and at most {limits.max_latency_s:g} s"
        )
    return seconds


def _query_class(parameters: Mapping[str, Any], default: QueryClass) -> QueryClass:
    name = parameters.get("class")
    if name is None:
        return default
    known = _CLASSES.get(name) if isinstance(name, str) else None
    if known is None:
        raise InvalidInputError("parameters.class", f"is {shown(name)}; use one of {', '.join(_CLASSES)}")
    return known


def _priority(parameters: Mapping[str, Any], limits: Limits, source: str) -> int:
    priority = parameters.get("priority", 0)
    if type(priority) is not int or not 0 <= priority < _MAX_PRIORITY:
        raise InvalidInputError("parameters.priority", f"is {shown(priority)}; give an integer from 0 on, 0 by default")
    return priority if limits.priorities is None else min(priority, for_source(source, limits.priorities, 0))


def _goal(parameters: Mapping[str, Any]) -> Goal | None:
    accuracy = _number(parameters, "accuracy")
    cost = _number(parameters, "cost")
    model = parameters.get("model")
    if accuracy is None and cost is None and model is None:
        return None
    if accuracy is not None and not 0.0 <= accuracy <= 1.0:
        raise InvalidInputError("parameters.accuracy", f"is {accuracy:g}; give the app's metric, from 0 to 1")
    if cost is not None and not 0.0 <= cost <= _MAX_COST:
        raise InvalidInputError("parameters.cost", f"is {cost:g}; give 0 to {_MAX_COST:g}")
    if model is not None and not (isinstance(model, str) and 0 < len(model) <= 128):
        raise InvalidInputError("parameters.model", f"is {shown(model)}; give the name of a variant")
    return Goal(accuracy, cost, model)

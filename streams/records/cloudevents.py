"""CloudEvents 1.0 in Kafka binary mode: attributes are ``ce_`` headers, the body is the data. Pure, no clock.

What is read: ``ce_id`` and ``ce_source`` (up to 256 printable characters each; a source may be absent),
``ce_specversion`` (1.0 where present), ``ce_expirytime`` (RFC 3339 with an offset), ``content-type``. Where a header
comes twice the last one counts. What our own records tell of a query names its source in ``ce_querysource``, for their
``ce_source`` is the app. What goes along and comes back with the outcome, untouched: ``traceparent`` (dropped where
malformed), ``tracestate``, ``baggage``, extensions of CloudEvents, who correlates what with what, and ``accept``: who
says ``application/octet-stream`` there takes raw tensors.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache

from sluicegate.domain.errors import InvalidInputError, shown
from sluicegate.streams.ports import Headers, Record

JSON_LENGTH_HEADER = "Inference-Header-Content-Length"
"""HTTP header (and, in lower case, Kafka header) with the bytes of JSON before raw tensors."""
JSON_LENGTH = JSON_LENGTH_HEADER.lower()
QUERY_TYPE = "sluicegate.query"
RESULT_TYPE = "sluicegate.outcome"
JSON_TYPE = b"application/json"
BINARY_TYPE = b"application/octet-stream"

MAX_ID = 256
QUERY_SOURCE = "ce_querysource"
DELIVERY = "delivery-ms"
"""Milliseconds from a device to whoever asks: the answer must leave that much before its deadline."""
SPEC_VERSION = ("ce_specversion", b"1.0")
TRACEPARENT = "traceparent"
ACCEPT = "accept"
TAKES_RAW = (ACCEPT, BINARY_TYPE)
"""Of a query whose outcome is to have its tensors raw."""
MAX_CARRIED = 16_384
"""Bytes of names and values that go along with a query."""
_ATTRIBUTES = frozenset(
    (
        *("ce_specversion", "ce_id", "ce_source", "ce_type", "ce_subject", "ce_time", "ce_expirytime"),
        *("ce_datacontenttype", "ce_dataschema", QUERY_SOURCE),
    )
)
_CARRIED = frozenset(
    (
        *("tracestate", "baggage", "correlation-id", "correlationid", "x-request-id", "reply-to", "reply-topic"),
        *("kafka_correlationid", "kafka_replytopic", "kafka_replypartition", ACCEPT),
    )
)
"""In lower case."""
FROM_FRONTS = (TRACEPARENT, "tracestate", "baggage", "x-request-id", "correlation-id")
"""What a request over HTTP or gRPC may bring along."""
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def format_time(seconds: float) -> str:
    """RFC 3339 in UTC, to the microsecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def parse_time(field: str, text: bytes) -> float:
    """Seconds since the epoch. Raises InvalidInputError for anything but RFC 3339 with an offset."""
    try:
        moment = datetime.fromisoformat(text.decode())
        if moment.tzinfo is None:
            raise ValueError("no offset")
        return moment.timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(
            field,
            f"{shown(text.decode(errors='replace'))} is no RFC 3339 time with an offset, as 2026-01-31T12:00:00.5Z is",
        ) from error


def check_id(field: str, query_id: object) -> str:
    """``query_id`` if it can name a query. Raises InvalidInputError."""
    if (
        not isinstance(query_id, str)
        or not 0 < len(query_id) <= MAX_ID
        or not query_id.isprintable()
        or len(query_id.encode()) > MAX_ID
    ):
        raise InvalidInputError(field, f"{shown(query_id, 80)} is no query id; give 1 to {MAX_ID} printable characters")
    return query_id


def id_of(headers: dict[str, bytes]) -> str | None:
    """The ``ce_id``, None where it is absent. Raises InvalidInputError where it is malformed."""
    raw = headers.get("ce_id")
    if raw is None:
        return None
    try:
        return check_id("ce_id", raw.decode())
    except UnicodeDecodeError as error:
        raise InvalidInputError("ce_id", f"{raw[:60]!r} is not UTF-8; give 1 to {MAX_ID} characters") from error


def source_of(headers: dict[str, bytes]) -> str:
    """The ``ce_source``, "" where it is absent. Raises InvalidInputError where it is malformed."""
    raw = headers.get("ce_source")
    return "" if raw is None else _source(raw)


@lru_cache(maxsize=1024)
def _source(raw: bytes) -> str:
    try:
        source = raw.decode()
    except UnicodeDecodeError:
        source = "\0"
    if len(raw) > MAX_ID or not source.isprintable():
        raise InvalidInputError("ce_source", f"{raw[:60]!r} names nobody; give at most {MAX_ID} printable characters")
    return source


def query_source_of(record: Record) -> str:
    """Who asked the query that an outcome, admitted or work record is about; "" where that is not told."""
    held = next((held for name, held in record.headers if name == QUERY_SOURCE), None)
    return "" if held is None else held.decode(errors="replace")


def check_envelope(headers: dict[str, bytes]) -> None:
    """Refuse other versions of CloudEvents."""
    version = headers.get("ce_specversion")
    if version is not None and version != b"1.0":
        raise InvalidInputError("ce_specversion", f"{version[:20]!r} is not taken; use 1.0")


def _goes_along(name: str) -> bool:
    if name.startswith("ce_"):
        return name not in _ATTRIBUTES
    return name == TRACEPARENT or name.lower() in _CARRIED


def carried(headers: Headers) -> Headers:
    """Those of a query's headers that come back with its outcome. Raises InvalidInputError where they are too large."""
    found = tuple(header for header in headers if _goes_along(header[0]))
    if not found:
        return ()
    size = sum(len(name) + len(held) for name, held in found)
    if size > MAX_CARRIED:
        raise InvalidInputError(
            "headers", f"{size} bytes are to be carried along; at most {MAX_CARRIED} are: {found[0][0][:40]} and others"
        )
    return tuple(header for header in found if header[0] != TRACEPARENT or traceparent_in((header,)) is not None)


def along(given: Iterable[tuple[str, str]]) -> Headers:
    """Of the headers (or metadata) of a request that a front takes, what goes along with its query.

    Raises InvalidInputError where they are too large.
    """
    named = ((name.lower(), held.encode(errors="replace")) for name, held in given)
    return carried(tuple(header for header in named if header[0] in FROM_FRONTS))


def traceparent_in(headers: Headers) -> str | None:
    """W3C trace context among ``headers``, None where absent or malformed."""
    for name, held in headers:
        if name == TRACEPARENT:
            return readable_traceparent(held.decode("ascii", errors="replace"))
    return None


def with_traceparent(headers: Headers, traceparent: str | None) -> Headers:
    """``headers`` with this trace context in the place of theirs."""
    rest = tuple(header for header in headers if header[0] != TRACEPARENT)
    return rest if traceparent is None else ((TRACEPARENT, traceparent.encode()), *rest)


def readable_traceparent(text: str | None) -> str | None:
    """``text`` where it is W3C trace context; None where it is not."""
    return text if text is not None and _TRACEPARENT.fullmatch(text) else None


def query_headers(
    query_id: str,
    *,
    app: str,
    source: str,
    now: float,
    expires: float | None = None,
    json_length: int | str | None = None,
    traceparent: str | None = None,
    delivery_s: float = 0.0,
    carried: Headers = (),
) -> Headers:
    """Headers of a query record. ``json_length``: bytes of JSON before raw tensors, None for a body of JSON alone.

    ``expires``: absolute deadline, seconds since the epoch, in place of a latency. ``delivery_s``: what the answer's
    way back takes, by which the device must be done earlier. ``carried``: what comes back with the outcome.
    """
    headers = [
        SPEC_VERSION,
        ("ce_id", query_id.encode()),
        ("ce_source", f"/{source}".encode()),
        ("ce_type", QUERY_TYPE.encode()),
        ("ce_subject", app.encode()),
        ("ce_time", format_time(now).encode()),
    ]
    if expires is not None:
        headers.append(("ce_expirytime", format_time(expires).encode()))
    if json_length is None:
        headers.append(("content-type", JSON_TYPE))
    else:
        headers.append(("content-type", BINARY_TYPE))
        headers.append((JSON_LENGTH, str(json_length).encode(errors="replace")))
    if traceparent is not None:
        headers.append(("traceparent", traceparent.encode()))
    if delivery_s > 0.0:
        headers.append((DELIVERY, b"%.3f" % (1e3 * delivery_s)))
    return (*headers, *carried)

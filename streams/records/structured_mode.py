"""CloudEvents in structured mode: the whole event as one JSON object, read as if it had come in binary mode."""

import re
from base64 import b64decode
from typing import Any

import orjson

from sluicegate.domain.errors import InvalidInputError, shown
from sluicegate.streams.ports import Headers, Record
from sluicegate.streams.records.cloudevents import JSON_TYPE
from sluicegate.streams.records.codec_types import Limits, TooLargeError

_TYPE = b"application/cloudevents+json"
_FAMILY = b"application/cloudevents"
_CONTENT = "content-type"
_NAME = re.compile(r"[a-z0-9]{1,64}")
_DATA = frozenset(("data", "data_base64", "datacontenttype"))
_PLAIN = frozenset(("traceparent", "tracestate", "baggage"))
"""Extensions that are headers of their own in binary mode."""
_ATTRIBUTES = 64 << 10
"""Bytes that an event may have besides its data."""


def in_binary_mode(record: Record, limits: Limits | None = None) -> Record:
    """``record`` itself, or what it says in structured mode: attributes as ``ce_`` headers, its data as the value.

    ``limits``: how large its data may be, judged before they are read; None: as large as it is. Raises
    InvalidInputError where it claims structured mode and is no event, or one of another format.
    """
    content = next((held for name, held in record.headers if name == _CONTENT), None)
    if content is None or not content.startswith(_FAMILY):
        return record
    if content.partition(b";")[0].strip() != _TYPE:
        raise InvalidInputError(
            _CONTENT, f"{content[:60]!r} is not taken; send {_TYPE.decode()}, or attributes as ce_ headers"
        )
    value = record.value or b""
    if limits is not None and len(value) > (most := limits.max_body_bytes * 4 // 3 + _ATTRIBUTES):  # as base64
        raise TooLargeError("body", f"has {len(value)} bytes; an event may have {most} at most")
    try:
        event = orjson.loads(value)
    except ValueError as error:
        raise InvalidInputError("body", f"is no JSON ({error!s:.80}), but {_TYPE.decode()} was announced") from error
    if not isinstance(event, dict):
        raise InvalidInputError("body", f"is {shown(event)}; an event in structured mode is an object")
    told = tuple(_header(name, held) for name, held in event.items() if name not in _DATA and held is not None)
    rest = tuple(header for header in record.headers if header[0] != _CONTENT)
    return record._replace(value=_data(event), headers=(*rest, *told, (_CONTENT, JSON_TYPE)))


def _header(name: str, held: Any) -> tuple[str, bytes]:
    if not _NAME.fullmatch(name):
        raise InvalidInputError("body", f"{name!r:.80} is no name of an attribute; use lower-case letters and digits")
    if isinstance(held, bool):
        held = "true" if held else "false"
    elif not isinstance(held, (str, int)):
        raise InvalidInputError(f"body.{name}", f"is {shown(held)}; attributes are texts, integers or booleans")
    return (name if name in _PLAIN else f"ce_{name}", str(held).encode())


def _data(event: dict[str, Any]) -> bytes:
    """The body of the query. Raises InvalidInputError."""
    kind = event.get("datacontenttype", "application/json")
    if not isinstance(kind, str) or kind.partition(";")[0].strip() != "application/json":
        raise InvalidInputError("body.datacontenttype", f"is {shown(kind)}; give application/json")
    if "data_base64" in event:
        try:
            return b64decode(event["data_base64"], validate=True)
        except (ValueError, TypeError) as error:
            raise InvalidInputError("body.data_base64", f"is no base64 ({error!s:.60})") from error
    try:
        return orjson.dumps(event.get("data"))
    except TypeError as error:  # it reads what it does not write
        raise InvalidInputError("body.data", f"cannot be taken ({error!s:.60}); nest it less deep") from error


def headers_in_binary_mode(record: Record, limits: Limits | None = None) -> Headers:
    """The headers that it has there; its own where it cannot be read."""
    try:
        return in_binary_mode(record, limits).headers
    except InvalidInputError:
        return record.headers

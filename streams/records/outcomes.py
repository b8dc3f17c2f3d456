"""Results: the one terminal outcome of a query, as an Open Inference Protocol response that also says why.

The value is JSON: ``model_name`` (the app), ``model_version`` (the variant), ``id``, ``outputs`` (flat row-major data;
NaN and infinities become null), ``error`` where nothing was answered, and ``parameters`` with all of Outcome and
``late``; of an output that lies in an object store ``data`` says where. Times are seconds since the epoch, durations
seconds. Header ``sluice-device`` names who answered, ``ce_querysource`` who asked; what the query carried along comes
back. Of a query with the header ``accept: application/octet-stream`` the tensors follow the JSON raw, whose bytes the
header ``inference-header-content-length`` tells.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import orjson

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import Outcome
from sluicegate.streams.objects.claims import Claim
from sluicegate.streams.ports import Headers, Record
from sluicegate.streams.records import oip
from sluicegate.streams.records.bounds import Reader
from sluicegate.streams.records.cloudevents import (
    BINARY_TYPE,
    JSON_LENGTH,
    JSON_TYPE,
    QUERY_SOURCE,
    RESULT_TYPE,
    SPEC_VERSION,
    TAKES_RAW,
)
from sluicegate.streams.records.codec_types import Message

_DEVICE = "sluice-device"
_DIGITS = 12
_TYPE = ("ce_type", RESULT_TYPE.encode())
_CONTENT = ("content-type", JSON_TYPE)
_FIELDS = tuple(f.name for f in fields(Outcome) if f.name not in {"query_id", "app"})
NO_CLAIMS: Mapping[str, Claim] = MappingProxyType({})
_outcome: Reader[Outcome] = Reader(Outcome)


@dataclass(slots=True)
class OutcomeMessage:
    """A result as it was read. ``marked_late``: what the record says; ``body``: the response as JSON, ``raw``: the
    tensors that follow it, None where all are in it."""

    outcome: Outcome
    marked_late: bool
    body: bytes
    raw: memoryview | None

    def outputs(self) -> tuple[Tensor, ...]:
        """Output tensors, none where nothing was answered, without those that lie elsewhere. Raises InvalidInputError
        where they are malformed."""
        body = orjson.loads(self.body)
        return oip.decode_tensors(body, "outputs", self.raw) if "outputs" in body else ()

    def claims(self) -> tuple[tuple[Tensor, Claim], ...]:
        """Output tensors that lie elsewhere, without their data. Raises InvalidInputError where they are malformed."""
        if b'"sha256"' not in self.body:
            return ()
        body = orjson.loads(self.body)
        return oip.decode_claims(body, "outputs") if "outputs" in body else ()


def encode_outcome(
    outcome: Outcome, outputs: Sequence[Tensor], *, carried: Headers = (), claims: Mapping[str, Claim] = NO_CLAIMS
) -> Message:
    """A record for the result topic, keyed by query id; ``carried``: the headers that its query brought along, by which
    its tensors are raw where they say so.

    ``claims``: where those outputs lie that are not in it, by name.
    """
    parameters: dict[str, Any] = {name: getattr(outcome, name) for name in _FIELDS}
    parameters["late"] = outcome.late
    if outcome.epoch is not None:
        parameters["epoch"] = tuple(outcome.epoch)  # orjson takes no named tuple
    body: dict[str, Any] = {"model_name": outcome.app, "id": outcome.query_id, "parameters": parameters}
    if outcome.variant is not None:
        body["model_version"] = outcome.variant
    raw: list[Tensor] = []
    if outputs:
        told = oip.binary_tensor if carried and TAKES_RAW in carried else oip.json_tensor
        body["outputs"] = [oip.claimed_tensor(t, claims[t.name]) if t.name in claims else told(t) for t in outputs]
        if told is oip.binary_tensor:
            raw = [t for t in outputs if t.name not in claims]
    elif not outcome.on_time and not outcome.late:
        body["error"] = ": ".join(str(part) for part in (outcome.kind, outcome.reason, outcome.detail) if part)
    query_id = outcome.query_id.encode()
    value = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    headers = [SPEC_VERSION, ("ce_id", query_id), ("ce_source", _source(outcome.app)), _TYPE]
    if raw:
        headers += [("content-type", BINARY_TYPE), (JSON_LENGTH, b"%d" % len(value))]
        value = b"".join((value, *(t.data for t in raw)))
    else:
        headers.append(_CONTENT)
    if outcome.source:
        headers.append((QUERY_SOURCE, outcome.source.encode()))
    if outcome.device is not None:
        headers.append((_DEVICE, outcome.device.encode()))
    headers += carried
    return Message(value, query_id, tuple(headers))


def with_outputs(message: OutcomeMessage, tensors: Iterable[Tensor]) -> OutcomeMessage:
    """A result with these outputs in it, raw, that it only refers to."""
    body = orjson.loads(message.body)
    found = {tensor.name: tensor for tensor in (*message.outputs(), *tensors)}
    whole = [found[output["name"]] for output in body["outputs"]]
    body["outputs"] = [oip.binary_tensor(tensor) for tensor in whole]
    return replace(message, body=orjson.dumps(body), raw=memoryview(b"".join(tensor.data for tensor in whole)))


def decode_outcome(record: Record) -> OutcomeMessage:
    """Raises InvalidInputError for what is no outcome."""
    value = record.value or b""
    raw: memoryview | None = None
    length = next((held for name, held in record.headers if name == JSON_LENGTH), None)
    if length is not None:
        size = int(length) if length.isdigit() and len(length) < _DIGITS else -1
        if not 0 < size <= len(value):
            raise InvalidInputError(JSON_LENGTH, f"is {length[:20]!r} of an outcome of {len(value)} bytes")
        value, raw = value[:size], memoryview(value)[size:]
    try:
        body = orjson.loads(value)
        parameters = body["parameters"]
        fields_given = {**parameters, "query_id": body["id"], "app": body["model_name"]}
        late = fields_given.pop("late")
        return OutcomeMessage(_outcome.python("parameters", fields_given), bool(late), value, raw)
    except InvalidInputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInputError("outcome", f"{value[:80]!r} is no outcome ({error!s:.80})") from error


def outcome_json(record: Record) -> bytes:
    """The body of a result as one line of JSON, raw tensors in it."""
    value = record.value or b"{}"
    is_raw = any(name == JSON_LENGTH for name, _ in record.headers)
    try:
        if is_raw:
            return _as_json(decode_outcome(record))
        body = orjson.loads(value)
        return orjson.dumps(body) if b"\n" in value else value
    except Exception:  # whatever somebody wrote there, those who read results go on
        return orjson.dumps({"malformed": value[:1000].decode(errors="replace")})


def _as_json(message: OutcomeMessage) -> bytes:
    body = orjson.loads(message.body)
    found = {tensor.name: oip.json_tensor(tensor) for tensor in message.outputs()}
    body["outputs"] = [found.get(output["name"], output) for output in body.get("outputs", ())]
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def outcome_device(record: Record) -> str | None:
    """Device that a result comes from, None where none answered; the value is not parsed."""
    held = next((held for name, held in record.headers if name == _DEVICE), None)
    return None if held is None else held.decode(errors="replace")


@lru_cache(maxsize=1024)
def _source(app: str) -> bytes:
    return f"/app/{app}".encode()

"""Results: the one terminal outcome of a query, as an Open Inference Protocol response that also says why.

The value is JSON: ``model_name`` (the app), ``model_version`` (the variant), ``id``, ``outputs`` (flat row-major data;
NaN and infinities become null), ``error`` where nothing was answered, and ``parameters`` with all of Outcome and
``late``; of an output that lies in an object store ``data`` says where. Times are seconds since the epoch, durations
seconds. Header ``sluice-device`` names who answered, ``ce_querysource`` who asked; what the query carried along comes
back.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
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
from sluicegate.streams.records.cloudevents import JSON_TYPE, QUERY_SOURCE, RESULT_TYPE, SPEC_VERSION
from sluicegate.streams.records.codec_types import Message

_DEVICE = "sluice-device"
_TYPE = ("ce_type", RESULT_TYPE.encode())
_CONTENT = ("content-type", JSON_TYPE)
_FIELDS = tuple(f.name for f in fields(Outcome) if f.name not in {"query_id", "app"})
NO_CLAIMS: Mapping[str, Claim] = MappingProxyType({})
_outcome: Reader[Outcome] = Reader(Outcome)


@dataclass(slots=True)
class OutcomeMessage:
    """A result as it was read. ``marked_late``: what the record says; ``body``: the response as JSON."""

    outcome: Outcome
    marked_late: bool
    body: bytes

    def outputs(self) -> tuple[Tensor, ...]:
        """Output tensors, none where nothing was answered, without those that lie elsewhere. Raises InvalidInputError
        where they are malformed."""
        body = orjson.loads(self.body)
        return oip.decode_tensors(body, "outputs") if "outputs" in body else ()

    def claims(self) -> tuple[tuple[Tensor, Claim], ...]:
        """Output tensors that lie elsewhere, without their data. Raises InvalidInputError where they are malformed."""
        if b'"sha256"' not in self.body:
            return ()
        body = orjson.loads(self.body)
        return oip.decode_claims(body, "outputs") if "outputs" in body else ()


def encode_outcome(
    outcome: Outcome, outputs: Sequence[Tensor], *, carried: Headers = (), claims: Mapping[str, Claim] = NO_CLAIMS
) -> Message:
    """A record for the result topic, keyed by query id; ``carried``: the headers that its query brought along.

    ``claims``: where those outputs lie that are not in it, by name.
    """
    parameters: dict[str, Any] = {name: getattr(outcome, name) for name in _FIELDS}
    parameters["late"] = outcome.late
    if outcome.epoch is not None:
        parameters["epoch"] = tuple(outcome.epoch)  # orjson takes no named tuple
    body: dict[str, Any] = {"model_name": outcome.app, "id": outcome.query_id, "parameters": parameters}
    if outcome.variant is not None:
        body["model_version"] = outcome.variant
    if outputs:
        body["outputs"] = [
            oip.claimed_tensor(t, claims[t.name]) if t.name in claims else oip.json_tensor(t) for t in outputs
        ]
    elif not outcome.on_time and not outcome.late:
        body["error"] = ": ".join(str(part) for part in (outcome.kind, outcome.reason, outcome.detail) if part)
    query_id = outcome.query_id.encode()
    headers = [SPEC_VERSION, ("ce_id", query_id), ("ce_source", _source(outcome.app)), _TYPE, _CONTENT]
    if outcome.source:
        headers.append((QUERY_SOURCE, outcome.source.encode()))
    if outcome.device is not None:
        headers.append((_DEVICE, outcome.device.encode()))
    headers += carried
    return Message(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), query_id, tuple(headers))


def with_outputs(body: bytes, tensors: Iterable[Tensor]) -> bytes:
    """A result with these outputs in it that it only refers to."""
    told = orjson.loads(body)
    given = {tensor.name: oip.json_tensor(tensor) for tensor in tensors}
    told["outputs"] = [given.get(output["name"], output) for output in told["outputs"]]
    return orjson.dumps(told, option=orjson.OPT_SERIALIZE_NUMPY)


def decode_outcome(record: Record) -> OutcomeMessage:
    """Raises InvalidInputError for what is no outcome."""
    value = record.value or b""
    try:
        body = orjson.loads(value)
        parameters = body["parameters"]
        fields_given = {**parameters, "query_id": body["id"], "app": body["model_name"]}
        late = fields_given.pop("late")
        return OutcomeMessage(_outcome.python("parameters", fields_given), bool(late), value)
    except InvalidInputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInputError("outcome", f"{value[:80]!r} is no outcome ({error!s:.80})") from error


def outcome_json(record: Record) -> bytes:
    """The body of a result as one line of JSON."""
    value = record.value or b"{}"
    if b"\n" not in value:
        return value
    try:
        return orjson.dumps(orjson.loads(value))
    except ValueError:
        return orjson.dumps({"malformed": value[:1000].decode(errors="replace")})


def outcome_device(record: Record) -> str | None:
    """Device that a result comes from, None where none answered; the value is not parsed."""
    held = next((held for name, held in record.headers if name == _DEVICE), None)
    return None if held is None else held.decode(errors="replace")


@lru_cache(maxsize=1024)
def _source(app: str) -> bytes:
    return f"/app/{app}".encode()

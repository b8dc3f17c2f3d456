"""Between stages: admitted and routed queries. What admission has validated is not parsed again.

A hop record has the tensors' raw bytes as its value, one after the other, and one header, ``sluice``: a JSON array of
[1, id, app, arrival, deadline, rows, class, stream, sequence, priority, goal, tensors, epoch, slice, turn], with goal
null or [accuracy, cost, model], tensors [[name, datatype, shape], …] (of BYTES with a fourth entry, the bytes that it
has; of what lies in an object store [address, digest, bytes], nothing of which is in the value), epoch null or [term,
number], turn only where the router counts turns, [rows, length] in the place of rows where the app's inputs vary in
length, and [id, source] in the place of id where it is told who asks. CloudEvents attributes come before it for those
who look from outside, and behind it what the asker wants back with the outcome. A query with one tensor passes its
value on without a copy.
"""

from functools import lru_cache
from hashlib import blake2b
from math import prod

import orjson

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.models.tensor import BYTES, DATATYPE_BYTES, Tensor, element_ends
from sluicegate.domain.plan import NO_EPOCH, Epoch
from sluicegate.domain.query import Goal, Query
from sluicegate.streams.objects.claims import Claim, claim_of
from sluicegate.streams.ports import Headers, Record
from sluicegate.streams.records.bounds import INT64
from sluicegate.streams.records.cloudevents import BINARY_TYPE, MAX_ID, SPEC_VERSION
from sluicegate.streams.records.codec_types import Claims, Message, QueryMessage, WorkMessage

_VERSION = 1
_NAME = "sluice"
_OURS = 6
"""Headers of our own, the first ones."""
_ADMITTED = b"sluicegate.admitted"
_WORK = b"sluicegate.work"
_FARTHEST = 1e12
_CLASSES = {c.value: c for c in QueryClass}


def encode_admitted(message: QueryMessage) -> Message:
    """A record for the admitted topic, keyed by its stream, by the query's id where that is the app's own."""
    headers = _headers(message, _ADMITTED, None, None)
    return Message(_value(message.tensors), admitted_key(message.query), headers)


def admitted_key(query: Query) -> bytes:
    """Key of a query's record on the admitted topic."""
    return (query.id if query.stream in {"", query.app} else query.stream).encode()


def decode_admitted(record: Record) -> QueryMessage:
    """Raises InvalidInputError for what admission did not write."""
    query, tensors, claims, _, _, _ = _decode(record)
    return QueryMessage(query, tensors, carried_of_hop(record), claims)


def encode_work(message: QueryMessage, *, epoch: Epoch, slice: str, turn: int = -1) -> Message:  # noqa: A002
    """A record for a work topic, keyed by app: routed by ``epoch`` to ``slice``, as number ``turn`` where counted."""
    headers = _headers(message, _WORK, epoch, slice, turn)
    return Message(_value(message.tensors), message.query.app.encode(), headers)


def decode_work(record: Record) -> WorkMessage:
    """Raises InvalidInputError for what a router did not write."""
    query, tensors, claims, epoch, part, turn = _decode(record)
    return WorkMessage(query, tensors, epoch, part, carried_of_hop(record), turn, claims)


@lru_cache(maxsize=1024)
def _source(app: str) -> bytes:
    return f"/app/{app}".encode()


def _headers(message: QueryMessage, kind: bytes, epoch: Epoch | None, part: str | None, turn: int = -1) -> Headers:
    query, carried = message.query, message.carried
    claims = dict(message.claims)
    goal = query.goal
    packed = orjson.dumps(
        (
            _VERSION, (query.id, query.source) if query.source else query.id, query.app, query.arrival, query.deadline,
            (query.rows, query.length) if query.length else query.rows, query.query_class.value,
            query.stream, query.sequence, query.priority,
            None if goal is None else (goal.accuracy, goal.cost, goal.model),
            [_described(tensor, claims.get(place)) for place, tensor in enumerate(message.tensors)],
            None if epoch is None else tuple(epoch), part, *(() if turn < 0 else (turn,)),
        )
    )  # fmt: skip
    headers = (
        SPEC_VERSION,
        ("ce_id", query.id.encode()),
        ("ce_source", _source(query.app)),
        ("ce_type", kind),
        ("content-type", BINARY_TYPE),
        (_NAME, packed),
    )
    return (*headers, *carried) if carried else headers


def _described(tensor: Tensor, claim: Claim | None) -> tuple[object, ...]:
    told = (tensor.name, tensor.datatype, tensor.shape)
    if claim is not None:
        return (*told, (claim.ref, claim.sha256, claim.bytes))
    return (*told, len(tensor.data)) if tensor.datatype == BYTES else told


def _value(tensors: tuple[Tensor, ...]) -> bytes:
    if len(tensors) == 1:
        data = tensors[0].data
        return data if type(data) is bytes else bytes(data)
    return b"".join(t.data for t in tensors)


def carried_of_hop(record: Record) -> Headers:
    """What an admitted or work record carries for the outcome."""
    return record.headers[_OURS:]


def content_of(record: Record, claims: Claims) -> str:
    """A digest of the tensors of an admitted or work record, and of what they refer to."""
    return _digest(record.value or b"", claims)


def content_of_query(message: QueryMessage) -> str:
    """The same, of a query that no such record was written of."""
    return _digest(_value(message.tensors), message.claims)


def _digest(value: bytes, claims: Claims) -> str:
    held = blake2b(value, digest_size=12)
    for _, claim in claims:
        held.update(claim.sha256.encode())
    return held.hexdigest()


def _decode(record: Record) -> tuple[Query, tuple[Tensor, ...], Claims, Epoch, str, int]:
    packed = next((held for name, held in record.headers if name == _NAME), None)
    if packed is None:
        raise InvalidInputError(_NAME, "this header is missing; only stages write here, producers write query topics")
    try:
        (
            version, query_id, app, arrival, deadline, rows, query_class, stream, sequence, priority, goal, tensors,
            epoch, part, *counted,
        ) = orjson.loads(packed)  # fmt: skip
        if version != _VERSION:
            raise ValueError(f"version {version!r}")
        source = ""
        if type(query_id) is list:
            query_id, source = query_id
            source = _short(source)
        length = 0
        if type(rows) is list:
            rows, length = rows
            length = _count(length)
        query = Query(
            _short(query_id), _short(app), _time(arrival), _time(deadline), _count(rows), _CLASSES[query_class],
            _short(stream), _integer(sequence), _integer(priority), None if goal is None else _goal(*goal),
            length, source,
        )  # fmt: skip
        found, claims = _tensors(tensors, record.value or b"")
        if any(tensor.shape[0] != rows for tensor in found):
            raise ValueError(f"{rows} rows announced, and a tensor of another number")
        return (
            query,
            found,
            claims,
            NO_EPOCH if epoch is None else Epoch(_integer(epoch[0]), _integer(epoch[1])),
            "" if part is None else _short(part),
            _count(*counted) if counted else -1,
        )
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise InvalidInputError(_NAME, f"{packed[:80]!r} is no header of ours ({error!s:.80})") from error


def _tensors(listed: object, value: bytes) -> tuple[tuple[Tensor, ...], Claims]:
    if type(listed) is not list or not listed:
        raise ValueError("no tensors")
    tensors: list[Tensor] = []
    claims = []
    at = 0
    whole: bytes | memoryview = value if len(listed) == 1 else memoryview(value)
    for name, datatype, extents, *told in listed:
        shape = tuple(_count(extent) for extent in extents)
        if told and type(told[0]) is list:
            claims.append((len(tensors), _claim(datatype, shape, *told[0])))
            tensors.append(Tensor(_text(name), datatype, shape, b""))
            continue
        size = _count(*told) if datatype == BYTES else prod(shape) * DATATYPE_BYTES[datatype]
        if not shape or at + size > len(value):
            raise ValueError("tensors longer than the value")
        data = whole if size == len(value) else whole[at : at + size]
        if datatype == BYTES:
            element_ends(data, prod(shape))
        tensors.append(Tensor(_text(name), datatype, shape, data))
        at += size
    if at != len(value):
        raise ValueError("tensors shorter than the value")
    return tuple(tensors), tuple(claims)


def _claim(datatype: str, shape: tuple[int, ...], ref: object, digest: object, size: object) -> Claim:
    claim = claim_of("tensor", {"ref": ref, "sha256": digest, "bytes": size})
    least = prod(shape) * DATATYPE_BYTES[datatype]
    if claim.bytes < least or (claim.bytes > least and datatype != BYTES):
        raise ValueError("an object of another size than its tensor")
    return claim


def _goal(accuracy: object, cost: object, model: object) -> Goal:
    return Goal(
        None if accuracy is None else _time(accuracy),
        None if cost is None else _time(cost),
        None if model is None else _text(model),
    )


def _text(value: object) -> str:
    if type(value) is not str:
        raise TypeError("not a text")
    return value


def _short(value: object) -> str:
    """What names something: no longer than admission lets it be."""
    if len(text := _text(value)) > MAX_ID:
        raise ValueError(f"more than {MAX_ID} characters")
    return text


def _integer(value: object) -> int:
    if type(value) is not int or not -INT64 <= value <= INT64:
        raise TypeError("not an integer of 64 bits")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 1 <= value <= INT64:
        raise TypeError("not a positive integer")
    return value


def _time(value: object) -> float:
    if (type(value) is not float and type(value) is not int) or not -_FARTHEST <= value <= _FARTHEST:
        raise TypeError("not a number, or beyond all times")
    return float(value)

"""Open Inference Protocol v2 bodies: JSON tensors, and JSON followed by raw tensors (binary tensor data extension).

Rules. Tensors become little-endian row-major bytes. JSON data may be nested or flat. Numbers must be of the datatype's
kind and range; floats must be finite, also after conversion. BYTES are ``bytes_tensors``'. Axis 0 is the batch. What is
wrong is an InvalidInputError that names the field by its path in the body.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import orjson

from sluicegate.domain.errors import InvalidInputError, shown
from sluicegate.domain.models.tensor import BYTES, DATATYPE_BYTES, Tensor, TensorSpec
from sluicegate.streams.objects.claims import Claim, claim_of
from sluicegate.streams.records import bytes_tensors
from sluicegate.streams.records.codec_types import Claims, Limits, TooLargeError

DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"), "UINT8": np.dtype("u1"), "INT8": np.dtype("i1"), "UINT16": np.dtype("<u2"),
    "INT16": np.dtype("<i2"), "FP16": np.dtype("<f2"), "UINT32": np.dtype("<u4"), "INT32": np.dtype("<i4"),
    "FP32": np.dtype("<f4"), "UINT64": np.dtype("<u8"), "INT64": np.dtype("<i8"), "FP64": np.dtype("<f8"),
}  # fmt: skip
_ACCEPTED = {kind: "iuf" if kind.startswith("FP") else "b" if kind == "BOOL" else "iu" for kind in DTYPES}
_RANGE = {
    kind: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) for kind, dtype in DTYPES.items() if dtype.kind in "iu"
}
_MAX_AXES = 8
_MAX_TENSORS = 64


def parse(value: bytes, json_length: bytes | None) -> tuple[dict[str, Any], memoryview | None]:
    """The JSON object of a body and, with ``json_length`` (the header as it came), the raw bytes after it."""
    if json_length is None:
        return _object(value), None
    try:
        length = int(json_length)
    except ValueError:
        length = -1
    if not 0 < length <= len(value) or not json_length.isdigit():
        raise InvalidInputError(
            "inference-header-content-length",
            f"{json_length[:20]!r} with a body of {len(value)} bytes; give the bytes of JSON that the body begins with",
        )
    whole = memoryview(value)
    return _object(whole[:length]), whole[length:]


def _object(text: bytes | memoryview) -> dict[str, Any]:
    try:
        body = orjson.loads(text)
    except ValueError as error:
        hint = " (NaN and Infinity are not JSON, and not taken)" if b"NaN" in bytes(text) else ""
        raise InvalidInputError("body", f"is not JSON: {str(error)[:120]}{hint}") from error
    if not isinstance(body, dict):
        raise InvalidInputError("body", f"is a JSON {type(body).__name__}; give an object with inputs")
    return body


def decode_inputs(
    body: Mapping[str, Any],
    raw: memoryview | None,
    specs: Sequence[TensorSpec],
    max_rows: int,
    limits: Limits,
) -> tuple[tuple[Tensor, ...], int, Claims]:
    """Input tensors in the order of ``specs`` (as they came where there are none), their rows, and those of them that
    lie elsewhere."""
    listed = body.get("inputs")
    if not isinstance(listed, list) or not listed:
        raise InvalidInputError("inputs", f"is {_shown(listed)}; give a list of tensors")
    if len(listed) > _MAX_TENSORS:
        raise InvalidInputError("inputs", f"lists {len(listed)} tensors; at most {_MAX_TENSORS} are taken")
    tensors: dict[str, Tensor] = {}
    claimed: dict[str, Claim] = {}
    at = 0
    for index, entry in enumerate(listed):
        field = f"inputs[{index}]"
        if isinstance(entry, dict) and isinstance(entry.get("data"), dict):
            tensor, claim = decode_claim(field, entry)
            limits.objects.check(f"{field}.data", claim)
            claimed[tensor.name] = claim
        else:
            tensor, at = _decode_tensor(field, entry, raw, at)
        if tensor.name in tensors:
            raise InvalidInputError(f"{field}.name", f"{_shown(tensor.name)} comes twice; name each input once")
        tensors[tensor.name] = tensor
    if raw is not None and at != len(raw):
        raise InvalidInputError("body", f"has {len(raw) - at} bytes after its last tensor; send what is declared")
    if specs:
        ordered = _match(tensors, specs)
    else:
        ordered = tuple(tensors.values())
    rows = _rows(ordered, max_rows)
    for tensor in ordered:
        if tensor.datatype == BYTES and tensor.name not in claimed:
            bytes_tensors.check_elements(f"inputs.{tensor.name}", tensor, limits.max_element_bytes)
    claims = tuple((i, claimed[t.name]) for i, t in enumerate(ordered) if t.name in claimed) if claimed else ()
    return ordered, rows, claims


def decode_tensors(body: Mapping[str, Any], field: str, raw: memoryview | None = None) -> tuple[Tensor, ...]:
    """Tensors of a list in a body of our own making (``outputs``), but for those that lie elsewhere; null among floats
    is NaN. ``raw``: what follows the body."""
    found, at = [], 0
    for index, entry in enumerate(_listed(body, field)):
        if not isinstance(entry, dict) or not isinstance(entry.get("data"), dict):
            tensor, at = _decode_tensor(f"{field}[{index}]", entry, raw, at, nulls=True)
            found.append(tensor)
    if raw is not None and at != len(raw):
        raise InvalidInputError(field, f"leave {len(raw) - at} bytes after the last tensor")
    return tuple(found)


def decode_claims(body: Mapping[str, Any], field: str) -> tuple[tuple[Tensor, Claim], ...]:
    """Those of them that lie elsewhere, without their data."""
    return tuple(
        decode_claim(f"{field}[{i}]", entry)
        for i, entry in enumerate(_listed(body, field))
        if isinstance(entry, dict) and isinstance(entry.get("data"), dict)
    )


def _listed(body: Mapping[str, Any], field: str) -> list[Any]:
    listed = body.get(field)
    if not isinstance(listed, list):
        raise InvalidInputError(field, f"is {_shown(listed)}; give a list of tensors")
    return listed


def decode_claim(field: str, entry: Mapping[str, Any]) -> tuple[Tensor, Claim]:
    """A tensor whose data lies elsewhere, raw: without data, and where that is. Raises InvalidInputError."""
    name, datatype, shape = _head(field, entry)
    claim = claim_of(f"{field}.data", entry["data"])
    expected = prod(shape) * DATATYPE_BYTES[datatype]
    if claim.bytes < expected or (claim.bytes > expected and datatype != BYTES):
        least = "at least " if datatype == BYTES else ""
        raise InvalidInputError(
            f"{field}.data.bytes", f"is {claim.bytes}; shape and datatype make {least}{expected} bytes"
        )
    return Tensor(name, datatype, shape, b""), claim


def check_data(field: str, tensor: Tensor, max_element_bytes: int) -> None:
    """Refuse raw data that is not what its tensor says. Raises InvalidInputError."""
    view = memoryview(tensor.data)
    if tensor.datatype == BYTES:
        bytes_tensors.check_raw(field, tensor.shape, view)
        bytes_tensors.check_elements(field, tensor, max_element_bytes)
    check_finite(field, tensor.datatype, view)
    _check_booleans(field, tensor.datatype, view)


def json_tensor(tensor: Tensor) -> dict[str, Any]:
    """A tensor as it stands in a JSON body: its data flat, an array that orjson writes (NaN becomes null)."""
    if tensor.datatype == BYTES:
        return bytes_tensors.json_tensor(tensor)
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": tensor.shape,
        "data": np.frombuffer(tensor.data, DTYPES[tensor.datatype]),
    }


def claimed_tensor(tensor: Tensor, claim: Claim) -> dict[str, Any]:
    """A tensor as it stands in a body where its data lies elsewhere."""
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, "data": claim.document()}


def binary_tensor(tensor: Tensor) -> dict[str, Any]:
    """A tensor as it stands in the JSON of a body that carries its data raw."""
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": tensor.shape,
        "parameters": {"binary_data_size": len(tensor.data)},
    }


def check_finite(field: str, datatype: str, data: bytes | memoryview) -> None:
    """Refuse NaN and infinities."""
    if datatype.startswith("FP"):
        array = np.frombuffer(data, DTYPES[datatype])
        if not np.isfinite(array).all():
            where = int(np.flatnonzero(~np.isfinite(array))[0])
            raise InvalidInputError(f"{field}.data[{where}]", f"is {array[where]}; every value must be finite")


def _decode_tensor(
    field: str, entry: object, raw: memoryview | None, at: int, *, nulls: bool = False
) -> tuple[Tensor, int]:
    if not isinstance(entry, dict):
        raise InvalidInputError(field, f"is {_shown(entry)}; give an object with name, datatype, shape and data")
    name, datatype, shape = _head(field, entry)
    parameters = entry.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None and datatype == BYTES:
        content_type = parameters.get(bytes_tensors.CONTENT_TYPE) if isinstance(parameters, dict) else None
        return Tensor(name, BYTES, shape, bytes_tensors.from_json(field, shape, entry.get("data"), content_type)), at
    if size is None:
        data = _from_json(field, datatype, shape, entry.get("data"), nulls=nulls)
        return Tensor(name, datatype, shape, data), at
    if raw is None:
        raise InvalidInputError(
            f"{field}.parameters.binary_data_size", "but the header inference-header-content-length is missing; send it"
        )
    expected = prod(shape) * DATATYPE_BYTES[datatype]
    if type(size) is not int or size < expected or (size > expected and datatype != BYTES):
        least = "at least " if datatype == BYTES else ""
        raise InvalidInputError(
            f"{field}.parameters.binary_data_size",
            f"is {_shown(size)}; shape and datatype make {least}{expected} bytes",
        )
    if at + size > len(raw):
        raise InvalidInputError(f"{field}.data", f"ends after {len(raw) - at} of {size} bytes; send all of them")
    data_view = raw[at : at + size]
    if not nulls:
        check_finite(field, datatype, data_view)
    if datatype == BYTES:
        bytes_tensors.check_raw(field, shape, data_view)
    _check_booleans(field, datatype, data_view)
    return Tensor(name, datatype, shape, data_view), at + size


def _check_booleans(field: str, datatype: str, data: memoryview) -> None:
    if datatype == "BOOL" and len(data) and np.frombuffer(data, np.uint8).max() > 1:
        raise InvalidInputError(f"{field}.data", "holds bytes other than 0 and 1; a BOOL is one of these")


def _head(field: str, entry: Mapping[str, Any]) -> tuple[str, str, tuple[int, ...]]:
    """Name, datatype and shape."""
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidInputError(f"{field}.name", f"is {_shown(name)}; give the input's name")
    datatype = entry.get("datatype")
    if not isinstance(datatype, str) or datatype not in DATATYPE_BYTES:
        raise InvalidInputError(f"{field}.datatype", f"is {_shown(datatype)}; use one of {', '.join(DATATYPE_BYTES)}")
    return name, datatype, _shape(field, entry.get("shape"))


def _shape(field: str, shape: object) -> tuple[int, ...]:
    if (
        not isinstance(shape, list)
        or not 1 <= len(shape) <= _MAX_AXES
        or any(type(extent) is not int or extent < 1 for extent in shape)
    ):
        raise InvalidInputError(f"{field}.shape", f"is {_shown(shape)}; give 1 to {_MAX_AXES} positive integers")
    return tuple(shape)


def _from_json(field: str, datatype: str, shape: tuple[int, ...], data: object, *, nulls: bool) -> bytes:
    if not isinstance(data, list):
        raise InvalidInputError(f"{field}.data", f"is {_shown(data)}; give a list of numbers")
    if nulls and datatype.startswith("FP"):
        data = [float("nan") if value is None else value for value in data]
    elements = prod(shape)
    try:
        if _holds_text(data):  # NumPy would make each element as large as the longest of them
            raise InvalidInputError(f"{field}.data", f"holds values that are no {datatype}; give only those")
        array = np.array(data)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidInputError(
            f"{field}.data", "is ragged or too deep; nest it as its shape, or make it flat"
        ) from error
    if datatype == "UINT64" and array.dtype.kind == "f":
        array = _large_integers(data, array)
    if array.size != elements:
        raise InvalidInputError(f"{field}.data", f"holds {array.size} values; shape {list(shape)} takes {elements}")
    if array.ndim != 1 and array.shape != shape:
        raise InvalidInputError(
            f"{field}.data", f"is nested as {list(array.shape)}; nest it as its shape {list(shape)}"
        )
    if array.dtype.kind not in _ACCEPTED[datatype]:
        raise InvalidInputError(f"{field}.data", f"holds values that are no {datatype}; give only those")
    bounds = _RANGE.get(datatype)
    if bounds is not None and not bounds[0] <= int(array.min()) <= int(array.max()) <= bounds[1]:
        raise InvalidInputError(f"{field}.data", f"exceeds {datatype}: {array.min()} to {array.max()}; keep within it")
    with np.errstate(over="ignore"):
        packed = array.astype(DTYPES[datatype]).tobytes()
    if not nulls:
        check_finite(field, datatype, packed)
    return packed


def _holds_text(data: list[Any]) -> bool:
    try:
        sum(data)  # of numbers alone, as nearly always: a quarter of what a look at each takes
    except TypeError:
        kinds = set(map(type, data))
        return str in kinds or (list in kinds and any(_holds_text(one) for one in data if type(one) is list))
    return False


def _large_integers(data: list[Any], rounded: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Integers of which some exceed 63 bits, which NumPy would round to floats; ``rounded`` where they are no such."""
    exact = np.array(data, dtype=object)
    if not all(type(value) is int and 0 <= value < 1 << 64 for value in exact.flat):
        return rounded
    return exact.astype(np.uint64)


def _match(tensors: Mapping[str, Tensor], specs: Sequence[TensorSpec]) -> tuple[Tensor, ...]:
    names = [spec.name for spec in specs]
    for name in tensors:
        if name not in names:
            raise InvalidInputError("inputs", f"{_shown(name)} is no input; the inputs are {', '.join(names)}")
    ordered = []
    for spec in specs:
        tensor = tensors.get(spec.name)
        if tensor is None:
            raise InvalidInputError("inputs", f"{spec.name} is missing; the inputs are {', '.join(names)}")
        if tensor.datatype != spec.datatype:
            raise InvalidInputError(f"inputs.{spec.name}.datatype", f"is {tensor.datatype}; it must be {spec.datatype}")
        if tensor.shape[1:] != spec.row_shape and not _is_shorter(tensor, spec):
            wanted = (f"1 to {spec.row_shape[0]}", *spec.row_shape[1:]) if spec.varying else spec.row_shape
            raise InvalidInputError(
                f"inputs.{spec.name}.shape",
                f"is {list(tensor.shape)}; it must be {['rows', *wanted]}".replace("'", ""),
            )
        ordered.append(tensor)
    return tuple(ordered)


def _is_shorter(tensor: Tensor, spec: TensorSpec) -> bool:
    """Whether it is of another length than the longest, as rows of this input may be."""
    shape = tensor.shape
    return (
        spec.varying
        and len(shape) == 1 + len(spec.row_shape)
        and shape[1] < spec.row_shape[0]
        and shape[2:] == spec.row_shape[1:]
    )


def _rows(tensors: Sequence[Tensor], max_rows: int) -> int:
    rows = tensors[0].shape[0]
    for tensor in tensors:
        if tensor.shape[0] != rows:
            raise InvalidInputError(
                f"inputs.{tensor.name}.shape",
                f"has {tensor.shape[0]} rows, {tensors[0].name} has {rows}; make them equal",
            )
    if rows > max_rows:
        raise TooLargeError(f"inputs.{tensors[0].name}.shape", f"has {rows} rows; at most {max_rows} are taken")
    return rows


def _shown(value: object) -> str:
    return "missing" if value is None else shown(value, 80)

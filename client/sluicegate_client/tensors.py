"""Tensors of the Open Inference Protocol: raw little-endian, row-major bytes, with or without NumPy.

Rules. An array keeps its dtype. Nested lists become FP32 where any number is a float, INT64 where all are integers,
BOOL where all are booleans, BYTES where all are texts or bytes (arrays of texts, bytes or such objects, too); for
another datatype give a ``Tensor``. Null among floats, in what comes back, is NaN. Of BYTES what comes back is bytes.
"""

import struct
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from math import prod
from types import ModuleType
from typing import Any

from sluicegate_client.errors import InvalidQueryError

_CODES: Mapping[str, str] = {
    "BOOL": "?", "UINT8": "B", "INT8": "b", "UINT16": "H", "INT16": "h", "FP16": "e",
    "UINT32": "I", "INT32": "i", "FP32": "f", "UINT64": "Q", "INT64": "q", "FP64": "d",
}  # fmt: skip
_DTYPES: Mapping[str, str] = {
    "BOOL": "?", "UINT8": "u1", "INT8": "i1", "UINT16": "<u2", "INT16": "<i2", "FP16": "<f2",
    "UINT32": "<u4", "INT32": "<i4", "FP32": "<f4", "UINT64": "<u8", "INT64": "<i8", "FP64": "<f8",
}  # fmt: skip


_BYTES = "BYTES"
_LENGTH = struct.Struct("<I")


def _numpy() -> ModuleType | None:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


_np = _numpy()
_DATATYPE_OF = {} if _np is None else {_np.dtype(code).newbyteorder("="): name for name, code in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor. ``datatype``: of the protocol (FP32, INT64, …); ``data``: little-endian, row-major; of BYTES four bytes
    before each element say how long it is."""

    datatype: str
    shape: tuple[int, ...]
    data: bytes

    @staticmethod
    def of(datatype: str, values: Any) -> "Tensor":
        """Nested lists as this datatype. Raises InvalidQueryError for what it cannot hold."""
        return _tensor("values", datatype, *_flattened(values, "values"))

    @staticmethod
    def to(value: Any) -> "Tensor":
        """Of an array or nested lists. Raises InvalidQueryError for what the protocol has no datatype for."""
        found = tensor_of("value", value)
        if isinstance(found, Reference):
            raise InvalidQueryError("value", f"lies at {found.ref:.80}; give an array, nested lists or a Tensor")
        return found

    def tolist(self) -> Any:
        """Nested lists of numbers, or of bytes."""
        flat: list[Any]
        if self.datatype == _BYTES:
            flat = _elements(self.data)
        else:
            flat = list(struct.unpack(f"<{prod(self.shape)}{_CODES[self.datatype]}", self.data))
        for extent in reversed(self.shape[1:]):
            flat = [flat[i : i + extent] for i in range(0, len(flat), extent)]
        return flat


@dataclass(frozen=True, slots=True)
class Reference:
    """A tensor whose data lies in an object store, as a Tensor's ``data`` is. ``ref``: its address; ``sha256`` (hex)
    and ``bytes``: of its content."""

    datatype: str
    shape: tuple[int, ...]
    ref: str
    sha256: str
    bytes: int

    @staticmethod
    def to(ref: str, tensor: "Tensor | Any") -> "Reference":
        """To ``tensor`` (or an array), whose data whoever asks puts to ``ref``: see ``Tensor.to``."""
        whole = Tensor.to(tensor)
        return Reference(whole.datatype, whole.shape, ref, sha256(whole.data).hexdigest(), len(whole.data))

    def document(self) -> dict[str, Any]:
        """As it stands in a body."""
        return {"ref": self.ref, "sha256": self.sha256, "bytes": self.bytes}

    def tolist(self) -> dict[str, Any]:
        """What there is to show of it."""
        return self.document()


def tensor_of(name: str, value: Any) -> Tensor | Reference:
    """An input. Raises InvalidQueryError for what the protocol has no datatype for."""
    if isinstance(value, Tensor | Reference):
        return value
    field = f"inputs.{name}"
    if _np is not None and isinstance(value, _np.ndarray | _np.generic):
        if _np.ma.is_masked(value):
            raise InvalidQueryError(field, "has masked elements, for which queries have no word; fill them")
        if value.dtype.kind in "OSUT":
            return _tensor(field, _BYTES, *_flattened(value.tolist(), field))
        whole = _np.ascontiguousarray(value)
        datatype = _DATATYPE_OF.get(whole.dtype.newbyteorder("="))
        if datatype is None:
            raise InvalidQueryError(field, f"dtype {whole.dtype} is not taken; use one of {', '.join(_CODES)}")
        return Tensor(datatype, whole.shape, whole.astype(_DTYPES[datatype]).tobytes())
    shape, flat = _flattened(value, field)
    if isinstance(flat[0], str | bytes):
        datatype = _BYTES
    elif all(isinstance(one, bool) for one in flat):
        datatype = "BOOL"
    else:
        datatype = "INT64" if all(isinstance(one, int) for one in flat) else "FP32"
    return _tensor(field, datatype, shape, flat)


def _tensor(field: str, datatype: str, shape: tuple[int, ...], flat: Sequence[Any]) -> Tensor:
    if datatype == _BYTES:
        return Tensor(_BYTES, shape, _joined(field, flat))
    code = _CODES.get(datatype)
    if code is None:
        known = ", ".join((*_CODES, _BYTES))
        raise InvalidQueryError("datatype", f"{datatype!r:.40} is unknown; use one of {known}")
    if datatype == "BOOL" and any(isinstance(one, str | bytes) for one in flat):  # of which all but "" were true
        raise InvalidQueryError(field, f"holds {flat!r:.60}; give booleans only")
    try:
        return Tensor(datatype, shape, struct.pack(f"<{len(flat)}{code}", *flat))
    except (struct.error, OverflowError) as error:
        raise InvalidQueryError(field, f"does not fit {datatype} ({error})") from error


def outputs_of(body: Mapping[str, Any], raw: bytes = b"") -> dict[str, Any]:
    """Outputs of a response by name: arrays where NumPy is installed, else Tensors. ``raw``: what follows its JSON."""
    found: dict[str, Any] = {}
    at = 0
    for entry in body.get("outputs", ()):
        datatype, shape = entry["datatype"], tuple(entry["shape"])
        if isinstance(entry.get("data"), dict):
            found[entry["name"]] = Reference(datatype, shape, **entry["data"])
            continue
        size = entry.get("parameters", {}).get("binary_data_size")
        if size is None and datatype == _BYTES:
            coded = entry.get("parameters", {}).get("content_type") == "base64"
            data = _joined(entry["name"], [b64decode(one) if coded else one for one in entry["data"]])
        elif size is None:
            values = list(entry["data"])
            if datatype.startswith("FP"):
                values = [float("nan") if one is None else one for one in values]
            data = struct.pack(f"<{len(values)}{_CODES[datatype]}", *values)
        else:
            data, at = raw[at : at + size], at + size
        tensor = Tensor(datatype, shape, data)
        _check(tensor)
        found[entry["name"]] = tensor if _np is None else _array(tensor)
    return found


def _check(tensor: Tensor) -> None:
    """Raises ValueError where shape and data differ, KeyError for an unknown datatype."""
    held = len(_elements(tensor.data)) if tensor.datatype == _BYTES else len(tensor.data)
    size = 1 if tensor.datatype == _BYTES else struct.calcsize(f"<{_CODES[tensor.datatype]}")
    if any(extent < 0 for extent in tensor.shape) or held != size * prod(tensor.shape):
        raise ValueError(f"{len(tensor.data)} bytes are no {tensor.datatype} of shape {tensor.shape}")


def _array(tensor: Tensor) -> Any:
    assert _np is not None
    if tensor.datatype != _BYTES:
        return _np.frombuffer(tensor.data, _DTYPES[tensor.datatype]).reshape(tensor.shape)
    array = _np.empty(prod(tensor.shape), object)
    array[:] = _elements(tensor.data)
    return array.reshape(tensor.shape)


def _elements(data: bytes) -> list[bytes]:
    found, at = [], 0
    try:
        while at < len(data):
            end = at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
            found.append(data[at + _LENGTH.size : end])
            at = end
    except struct.error as error:
        raise ValueError(f"BYTES end within a length ({error})") from error
    if at != len(data):
        raise ValueError("BYTES end within an element")
    return found


def _joined(field: str, values: Sequence[Any]) -> bytes:
    if not all(isinstance(one, str | bytes) for one in values):
        raise InvalidQueryError(field, f"holds {values!r:.60}; give texts or bytes only")
    try:
        parts = [one.encode() if isinstance(one, str) else one for one in values]
    except UnicodeEncodeError as error:
        raise InvalidQueryError(field, f"is no text that UTF-8 has ({error})") from error
    return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))


def rows_of(value: Any, start: int, end: int) -> Any:
    """Rows ``start`` to ``end`` of an input. Raises InvalidQueryError where it lies elsewhere."""
    if isinstance(value, Reference):
        raise InvalidQueryError("inputs", f"{value.ref:.80} cannot be cut into rows; ask with infer")
    if not isinstance(value, Tensor):
        return value[start:end]
    if value.datatype == _BYTES:
        return Tensor.of(_BYTES, value.tolist()[start:end])
    row = len(value.data) // value.shape[0]
    count = min(end, value.shape[0]) - start
    return Tensor(value.datatype, (count, *value.shape[1:]), value.data[start * row : end * row])


def count_of(value: Any) -> int:
    """Rows of an input. Raises InvalidQueryError where it has none."""
    try:
        return value.shape[0] if isinstance(value, Tensor | Reference) else len(value)
    except (IndexError, TypeError) as error:
        raise InvalidQueryError("inputs", f"{value!r:.60} has no rows") from error


def _flattened(value: Any, field: str) -> tuple[tuple[int, ...], list[Any]]:
    shape: list[int] = []
    level: list[Any] = [value]
    while all(isinstance(one, Sequence) and not isinstance(one, str | bytes) for one in level):
        lengths = {len(one) for one in level}
        if len(lengths) != 1 or 0 in lengths:
            raise InvalidQueryError(field, "is ragged or empty; nest lists of one length")
        shape += lengths
        level = list(chain.from_iterable(level))
    if not shape or not all(isinstance(one, int | float | str | bytes) for one in level):
        raise InvalidQueryError(
            field, f"is {value!r:.60}; give an array, nested lists of numbers or of texts, or a Tensor"
        )
    return tuple(shape), level

"""Tensors as raw little-endian row-major bytes, so that stacking a batch is joining bytes.

An element of a BYTES tensor is any bytes, behind four that say how many: rows of it differ in size.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from types import MappingProxyType

DATATYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "BOOL": 1, "UINT8": 1, "INT8": 1, "UINT16": 2, "INT16": 2, "FP16": 2,
        "UINT32": 4, "INT32": 4, "FP32": 4, "UINT64": 8, "INT64": 8, "FP64": 8, "BYTES": 4,
    }
)  # fmt: skip
"""Open Inference Protocol v2 datatype -> bytes an element; of BYTES those that tell its length, the least it has."""
BYTES = "BYTES"
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, Open Inference Protocol datatype and shape a row: axis 0 (the batch) is left out.

    ``varying``: the first axis of a row is a length, and rows may be shorter than ``row_shape`` says. Queries of
    different length run in one batch filled up with zeros, which the model must take for nothing.
    """

    name: str
    datatype: str
    row_shape: tuple[int, ...]
    varying: bool = False

    @property
    def row_elements(self) -> int:
        """Elements in one row."""
        product = 1
        for extent in self.row_shape:
            product *= extent
        return product

    @property
    def row_bytes(self) -> int:
        """Bytes in one row; of BYTES the least that there can be."""
        return self.row_elements * DATATYPE_BYTES[self.datatype]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array: ``shape`` includes the batch axis, ``data`` is little-endian, row-major."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview

    @property
    def rows(self) -> int:
        """Extent of axis 0."""
        return self.shape[0]


def length_of(specs: Sequence[TensorSpec], tensors: Sequence[Tensor]) -> int:
    """The longest of ``tensors`` (in the order of ``specs``) along an axis that varies; 0 where none does."""
    return max((t.shape[1] for s, t in zip(specs, tensors, strict=True) if s.varying), default=0)


def cut(specs: Sequence[TensorSpec], tensors: Sequence[Tensor], length: int) -> tuple[Tensor, ...]:
    """``tensors`` (in the order of ``specs``), those that vary cut to ``length``."""
    return tuple(
        _cut(t, length) if s.varying and length < t.shape[1] else t for s, t in zip(specs, tensors, strict=True)
    )


def _cut(tensor: Tensor, length: int) -> Tensor:
    rows, extent, *rest = tensor.shape
    row = len(tensor.data) // rows
    kept = row // extent * length
    data = b"".join(tensor.data[at : at + kept] for at in range(0, rows * row, row))
    return Tensor(tensor.name, tensor.datatype, (rows, length, *rest), data)


def split_rows(outputs: Sequence[Tensor], rows_per_query: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """Each query's part of a batch's stacked ``outputs``, in order, as views: nothing is copied.

    Raises ValueError unless every output has exactly sum(rows_per_query) rows.
    """
    total = sum(rows_per_query)
    parts: list[list[Tensor]] = [[] for _ in rows_per_query]
    for output in outputs:
        if not output.shape or output.shape[0] != total:
            raise ValueError(f"output {output.name} has shape {output.shape}, not {total} rows")
        view = memoryview(output.data).cast("B")
        edges = _row_edges(output, view)
        start = 0
        for part, rows in zip(parts, rows_per_query, strict=True):
            end = start + rows
            part.append(
                Tensor(output.name, output.datatype, (rows, *output.shape[1:]), view[edges[start] : edges[end]])
            )
            start = end
    return [tuple(part) for part in parts]


def _row_edges(tensor: Tensor, view: memoryview) -> Sequence[int]:
    """Where its rows begin, and where the last one ends."""
    rows, row_elements = tensor.shape[0], prod(tensor.shape[1:])
    if not view or not rows:
        return [0] * (rows + 1)
    if tensor.datatype != BYTES:
        return range(0, len(view) + 1, len(view) // rows)
    return [0, *element_ends(view, rows * row_elements)[row_elements - 1 :: row_elements]]


def element_ends(data: bytes | memoryview, count: int) -> list[int]:
    """Where each of the ``count`` elements of a BYTES tensor ends. Raises ValueError unless they fill ``data``."""
    ends = []
    at = 0
    try:
        for _ in range(count):
            at += _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
            ends.append(at)
    except struct.error:
        at = -1
    if at != len(data):
        raise ValueError(f"{len(data)} bytes are not {count} elements, each behind its length")
    return ends


def elements(data: bytes | memoryview, count: int) -> list[bytes]:
    """The ``count`` elements of a BYTES tensor. Raises ValueError as ``element_ends`` does."""
    edges = pairwise((0, *element_ends(data, count)))
    return [bytes(data[start + _LENGTH.size : end]) for start, end in edges]


def joined(parts: Iterable[bytes]) -> bytes:
    """Elements as the data of a BYTES tensor."""
    return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))

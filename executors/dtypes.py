"""Open Inference Protocol datatypes as NumPy types. BYTES are arrays of objects, each a text: models know no others."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sluicegate.domain.models.tensor import BYTES, Tensor, elements, joined

Array = npt.NDArray[Any]
NUMPY_TYPES: Mapping[str, npt.DTypeLike] = {
    "BOOL": np.bool_, "UINT8": np.uint8, "INT8": np.int8, "UINT16": np.uint16, "INT16": np.int16, "FP16": np.float16,
    "UINT32": np.uint32, "INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64, "INT64": np.int64,
    "FP64": np.float64, BYTES: np.object_,
}  # fmt: skip
"""Datatype -> NumPy."""
DATATYPES: Mapping[str, str] = {np.dtype(v).name: k for k, v in NUMPY_TYPES.items()}
"""NumPy's name -> datatype."""


def array_of(tensor: Tensor) -> Array:
    """A tensor as an array. Raises ValueError where an element of BYTES is no UTF-8, or they are not what it says."""
    if tensor.datatype != BYTES:
        return np.frombuffer(tensor.data, NUMPY_TYPES[tensor.datatype]).reshape(tensor.shape)
    array = np.empty(tensor.shape, np.object_)
    array.reshape(-1)[:] = [one.decode() for one in elements(tensor.data, array.size)]
    return array


def data_of(array: Array) -> bytes:
    """An array as a tensor's data; of texts (whatever kind of array they are in) as BYTES."""
    if array.dtype.kind not in "OU":
        return array.tobytes()
    return joined(str(one).encode() for one in array.flat)


def zeros(datatype: str, shape: tuple[int, ...]) -> Array:
    """Zeros; empty texts where it is BYTES."""
    return np.full(shape, "" if datatype == BYTES else 0, NUMPY_TYPES[datatype])

"""Open Inference Protocol datatypes as NumPy types."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
NUMPY_TYPES: Mapping[str, npt.DTypeLike] = {
    "BOOL": np.bool_, "UINT8": np.uint8, "INT8": np.int8, "UINT16": np.uint16, "INT16": np.int16, "FP16": np.float16,
    "UINT32": np.uint32, "INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64, "INT64": np.int64,
    "FP64": np.float64,
}  # fmt: skip
"""Datatype -> NumPy."""
DATATYPES: Mapping[str, str] = {np.dtype(v).name: k for k, v in NUMPY_TYPES.items()}
"""NumPy's name -> datatype."""

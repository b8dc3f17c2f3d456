"""BYTES tensors of the Open Inference Protocol: texts, and what else is bytes, an element.

Rules. In JSON an element is a string; where the tensor's ``parameters`` say ``content_type: base64``, base64 of what it
holds, as other servers of the protocol have it. Raw, four bytes (little-endian) before each element say how long it is.
Elements of inputs are bounded, and UTF-8, for models know no other texts.
"""

from base64 import b64decode, b64encode
from math import prod
from typing import Any

import numpy as np

from sluicegate.domain.errors import InvalidInputError, shown
from sluicegate.domain.models.tensor import Tensor, element_ends, elements, joined
from sluicegate.streams.records.codec_types import TooLargeError

BASE64 = "base64"
CONTENT_TYPE = "content_type"
_PREFIX = 4


def from_json(field: str, shape: tuple[int, ...], data: object, content_type: object) -> bytes:
    """The data of a tensor whose elements are JSON's strings, nested as its shape or flat. Raises InvalidInputError."""
    if not isinstance(data, list):
        raise InvalidInputError(f"{field}.data", f"is {shown(data, 80)}; give a list of strings")
    if content_type not in (None, BASE64, "str"):
        raise InvalidInputError(
            f"{field}.parameters.{CONTENT_TYPE}", f"is {shown(content_type, 40)}; give base64, or leave it out for text"
        )
    try:
        array = np.array(data, dtype=object)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{field}.data", "is too deep; nest it as its shape, or make it flat") from error
    if array.size != prod(shape):
        raise InvalidInputError(f"{field}.data", f"holds {array.size} values; shape {list(shape)} takes {prod(shape)}")
    if array.ndim != 1 and array.shape != shape:
        raise InvalidInputError(
            f"{field}.data", f"is nested as {list(array.shape)}; nest it as its shape {list(shape)}"
        )
    texts = array.reshape(-1).tolist()
    if not all(type(text) is str for text in texts):
        raise InvalidInputError(f"{field}.data", "holds values that are no strings; give only those")
    try:
        return joined([_base64(text) for text in texts] if content_type == BASE64 else [t.encode() for t in texts])
    except ValueError as error:
        told = "base64" if content_type == BASE64 else "text"
        raise InvalidInputError(f"{field}.data", f"holds what is no {told} ({error!s:.80})") from error


def _base64(text: str) -> bytes:
    return b64decode(text, validate=True)


def check_raw(field: str, shape: tuple[int, ...], data: memoryview) -> None:
    """Raise InvalidInputError unless raw ``data`` is a BYTES tensor of this shape."""
    try:
        element_ends(data, prod(shape))
    except ValueError as error:
        raise InvalidInputError(
            f"{field}.data", f"is no BYTES of shape {list(shape)} ({error}); send 4 bytes of length before each element"
        ) from error


def check_elements(field: str, tensor: Tensor, most: int) -> None:
    """Refuse elements of more than ``most`` bytes (TooLargeError), and what is no UTF-8 (InvalidInputError)."""
    start = 0
    for index, end in enumerate(element_ends(tensor.data, prod(tensor.shape))):
        size = end - start - _PREFIX
        if size > most:
            allowed = f"at most {most} (admission.max_element_bytes) are taken an element"
            raise TooLargeError(f"{field}.data[{index}]", f"has {size} bytes; {allowed}")
        try:
            str(tensor.data[start + _PREFIX : end], "utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInputError(f"{field}.data[{index}]", f"is no UTF-8 ({error.reason}); send text") from error
        start = end


def json_tensor(tensor: Tensor) -> dict[str, Any]:
    """A tensor as it stands in a JSON body: strings, or base64 of all where one of them is no text."""
    whole = elements(tensor.data, prod(tensor.shape))
    told: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
    try:
        return {**told, "data": [one.decode() for one in whole]}
    except UnicodeDecodeError:
        encoded = [b64encode(one).decode() for one in whole]
        return {**told, "parameters": {CONTENT_TYPE: BASE64}, "data": encoded}

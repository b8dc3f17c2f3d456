"""Queries of different length are stacked into one batch, and a shape that is none is refused."""

import pytest

from sluicegate.domain.errors import ExecutionError
from sluicegate.domain.models.tensor import Tensor, TensorSpec
from sluicegate.executors.onnx.onnx_executor import stack

SPECS = (TensorSpec("flag", "UINT8", (1,)), TensorSpec("text", "UINT8", (4,), varying=True))
FLAG = Tensor("flag", "UINT8", (1, 1), b"\1")


def text(*shape: int) -> Tensor:
    return Tensor("text", "UINT8", shape, bytes(range(1, 1 + shape[-1])) if shape else b"")


def test_shorter_rows_are_filled_up_to_the_longest_of_the_batch() -> None:
    described, buffers = stack("v", SPECS, [[FLAG, text(1, 1)], [FLAG, text(1, 3)]], 2)
    assert described == [("flag", "UINT8", (2, 1)), ("text", "UINT8", (2, 3))]
    assert b"".join(buffers) == b"\1\1" + b"\1\0\0" + b"\1\2\3"


@pytest.mark.parametrize("shape", [(), (1,), (1, 5), (1, 2, 2)])
def test_an_input_that_has_no_length_or_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ExecutionError, match="input text is"):
        stack("v", SPECS, [[FLAG, text(1, 3)], [FLAG, text(*shape)]], 2)

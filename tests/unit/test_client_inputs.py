"""What a client is given to ask: what has no word in a query is refused by name, and nothing else is made of it."""

import json
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from sluicegate_client import Client, InvalidQueryError, Tensor
from sluicegate_client.query import Query
from sluicegate_client.tensors import tensor_of

MASKED = np.ma.masked_greater(np.array([[1.0, 9.0]], np.float32), 5.0)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (MASKED, "inputs.x: has masked elements"),
        ([1e300], "inputs.x: does not fit FP32"),
        ([1 << 70], "inputs.x: does not fit INT64"),
        (["a", 1], "inputs.x: holds ['a', 1]; give texts or bytes only"),
        (["\ud800"], "inputs.x: is no text that UTF-8 has"),
        (np.array(["a", None], object), "inputs.x: is ['a', None]"),
    ],
)
def test_an_input_that_cannot_be_asked_is_refused_by_its_name(value: Any, problem: str) -> None:
    with pytest.raises(InvalidQueryError, match="^" + re.escape(problem)):
        tensor_of("x", value)


def test_an_array_without_a_masked_element_is_taken_in_any_order_of_its_memory() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    for same in (np.ma.array(rows), np.asfortranarray(rows), np.repeat(rows, 2, 1)[:, ::2], rows.astype(">f4")):
        assert tensor_of("x", same) == Tensor("FP32", (2, 3), rows.tobytes())


def test_texts_are_no_booleans() -> None:
    assert Tensor.of("BOOL", [True, False]).data == b"\1\0"
    with pytest.raises(InvalidQueryError, match="give booleans only"):
        Tensor.of("BOOL", ["False"])


def test_parameters_and_shapes_may_be_of_numpy() -> None:
    point = Tensor("FP32", tuple(np.array([1, 2])), bytes(8))
    asked = Query("q", {"x": point}, {"latency_ms": np.float32(100.5), "priority": np.int64(3)})
    body = json.loads(asked.body()[0])
    assert body["parameters"] == {"latency_ms": 100.5, "priority": 3}
    assert body["inputs"][0]["shape"] == [1, 2]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Decimal(100), {1}, np.arange(3)])
def test_a_parameter_that_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(InvalidQueryError, match=r"^parameters: .*; give texts and finite numbers"):
        Query("q", {}, {"latency_ms": value}).body()


async def test_inputs_have_names_and_rows() -> None:
    client = Client("http://127.0.0.1:1")
    with pytest.raises(InvalidQueryError, match="inputs: 3 has no rows"):
        await client.infer_rows("app", {"x": 3})
    client._connected = True
    unnamed: Any = np.zeros((1, 2))
    with pytest.raises(InvalidQueryError, match="inputs: is of type ndarray; give a mapping"):
        await client.infer("app", unnamed)

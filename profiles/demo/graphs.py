"""Writes a recipe and its head as an ONNX graph: raw inputs in, ``scores`` [n, classes] and ``label`` [n] out.

Scaling is folded into the filters (or the head), so that a graph holds no operator it can do without.
"""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.profiles.demo.features import Array, Head, Recipe

OPSET = 17
IR_VERSION = 9
"""Old enough for every ONNX Runtime that is still in use."""
ELEMENT_TYPES = {
    "UINT8": TensorProto.UINT8, "INT32": TensorProto.INT32, "INT64": TensorProto.INT64, "FP32": TensorProto.FLOAT
}  # fmt: skip
"""Open Inference Protocol datatype -> ONNX element type, as far as the demo needs it."""


class Graph:
    """Collects nodes and constants of a graph with one batch axis, ``n``."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one output; its name."""
        name = attributes.pop("output", f"{operator.lower()}{len(self._nodes)}")
        self._nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return str(name)

    def constant(self, value: Array) -> str:
        """Append a constant; its name."""
        name = f"constant{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def serialise(self, app: App) -> bytes:
        """The checked model as bytes: equal graphs give equal bytes."""
        inputs, outputs = ([_value(spec) for spec in specs] for specs in (app.inputs, app.outputs))
        graph = helper.make_graph(self._nodes, app.name, inputs, outputs, self._constants)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="sluicegate"
        )
        onnx.checker.check_model(model)
        data: bytes = model.SerializeToString(deterministic=True)
        return data


def write_graph(app: App, recipe: Recipe, head: Head) -> bytes:
    """The model of ``recipe`` and ``head`` for ``app``, whose single input it takes."""
    graph = Graph()
    (spec,) = app.inputs
    x = spec.name
    if spec.datatype != "FP32":
        x = graph.add("Cast", x, to=TensorProto.FLOAT)
    flat = recipe.filters is None and recipe.pool == (1, 1)
    if not flat:
        height, width = (1, *spec.row_shape)[-2:]
        x = graph.add("Reshape", x, graph.constant(np.array([-1, 1, height, width], np.int64)))
    weights = head.weights
    if recipe.filters is None:
        weights = weights * np.float32(recipe.scale)
    else:
        x = _convolution(graph, x, recipe)
    if recipe.pool != (1, 1):
        operator = "AveragePool" if recipe.pooling == "mean" else "MaxPool"
        x = graph.add(operator, x, kernel_shape=list(recipe.pool), strides=list(recipe.pool))
    if not flat or len(spec.row_shape) > 1:
        x = graph.add("Flatten", x)
    scores = graph.add(
        "Gemm", x, graph.constant(weights.astype(np.float32)), graph.constant(head.intercept), output="scores"
    )
    graph.add("ArgMax", scores, axis=1, keepdims=0, output="label")
    return graph.serialise(app)


def _convolution(graph: Graph, x: str, recipe: Recipe) -> str:
    assert recipe.filters is not None
    filters = (recipe.filters * recipe.scale).astype(np.float32)[:, None]
    biases = np.zeros(len(filters)) if recipe.biases is None else recipe.biases
    top, left = recipe.pad
    x = graph.add(
        "Conv",
        x,
        graph.constant(filters),
        graph.constant(biases.astype(np.float32)),
        strides=[recipe.stride, recipe.stride],
        pads=[top, left, top, left],
    )
    return graph.add("Relu", x)


def _value(spec: TensorSpec) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(spec.name, ELEMENT_TYPES[spec.datatype], ["n", *spec.row_shape])

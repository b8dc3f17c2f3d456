"""Linear models of the machine-learning operator set, written as plain matrix products.

A scaler and a linear classifier as scikit-learn's converter writes them are operators of their own, which nothing can
quantise or halve. As Sub, Mul, MatMul, Add and ArgMax they are what every other recipe works on, and often faster.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_ML = "ai.onnx.ml"
_POST = {"NONE": "Identity", "SOFTMAX": "Softmax", "LOGISTIC": "Sigmoid"}


def lower_linear(model: onnx.ModelProto) -> bool:
    """Rewrite, in place, what can be; whether anything was."""
    nodes = list(model.graph.node)
    changed = False
    del model.graph.node[:]
    for i, node in enumerate(nodes):
        lower = _LOWER.get(node.op_type) if node.domain == _ML else None
        new = lower(_Writer(model, f"lowered{i}"), node) if lower else None
        model.graph.node.extend([node] if new is None else new)
        changed = changed or new is not None
    return changed


class _Writer:
    """Makes nodes and constants with names that nobody else has."""

    def __init__(self, model: onnx.ModelProto, prefix: str) -> None:
        self._graph = model.graph
        self._prefix = prefix
        self._made = 0

    def name(self) -> str:
        self._made += 1
        return f"{self._prefix}_{self._made}"

    def constant(self, value: Any) -> str:
        name = self.name()
        self._graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _scaler(write: _Writer, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    attributes = _attributes(node)
    offset = np.asarray(attributes.get("offset", [0.0]), np.float32)
    scale = np.asarray(attributes.get("scale", [1.0]), np.float32)
    centred = write.name()
    return [
        helper.make_node("Sub", [node.input[0], write.constant(offset)], [centred]),
        helper.make_node("Mul", [centred, write.constant(scale)], [node.output[0]]),
    ]


def _linear_classifier(write: _Writer, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    attributes = _attributes(node)
    labels = attributes.get("classlabels_ints")
    post = attributes.get("post_transform", b"NONE").decode()
    intercepts = np.asarray(attributes.get("intercepts", []), np.float32)
    if not labels or len(intercepts) != len(labels) or len(labels) < 2 or post not in _POST:
        return None
    weights = np.asarray(attributes["coefficients"], np.float32).reshape(len(labels), -1).T
    product, summed, position = write.name(), write.name(), write.name()
    axis = {"axis": 1} if post == "SOFTMAX" else {}
    scores = node.output[1] if len(node.output) > 1 and node.output[1] else write.name()
    return [
        helper.make_node("MatMul", [node.input[0], write.constant(np.ascontiguousarray(weights))], [product]),
        helper.make_node("Add", [product, write.constant(intercepts)], [summed]),
        helper.make_node(_POST[post], [summed], [scores], **axis),
        helper.make_node("ArgMax", [summed], [position], axis=1, keepdims=0),
        helper.make_node("Gather", [write.constant(np.asarray(labels, np.int64)), position], [node.output[0]]),
    ]


def _linear_regressor(write: _Writer, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    attributes = _attributes(node)
    targets = int(attributes.get("targets", 1))
    weights = np.asarray(attributes["coefficients"], np.float32).reshape(targets, -1).T
    intercepts = np.asarray(attributes.get("intercepts", np.zeros(targets)), np.float32)
    if attributes.get("post_transform", b"NONE") != b"NONE":
        return None
    product = write.name()
    return [
        helper.make_node("MatMul", [node.input[0], write.constant(np.ascontiguousarray(weights))], [product]),
        helper.make_node("Add", [product, write.constant(intercepts)], [node.output[0]]),
    ]


_LOWER: dict[str, Callable[[_Writer, onnx.NodeProto], list[onnx.NodeProto] | None]] = {
    "Scaler": _scaler,
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
}

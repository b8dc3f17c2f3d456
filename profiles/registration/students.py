"""Students: smaller models that answer as a larger one does, fitted to its answers. Pure NumPy; graphs of plain ONNX.

Rules. A student is linear, or random ReLU features with a linear head, by ridge regression on the teacher's outputs:
numbers as they are, a class a row as one column a class, of which the largest is the answer. The penalty is the one of
``_PENALTIES`` that does best on a fifth of the rows. It takes and gives what its teacher does, by the same names, types
and shapes. What its accuracy is must be measured on other rows than these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.profiles.registration.validation_set import Array

WIDTHS = (0, 32, 128, 512, 1024)
"""Hidden features of the students that are tried; 0: linear."""
_PENALTIES = (1e-4, 1e-2, 1.0)
"""Of the mean square of a feature."""
_OPSET, _IR = 17, 9
_MOST_CLASSES = 4096
_TYPES = {
    "BOOL": onnx.TensorProto.BOOL, "UINT8": onnx.TensorProto.UINT8, "INT8": onnx.TensorProto.INT8,
    "UINT16": onnx.TensorProto.UINT16, "INT16": onnx.TensorProto.INT16, "FP16": onnx.TensorProto.FLOAT16,
    "UINT32": onnx.TensorProto.UINT32, "INT32": onnx.TensorProto.INT32, "FP32": onnx.TensorProto.FLOAT,
    "UINT64": onnx.TensorProto.UINT64, "INT64": onnx.TensorProto.INT64, "FP64": onnx.TensorProto.DOUBLE,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """Columns that stand for one output. ``classes``: what its columns mean, None for numbers."""

    spec: TensorSpec
    columns: Array
    classes: Array | None


@dataclass(frozen=True, slots=True, eq=False)
class _Layers:
    """y = relu(x @ first + bias) @ head + offset; without ``first`` y = x @ head + offset."""

    head: Array
    offset: Array
    first: Array | None = None
    bias: Array | None = None


def student(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    given: Mapping[str, Array],
    answers: Mapping[str, Array],
    *,
    width: int,
    seed: int,
) -> bytes:
    """The graph of a student of ``width`` hidden features. ``given``, ``answers``: rows, and the teacher's outputs.

    Raises InvalidInputError for outputs that are neither numbers nor one class a row.
    """
    targets = [_target(spec, answers[spec.name]) for spec in outputs]
    x = np.concatenate([given[s.name].reshape(len(given[s.name]), -1).astype(np.float64) for s in inputs], axis=1)
    y = np.concatenate([t.columns for t in targets], axis=1)
    rng = np.random.default_rng(seed)
    made: bytes = _graph(inputs, targets, _fitted(x, y, width, rng)).SerializeToString()
    return made


def _target(spec: TensorSpec, values: Array) -> _Target:
    flat = values.reshape(len(values), -1)
    if values.dtype.kind == "f":
        return _Target(spec, flat.astype(np.float64), None)
    if values.dtype.kind in "iu" and flat.shape[1] == 1:
        classes, index = np.unique(flat[:, 0], return_inverse=True)
        if len(classes) <= _MOST_CLASSES:
            return _Target(spec, np.eye(len(classes))[index], classes)
    raise InvalidInputError(
        "--make-family",
        f"output {spec.name[:80]!r} is neither numbers nor a class a row; train smaller models yourself",
    )


def _fitted(x: Array, y: Array, width: int, rng: np.random.Generator) -> _Layers:
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 1e-9, scale, 1.0)
    first = bias = None
    if width:
        first = rng.standard_normal((x.shape[1], width)) / np.sqrt(x.shape[1]) / scale[:, None]
        bias = rng.standard_normal(width) - mean @ first
        features = np.maximum(x @ first + bias, 0.0)
    else:
        features = (x - mean) / scale
    head, offset = _ridge(features, y, rng)
    if first is None:
        head = head / scale[:, None]
        offset = offset - mean @ head
    return _Layers(head, offset, first, bias)


def _ridge(features: Array, y: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    order = rng.permutation(len(y))
    held, used = order[: len(y) // 5], order[len(y) // 5 :]

    def solved(rows: Array, penalty: float) -> tuple[Array, Array]:
        middle, level = features[rows].mean(axis=0), y[rows].mean(axis=0)
        centred, goal = features[rows] - middle, y[rows] - level
        # By rows or by features, whichever are fewer: the solution is the same.
        by_rows = centred.shape[0] < centred.shape[1]
        gram = centred @ centred.T if by_rows else centred.T @ centred
        gram[np.diag_indices_from(gram)] += penalty * max(float(np.trace(gram)) / centred.shape[1], 1e-9)
        head = centred.T @ np.linalg.solve(gram, goal) if by_rows else np.linalg.solve(gram, centred.T @ goal)
        return head, level - middle @ head

    def missed(penalty: float) -> float:
        head, offset = solved(used, penalty)
        return float(np.square(features[held] @ head + offset - y[held]).sum())

    return solved(order, min(_PENALTIES, key=missed))


def _graph(inputs: Sequence[TensorSpec], targets: Sequence[_Target], layers: _Layers) -> onnx.ModelProto:
    own = _prefix([*(spec.name for spec in inputs), *(target.spec.name for target in targets)])
    nodes, constants = [], {"head": layers.head.astype(np.float32), "offset": layers.offset.astype(np.float32)}

    def add(kind: str, takes: Sequence[str], makes: str, **attributes: int) -> None:
        nodes.append(helper.make_node(kind, [own + name for name in takes], [own + makes], **attributes))

    flat = []
    for i, spec in enumerate(inputs):
        nodes.append(helper.make_node("Cast", [spec.name], [f"{own}number{i}"], to=onnx.TensorProto.FLOAT))
        add("Reshape", [f"number{i}", f"flat_shape{i}"], f"flat{i}")
        constants[f"flat_shape{i}"] = np.array([-1, prod(spec.row_shape)], np.int64)
        flat.append(f"flat{i}")
    add("Concat", flat, "row", axis=1)
    features = "row"
    if layers.first is not None and layers.bias is not None:
        constants |= {"first": layers.first.astype(np.float32), "bias": layers.bias.astype(np.float32)}
        add("Gemm", ["row", "first", "bias"], "shifted")
        add("Relu", ["shifted"], "features")
        features = "features"
    add("Gemm", [features, "head", "offset"], "columns")
    at = 0
    for i, target in enumerate(targets):
        constants[f"from{i}"], constants[f"to{i}"] = np.array([at]), np.array([at + target.columns.shape[1]])
        at += target.columns.shape[1]
        part = f"part{i}"
        add("Slice", ["columns", f"from{i}", f"to{i}", "columns_axis"], part)
        if target.classes is not None:
            constants[f"classes{i}"] = target.classes.astype(np.int64)
            add("ArgMax", [part], f"largest{i}", axis=1, keepdims=0)
            part = f"class{i}"
            add("Gather", [f"classes{i}", f"largest{i}"], part)
        constants[f"shape{i}"] = np.array([-1, *target.spec.row_shape], np.int64)
        add("Reshape", [part, f"shape{i}"], f"shaped{i}")
        kind = _TYPES[target.spec.datatype]
        nodes.append(helper.make_node("Cast", [f"{own}shaped{i}"], [target.spec.name], to=kind))
    constants["columns_axis"] = np.array([1], np.int64)
    graph = helper.make_graph(
        nodes,
        "student",
        [_port(spec) for spec in inputs],
        [_port(target.spec) for target in targets],
        [numpy_helper.from_array(value, own + name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)


def _prefix(names: Sequence[str]) -> str:
    """What none of ``names`` begins with."""
    found = "student."
    while any(name.startswith(found) for name in names):
        found += "."
    return found


def _port(spec: TensorSpec) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(spec.name, _TYPES[spec.datatype], ["rows", *spec.row_shape])

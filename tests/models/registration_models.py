"""Models and labelled rows for the tests of registration: small, made with NumPy and onnx.helper."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from sluicegate.executors.onnx.variant_builder import GeneratorLimits
from sluicegate.profiles.catalogue.profiler import Effort
from sluicegate.sluice.registration.register import Request

Array = npt.NDArray[Any]
FEATURES, CLASSES, ROWS = 8, 4, 200
QUICK = Effort(least=3, enough=4, share=0.01)


def labelled_rows(rows: int = ROWS, seed: int = 1) -> tuple[Array, Array]:
    """Rows around one centre a class, and their classes."""
    rng = np.random.default_rng(0)
    centres = 2.0 * rng.standard_normal((CLASSES, FEATURES))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, rows)
    return (centres[labels] + rng.standard_normal((rows, FEATURES))).astype(np.float32), labels


def weights() -> Array:
    """A linear classifier of these rows, by least squares on other ones."""
    x, labels = labelled_rows(2000, seed=2)
    solution: Array = np.linalg.lstsq(x, np.eye(CLASSES, dtype=np.float32)[labels], rcond=None)[0]
    return solution.astype(np.float32)


def model_of(
    nodes: list[onnx.NodeProto],
    constants: Mapping[str, Array] | None = None,
    *,
    inputs: list[Any] | None = None,
    outputs: list[Any] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model, unchecked: x [n, FEATURES] in, scores [n, CLASSES] out by default."""
    graph = h.make_graph(
        nodes,
        "test",
        inputs if inputs is not None else [h.make_tensor_value_info("x", T.FLOAT, ["n", FEATURES])],
        outputs if outputs is not None else [h.make_tensor_value_info("scores", T.FLOAT, ["n", CLASSES])],
        [nh.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=9)


def linear(**changes: Any) -> onnx.ModelProto:
    """A model that answers ``labelled_rows`` well."""
    return model_of([h.make_node("MatMul", ["x", "w"], ["scores"])], {"w": weights()}, **changes)


def with_features(rows: list[int], *names: str) -> onnx.ModelProto:
    """The linear model, whose features are outputs as well, of these names and rows of this shape."""
    model = linear()
    model.graph.initializer.append(nh.from_array(np.array([-1, *rows]), "shape"))
    for name in names:
        model.graph.node.append(h.make_node("Reshape", ["x", "shape"], [name]))
        model.graph.output.append(h.make_tensor_value_info(name, T.FLOAT, ["n", *rows]))
    return model


def wide_as_its_first() -> onnx.ModelProto:
    """The linear model with an output that is as wide as the first answer of a batch says."""
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["scores"]),
        h.make_node("ArgMax", ["scores"], ["classes"], axis=1, keepdims=0),
        h.make_node("Slice", ["classes", "zero", "one"], ["first"]),
        h.make_node("Add", ["first", "one"], ["width"]),
        h.make_node("Slice", ["x", "zero", "width", "one"], ["wide"]),
    ]
    outputs = [h.make_tensor_value_info(name, T.FLOAT, ["n", None]) for name in ("scores", "wide")]
    return model_of(nodes, {"w": weights(), "zero": np.array([0]), "one": np.array([1])}, outputs=outputs)


HANGS = 1e12
"""A feature at which ``looping`` does not come to an end."""


def looping() -> onnx.ModelProto:
    """A linear classifier that then loops for ever where a feature is above a thousand.

    So does whatever registering makes of it: what is linear is an Einsum, which nothing quantizes (quantized features
    end where those of the rows did), and half precision takes a feature beyond it for infinite.
    """
    body = h.make_graph(
        [h.make_node("Identity", ["condition"], ["go_on"]), h.make_node("Identity", ["state"], ["next"])],
        "body",
        [
            h.make_tensor_value_info("i", T.INT64, []),
            h.make_tensor_value_info("condition", T.BOOL, []),
            h.make_tensor_value_info("state", T.FLOAT, ["n", CLASSES]),
        ],
        [
            h.make_tensor_value_info("go_on", T.BOOL, []),
            h.make_tensor_value_info("next", T.FLOAT, ["n", CLASSES]),
        ],
    )
    nodes = [
        h.make_node("Einsum", ["x", "w"], ["linear"], equation="nf,fc->nc"),
        h.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        h.make_node("Greater", ["most", "usual"], ["beyond"]),
        h.make_node("Where", ["beyond", "for_ever", "never"], ["times"]),
        h.make_node("Loop", ["times", "true", "linear"], ["scores"], body=body),
    ]
    constants = {"usual": np.array(1000, np.float32), "for_ever": np.array(1 << 50), "never": np.array(0)}
    return model_of(nodes, {"w": weights(), "true": np.array(True), **constants})


CRASHES = 1e9
"""A feature at which ``perilous`` ends its process: the least integer has no opposite."""
OVERFILLS = 1e6
"""A feature at which it asks for more memory than there is."""


def perilous(work: int) -> onnx.ModelProto:
    """As ``looping``, and it may crash or overfill its process instead. ``work``: sines of each row, to take time."""
    model = looping()
    graph = model.graph
    least, one = np.array(np.iinfo(np.int64).min), np.array(1, np.int64)
    constants = {
        "crashes": np.array(CRASHES, np.float32),
        "hangs": np.array(HANGS / 2, np.float32),
        "overfills": np.array(OVERFILLS, np.float32),
        "least": least,
        "minus_two": np.array(-2, np.int64),
        "one": one,
        "huge": np.array(1 << 40, np.int64),
        "zero": np.array(0, np.float32),
        "waves": np.linspace(0, 1, work, dtype=np.float32)[None, :],
        "one_more": np.array([1], np.int64),
    }
    graph.initializer.extend(nh.from_array(np.asarray(value), name) for name, value in constants.items())
    scores = graph.node[-1]
    assert scores.op_type == "Loop"
    scores.output[0] = "looped"
    beyond = next(node for node in graph.node if node.output[0] == "beyond")
    beyond.input[0] = "long"  # loops only where it is to hang
    nodes = [
        h.make_node("Greater", ["most", "hangs"], ["endless"]),
        h.make_node("Where", ["endless", "most", "zero"], ["long"]),
        h.make_node("Greater", ["most", "crashes"], ["above"]),
        h.make_node("Not", ["endless"], ["ends"]),
        h.make_node("And", ["above", "ends"], ["breaks"]),
        h.make_node("Cast", ["breaks"], ["broken"], to=T.INT64),
        h.make_node("Mul", ["broken", "minus_two"], ["back"]),
        h.make_node("Add", ["back", "one"], ["divisor"]),
        h.make_node("Div", ["least", "divisor"], ["quotient"]),
        h.make_node("Greater", ["most", "overfills"], ["over"]),
        h.make_node("Not", ["above"], ["below"]),
        h.make_node("And", ["over", "below"], ["fills"]),
        h.make_node("Where", ["fills", "huge", "one"], ["rows"]),
        h.make_node("Reshape", ["rows", "one_more"], ["shape"]),
        h.make_node("ConstantOfShape", ["shape"], ["filled"]),
        h.make_node("ReduceMax", ["filled"], ["nought"], keepdims=0),
        h.make_node("Cast", ["quotient"], ["floating"], to=T.FLOAT),
        h.make_node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=1),
        h.make_node("Add", ["mean", "waves"], ["sines0"]),
        *(h.make_node("Sin", [f"sines{n}"], [f"sines{n + 1}"]) for n in range(4)),
        h.make_node("ReduceMean", ["sines4"], ["flat"], axes=[1], keepdims=1),
        h.make_node("Mul", ["floating", "zero"], ["none"]),
        h.make_node("Add", ["none", "nought"], ["nothing"]),
        h.make_node("Mul", ["flat", "nothing"], ["spent"]),
    ]
    most = next(number for number, node in enumerate(graph.node) if node.output[0] == "most")
    ordered = [
        *graph.node[: most + 1],
        *nodes,
        *graph.node[most + 1 :],
        h.make_node("Add", ["looped", "spent"], ["scores"]),
    ]
    del graph.node[:]
    graph.node.extend(ordered)
    return model


def write_model(folder: Path, model: onnx.ModelProto | bytes, name: str = "model.onnx") -> Path:
    """Into a file."""
    path = folder / name
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def write_rows(folder: Path, name: str = "rows.npz", **arrays: Array) -> Path:
    """Into an .npz; ``labelled_rows`` unless other arrays are given."""
    path = folder / name
    x, labels = labelled_rows()
    np.savez(path, **(arrays or {"x": x, "label": labels}))
    return path


def request_of(model: Path, validation: Path, **changes: Any) -> Request:
    """A request that is measured quickly."""
    values: dict[str, Any] = {
        "model": model,
        "app": "mine",
        "validation": validation,
        "batches": (1, 8),
        "effort": QUICK,
        "limits": GeneratorLimits(memory_bytes=16 << 30, seconds=60.0),
        **changes,
    }
    return Request(**values)

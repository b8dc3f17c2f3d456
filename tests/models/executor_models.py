"""Small ONNX graphs for the executors' tests: one that answers, one that raises, one that never ends."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.tensor import Tensor, TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import digest_of, model_path, save_catalogue

APP = App(
    name="affine",
    slo=0.1,
    inputs=(TensorSpec("x", "FP32", (2,)),),
    outputs=(TensorSpec("y", "FP32", (2,)), TensorSpec("label", "INT64", ())),
)


def _model(nodes: list[onnx.NodeProto], constants: dict[str, object], inputs: tuple[str, int] = ("x", 1)) -> bytes:
    name, element = inputs
    graph = h.make_graph(
        nodes,
        "test",
        [h.make_tensor_value_info(name, element, ["n", 2])],
        [h.make_tensor_value_info("y", T.FLOAT, ["n", 2]), h.make_tensor_value_info("label", T.INT64, ["n"])],
        [nh.from_array(np.asarray(value), key) for key, value in constants.items()],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def affine(factor: float) -> bytes:
    """y = factor * x; label = argmax of y."""
    nodes = [h.make_node("Mul", ["x", "k"], ["y"]), h.make_node("ArgMax", ["y"], ["label"], axis=1, keepdims=0)]
    return _model(nodes, {"k": np.float32(factor)})


def raising() -> bytes:
    """Answers zeros with zeros; raises for rows whose first number, taken as an index, is out of range."""
    nodes = [
        h.make_node("Cast", ["x"], ["indices"], to=T.INT64),
        h.make_node("Gather", ["table", "indices"], ["y"]),
        h.make_node("ArgMax", ["y"], ["label"], axis=1, keepdims=0),
    ]
    return _model(nodes, {"table": np.zeros(4, np.float32)})


def growing() -> bytes:
    """y = x, after as many zeros have been summed up as the largest number of the batch says."""
    nodes = [
        h.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        h.make_node("Cast", ["most"], ["count"], to=T.INT64),
        h.make_node("Reshape", ["count", "one"], ["shape"]),
        h.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        h.make_node("ReduceMax", ["zeros"], ["none"], keepdims=0),
        h.make_node("Add", ["x", "none"], ["y"]),
        h.make_node("ArgMax", ["y"], ["label"], axis=1, keepdims=0),
    ]
    return _model(nodes, {"one": np.array([1], np.int64)})


def hanging() -> bytes:
    """Loops as often as the largest number of the batch says: zeros are answered at once, 1e12 never."""
    body = h.make_graph(
        [
            h.make_node("Identity", ["condition"], ["go_on"]),
            h.make_node("Add", ["state", "one"], ["next"]),
        ],
        "body",
        [
            h.make_tensor_value_info("i", T.INT64, []),
            h.make_tensor_value_info("condition", T.BOOL, []),
            h.make_tensor_value_info("state", T.FLOAT, ["n", 2]),
        ],
        [
            h.make_tensor_value_info("go_on", T.BOOL, []),
            h.make_tensor_value_info("next", T.FLOAT, ["n", 2]),
        ],
        [nh.from_array(np.float32(1), "one")],
    )
    nodes = [
        h.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        h.make_node("Cast", ["most"], ["times"], to=T.INT64),
        h.make_node("Loop", ["times", "true", "x"], ["y"], body=body),
        h.make_node("ArgMax", ["y"], ["label"], axis=1, keepdims=0),
    ]
    return _model(nodes, {"true": np.bool_(True)})


def loses_rows() -> bytes:
    """Answers one row, whatever was asked."""
    nodes = [
        h.make_node("Slice", ["x", "zero", "one"], ["y"]),
        h.make_node("ArgMax", ["y"], ["label"], axis=1, keepdims=0),
    ]
    return _model(nodes, {"zero": np.zeros(1, np.int64), "one": np.ones(1, np.int64)})


MODELS = {
    "double": affine(2.0),
    "triple": affine(3.0),
    "raising": raising(),
    "hanging": hanging(),
    "growing": growing(),
    "loses-rows": loses_rows(),
    "garbage": b"this is not an ONNX graph",
    "other-input": _model(
        [
            h.make_node("Cast", ["z"], ["y"], to=T.FLOAT),
            h.make_node("ArgMax", ["y"], ["label"], axis=1, keepdims=0),
        ],
        {},
        ("z", T.DOUBLE),
    ),
}


def write_catalogue(folder: Path) -> Catalogue:
    """All of MODELS as variants of APP, with made-up profiles on device type "cpu"."""
    variants = [
        Variant(
            name=name,
            app=APP.name,
            accuracy=0.5,
            model=model_path(digest_of(data)),
            digest=digest_of(data),
            size_bytes=len(data),
        )
        for name, data in MODELS.items()
    ]
    points = (BatchLatency(1, 0.010, 0.014), BatchLatency(8, 0.024, 0.028))
    profiles = [
        Profile(variant=v.name, device_type="cpu", points=points, memory_bytes=1000, load=0.01) for v in variants
    ]
    catalogue = Catalogue.of([APP], variants, profiles)
    save_catalogue(folder, catalogue, {digest_of(data): data for data in MODELS.values()})
    return catalogue


def query(*rows: tuple[float, float]) -> tuple[Tensor, ...]:
    """One query's inputs."""
    return (Tensor("x", "FP32", (len(rows), 2), np.asarray(rows, np.float32).tobytes()),)


def numbers(tensor: Tensor) -> list[object]:
    """A tensor as nested lists."""
    kind = {"FP32": np.float32, "INT64": np.int64}[tensor.datatype]
    found: list[object] = np.frombuffer(tensor.data, kind).reshape(tensor.shape).tolist()
    return found

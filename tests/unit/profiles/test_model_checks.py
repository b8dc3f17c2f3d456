"""What a model holds is checked, and taken into it, wherever in its graph it stands."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from sluicegate.domain.errors import InvalidInputError
from sluicegate.profiles.registration.model_checks import read_checked, tensors
from tests.models.registration_models import CLASSES, model_of, weights, write_model

VALUES, OTHERS = np.array([1.0, 2.0], np.float32), np.array([77.0, 88.0], np.float32)


def with_sparse_constant(values: onnx.TensorProto) -> onnx.ModelProto:
    """The linear model, its scores moved by a constant that is two numbers and zeros."""
    sparse = onnx.SparseTensorProto(values=values, indices=nh.from_array(np.array([0, 3]), "places"), dims=[CLASSES])
    constant = h.make_node("Constant", [], ["moved"])
    constant.attribute.append(
        onnx.AttributeProto(name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse)
    )
    nodes = [constant, h.make_node("MatMul", ["x", "w"], ["raw"]), h.make_node("Add", ["raw", "moved"], ["scores"])]
    return model_of(nodes, {"w": weights()})


def test_weights_of_a_sparse_constant_are_those_beside_the_model_and_not_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, working = tmp_path / "models", tmp_path / "working"
    for folder, values in ((beside, VALUES), (working, OTHERS)):
        folder.mkdir()
        (folder / "values.bin").write_bytes(values.tobytes())
    monkeypatch.chdir(working)
    values = onnx.TensorProto(name="values", data_type=T.FLOAT, dims=[2], data_location=T.EXTERNAL)
    values.external_data.add(key="location", value="values.bin")
    checked = read_checked(write_model(beside, with_sparse_constant(values)))
    found = {tensor.name: tensor for tensor in tensors(checked)}
    assert {tensor.data_location for tensor in found.values()} == {T.DEFAULT}
    assert nh.to_array(found["values"]).tolist() == VALUES.tolist()


def test_weights_of_a_sparse_constant_are_finite(tmp_path: Path) -> None:
    spoilt = with_sparse_constant(nh.from_array(np.array([1.0, np.nan], np.float32), "values"))
    with pytest.raises(InvalidInputError, match="'values' that are NaN or infinite"):
        read_checked(write_model(tmp_path, spoilt))

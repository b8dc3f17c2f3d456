"""The memory that an executor's process may take has room for the batches that its models are loaded for."""

from pathlib import Path

import onnx
from onnx import TensorProto as T
from onnx import helper as h

from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import Tensor, TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
from sluicegate.executors.onnx.runtime_options import Runtime
from sluicegate.profiles.catalogue.catalogue_folder import digest_of, model_path, save_model

WIDE = 1 << 20
MARGIN = 64 << 20


async def test_a_batch_whose_rows_are_larger_than_the_margin_runs(tmp_path: Path) -> None:
    graph = h.make_graph(
        [h.make_node("ReduceMean", ["x"], ["y"], axes=[1], keepdims=0)],
        "mean",
        [h.make_tensor_value_info("x", T.FLOAT, ["n", WIDE])],
        [h.make_tensor_value_info("y", T.FLOAT, ["n"])],
    )
    model: onnx.ModelProto = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)
    data = model.SerializeToString()
    digest = digest_of(data)
    save_model(tmp_path, digest, data)
    variant = Variant(name="mean", app="wide", accuracy=0.5, model=model_path(digest), digest=digest)
    spec = TensorSpec("x", "FP32", (WIDE,))
    app = App(name="wide", slo=1.0, inputs=(spec,), outputs=(TensorSpec("y", "FP32", ()),))
    executor = OnnxExecutor(tmp_path, {"wide": app}, Runtime(memory_margin_bytes=MARGIN))
    await executor.start()
    try:
        batch = 64
        assert batch * spec.row_bytes > 3 * MARGIN
        await executor.load(variant, max_batch=batch)
        pid = executor.pid
        row = Tensor("x", "FP32", (1, WIDE), bytes(spec.row_bytes))
        ran = await executor.run("mean", [(row,)] * batch, batch)
        assert ran.outputs[0].shape == (batch,)
        assert executor.pid == pid
    finally:
        await executor.close()

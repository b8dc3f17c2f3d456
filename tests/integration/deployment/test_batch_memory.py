"""The memory that an executor's process may take has room for the batches that its models are loaded for."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from sluicegate.domain.errors import ExecutionError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import Tensor, TensorSpec, joined
from sluicegate.domain.models.variant import Variant
from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
from sluicegate.executors.onnx.runtime_options import Runtime
from sluicegate.profiles.catalogue.catalogue_folder import digest_of, model_path, save_model

WIDE = 1 << 20
MARGIN = 64 << 20


def served(folder: Path, graph: onnx.GraphProto, takes: TensorSpec, gives: TensorSpec) -> tuple[Variant, OnnxExecutor]:
    """The variant that ``graph`` is, and an executor for it."""
    model: onnx.ModelProto = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)
    data = model.SerializeToString()
    digest = digest_of(data)
    save_model(folder, digest, data)
    variant = Variant(name=graph.name, app="served", accuracy=0.5, model=model_path(digest), digest=digest)
    app = App(name="served", slo=1.0, inputs=(takes,), outputs=(gives,))
    return variant, OnnxExecutor(folder, {"served": app}, Runtime(memory_margin_bytes=MARGIN))


async def test_a_batch_whose_rows_are_larger_than_the_margin_runs(tmp_path: Path) -> None:
    graph = h.make_graph(
        [h.make_node("ReduceMean", ["x"], ["y"], axes=[1], keepdims=0)],
        "mean",
        [h.make_tensor_value_info("x", T.FLOAT, ["n", WIDE])],
        [h.make_tensor_value_info("y", T.FLOAT, ["n"])],
    )
    spec = TensorSpec("x", "FP32", (WIDE,))
    variant, executor = served(tmp_path, graph, spec, TensorSpec("y", "FP32", ()))
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


async def test_a_query_whose_texts_are_larger_than_the_memory_fails_and_the_process_goes_on(tmp_path: Path) -> None:
    graph = h.make_graph(
        [h.make_node("Identity", ["x"], ["y"])],
        "same",
        [h.make_tensor_value_info("x", T.STRING, ["n"])],
        [h.make_tensor_value_info("y", T.STRING, ["n"])],
    )
    variant, executor = served(tmp_path, graph, TensorSpec("x", "BYTES", ()), TensorSpec("y", "BYTES", ()))
    await executor.start()
    try:
        await executor.load(variant, max_batch=2)
        pid = executor.pid
        for size in (2 * MARGIN, MARGIN // 2):  # where it is received; where its texts are made of it
            with pytest.raises(ExecutionError, match="same: needs more memory than its process may take") as refused:
                await executor.run("same", [(texts(b"b" * size),)], 1)
            assert not refused.value.fatal
            ran = await executor.run("same", [(texts(b"a"),), (texts(b"bc"),)], 2)
            assert bytes(ran.outputs[0].data) == joined((b"a", b"bc"))
        assert executor.pid == pid
    finally:
        await executor.close()


def texts(one: bytes) -> Tensor:
    return Tensor("x", "BYTES", (1,), joined([one]))

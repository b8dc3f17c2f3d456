"""Inputs of varying length, from registration to batches of a real model: profiled, padded, answered as alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper
from onnx import TensorProto as T
from onnx import helper as h

from sluicegate.domain.errors import ExecutionError, InvalidInputError
from sluicegate.domain.models.tensor import Tensor
from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.sluice.load.sample_inputs import app_samples
from sluicegate.sluice.registration.register import Request, register
from sluicegate.sluice.system.system import System
from sluicegate.stages.worker.slice_runner import SliceRunner
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.records import codec
from tests.harness import running, settings_for
from tests.models.registration_models import model_of, request_of, write_model, write_rows

LONGEST, WORDS, CLASSES = 24, 50, 2


def words(rows: int = 80) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Texts of 1 to LONGEST words, zeros behind; words of the first half say 0, of the second 1."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, rows)
    texts = np.zeros((rows, LONGEST), np.int64)
    for row, label in zip(texts, labels, strict=True):
        length = int(rng.integers(1, LONGEST + 1))
        row[:length] = rng.integers(1, WORDS // 2, length) + label * (WORDS // 2)
    return texts, labels


def bag_of_words(reduce: str = "ReduceSum", length: str | int = "length", filler: float = 0.0) -> ModelProto:
    """Adds up what each word says; word 0 says ``filler``."""
    table = np.zeros((WORDS, CLASSES), np.float32)
    table[: WORDS // 2, 0] = table[WORDS // 2 :, 1] = 1.0
    table[0] = (filler, -filler)
    graph = model_of(
        [
            h.make_node("Gather", ["table", "text"], ["said"]),
            h.make_node(reduce, ["said", "axis"], ["scores"], keepdims=0),
        ],
        inputs=[h.make_tensor_value_info("text", T.INT64, ["n", length])],
        outputs=[h.make_tensor_value_info("scores", T.FLOAT, ["n", CLASSES])],
        opset=18,
    )
    graph.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in (("table", table), ("axis", np.array([1])))
    )
    return graph


def asked(folder: Path, model: ModelProto, **changes: Any) -> Request:
    texts, labels = words()
    rows = write_rows(folder, text=texts, label=labels)
    return request_of(write_model(folder, model), rows, **{"batches": (1, 4), "varying": ("text",), **changes})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    register(asked(folder, bag_of_words()), folder / "home")
    return folder / "home"


@pytest.fixture(scope="module")
def catalogue(home: Path) -> Catalogue:
    found = Registered(home).catalogue()
    assert found is not None
    return found


def text(length: int) -> Tensor:
    values = np.arange(1, length + 1, dtype="<i8") % (WORDS // 2 - 1) + 1
    return Tensor("text", "INT64", (1, length), values.tobytes())


def test_a_variant_is_profiled_at_several_lengths_and_samples_are_as_long_as_they_are(
    home: Path, catalogue: Catalogue
) -> None:
    profile = next(iter(catalogue.profiles.values()))
    assert profile.length == LONGEST
    assert [each.length for each in profile.shorter] == [3, 6, 12]
    assert all([p.batch for p in each.points] == [1, 4] for each in profile.shorter)
    samples = app_samples(catalogue.apps["mine"], home)
    assert len({tensors[0].shape[1] for tensors in samples.inputs}) > 3


async def test_texts_of_different_length_are_answered_in_one_batch_as_each_alone(
    home: Path, catalogue: Catalogue
) -> None:
    executor = OnnxExecutor(Registered(home).folder, catalogue.apps)
    variant = next(iter(catalogue.variants.values()))
    texts = [text(n) for n in (3, LONGEST, 1, 12)]
    two = Tensor("text", "INT64", (2, 3), bytes(texts[0].data) * 2)
    await executor.start()
    try:
        await executor.load(variant, max_batch=8)
        together = await executor.run(variant.name, [[t] for t in (*texts, two)], 6)
        scores = np.frombuffer(together.outputs[0].data, "<f4").reshape(-1, CLASSES)
        assert scores[:, 0].tolist() == [3.0, LONGEST, 1.0, 12.0, 3.0, 3.0]
        with pytest.raises(ExecutionError, match="INT64"):
            await executor.run(variant.name, [[text(LONGEST + 1)]], 1)
    finally:
        await executor.close()


@pytest.mark.parametrize(
    ("model", "changes", "field", "told"),
    [
        (bag_of_words(filler=0.5), {}, "model", "zeros behind"),
        (bag_of_words("ReduceMean"), {}, "model", "zeros behind"),
        (bag_of_words(length=LONGEST), {}, "varying", "free axis"),
        (bag_of_words(), {"varying": ("words",)}, "varying", "no input"),
    ],
)
def test_a_model_that_cannot_vary_in_length_is_refused_in_one_line(
    tmp_path: Path, model: ModelProto, changes: dict[str, Any], field: str, told: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        register(asked(tmp_path, model, **changes), tmp_path / "home")
    assert (refused.value.field, told in refused.value.problem) == (field, True), refused.value
    assert Registered(tmp_path / "home").apps() == ()


async def test_a_running_system_batches_by_rows_and_length(
    home: Path, catalogue: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emulated devices: what a batch takes is the profile's, and each query is answered."""
    lengths: list[set[int]] = []
    run = SliceRunner.run

    def watched(self: SliceRunner, batch: Any) -> None:
        lengths.append({query.length for query in batch.run.queries})
        run(self, batch)

    monkeypatch.setattr(SliceRunner, "run", watched)
    settings = settings_for("memory://", tmp_path, devices=1)
    async with running(settings, MemoryBroker(), catalogue=catalogue) as live:
        await live.planned()
        for i in range(30):
            await send(live.system, live.send, f"q{i}", 1 + i % LONGEST)
        report = await live.settled()
        assert report.queries == 30
        outcomes = await live.outcomes()
    assert {o.kind for o in outcomes.values()} == {"answered"}
    assert set().union(*lengths) == set(range(1, LONGEST + 1))


async def send(system: System, produce: Any, query_id: str, length: int) -> None:
    parameters = {"latency_ms": 20_000.0}
    message = codec.encode_query(query_id, (text(length),), app="mine", now=system.clock.wall(), parameters=parameters)
    await produce("mine", message.value, key=message.key, headers=message.headers)

"""Whatever is given to be registered, a refusal is one clear line and leaves nothing visible."""

import io
import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.executors.onnx import variant_builder, variant_child
from sluicegate.executors.onnx.variant_builder import GeneratorLimits
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.sluice.registration.register import Request, register
from tests.models.registration_models import (
    CLASSES,
    FEATURES,
    ROWS,
    labelled_rows,
    linear,
    model_of,
    request_of,
    weights,
    wide_as_its_first,
    with_features,
    write_model,
    write_rows,
)

Make = Callable[[Path], Request]


def with_model(make: Callable[[Path], onnx.ModelProto | bytes]) -> Make:
    return lambda folder: request_of(write_model(folder, make(folder)), write_rows(folder))


def with_rows(make: Callable[[Path], Path]) -> Make:
    return lambda folder: request_of(write_model(folder, linear()), make(folder))


def external(location: str, **more: str) -> Callable[[Path], onnx.ModelProto]:
    """The linear model, its weights said to lie at ``location``."""

    def make(folder: Path) -> onnx.ModelProto:
        (folder.parent / "outside.bin").write_bytes(weights().tobytes())
        model = linear()
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = T.EXTERNAL
        for key, value in {"location": location, **more}.items():
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
        return model

    return make


def behind_a_link(folder: Path) -> onnx.ModelProto:
    model = external("link.bin")(folder)
    (folder / "link.bin").symlink_to(folder.parent / "outside.bin")
    return model


def beyond_the_end(folder: Path) -> onnx.ModelProto:
    (folder / "weights.bin").write_bytes(b"\0" * 10)
    return external("weights.bin", offset="4", length="128")(folder)


def with_weights(value: float) -> Callable[[Path], onnx.ModelProto]:
    def make(_: Path) -> onnx.ModelProto:
        spoilt = weights()
        spoilt[0, 0] = value
        return model_of([h.make_node("MatMul", ["x", "w"], ["scores"])], {"w": spoilt})

    return make


def lying_weights(_: Path) -> onnx.ModelProto:
    model = linear()
    model.graph.initializer[0].dims[0] = 1 << 20
    return model


def custom_operator(_: Path) -> onnx.ModelProto:
    model = model_of([h.make_node("Steal", ["x"], ["scores"], domain="com.evil")])
    model.opset_import.append(h.make_opsetid("com.evil", 1))
    return model


def of_rows_together(_: Path) -> onnx.ModelProto:
    """Takes the mean of the batch off every row."""
    return model_of(
        [
            h.make_node("MatMul", ["x", "w"], ["all"]),
            h.make_node("ReduceMean", ["all"], ["mean"], axes=[0], keepdims=1),
            h.make_node("Sub", ["all", "mean"], ["scores"]),
        ],
        {"w": weights()},
    )


def fixed_at_three(_: Path) -> onnx.ModelProto:
    """Its batch of three cannot be made free: three rows are added up in a shape that is spelt out inside."""
    return model_of(
        [
            h.make_node("Reshape", ["x", "shape"], ["flat"]),
            h.make_node("MatMul", ["flat", "w"], ["scores"]),
        ],
        {"shape": np.array([1, 3 * FEATURES], np.int64), "w": np.tile(weights(), (3, 1))},
        inputs=[h.make_tensor_value_info("x", T.FLOAT, [3, FEATURES])],
        outputs=[h.make_tensor_value_info("scores", T.FLOAT, [1, CLASSES])],
    )


def endless(_: Path) -> onnx.ModelProto:
    body = h.make_graph(
        [h.make_node("Identity", ["go"], ["go_on"]), h.make_node("Add", ["state", "one"], ["next"])],
        "body",
        [
            h.make_tensor_value_info("i", T.INT64, []),
            h.make_tensor_value_info("go", T.BOOL, []),
            h.make_tensor_value_info("state", T.FLOAT, ["n", CLASSES]),
        ],
        [h.make_tensor_value_info("go_on", T.BOOL, []), h.make_tensor_value_info("next", T.FLOAT, ["n", CLASSES])],
        [onnx.numpy_helper.from_array(np.float32(1), "one")],
    )
    return model_of(
        [
            h.make_node("MatMul", ["x", "w"], ["start"]),
            h.make_node("Loop", ["times", "yes", "start"], ["scores"], body=body),
        ],
        {"w": weights(), "times": np.int64(1 << 60), "yes": np.bool_(True)},
    )


def devouring(_: Path) -> onnx.ModelProto:
    """Asks for two terabytes at every run."""
    return model_of(
        [
            h.make_node("ConstantOfShape", ["huge"], ["zeros"]),
            h.make_node("ReduceSum", ["zeros"], ["nothing"], keepdims=0),
            h.make_node("MatMul", ["x", "w"], ["all"]),
            h.make_node("Add", ["all", "nothing"], ["scores"]),
        ],
        {"w": weights(), "huge": np.array([1 << 20, 1 << 19], np.int64)},
    )


def sparse_file(name: str, size: int) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        with path.open("wb") as file:
            file.truncate(size)
        return path

    return make


def bomb(folder: Path) -> Path:
    """Eight gigabytes of zeros, that a small archive says it unpacks to."""
    path = folder / "rows.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"")
        archive.writestr("label.npy", b"")
    data = bytearray(path.read_bytes())
    at = -1
    while (at := data.find(b"PK\x01\x02", at + 1)) >= 0:
        data[at + 24 : at + 28] = (0xFFFFFFF0).to_bytes(4, "little")  # the directory's entry: uncompressed size
    path.write_bytes(data)
    return path


def lying_header(folder: Path) -> Path:
    """An array that says it has a trillion rows."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, FEATURES)})
    path = folder / "rows.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", file.getvalue())
    return path


def truncated_rows(folder: Path) -> Path:
    path = write_rows(folder)
    path.write_bytes(path.read_bytes()[:2000])
    return path


def pickled(folder: Path) -> Path:
    path = folder / "rows.npz"
    np.savez(path, x=np.array([{"no": 1}], dtype=object), label=np.zeros(1))
    return path


def leaving_folder(folder: Path) -> Path:
    rows = folder / "rows"
    rows.mkdir()
    outside = folder / "outside.npy"
    np.save(outside, labelled_rows()[0])
    (rows / "x.npy").symlink_to(outside)
    np.save(rows / "label.npy", labelled_rows()[1])
    return rows


X, LABELS = labelled_rows()
SPOILT = X.copy()
SPOILT[3, 1] = np.nan


def arrays(**given: object) -> Make:
    return with_rows(lambda folder: write_rows(folder, **given))  # type: ignore[arg-type]


CASES: dict[str, tuple[Make, str, str]] = {
    "no such model": (lambda f: request_of(f / "none.onnx", write_rows(f)), "model", "not there"),
    "a folder for a model": (lambda f: request_of(f, write_rows(f)), "model", "is a folder"),
    "an empty model": (with_model(lambda _: b""), "model", "is empty"),
    "a truncated model": (with_model(lambda _: linear().SerializeToString()[:-40]), "model", "truncated"),
    "another format": (with_model(lambda _: b"PK\x03\x04 not a graph"), "model", "cannot be read as ONNX"),
    "a model of over two gigabytes": (
        lambda f: request_of(sparse_file("model.onnx", (1 << 31) + 5)(f), write_rows(f)), "model", "at most"
    ),
    "an opset that is too new": (with_model(lambda _: linear(opset=999)), "model", "opset 999"),
    "an opset that is too old": (with_model(lambda _: linear(opset=2)), "model", "opset 2"),
    "an unknown operator": (
        with_model(lambda _: model_of([h.make_node("Conjure", ["x"], ["scores"])])), "model", "'Conjure'"
    ),
    "custom code": (with_model(custom_operator), "model", "custom code"),
    "weights in a folder above": (with_model(external("../outside.bin")), "model", "outside its folder"),
    "weights at an absolute path": (with_model(external("/etc/passwd")), "model", "outside its folder"),
    "weights behind a link": (with_model(behind_a_link), "model", "link"),
    "weights that are missing": (with_model(external("gone.bin")), "model", "not there"),
    "weights beyond a file's end": (with_model(beyond_the_end), "model", "beyond the end"),
    "NaN weights": (with_model(with_weights(np.nan)), "model", "NaN or infinite"),
    "infinite weights": (with_model(with_weights(np.inf)), "model", "NaN or infinite"),
    "weights smaller than they say": (with_model(lying_weights), "model", "not as large as they say"),
    "a cycle": (
        with_model(
            lambda _: model_of([h.make_node("Add", ["x", "b"], ["a"]), h.make_node("Add", ["a", "x"], ["b"]),
                                h.make_node("Add", ["a", "b"], ["scores"])])
        ),
        "model",
        "not valid ONNX",
    ),
    "shapes that do not fit": (
        with_model(lambda _: model_of([h.make_node("MatMul", ["x", "w"], ["scores"])], {"w": weights()[1:]})),
        "model",
        "does not run",
    ),
    "no input": (
        with_model(lambda _: model_of([h.make_node("Identity", ["w"], ["scores"])], {"w": weights()}, inputs=[])),
        "model",
        "takes no input",
    ),
    "complex numbers for input": (
        with_model(
            lambda _: model_of(
                [h.make_node("Identity", ["x"], ["y"]), h.make_node("MatMul", ["w", "w"], ["scores"])],
                {"w": np.eye(CLASSES, dtype=np.float32)},
                inputs=[h.make_tensor_value_info("x", T.COMPLEX64, ["n"])],
            )
        ),
        "model",
        "COMPLEX64",
    ),
    "texts for input, numbers to check it by": (
        with_model(
            lambda _: model_of(
                [h.make_node("Identity", ["x"], ["y"]), h.make_node("MatMul", ["w", "w"], ["scores"])],
                {"w": np.eye(CLASSES, dtype=np.float32)},
                inputs=[h.make_tensor_value_info("x", T.STRING, ["n"])],
            )
        ),
        "validation",
        "holds float32; give texts",
    ),
    "no batch axis": (
        with_model(
            lambda _: model_of(
                [h.make_node("Identity", ["x"], ["scores"])],
                inputs=[h.make_tensor_value_info("x", T.FLOAT, [])],
                outputs=[h.make_tensor_value_info("scores", T.FLOAT, [])],
            )
        ),
        "model",
        "no numbers or texts a row",
    ),
    "a batch that cannot be freed": (with_model(fixed_at_three), "model", "fixes its batch at 3"),
    "a name too long": (with_model(lambda _: with_features([2, 4], "y" * 129)), "model", "at most 128 characters"),
    "many outputs": (with_model(lambda _: with_features([2, 4], *map(str, range(32)))), "model", "at most 32 items"),
    "too many axes": (with_model(lambda _: with_features([FEATURES, *[1] * 8], "deep")), "model", "at most 8 items"),
    "rows of another shape each time": (with_model(lambda _: wide_as_its_first()), "model", "rows of shape [1] and of"),
    "rows that depend on each other": (with_model(of_rows_together), "model", "depend on each other"),
    "a model that never ends": (with_model(endless), "model", "took more than"),
    "a model that takes all memory": (with_model(devouring), "model", "does not run"),
    "no such rows": (with_rows(lambda f: f / "none.npz"), "validation", "not there"),
    "truncated rows": (with_rows(truncated_rows), "validation", "cannot be read"),
    "rows of over four gigabytes": (with_rows(bomb), "validation", "unpacks to"),
    "a header that lies": (with_rows(lying_header), "validation", "memory"),
    "pickled objects": (with_rows(pickled), "validation", "not unpickled"),
    "a link out of the folder": (with_rows(leaving_folder), "validation", "leaves the folder"),
    "no labels": (arrays(x=X), "validation", "no true answers"),
    "too few labels": (arrays(x=X, label=LABELS[1:]), "validation", f"{ROWS} rows"),
    "no rows": (arrays(x=X[:0], label=LABELS[:0]), "validation", "0 rows"),
    "labels of no class": (arrays(x=X, label=LABELS + 3), "validation", "true answer"),
    "labels of another model": (arrays(x=X, label=np.roll(LABELS, 7)), "validation", "wrong labels"),
    "labels that are texts": (arrays(x=X, label=np.array(["cat"] * ROWS)), "validation", "texts as true answers"),
    "rows of another shape": (arrays(x=X[:, 1:], label=LABELS), "validation", "shape"),
    "rows with NaN": (arrays(x=SPOILT, label=LABELS), "validation", "NaN"),
    "rows of other inputs": (arrays(a=X, b=X, label=LABELS), "validation", "no array for input 'x'"),
    "a metric that is unknown": (
        lambda f: request_of(write_model(f, linear()), write_rows(f), metric="vibes"), "metric", "'vibes'"
    ),
    "a name that climbs": (
        lambda f: request_of(write_model(f, linear()), write_rows(f), app="../mine"), "app", "../mine': name it by"
    ),
    "a promise that cannot be broken": (
        lambda f: request_of(write_model(f, linear()), write_rows(f), promise=Promise(weakly_hard=(WeaklyHard(5, 5),))),
        "weakly_hard",
        "m < K",
    ),
    "an SLO in the past": (
        lambda f: request_of(write_model(f, linear()), write_rows(f), slo=-1.0), "slo", "-1"
    ),
}  # fmt: skip


IN_A_PROCESS = {"a truncated model", "another format", "custom code", "weights in a folder above", "a cycle"}
"""Cases whose model a process of its own reads, as for a user; the others are read by what such a process runs."""


@pytest.fixture(autouse=True)
def read_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process a model costs a second each: reading is the same in this one, whose memory stays unlimited."""
    spec = getattr(request.node, "callspec", None)
    if spec is None or spec.params["name"] in IN_A_PROCESS:
        return

    async def run(folder: Path, task: dict[str, Any], limits: GeneratorLimits) -> dict[str, Any]:
        (folder / variant_child.TASK).write_text(json.dumps({**task, "memory_bytes": limits.memory_bytes}))
        return variant_child.work(folder)

    monkeypatch.setattr(variant_child, "limit_memory", lambda _bytes: None)
    monkeypatch.setattr(variant_builder, "_run", run)


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_model_or_set_ends_in_one_clear_line_and_nothing_is_registered(name: str, tmp_path: Path) -> None:
    make, field, told = CASES[name]
    folder, home = tmp_path / "in", tmp_path / "home"
    folder.mkdir()
    request = make(folder)
    if name == "a model that never ends":
        request = replace(request, run_timeout=1.5)
    with pytest.raises(InvalidInputError) as refused:
        register(request, home)
    assert refused.value.field == field
    assert told in refused.value.problem, refused.value.problem
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600
    assert Registered(home).apps() == ()
    assert Registered(home).versions("mine") == ()


def test_a_home_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        home = Path("/proc/nowhere")
    else:
        home = tmp_path / "home"
        home.mkdir(mode=0o500)
    with pytest.raises(ConfigurationError, match="SLUICE_HOME"):
        register(request_of(write_model(tmp_path, linear()), write_rows(tmp_path)), home)

"""Students answer as their teacher does, the wider the closer, by the names, types and shapes that it has."""

import os
import subprocess
import sys
import threading

import numpy as np
import onnxruntime as ort
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.executors.emulated import EmulatedExecutor
from sluicegate.executors.evaluation import Evaluation
from sluicegate.profiles.registration import students
from sluicegate.profiles.registration.students import student
from sluicegate.profiles.registration.validation_set import Array, ValidationSet
from sluicegate.sluice.registration import student_models
from sluicegate.sluice.registration.student_models import shared
from tests.harness import toy_catalogue

CATALOGUE = toy_catalogue(("any",))

INPUTS = (TensorSpec("pixels", "UINT8", (2, 3)), TensorSpec("more", "FP32", (4,)))
OUTPUTS = (TensorSpec("scores", "FP32", (3,)), TensorSpec("kind", "INT32", (1,)))


def rows(count: int, seed: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs, and what a teacher that is not linear answers: its classes are 7, 8 and 20."""
    rng = np.random.default_rng(seed)
    given = {
        "pixels": rng.integers(0, 255, (count, 2, 3)).astype(np.uint8),
        "more": rng.standard_normal((count, 4)).astype(np.float32),
    }
    x = np.concatenate([given["pixels"].reshape(count, -1) / 128.0 - 1.0, given["more"]], axis=1)
    hidden = np.abs(x @ np.random.default_rng(1).standard_normal((10, 6)))
    scores = ((hidden - hidden.mean(axis=0)) @ np.random.default_rng(2).standard_normal((6, 3))).astype(np.float32)
    return given, {"scores": scores, "kind": np.array([7, 8, 20], np.int32)[np.argmax(scores, 1)][:, None]}


def agreement(width: int) -> float:
    """Share of rows never learned from in which a student has its teacher's class."""
    given, answers = rows(1500, 3)
    model = student(INPUTS, OUTPUTS, given, answers, width=width, seed=0)
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    unseen, truth = rows(500, 4)
    scores, kind = session.run(["scores", "kind"], unseen)
    assert (scores.dtype, scores.shape, kind.dtype, kind.shape) == (np.float32, (500, 3), np.int32, (500, 1))
    assert set(kind.ravel().tolist()) <= {7, 8, 20}
    return float((kind == truth["kind"]).mean())


def test_the_wider_a_student_the_closer_it_answers() -> None:
    linear, narrow, wide = (agreement(width) for width in (0, 32, 512))
    assert linear + 0.1 < wide and narrow + 0.05 < wide
    assert wide > 0.75


@pytest.mark.parametrize("name", ["features", "student.row", "head", "part0"])
def test_a_student_takes_and_gives_what_its_teacher_does_whatever_that_is_called(name: str) -> None:
    given, answers = rows(50, 3)
    inputs = (TensorSpec(name, "UINT8", (2, 3)),)
    outputs = (TensorSpec("columns", "FP32", (3,)), TensorSpec("shifted", "INT32", (1,)))
    taught = {"columns": answers["scores"], "shifted": answers["kind"]}
    model = student(inputs, outputs, {name: given["pixels"]}, taught, width=4, seed=0)
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    columns, shifted = session.run(["columns", "shifted"], {name: given["pixels"]})
    assert (columns.shape, shifted.shape) == ((50, 3), (50, 1))


def test_what_cannot_be_taught_is_said() -> None:
    given, _ = rows(50, 3)
    spec = TensorSpec("boxes", "INT64", (2,))
    with pytest.raises(InvalidInputError, match="output 'boxes' is neither numbers nor a class a row"):
        student(INPUTS, (spec,), given, {"boxes": np.zeros((50, 2), np.int64)}, width=0, seed=0)


def test_no_row_that_is_learned_from_scores() -> None:
    held = ValidationSet({"x": np.zeros((200, 1))}, np.zeros(200, np.int64))
    order = np.random.default_rng(0).permutation(200)
    parts = shared(held, order, 50, learn=True)
    assert [len(part) for part in parts] == [50, 75, 75]
    assert sorted(np.concatenate(parts).tolist()) == list(range(200))
    assert [len(part) for part in shared(held, order, 50, learn=False)] == [50, 0, 150]
    with pytest.raises(InvalidInputError, match="90 are too few; give 100 at least"):
        shared(held.take(order[:90]), order[:90], 22, learn=True)


def test_rows_with_more_numbers_than_there_are_rows_are_solved_as_any(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    features, y = rng.standard_normal((10, 30)), rng.standard_normal((10, 2))
    monkeypatch.setattr(students, "_PENALTIES", (0.1,))
    head, offset = students._ridge(features, y, rng)
    middle, level = features.mean(axis=0), y.mean(axis=0)
    gram = (features - middle).T @ (features - middle)
    expected = np.linalg.solve(gram + 0.1 * np.trace(gram) / 30 * np.eye(30), (features - middle).T @ (y - level))
    assert head == pytest.approx(expected) and offset == pytest.approx(level - middle @ expected)


def test_a_student_of_rows_of_images_takes_a_few_times_what_the_rows_do() -> None:
    asked = """
import numpy as np
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.executors.onnx.child import limit_memory, mapped_bytes
from sluicegate.profiles.registration.students import student

rng = np.random.default_rng(0)
images = rng.integers(0, 255, (100, 3, 128, 128)).astype(np.uint8)
scores = np.stack([images[:, 0].mean(axis=(1, 2)), images[:, 1].mean(axis=(1, 2))], 1).astype(np.float32)
inputs, outputs = (TensorSpec("x", "UINT8", (3, 128, 128)),), (TensorSpec("y", "FP32", (2,)),)
limit_memory(mapped_bytes() + (1 << 30))
model = student(inputs, outputs, {"x": images}, {"y": scores}, width=0, seed=0)
print(len(model) > 2 * 4 * 3 * 128 * 128)
"""
    variables = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False, env=variables)
    assert (told.stdout.strip(), told.stderr) == ("True", "")


async def test_rows_are_learned_from_beside_the_event_loop_and_are_no_more_than_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fitted: list[tuple[str, int]] = []

    async def evaluate(executor: object, teacher: object, inputs: object, rows: ValidationSet) -> Evaluation:
        return Evaluation({"y": np.zeros((rows.rows, 2), np.float32)}, True)

    def fit(_: object, __: object, given: dict[str, Array], answers: dict[str, Array], **___: int) -> bytes:
        fitted.append((threading.current_thread().name, len(given["x"])))
        return b"model"

    monkeypatch.setattr(student_models, "evaluate", evaluate)
    monkeypatch.setattr(student_models, "student", fit)
    monkeypatch.setattr(student_models, "_MOST_NUMBERS", 1000)
    rows = ValidationSet({"x": np.zeros((200, 3, 2)), "z": np.zeros((200, 4))}, np.zeros(200, np.int64))
    inputs = (TensorSpec("x", "FP64", (3, 2)), TensorSpec("z", "FP64", (4,)))
    outputs = (TensorSpec("y", "FP32", (2,)),)
    executor, teacher = EmulatedExecutor(CATALOGUE, "cpu"), next(iter(CATALOGUE.variants.values()))
    found = [name async for name, _ in student_models.students(executor, teacher, inputs, outputs, rows, 0)]
    assert found == ["student-linear", "student-32"]
    assert [count for _, count in fitted] == [100, 100]
    assert threading.main_thread().name not in {thread for thread, _ in fitted}

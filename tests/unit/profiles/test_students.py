"""Students answer as their teacher does, the wider the closer, by the names, types and shapes that it has."""

import numpy as np
import onnxruntime as ort
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.profiles.registration.students import student
from sluicegate.profiles.registration.validation_set import Array, ValidationSet
from sluicegate.sluice.registration.student_models import shared

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

"""Which of a model's outputs is its answer, and whether it can be held against the true ones. Pure.

Rules. For classes that are texts: an output of texts, one a row. For numbered ones: an output of integers, one a row,
is the answer (one named like a label first); else the position of the largest of an output of scores [n, classes >= 2];
else, of a single score a row, whether it is above one half. For numbers: the first output of floats, one a row. True
answers that the model cannot give are an error, and so is a model that does no better than always saying the commonest:
its labels, or the scaling of its inputs, are then not those that it was trained with.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sluicegate.domain.errors import InvalidInputError
from sluicegate.profiles.registration import task_metrics
from sluicegate.profiles.registration.validation_set import Array

Reading = Literal["label", "scores", "score", "number", "text"]


@dataclass(frozen=True, slots=True)
class AnswerOutput:
    """Output ``name`` read as ``reading``: a label, the largest of the scores, a score above 1/2, a number, a text."""

    name: str
    reading: Reading


def answer_output(outputs: Mapping[str, Array], metric: str, *, texts: bool = False) -> AnswerOutput:
    """By the rules above; ``outputs``: arrays [n, ...] by name, ``texts``: the true answers are. InvalidInputError."""
    flat = {name: a for name, a in outputs.items() if a.ndim == 1 or (a.ndim == 2 and a.shape[1] == 1)}
    if texts:
        return _text_output(outputs, flat, metric)
    if metric in task_metrics.REGRESSION:
        for name, array in flat.items():
            if array.dtype.kind == "f":
                return AnswerOutput(name, "number")
        raise InvalidInputError("metric", f"{metric} needs an output of one number a row; {_shown(outputs)}")
    integers = [name for name, array in flat.items() if array.dtype.kind in "iu"]
    if integers:
        named = [name for name in integers if "label" in name.lower() or "class" in name.lower()]
        return AnswerOutput((named or integers)[0], "label")
    for name, array in outputs.items():
        if array.ndim == 2 and array.shape[1] >= 2 and array.dtype.kind == "f":
            return AnswerOutput(name, "scores")
    for name, array in flat.items():
        if array.dtype.kind in "fb":
            return AnswerOutput(name, "score")
    raise InvalidInputError("model", f"gives no class a row that {metric} could judge; {_shown(outputs)}")


def _text_output(outputs: Mapping[str, Array], flat: Mapping[str, Array], metric: str) -> AnswerOutput:
    if metric in task_metrics.REGRESSION:
        raise InvalidInputError("metric", f"{metric} is of numbers, and the true answers are texts; choose another")
    for name, array in flat.items():
        if array.dtype.kind == "O":
            return AnswerOutput(name, "text")
    raise InvalidInputError("validation", f"has texts as true answers, and the model gives none; {_shown(outputs)}")


def answers_of(output: AnswerOutput, values: Array) -> Array:
    """What the model answers, [n]: class numbers, or numbers."""
    match output.reading:
        case "label":
            return values.reshape(-1).astype(np.int64)
        case "scores":
            return np.asarray(np.argmax(values, axis=1), np.int64)
        case "score":
            return (values.reshape(-1) > 0.5).astype(np.int64)
        case "number":
            return values.reshape(-1).astype(np.float64)
        case "text":
            return values.reshape(-1).astype(np.str_)


def check_truth(output: AnswerOutput, values: Array, truth: Array) -> None:
    """Raise InvalidInputError where the true answers cannot be what this output answers."""
    if output.reading == "number":
        return
    if truth.dtype.kind == "f":
        raise InvalidInputError("validation", "the true answers are no class numbers; give these, or --metric r2")
    classes = {"scores": values.shape[-1], "score": 2}.get(output.reading)
    if classes is not None:
        wrong = (truth < 0) | (truth >= classes)
        if wrong.any():
            raise InvalidInputError(
                "validation",
                f"true answer {int(truth[wrong][0])} in {int(wrong.sum())} rows; the model knows 0 to "
                f"{classes - 1}: number the classes as in training",
            )
    elif not np.isin(truth, answers_of(output, values)).any():
        raise InvalidInputError(
            "validation", "no true answer is ever among the model's answers; name the classes as in training"
        )


def check_skill(metric: str, answers: Array, truth: Array) -> None:
    """Raise InvalidInputError for a model that knows no more than the commonest answer."""
    found, chance = task_metrics.score(metric, answers, truth), task_metrics.chance(metric, truth)
    if found.value <= chance + 2.0 * found.se:
        raise InvalidInputError(
            "validation",
            f"the model's {metric} on it is {100 * found.value:.1f} ± {100 * found.se:.1f} %, and always giving the "
            f"commonest answer has {100 * chance:.1f} %: wrong labels, or inputs prepared otherwise than in training",
        )


def _shown(outputs: Mapping[str, Array]) -> str:
    return "it gives " + ", ".join(f"{name[:40]} {a.dtype}{list(a.shape)}" for name, a in list(outputs.items())[:6])

"""Making a family of one model: rows that students learn from, the teacher's answers to them, and the students."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import numpy as np

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.executor import Executor
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.executors.evaluation import Evaluation, evaluate
from sluicegate.profiles.registration.students import WIDTHS, student
from sluicegate.profiles.registration.validation_set import Array, ValidationSet

LEAST_ROWS = 100
"""Rows of a validation set that may be shared between learning and scoring."""
_MOST_ROWS = 8000
_MOST_NUMBERS = 1 << 27
"""Of all rows that students learn from: 1 GiB, of which fitting takes a few copies."""
_BUDGET = 20.0
"""Seconds that the teacher may take to answer."""
_MIXED = 4
"""Rows made of two others, for each that is there: the teacher answers them as well."""


def shared(rows: ValidationSet, order: Array, calibrating: int, learn: bool) -> tuple[Array, Array, Array]:
    """Indices of the rows that calibrate, that students learn from, and that score; no row does two of these.

    Raises InvalidInputError where there are too few to share.
    """
    if learn and rows.rows < LEAST_ROWS:
        raise InvalidInputError(
            "--make-family",
            f"shares the rows between learning and scoring, and {rows.rows} are too few; give {LEAST_ROWS} at least",
        )
    rest = order[calibrating:]
    half = min(len(rest) // 2, _MOST_ROWS) if learn else 0
    return order[:calibrating], rest[:half], np.sort(rest[half:])


async def students(
    executor: Executor,
    teacher: Variant,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    rows: ValidationSet,
    seed: int,
) -> AsyncIterator[tuple[str, bytes]]:
    """Name and graph of each student of ``teacher``, as it is fitted. Raises InvalidInputError where none can be."""
    if any(spec.varying for spec in inputs):
        raise InvalidInputError("--make-family", "takes rows of one length; train smaller models yourself")
    rng = np.random.default_rng(seed)
    began = time.monotonic()
    few = rows.take(np.arange(min(64, rows.rows)))
    await evaluate(executor, teacher, inputs, few)
    a_row = (time.monotonic() - began) / few.rows
    fitting = _MOST_NUMBERS // sum(spec.row_elements for spec in inputs)
    most = max(few.rows, min(_MOST_ROWS, int(_BUDGET / max(a_row, 1e-6)), fitting))
    learned = _with_mixed(rows.take(np.arange(min(rows.rows, most))), inputs, most, rng)
    found: Evaluation = await evaluate(executor, teacher, inputs, learned)
    for width in WIDTHS:
        if width <= learned.rows // 2:
            name = f"student-{width}" if width else "student-linear"
            learns = (inputs, outputs, learned.inputs, found.outputs)
            yield name, await asyncio.to_thread(student, *learns, width=width, seed=seed)


def _with_mixed(
    rows: ValidationSet, inputs: Sequence[TensorSpec], most: int, rng: np.random.Generator
) -> ValidationSet:
    """``rows``, and between them, where all inputs are floats, others: means of two, weighed at random."""
    count = min(_MIXED * rows.rows, most - rows.rows)
    if count < 1 or any(not spec.datatype.startswith("FP") for spec in inputs):
        return rows
    one, other = rng.integers(0, rows.rows, (2, count))
    weight = rng.uniform(0.0, 1.0, count)

    def mixed(array: Array) -> Array:
        by_row = weight.reshape(-1, *([1] * (array.ndim - 1)))
        between = by_row * array[one] + (1.0 - by_row) * array[other]
        return np.concatenate([array, between.astype(array.dtype)])

    labels = np.concatenate([rows.labels, rows.labels[one]])  # of which nothing is learned
    return ValidationSet({name: mixed(array) for name, array in rows.inputs.items()}, labels)

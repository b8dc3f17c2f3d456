"""Runs a variant on a validation set, through the executor that will serve it.

Rules. Every row is answered in a batch; for the registered model some rows are also answered alone, and a model whose
answers change with the company of a row is refused: its rows would depend on whose queries they are batched with.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluicegate.domain.errors import ExecutionError, InvalidInputError, LoadError
from sluicegate.domain.executor import Executed, Executor
from sluicegate.domain.models.tensor import Tensor, TensorSpec, cut
from sluicegate.domain.models.variant import Variant
from sluicegate.executors.dtypes import DATATYPES, Array, array_of, data_of
from sluicegate.executors.profile_runner import Progress, silent
from sluicegate.profiles.registration.validation_set import ValidationSet

BATCH = 16
_ALONE = 8
"""Rows that are answered alone as well."""
_RELATIVE, _ABSOLUTE = 1e-2, 1e-3
"""How far a row's scores may differ between a batch and alone: sums in another order, not another answer."""


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """A variant's outputs on a validation set. ``outputs``: arrays [n, ...] by name. ``finite``: no value of them is
    NaN or infinite."""

    outputs: Mapping[str, Array]
    finite: bool


async def evaluate(
    executor: Executor, variant: Variant, inputs: Sequence[TensorSpec], rows: ValidationSet, progress: Progress = silent
) -> Evaluation:
    """Answer all ``rows``. Raises InvalidInputError with one line where the model cannot be loaded or run."""
    parts: list[dict[str, Array]] = []
    try:
        await executor.load(variant, max_batch=BATCH)
        for start in range(0, rows.rows, BATCH):
            parts.append(await _run(executor, variant, inputs, rows, start, min(BATCH, rows.rows - start)))
            progress(f"answer with {variant.name}", min(1.0, (start + BATCH) / rows.rows))
        await executor.unload(variant.name)
    except (LoadError, ExecutionError) as error:
        raise InvalidInputError("model", f"does not run: {_plain(error)}") from error
    for name in parts[0]:
        if len(shapes := {part[name].shape[1:] for part in parts}) > 1:
            one, another, *_ = map(list, sorted(shapes))
            raise InvalidInputError(
                "model", f"output {name[:60]!r} has rows of shape {one} and of {another}; export it with one shape"
            )
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    finite = all(bool(np.isfinite(a).all()) for a in outputs.values() if a.dtype.kind == "f")
    return Evaluation(outputs, finite)


async def check_batches(
    executor: Executor, variant: Variant, inputs: Sequence[TensorSpec], rows: ValidationSet, batched: Evaluation
) -> None:
    """Raise InvalidInputError where rows are answered otherwise alone than ``batched``, or not at all."""
    try:
        await executor.load(variant, max_batch=BATCH)
        alone = [await _run(executor, variant, inputs, rows, i, 1) for i in range(min(_ALONE, rows.rows))]
        await executor.unload(variant.name)
    except (LoadError, ExecutionError) as error:
        raise InvalidInputError("model", f"does not run on a single row: {_plain(error)}") from error
    for name, whole in batched.outputs.items():
        single = np.concatenate([part[name] for part in alone])
        if single.shape[1:] != whole.shape[1:] or not _same(single, whole[: len(single)]):
            raise InvalidInputError(
                "model",
                f"output {name[:60]!r} of a row differs in a batch of {BATCH} from the row alone: "
                "rows depend on each other; export it with a free batch axis, in inference mode",
            )


async def check_lengths(
    executor: Executor, variant: Variant, inputs: Sequence[TensorSpec], rows: ValidationSet, batched: Evaluation
) -> None:
    """Raise InvalidInputError where the shortest rows are answered otherwise without the zeros behind them."""
    lengths = true_lengths(inputs, rows)
    if int(lengths.min()) == max(s.row_shape[0] for s in inputs if s.varying):
        raise InvalidInputError(
            "varying", "no row ends in zeros, so none is shorter; leave it out, or fill up with zeros"
        )
    shortest = np.argsort(lengths, kind="stable")[:_ALONE]
    try:
        await executor.load(variant, max_batch=BATCH)
        alone = []
        for i in shortest.tolist():
            tensors = cut(inputs, query_of(inputs, rows, i), int(lengths[i]))
            alone.append(_arrays(await executor.run(variant.name, [tensors], 1)))
        await executor.unload(variant.name)
    except (LoadError, ExecutionError) as error:
        raise InvalidInputError("model", f"does not run on a shorter row: {_plain(error)}") from error
    for name, whole in batched.outputs.items():
        shapes = {part[name].shape[1:] for part in alone}
        if shapes != {whole.shape[1:]} or not _same(np.concatenate([p[name] for p in alone]), whole[shortest]):
            raise InvalidInputError(
                "model",
                f"output {name[:60]!r} of a row changes with the zeros behind it: "
                "mask them in the graph, or register it without --varying",
            )


def true_lengths(inputs: Sequence[TensorSpec], rows: ValidationSet) -> npt.NDArray[np.int64]:
    """[n]: length of each row without the zeros it was filled up with, at least 1."""
    found = np.ones(rows.rows, np.int64)
    for spec in inputs:
        if spec.varying:
            array = rows.inputs[spec.name]
            filled = (array != 0).reshape(rows.rows, spec.row_shape[0], -1).any(axis=2)
            last = np.where(filled.any(axis=1), spec.row_shape[0] - np.argmax(filled[:, ::-1], axis=1), 1)
            found = np.maximum(found, last)
    return found


async def _run(
    executor: Executor, variant: Variant, inputs: Sequence[TensorSpec], rows: ValidationSet, start: int, count: int
) -> dict[str, Array]:
    tensors = query_of(inputs, rows, start, count)
    return _arrays(await executor.run(variant.name, [tensors], count))


def _arrays(done: Executed) -> dict[str, Array]:
    return {t.name: array_of(t) for t in done.outputs}


def query_of(inputs: Sequence[TensorSpec], rows: ValidationSet, start: int, count: int = 1) -> tuple[Tensor, ...]:
    """Rows ``start`` to ``start + count`` as one query's tensors."""
    return tuple(
        Tensor(s.name, s.datatype, (count, *s.row_shape), data_of(rows.inputs[s.name][start : start + count]))
        for s in inputs
    )


def specs_of(arrays: Mapping[str, Array]) -> tuple[TensorSpec, ...]:
    """Specs of arrays [n, ...]."""
    return tuple(TensorSpec(name, DATATYPES[a.dtype.name], a.shape[1:]) for name, a in arrays.items())


def _plain(error: Exception) -> str:
    """Without the source files and codes of ONNX Runtime that its messages are full of."""
    return re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : |/onnxruntime_src/\S+ ", "", str(error))


def _same(single: Array, batched: Array) -> bool:
    if single.dtype.kind != "f":
        return bool((single == batched).mean() >= 0.8)
    scale = float(np.nanmax(np.abs(batched))) if batched.size else 1.0
    return bool(np.allclose(single, batched, rtol=_RELATIVE, atol=_ABSOLUTE * max(scale, 1e-6), equal_nan=True))

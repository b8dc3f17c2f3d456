"""How well answers agree with the truth, with the standard error of saying so.

Every metric is in 0..1, higher is better, and is a function of rows. The standard error of a mean over rows is exact
(s / sqrt n); that of any other metric is a bootstrap over rows with a seed of its own, as is that of the difference
between two variants on the same rows, which is much smaller than the two errors suggest because the rows are shared.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from sluicegate.domain.errors import InvalidInputError

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
_RESAMPLES = 200


@dataclass(frozen=True, slots=True)
class Score:
    """A metric and its standard error."""

    value: float
    se: float


def accuracy(answers: Array, truth: Array) -> float:
    """Share of rows answered rightly."""
    return float(np.mean(answers == truth))


def balanced_accuracy(answers: Array, truth: Array) -> float:
    """Mean over classes of the share of its rows answered rightly: rare classes count as much as common ones."""
    return float(np.mean([np.mean(answers[truth == c] == c) for c in np.unique(truth)]))


def f1(answers: Array, truth: Array) -> float:
    """Mean over classes of 2 tp / (2 tp + fp + fn) (macro F1)."""
    found = []
    for c in np.unique(truth):
        hit = np.sum((answers == c) & (truth == c))
        found.append(2 * hit / (np.sum(answers == c) + np.sum(truth == c)))
    return float(np.mean(found))


def r2(answers: Array, truth: Array) -> float:
    """Share of the variance of the truth that is explained, 0 where the answers are worse than the mean."""
    rest = float(np.sum((answers.astype(np.float64) - truth) ** 2))
    whole = float(np.sum((truth - np.mean(truth)) ** 2))
    return max(0.0, 1.0 - rest / whole) if whole > 0.0 else 0.0


METRICS: Mapping[str, Callable[[Array, Array], float]] = MappingProxyType(
    {"accuracy": accuracy, "balanced_accuracy": balanced_accuracy, "f1": f1, "r2": r2}
)
"""Name -> function of (answers [n], truth [n])."""
REGRESSION = frozenset({"r2"})
"""Metrics of numbers, not of classes."""


def metric(name: str) -> Callable[[Array, Array], float]:
    """By name. Raises InvalidInputError."""
    found = METRICS.get(name)
    if found is None:
        raise InvalidInputError("metric", f"{name!r} is unknown; choose one of {', '.join(METRICS)}")
    return found


def score(name: str, answers: Array, truth: Array, seed: int = 0) -> Score:
    """The metric and its standard error. Arrays are [n], n >= 2."""
    measure = metric(name)
    if name == "accuracy":
        right = (answers == truth).astype(np.float64)
        # The sample variance is 0 where all are right, which n rows cannot show: the rule of succession bounds it.
        mean = (right.sum() + 1.0) / (len(right) + 2.0)
        return Score(float(right.mean()), float(np.sqrt(mean * (1.0 - mean) / len(right))))
    values = _resampled(measure, [answers], truth, seed)[0]
    return Score(measure(answers, truth), float(np.std(values, ddof=1)))


def difference(name: str, first: Array, second: Array, truth: Array, seed: int = 0) -> Score:
    """How much better ``first`` does than ``second`` on the same rows, with the error of that difference."""
    measure = metric(name)
    gap = measure(first, truth) - measure(second, truth)
    if name == "accuracy":
        rows = (first == truth).astype(np.float64) - (second == truth)
        return Score(gap, float(np.std(rows, ddof=1) / np.sqrt(len(rows))))
    a, b = _resampled(measure, [first, second], truth, seed)
    return Score(gap, float(np.std(a - b, ddof=1)))


def chance(name: str, truth: Array) -> float:
    """What answering without looking at the input reaches at best: always the commonest class, or the mean."""
    if name in REGRESSION:
        return 0.0
    values, counts = np.unique(truth, return_counts=True)
    constant = np.full(len(truth), values[int(np.argmax(counts))])
    return metric(name)(constant, truth)


def _resampled(measure: Callable[[Array, Array], float], answers: list[Array], truth: Array, seed: int) -> list[Floats]:
    rng = np.random.default_rng(seed)
    found = np.empty((len(answers), _RESAMPLES))
    for i in range(_RESAMPLES):
        rows = rng.integers(0, len(truth), len(truth))
        for j, a in enumerate(answers):
            found[j, i] = measure(a[rows], truth[rows])
    return list(found)

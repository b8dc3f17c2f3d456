"""From a recipe to a model: fit the head, measure it on held-out rows, write the graph."""

from dataclasses import dataclass

import numpy as np

from sluicegate.domain.models.app import App
from sluicegate.profiles.demo.dataset import Dataset
from sluicegate.profiles.demo.features import Array, Recipe, features, fit_head


@dataclass(frozen=True, slots=True)
class Fitted:
    """Accuracy (0..1) on held-out rows with its standard error, or ``nominal``; and the ONNX model's bytes."""

    accuracy: float
    accuracy_se: float
    model: bytes
    nominal: bool = False


def fit_convolution(app: App, recipe: Recipe, known: Dataset) -> Fitted:
    """Random features and a ridge head. Raises ImportError where onnx is not installed."""
    # Imported here: who only wants held-out rows to replay needs no onnx.
    from sluicegate.profiles.demo.graphs import write_graph

    head = fit_head(features(recipe, _images(known.inputs)), known.labels, known.classes, recipe.penalty)
    scores = features(recipe, _images(known.held_out)) @ head.weights + head.intercept
    right, error = share_right(scores.argmax(1), known.held_out_labels)
    return Fitted(right, error, write_graph(app, recipe, head))


def share_right(found: Array, labels: Array) -> tuple[float, float]:
    """Share of right labels, and its standard error (binomial)."""
    right = float(np.mean(found == labels))
    return right, float(np.sqrt(right * (1.0 - right) / len(labels)))


def _images(rows: Array) -> Array:
    """A signal is an image of height 1."""
    return rows[:, None] if rows.ndim == 2 else rows

"""Features that need no training: convolution with random filters, ReLU, pooling. The knob is the number of filters.

The same arithmetic is written as an ONNX graph by ``sluicegate.profiles.demo.graphs``. Images are [n, height, width]; a
signal is an image of height 1. Sources: Coates, Lee, Ng 2011 (patches of the data as filters); Rahimi, Recht 2008
(random features, convex head).
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_MOST_ACTIVATIONS = 1 << 22
"""Activations held at once: 16 MiB in single precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How inputs become features. Without ``filters`` the (scaled) inputs themselves are pooled.

    ``filters``: [K, kernel height, kernel width]; ``biases``: [K]. ``pool``: (height, width) of each cell, or (1, 1).
    ``scale``: what inputs are multiplied by. ``penalty``: the head's ridge, relative to the mean feature variance.
    """

    name: str
    family: str
    scale: float = 1.0
    filters: Array | None = None
    biases: Array | None = None
    stride: int = 1
    pad: tuple[int, int] = (0, 0)
    pool: tuple[int, int] = (1, 1)
    pooling: Literal["mean", "max"] = "mean"
    penalty: float = 1e-3


def features(recipe: Recipe, inputs: Array) -> Array:
    """[n, height, width] -> [n, features], float32, in the channel-major order that ONNX's Flatten gives."""
    scaled = inputs.astype(np.float32) * np.float32(recipe.scale)
    if recipe.filters is None:
        return _pool(scaled[..., None], recipe)
    (height, width), (top, left) = recipe.filters.shape[1:], recipe.pad
    padded = np.pad(scaled, ((0, 0), (top, top), (left, left)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(1, 2))
    windows = windows[:, :: recipe.stride, :: recipe.stride]
    filters = recipe.filters.reshape(len(recipe.filters), -1).astype(np.float32)
    chunk = max(1, _MOST_ACTIVATIONS // (windows.shape[1] * windows.shape[2] * len(filters)))
    parts = []
    for start in range(0, len(inputs), chunk):
        part = windows[start : start + chunk]
        maps = part.reshape(-1, height * width) @ filters.T
        if recipe.biases is not None:
            maps += recipe.biases.astype(np.float32)
        np.maximum(maps, 0.0, out=maps)
        parts.append(_pool(maps.reshape(*part.shape[:3], -1), recipe))
    return np.concatenate(parts)


def _pool(maps: Array, recipe: Recipe) -> Array:
    """[n, h, w, channels] -> [n, channels * (h // ph) * (w // pw)]; what does not fill a cell is left out."""
    ph, pw = recipe.pool
    n, height, width, channels = maps.shape
    rows, columns = height // ph, width // pw
    cells = maps[:, : rows * ph, : columns * pw].reshape(n, rows, ph, columns, pw, channels)
    pooled: Array = cells.mean((2, 4)) if recipe.pooling == "mean" else cells.max((2, 4))
    return pooled.transpose(0, 3, 1, 2).reshape(n, -1)


@dataclass(frozen=True, slots=True)
class Head:
    """scores = features @ weights + intercept. ``weights``: [features, classes]."""

    weights: Array
    intercept: Array


def fit_head(x: Array, labels: Array, classes: int, penalty: float) -> Head:
    """Ridge regression on targets of +-1, in closed form, by whichever of its two sides is smaller."""
    targets = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)
    centre, middle = x.mean(0, dtype=np.float64), targets.mean(0)
    z = x - centre.astype(np.float32)
    wide = z.shape[1] > z.shape[0]
    gram = (z @ z.T if wide else z.T @ z).astype(np.float64)
    # The trace is the same on both sides; relative to it, so that the penalty means the same for any scale.
    ridge = penalty * np.trace(gram) / min(z.shape)
    gram[np.diag_indices_from(gram)] += ridge
    if wide:
        weights = z.T @ np.linalg.solve(gram, targets - middle).astype(np.float32)
    else:
        weights = np.linalg.solve(gram, z.T @ (targets - middle).astype(np.float32)).astype(np.float32)
    intercept = middle - centre @ weights
    return Head(weights, intercept.astype(np.float32))

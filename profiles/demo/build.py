"""Builds demo applications: features, head, accuracy on held-out rows with its standard error, graph.

``build`` yields one model after the other, so that a caller can show progress and stop; it is deterministic: the same
releases of NumPy and of the data give the same models, hence the same digests, on one kind of machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

from domain.app import App
from domain.errors import InvalidInputError
from domain.variant import Variant
from profiles.demo import digits, signals
from profiles.demo.dataset import Dataset
from profiles.demo.features import Array, Recipe, accuracy, features, fit_head
from profiles.folder import digest_of, model_path

FAMILIES: dict[str, ModuleType] = {"digits": digits, "signals": signals}
"""App -> module with APP, dataset() and recipes()."""
VERSION = "1"
"""Changes when what is built changes: catalogues of another version are built again."""


@dataclass(frozen=True, slots=True, eq=False)
class BuiltModel:
    """A variant with its model, as bytes."""

    app: App
    variant: Variant
    model: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Held-out rows to replay: ``inputs`` [n, *row shape] in the app's input datatype, ``labels`` [n]."""

    inputs: Array
    labels: Array


def model_names(apps: Sequence[str] = tuple(FAMILIES)) -> list[str]:
    """Names of what ``build`` would build, in its order, without building."""
    return [recipe.name for app in apps for recipe in _family(app).recipes()]


def build(apps: Sequence[str] = tuple(FAMILIES)) -> Iterator[BuiltModel]:
    """Build the models of ``apps`` one by one.

    Raises InvalidInputError for an unknown app, ConfigurationError where data or onnx is not installed.
    """
    for app in apps:
        family = _family(app)
        dataset: Dataset = family.dataset()
        for recipe in family.recipes():
            yield _build_one(family.APP, recipe, dataset)


def samples(app: str) -> Samples:
    """Rows of ``app`` that no model was built from, and their labels."""
    dataset: Dataset = _family(app).dataset()
    return Samples(dataset.held_out, dataset.held_out_labels)


def _build_one(app: App, recipe: Recipe, dataset: Dataset) -> BuiltModel:
    # Imported late: samples need no onnx.
    from profiles.demo.graphs import write_graph

    head = fit_head(features(recipe, _images(dataset.inputs)), dataset.labels, dataset.classes, recipe.penalty)
    right, error = accuracy(head, features(recipe, _images(dataset.held_out)), dataset.held_out_labels)
    model = write_graph(app, recipe, head)
    digest = digest_of(model)
    variant = Variant(
        name=recipe.name,
        app=app.name,
        accuracy=right,
        accuracy_se=error,
        family=recipe.family,
        model=model_path(digest),
        digest=digest,
        size_bytes=len(model),
    )
    return BuiltModel(app, variant, model)


def _images(rows: Array) -> Array:
    """A signal is an image of height 1."""
    return rows[:, None] if rows.ndim == 2 else rows


def _family(app: str) -> ModuleType:
    if app not in FAMILIES:
        raise InvalidInputError("app", f"{app!r} is not a demo app; one of {', '.join(FAMILIES)}")
    return FAMILIES[app]

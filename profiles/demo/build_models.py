"""Builds demo applications: features, head, accuracy on held-out rows with its standard error, graph.

``build`` yields one model after the other, so that a caller can show progress and stop; it is deterministic: the same
releases of NumPy and of the data give the same models, hence the same digests, on one kind of machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue_folder import digest_of, model_path
from sluicegate.profiles.demo import digits, langid, signals, synthetic_graphs
from sluicegate.profiles.demo.features import Array
from sluicegate.profiles.demo.fitting import Fitted

FAMILIES: dict[str, ModuleType] = {"digits": digits, "signals": signals, "langid": langid}
"""App -> module with APP, dataset(), asked(), recipes() and fit(recipe)."""
DEFAULT = ("digits", "signals")
"""What the demo serves."""
HEAVY: dict[str, synthetic_graphs.HeavyFamily] = {
    app.name: synthetic_graphs.HeavyFamily(app) for app in (synthetic_graphs.IMAGE, synthetic_graphs.TEXT)
}
"""App -> models of realistic weight without data, hence without labels."""
VERSION = "8"
"""Changes when what is built changes: catalogues of another version are built again."""


@dataclass(frozen=True, slots=True, eq=False)
class BuiltModel:
    """A variant with its model, as bytes."""

    app: App
    variant: Variant
    model: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Rows to ask about: ``inputs`` [n, *row shape] in the app's input datatype, ``labels`` [n]."""

    inputs: Array
    labels: Array


def model_names(apps: Sequence[str] = DEFAULT) -> list[str]:
    """Names of what ``build`` would build, in its order, without building."""
    return [recipe.name for app in apps for recipe in _family(app).recipes()]


def build(apps: Sequence[str] = DEFAULT) -> Iterator[BuiltModel]:
    """Build the models of ``apps`` one by one.

    Raises InvalidInputError for an unknown app, ConfigurationError where data or onnx is not installed.
    """
    for app in apps:
        family = _family(app)
        for recipe in family.recipes():
            yield _build_one(family, recipe)


def samples(app: str) -> Samples:
    """Rows of ``app`` that no model was built from and none was measured on, and their labels."""
    if app not in FAMILIES:
        raise InvalidInputError("app", f"{app!r} has no labelled samples; {', '.join(FAMILIES)} have")
    return Samples(*FAMILIES[app].asked())


def _build_one(family: ModuleType | synthetic_graphs.HeavyFamily, recipe: Any) -> BuiltModel:
    fitted: Fitted = family.fit(recipe)
    digest = digest_of(fitted.model)
    variant = Variant(
        name=recipe.name,
        app=family.APP.name,
        accuracy=fitted.accuracy,
        accuracy_se=fitted.accuracy_se,
        nominal=fitted.nominal,
        family=recipe.family,
        model=model_path(digest),
        digest=digest,
        size_bytes=len(fitted.model),
    )
    return BuiltModel(family.APP, variant, fitted.model)


def _family(app: str) -> ModuleType | synthetic_graphs.HeavyFamily:
    found = FAMILIES.get(app) or HEAVY.get(app)
    if found is None:
        raise InvalidInputError("app", f"{app!r} is not a demo app; one of {', '.join([*FAMILIES, *HEAVY])}")
    return found

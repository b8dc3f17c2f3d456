"""The models that one app is registered with: each checked, and all of them models of the same task.

Rules. A model's label is its file's name; where two have the same, with the folder's before it. Models of one app take
inputs of the same names and types, and none is given twice. What is wrong with one of several names its file.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.executors.onnx.variant_builder import GeneratorLimits, check_model
from sluicegate.executors.profile_runner import Progress
from sluicegate.profiles.catalogue.catalogue_folder import digest_of, write_file
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.profiles.registration.batch_axis import Interface
from sluicegate.profiles.registration.recipes import ORIGINAL

_LABEL = 32
"""Characters of a label at most: it is part of variants' names."""


@dataclass(frozen=True, slots=True)
class Given:
    """One of them. ``label``: before a recipe in names; empty where it is the only one."""

    label: str
    path: Path
    model: bytes
    interface: Interface

    def named(self, recipe: str) -> str:
        """``recipe`` of this model, as steps and variants are named by it."""
        return f"{self.label}.{recipe}" if self.label else recipe

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """What is wrong with the model is said of its file, where there are several."""
        try:
            yield
        except InvalidInputError as error:
            if not self.label:
                raise
            raise InvalidInputError(f"{error.field} {self.path.name[:80]!r}", error.problem) from error


async def check_models(paths: Sequence[Path], limits: GeneratorLimits, progress: Progress) -> list[Given]:
    """All of them. Raises InvalidInputError."""
    if not paths:
        raise InvalidInputError("model", "give at least one .onnx file")
    found: list[Given] = []
    for i, (path, label) in enumerate(zip(paths, labels(paths), strict=True)):
        progress(f"check {path.name}" if label else "check the model", 0.02 * i / len(paths))
        try:
            model, interface = await check_model(path, limits)
        except InvalidInputError as error:
            if not label:
                raise
            raise InvalidInputError(f"{error.field} {path.name[:80]!r}", error.problem) from error
        found.append(Given(label, path, model, interface))
    _check_one_task(found)
    return found


def models_of(registered: Registered, app: str) -> list[Path]:
    """The models that the served version of ``app`` was registered with, as files that are named by their labels.

    Raises InvalidInputError where it is not served or a model is gone, ConfigurationError where none can be written.
    """
    record = registered.served_record(app)
    if record is None:
        raise InvalidInputError("--add", f"{app!r:.80} is not registered yet; leave --add out")
    folder = registered.folder / "given" / f"{app}.v{record.version}"
    found = []
    for candidate in record.candidates:
        label, _, recipe = candidate.recipe.rpartition(".")
        if recipe != ORIGINAL:
            continue
        path = folder / f"{label or Path(record.source).stem}.onnx"
        if not path.exists() or path.stat().st_size != candidate.variant.size_bytes:  # a copy was cut short
            try:
                model = (registered.folder / candidate.variant.model).read_bytes()
            except OSError as error:
                raise InvalidInputError(
                    "--add", f"model {label or app} is gone ({error.strerror}); give all"
                ) from error
            _keep(path, model)
        found.append(path)
    return found


def _keep(path: Path, model: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, model)
    except OSError as error:
        raise ConfigurationError(f"cannot write in {path.parent}: {error.strerror}; set SLUICE_HOME") from error


def source_of(given: Sequence[Given]) -> str:
    """Names of their files, as the record has them: text, whatever bytes they are."""
    return os.fsencode(", ".join(one.path.name for one in given)).decode(errors="replace")[:200]


def labels(paths: Sequence[Path]) -> list[str]:
    """A label each, all different; the only one of one is empty."""
    if len(paths) == 1:
        return [""]
    for taken in ([p.stem for p in paths], [f"{p.parent.name}-{p.stem}" for p in paths]):
        found = [re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:_LABEL] for name in taken]
        if all(found) and len(set(found)) == len(found):
            return found
    return [f"model-{i}" for i in range(1, len(paths) + 1)]


def _check_one_task(found: Sequence[Given]) -> None:
    first = found[0]
    digests = Counter(digest_of(given.model) for given in found)
    for given in found[1:]:
        if digests[digest_of(given.model)] > 1:
            raise InvalidInputError("model", f"{given.path.name[:80]!r} is the same model as another; give each once")
        mine, others = _taken(given), _taken(first)
        if mine != others:
            raise InvalidInputError(
                f"model {given.path.name[:80]!r}",
                f"takes {mine}, and {first.path.name[:80]} {others}; models of one app answer the same queries: "
                "export them with the same inputs, or register an app each",
            )


def _taken(given: Given) -> str:
    return ", ".join(f"{p.name[:80]} ({p.datatype})" for p in sorted(given.interface.inputs, key=lambda p: p.name))

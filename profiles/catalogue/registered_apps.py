"""Registered apps on disk: a catalogue of what is served, and a record of how each version came to be.

``catalogue.json`` and ``models/<sha256>.onnx`` as in ``sluicegate.profiles.catalogue.catalogue_folder``;
``records/<app>.v<N>.json`` for each version of an app, with its candidates, those that are not served included, and
why; ``records/<app>.v<N>.npz`` with some of its validation rows, to try it with; ``records/<app>.v<N>.served.json``
with what was served of a version until another took its place; ``demo-apps`` where somebody has said whether the demo's
apps are served.

Rules. An app is what the catalogue says it is: one version's served variants, named ``<app>.v<N>.<recipe>``. The record
is written before, the catalogue replaced in one step after: nobody sees an app that is half registered. Records are not
changed or deleted, so that a version can be published again, with the profiles that it had last. Whoever changes the
catalogue holds the folder's lock.
"""

import io
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import (
    DOCUMENT,
    check_models,
    load_catalogue,
    load_origin,
    locked,
    save_catalogue,
    write_file,
)
from sluicegate.profiles.formats.catalogue_json import (
    AppDocument,
    CatalogueDocument,
    Fraction,
    ProfileDocument,
    VariantDocument,
    app_to_document,
    decode,
    encode,
    from_document,
)
from sluicegate.profiles.formats.field_types import Finite
from sluicegate.profiles.registration.validation_set import UNREADABLE, Array

FOLDER = "registered"
RECORDS = "records"
DEMO = "demo-apps"
_NAME = re.compile(r"^(?P<app>[A-Za-z0-9][A-Za-z0-9_-]*)\.v(?P<version>[0-9]{1,9})\.json$")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SpreadDocument(_Strict):
    """Median wall seconds of a batch size and its 95 % confidence interval."""

    batch: int
    median_s: Finite
    low_s: Finite
    high_s: Finite
    samples: int


class CandidateDocument(_Strict):
    """One that was made and measured. ``gap``: accuracy lost against the registered model, on the same rows."""

    variant: VariantDocument
    recipe: str
    gap: Finite
    gap_se: Finite
    finite: bool
    served: bool
    reason: str
    profiles: tuple[ProfileDocument, ...]
    spreads: dict[str, tuple[SpreadDocument, ...]]


class Record(_Strict):
    """A version of an app. ``key``: digest of all that decides what comes out; ``skipped``: recipe -> why not made."""

    format: str = "sluice-registration/1"
    app: AppDocument
    version: int
    key: str
    metric: str
    chance: Fraction
    answer_output: str
    answer_reading: str
    scored_rows: int
    calibration_rows: int
    source: str
    source_digest: str
    validation_digest: str
    registered_at: Finite
    machine: str
    notes: tuple[str, ...]
    candidates: tuple[CandidateDocument, ...]
    skipped: dict[str, str]


class Registered:
    """The folder ``<home>/registered``."""

    def __init__(self, home: Path) -> None:
        self.folder = home / FOLDER

    def catalogue(self, *, verify: bool = True) -> Catalogue | None:
        """What is served; None where nothing is registered. Raises InvalidInputError for a damaged one."""
        if not (self.folder / DOCUMENT).exists():
            return None
        return load_catalogue(self.folder, verify=verify)

    def apps(self) -> tuple[str, ...]:
        """Names of apps that are served."""
        catalogue = self.catalogue(verify=False)
        return tuple(catalogue.apps) if catalogue else ()

    def versions(self, app: str) -> tuple[int, ...]:
        """Versions of ``app`` that have a record, ascending, published or not."""
        found = (_NAME.match(p.name) for p in (self.folder / RECORDS).glob("*.json"))
        return tuple(sorted(int(m["version"]) for m in found if m and m["app"] == app))

    def record(self, app: str, version: int) -> Record:
        """Of one version. Raises InvalidInputError."""
        path = self._path(app, version, "json")
        try:
            return Record.model_validate_json(path.read_bytes())
        except OSError as error:
            known = ", ".join(map(str, self.versions(app))) or "none"
            raise InvalidInputError("version", f"{app} has no version {version}; it has {known}") from error
        except ValidationError as error:
            raise InvalidInputError("record", f"{path} is damaged; register the app again") from error

    def served_version(self, app: str) -> int | None:
        """The version that the catalogue holds; None, too, where its variants are named as those of none."""
        catalogue = self.catalogue(verify=False)
        return None if catalogue is None else _version_in(catalogue, app)

    def terms(self, app: str) -> App:
        """``app`` as it is served. Raises InvalidInputError where it is not."""
        return _part_of(self.catalogue(verify=False) or Catalogue.of((), (), ()), app).apps[app]

    def served_record(self, app: str) -> Record | None:
        """Record of the version that is served."""
        version = self.served_version(app)
        return None if version is None else self.record(app, version)

    def find(self, app: str, key: str) -> Record | None:
        """The version of ``app`` that was made of the same things, if there is one, whole: with all it needs to be
        served and tried."""
        of_key = (r for v in self.versions(app) if (r := self._readable(app, v)) is not None and r.key == key)
        return next((record for record in of_key if self._whole(record)), None)

    def readable_record(self, app: str) -> Record | None:
        """Record of the version that is served; None, too, where it is damaged: what is served does not need it."""
        version = self.served_version(app)
        return None if version is None else self._readable(app, version)

    def _readable(self, app: str, version: int) -> Record | None:
        try:
            return self.record(app, version)
        except InvalidInputError:
            return None

    def _whole(self, record: Record) -> bool:
        try:
            check_models(self.folder, (Variant(**c.variant.model_dump()) for c in record.candidates if c.served))
            self._samples(record.app.name, record.version)
        except InvalidInputError:
            return False
        return True

    def keep(self, record: Record, samples: dict[str, Array]) -> None:
        """Write a version's record and some of its rows; not published by it.

        Raises ConfigurationError where the folder cannot be written.
        """
        folder = self.folder / RECORDS
        data = orjson.dumps(record.model_dump(mode="json"), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        archive = io.BytesIO()
        np.savez(archive, *samples.values())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_file(self._path(record.app.name, record.version, "npz"), archive.getvalue())
            write_file(self._path(record.app.name, record.version, "json"), data)
        except OSError as error:
            raise ConfigurationError(f"cannot write in {folder}: {error.strerror}; set SLUICE_HOME") from error

    def samples(self, app: str) -> tuple[Array, ...]:
        """Validation rows kept with the served version: an array an input, as the app lists them; then the labels. None
        where no version is served.

        Raises InvalidInputError where they are damaged or gone.
        """
        version = self.served_version(app)
        return () if version is None else self._samples(app, version)

    def _samples(self, app: str, version: int) -> tuple[Array, ...]:
        path = self._path(app, version, "npz")
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return tuple(arrays[name] for name in arrays.files)
        except UNREADABLE as error:
            raise InvalidInputError("samples", f"{path} is damaged or gone; register the app again") from error

    def publish(self, record: Record, *, min_accuracy: float | None = None, weight: float | None = None) -> Catalogue:
        """Serve this version of its app, and no other of it, from now on; on these terms, None: as the version has it.

        Raises InvalidInputError for a term that is out of bounds, and publishes nothing.
        """
        document = CatalogueDocument(
            apps=(record.app,),
            variants=tuple(c.variant for c in record.candidates if c.served),
            profiles=tuple(p for c in record.candidates if c.served for p in c.profiles),
        )
        told = {"min_accuracy": min_accuracy, "weight": weight}
        served = _on_terms(from_document(document), record.app.name, told)

        def as_measured(now: Catalogue) -> Catalogue:
            self._keep_served(now, record.app.name)
            return self._as_measured(served, record)

        return self._replace(record.app.name, as_measured)

    def retire(self, app: str) -> Catalogue:
        """Serve ``app`` no more. Its records and models stay. Raises InvalidInputError where it is not served."""

        def nothing(now: Catalogue) -> None:
            _part_of(now, app)
            self._keep_served(now, app)

        return self._replace(app, nothing)

    def change(
        self, app: str, *, slo: float | None = None, min_accuracy: float | None = None, weight: float | None = None
    ) -> Catalogue:
        """Serve the same variants of ``app`` with other terms; None: as before. Versions keep theirs.

        Raises InvalidInputError where it is not served, or where a term is out of bounds.
        """
        told = {"slo_s": slo, "min_accuracy": min_accuracy, "weight": weight}
        return self._replace(app, lambda now: _on_terms(_part_of(now, app), app, told))

    @property
    def demo(self) -> bool | None:
        """Whether the demo's apps are served as well; None where nobody has said: they are while nothing else is."""
        try:
            said = (self.folder / DEMO).read_text(encoding="utf-8").strip()
        except OSError:
            return None
        return {"on": True, "off": False}.get(said)

    def serve_demo(self, on: bool) -> None:
        """Say so. Raises ConfigurationError where the folder cannot be written."""
        with self.locked():
            write_file(self.folder / DEMO, b"on\n" if on else b"off\n")

    def _replace(self, app: str, part: Callable[[Catalogue], Catalogue | None]) -> Catalogue:
        """Have ``part``, of what is served now, in the place of what was said of ``app``."""
        with self.locked():
            now = self.catalogue(verify=False) or Catalogue.of((), (), ())
            catalogue = now.replacing(app, part(now))
            save_catalogue(self.folder, catalogue, {}, load_origin(self.folder), {app})
            return catalogue

    def _keep_served(self, now: Catalogue, app: str) -> None:
        """Keep what is served of ``app`` beside the record of its version: it may have been measured again since."""
        version = _version_in(now, app)
        if version is None:
            return
        path = self._path(app, version, "served.json")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, encode(now.only({app})))
        except OSError as error:
            raise ConfigurationError(f"cannot write in {path.parent}: {error.strerror}; set SLUICE_HOME") from error

    def _as_measured(self, served: Catalogue, record: Record) -> Catalogue:
        """A version of an app, with the profiles that it had when it was served last, if these are whole."""
        try:
            last = from_document(decode(self._path(record.app.name, record.version, "served.json").read_bytes()))
        except (OSError, InvalidInputError):
            return served
        same = {
            name
            for name, v in served.variants.items()
            if name in last.variants and last.variants[name].digest == v.digest
        }
        kept = {pair: profile for pair, profile in last.profiles.items() if pair[0] in same}
        return Catalogue.of(served.apps.values(), served.variants.values(), {**served.profiles, **kept}.values())

    def locked(self, what: str = "catalogue", *, wait: bool = True) -> AbstractContextManager[None]:
        """Hold the folder's lock of ``what``; the system lets go of it when the process ends, however it ends."""
        return locked(self.folder, what, wait=wait, remedy="set SLUICE_HOME")

    def _path(self, app: str, version: int, ending: str) -> Path:
        return self.folder / RECORDS / f"{app}.v{version}.{ending}"


def merged(catalogues: Iterable[Catalogue]) -> Catalogue:
    """All of them as one. Raises ConfigurationError where two say different things by one name."""
    apps: dict[str, Any] = {}
    variants: dict[str, Any] = {}
    profiles: dict[tuple[str, str], Any] = {}
    for catalogue in catalogues:
        for found, mine in ((apps, catalogue.apps), (variants, catalogue.variants)):
            twice = set(found) & set(mine)
            if twice:
                raise ConfigurationError(f"{sorted(twice)[0]} is in two catalogues; retire or rename one")
            found.update(mine)
        profiles.update(catalogue.profiles)
    return Catalogue.of(apps.values(), variants.values(), profiles.values())


def _version_in(catalogue: Catalogue, app: str) -> int | None:
    names = [v.name for v in catalogue.of_app(app)]
    of_version = re.match(re.escape(app) + r"\.v([0-9]{1,9})\.", names[0]) if names else None
    return int(of_version[1]) if of_version else None


def _part_of(served: Catalogue, app: str) -> Catalogue:
    """What is served of ``app``. Raises InvalidInputError where that is nothing."""
    if app not in served.apps:
        raise InvalidInputError("app", f"{app!r} is not registered; known: {', '.join(served.apps) or 'none'}")
    return served.only({app})


def _on_terms(served: Catalogue, app: str, told: Mapping[str, float | None]) -> Catalogue:
    """The app of ``served`` with those terms that are given."""
    terms = {**app_to_document(served.apps[app]), **{k: v for k, v in told.items() if v is not None}}
    try:
        document = AppDocument.model_validate_json(orjson.dumps(terms))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = str(fault["loc"][0])  # JSON has no NaN: what was told is shown
        raise InvalidInputError(field, f"{told.get(field, fault['input'])!r:.80}: {fault['msg']}") from error
    if document.min_accuracy > served.best_accuracy(app):
        best = f"{served.best_accuracy(app):.4g}"
        raise InvalidInputError("min_accuracy", f"{document.min_accuracy:g}: the best variant of {app} has {best}")
    changed = from_document(CatalogueDocument(apps=(document,), variants=(), profiles=())).apps
    return replace(served, apps=changed)

"""A catalogue on disk: ``catalogue.json`` and ``models/<sha256>.onnx``.

Rules. Models are written before the document that names them, each under a temporary name that is then renamed, so
that a reader sees the old catalogue or the new one, never half of either. A model's name is its digest: it is never
overwritten with other content. Loading checks that every model is a plain file of the size and digest it claims.
"""

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.models.profile import Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.leftovers import hold, remove_left
from sluicegate.profiles.formats.catalogue_json import (
    MAX_DOCUMENT_BYTES,
    CatalogueDocument,
    decode,
    encode,
    from_document,
)

DOCUMENT = "catalogue.json"
MODELS = "models"
_WRITING = ".writing-"
MAX_MODEL_BYTES = (1 << 31) - 1
"""Largest serialised ONNX graph there is (a protocol-buffer limit)."""


def digest_of(model: bytes) -> str:
    """SHA-256, hex."""
    return hashlib.sha256(model).hexdigest()


def model_path(digest: str) -> str:
    """Path of a model inside the catalogue's folder."""
    return f"{MODELS}/{digest}.onnx"


def load_catalogue(folder: Path, *, verify: bool = True) -> Catalogue:
    """Read and validate the catalogue in ``folder``.

    ``verify``: also read every model and compare its digest. Raises ConfigurationError where there is none,
    InvalidInputError for anything malformed.
    """
    catalogue = from_document(_read_document(folder))
    if verify:
        check_models(folder, catalogue.variants.values())
    return catalogue


def load_origin(folder: Path) -> dict[str, str]:
    """What was said of how the catalogue in ``folder`` came to be; empty where there is no readable one."""
    try:
        return dict(_read_document(folder).origin)
    except (ConfigurationError, InvalidInputError):
        return {}


def check_models(folder: Path, variants: Iterable[Variant]) -> None:
    """Compare each model's size and digest with what its variant claims. Raises InvalidInputError."""
    for variant in variants:
        if variant.model:
            read_model(folder, variant)


def read_model(folder: Path, variant: Variant) -> bytes:
    """The bytes of ``variant``'s model, verified. Raises InvalidInputError naming the variant and the remedy."""
    field = f"variants.{variant.name}.model"
    remedy = "build or register it again"
    if variant.model != model_path(variant.digest):
        raise InvalidInputError(field, f"{variant.model!r} is not the path its digest gives; {remedy}")
    path = folder / variant.model
    if path.is_symlink() or not path.is_file():
        raise InvalidInputError(field, f"{path} is not a plain file; {remedy}")
    size = path.stat().st_size
    if size > MAX_MODEL_BYTES or (variant.size_bytes and size != variant.size_bytes):
        raise InvalidInputError(field, f"{size} bytes where {variant.size_bytes} were recorded; {remedy}")
    data = path.read_bytes()
    if digest_of(data) != variant.digest:
        raise InvalidInputError(field, f"its content does not have the recorded SHA-256; {remedy}")
    return data


def save_catalogue(
    folder: Path,
    catalogue: Catalogue,
    models: Mapping[str, bytes],
    origin: Mapping[str, str] | None = None,
    apps: Collection[str] | None = None,
) -> None:
    """Write ``catalogue`` and ``models`` (digest -> bytes) into ``folder``, which is created.

    Models already there are kept. ``apps``: those that it says something new of, None for all. Raises InvalidInputError
    if a model of one of their variants is neither given nor there, or if the catalogue would not be read back;
    ConfigurationError if the folder cannot be written.
    """
    data = encode(catalogue, dict(origin or {}))
    from_document(decode(data))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for digest, model in sorted(models.items()):
            save_model(folder, digest, model)
        check_models(folder, (v for v in catalogue.variants.values() if apps is None or v.app in apps))
        write_file(folder / DOCUMENT, data)
    except OSError as error:
        raise ConfigurationError(f"cannot write the catalogue in {folder}: {error.strerror}; choose another") from error


def keep_profiles(folder: Path, measured: Iterable[Profile]) -> Catalogue:
    """Put newly measured profiles in the place of the old, in the catalogue as it is by now; those of variants that it
    does not have are passed over. Raises as ``load_catalogue`` and ``save_catalogue`` do."""
    with locked(folder, "catalogue"):
        now = load_catalogue(folder, verify=False)
        new = {(p.variant, p.device_type): p for p in measured if p.variant in now.variants}
        catalogue = Catalogue.of(now.apps.values(), now.variants.values(), {**now.profiles, **new}.values())
        save_catalogue(folder, catalogue, {}, load_origin(folder), {now.variants[name].app for name, _ in new})
        return catalogue


@contextmanager
def locked(folder: Path, what: str, *, wait: bool = True, remedy: str = "choose another") -> Iterator[None]:
    """Hold the lock of ``what`` in ``folder``; the system lets go of it when the process ends, however it ends.

    Raises ConfigurationError where another process holds it and is not waited for, or, with a ``remedy``, where nothing
    can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / f".{what}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise ConfigurationError(f"cannot write in {folder}: {error.strerror}; {remedy}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        os.close(descriptor)
        raise ConfigurationError(f"{what} is being registered by another process; wait for it") from error
    try:
        yield
    finally:
        os.close(descriptor)


def save_model(folder: Path, digest: str, model: bytes) -> None:
    """Write one model ahead of the catalogue that will name it. Raises InvalidInputError, OSError."""
    if digest_of(model) != digest:
        raise InvalidInputError(f"models.{digest[:80]}", "its content has another SHA-256")
    (folder / MODELS).mkdir(parents=True, exist_ok=True)
    path = folder / model_path(digest)
    if not path.exists() or digest_of(path.read_bytes()) != digest:
        write_file(path, model)


def _read_document(folder: Path) -> CatalogueDocument:
    path = folder / DOCUMENT
    try:
        with path.open("rb") as file:
            data = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"no catalogue in {folder}: {error.strerror}; build one first") from error
    return decode(data, str(path))


def write_file(path: Path, data: bytes) -> None:
    """Write ``data`` so that a reader sees the old file or the new one, never a part. Raises OSError.

    What writers that were killed have left in its folder is removed."""
    remove_left(path.parent, _WRITING)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=_WRITING)
    hold(descriptor)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

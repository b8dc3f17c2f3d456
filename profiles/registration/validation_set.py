"""Validation sets: rows of input with their true answers, as ``.npz``, or as a folder.

A ``.npz`` holds an array for each input of the model, by its name (or one array by any name, where the model takes one
input), and the true answers as ``label``, ``labels``, ``y`` or ``target``. A folder holds the same as ``NAME.npy``
files; or, for a model of one input, a folder for each class, named by its number, with a row in each ``.npy`` file.

Rules. Nothing is unpickled. Declared sizes are added up before anything is read. Links that leave the folder are not
followed. Numbers are finite, are converted only where no value changes its meaning, and there are enough of them to say
anything. Texts, and labels that are texts, are arrays of NumPy's strings. What is wrong is one InvalidInputError.
"""

import hashlib
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.tensor import BYTES, DATATYPE_BYTES
from sluicegate.profiles.registration.batch_axis import Port

Array = npt.NDArray[Any]
FIELD = "validation"
LABELS = ("label", "labels", "y", "target")
"""Names of the true answers."""
LEAST_ROWS = 20
"""Fewer say nothing: one row would be worth five points of accuracy."""
MAX_BYTES = 4 << 30
UNREADABLE = (
    OSError, zipfile.BadZipFile, zlib.error, LZMAError, EOFError, RuntimeError, ValueError,
    ArithmeticError, LookupError, TypeError, SyntaxError, tokenize.TokenError,
)  # fmt: skip
"""What reading an archive of arrays raises where it is damaged, encrypted, or holds something else: NumPy reads headers
as Python's literals, and lets through what is wrong with them."""
_MAX_FILES = 200_000
_NUMPY = {
    "BOOL": np.bool_, "UINT8": np.uint8, "INT8": np.int8, "UINT16": np.uint16, "INT16": np.int16, "FP16": np.float16,
    "UINT32": np.uint32, "INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64, "INT64": np.int64,
    "FP64": np.float64, BYTES: np.str_,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class ValidationSet:
    """Labelled rows to validate models on. ``inputs`` by name, each [n, *row shape] in its model's datatype; ``labels``
    [n], integers, floats or texts."""

    inputs: Mapping[str, Array]
    labels: Array

    @property
    def rows(self) -> int:
        """n."""
        return len(self.labels)

    def take(self, indices: npt.NDArray[np.int64]) -> "ValidationSet":
        """Rows ``indices`` of it."""
        return ValidationSet({name: a[indices] for name, a in self.inputs.items()}, self.labels[indices])

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of its content, whatever file it came in."""
        found = hashlib.sha256()
        for name, array in [*sorted(self.inputs.items()), ("", self.labels)]:
            found.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
            whole = np.ascontiguousarray(array)
            found.update(whole.tobytes() if whole.dtype.kind == "U" else whole.data)
        return found.hexdigest()


def read_validation(path: Path, ports: Sequence[Port], max_bytes: int = MAX_BYTES) -> ValidationSet:
    """The set at ``path`` for a model that takes ``ports``. Raises InvalidInputError."""
    arrays = _read(path, ports, max_bytes)
    given = [name for name in LABELS if name in arrays and name not in {p.name for p in ports}]
    if not given:
        raise _wrong(f"has no true answers; add them as an array named {LABELS[0]!r} (it has {_names(arrays)})")
    labels = _labels(arrays.pop(given[0]), given[0])
    if len(ports) == 1 and ports[0].name not in arrays and len(arrays) == 1:
        arrays = {ports[0].name: next(iter(arrays.values()))}
    inputs = {}
    for port in ports:
        if port.name not in arrays:
            raise _wrong(f"has no array for input {port.name[:80]!r} of the model (it has {_names(arrays)})")
        inputs[port.name] = _input(arrays[port.name], port)
        if len(inputs[port.name]) != len(labels):
            raise _wrong(f"has {len(inputs[port.name])} rows of {port.name[:80]!r}, and {len(labels)} true answers")
    if len(labels) < LEAST_ROWS:
        raise _wrong(f"has {len(labels)} rows; at least {LEAST_ROWS} are needed to measure accuracy")
    return ValidationSet(inputs, labels)


def _read(path: Path, ports: Sequence[Port], limit: int) -> dict[str, Array]:
    try:
        if path.is_dir():
            return _read_folder(path, ports, limit)
        if not path.is_file():
            raise _wrong(f"{path} is not there; give an .npz file or a folder")
        return _read_npz(path, limit)
    except MemoryError as error:
        raise _wrong(f"{path} does not fit into memory; give fewer rows") from error
    except ValueError as error:
        hint = "objects are not unpickled" if "allow_pickle" in str(error) else _one_line(error)
        raise _wrong(f"{path} does not hold plain arrays of numbers ({hint})") from error
    except UNREADABLE as error:
        raise _wrong(f"{path} cannot be read ({_one_line(error)}); write it again with numpy.savez") from error


def _read_npz(path: Path, limit: int) -> dict[str, Array]:
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
        if size > limit:
            raise _wrong(f"{path} unpacks to {size} bytes; at most {limit} are taken: give fewer rows")
    with np.load(path, allow_pickle=False) as arrays:
        return {name: _array(arrays[name], name) for name in arrays.files}


def _read_folder(folder: Path, ports: Sequence[Port], limit: int) -> dict[str, Array]:
    files = sorted(folder.glob("*.npy"))
    classes = sorted((p for p in folder.iterdir() if p.is_dir() and p.name.isdigit()), key=lambda p: int(p.name))
    if files:
        _check_files(folder, files, limit)
        return {file.stem: _load(file) for file in files}
    if not classes or len(ports) != 1:
        raise _wrong(f"{folder} holds neither NAME.npy files nor, for a model of one input, a numbered folder a class")
    rows = [(int(c.name), file) for c in classes for file in sorted(c.glob("*.npy"))]
    if not rows:
        raise _wrong(f"{folder} holds no .npy files in its {len(classes)} folders")
    _check_files(folder, [file for _, file in rows], limit)
    values = [_load(file) for _, file in rows]
    for (_, file), value in zip(rows, values, strict=True):
        if value.shape != values[0].shape:
            raise _wrong(f"{file} has shape {list(value.shape)}, {rows[0][1].name} {list(values[0].shape)}; make equal")
    return {ports[0].name: np.stack(values), LABELS[0]: np.array([label for label, _ in rows])}


def _check_files(folder: Path, files: Sequence[Path], limit: int) -> None:
    if len(files) > _MAX_FILES:
        raise _wrong(f"{folder} holds {len(files)} files; at most {_MAX_FILES} are taken")
    home = folder.resolve()
    size = 0
    for file in files:
        if not file.resolve().is_relative_to(home):
            raise _wrong(f"{file} is a link that leaves the folder; put the file itself there")
        if not file.is_file():
            raise _wrong(f"{file} is not a plain file; take it out")
        size += file.stat().st_size
    if size > limit:
        raise _wrong(f"{folder} holds {size} bytes; at most {limit} are taken: give fewer rows")


def _load(file: Path) -> Array:
    # Mapped first: a header that claims more than the file holds is an error then, and no allocation.
    return np.array(np.lib.format.open_memmap(file, mode="r"))


def _array(found: object, name: str) -> Array:
    """What NumPy has read of an archive: bytes where that is no array."""
    if not isinstance(found, np.ndarray):
        raise _wrong(f"{name[:40]!r} is no array; write it again with numpy.savez")
    return found


def _labels(values: Array, name: str) -> Array:
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise _wrong(f"{name} has shape {list(values.shape)}; give one true answer a row")
    if values.dtype.kind in "US":
        return _texts(values, name)
    if values.dtype.kind not in "biuf":
        raise _wrong(f"{name} holds {values.dtype}; give class numbers or names (or target values)")
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise _wrong(f"{name} holds NaN or infinity; take these rows out")
        if (values == np.round(values)).all() and (np.abs(values) < 1 << 53).all():
            return values.astype(np.int64)
        return values.astype(np.float64)
    if values.dtype == np.uint64 and len(values) and int(values.max()) > np.iinfo(np.int64).max:
        raise _wrong(f"{name} holds numbers above 2^63; give class numbers")
    return values.astype(np.int64)


def _input(values: Array, port: Port) -> Array:
    name = port.name[:80]
    if port.datatype == BYTES:
        values = _texts(values, repr(name))
    elif values.dtype.kind not in "biuf":
        raise _wrong(f"{name!r} holds {values.dtype}; give numbers")
    shape = values.shape[1:]
    if values.ndim == 0 or len(shape) != len(port.row_shape):
        want = ["rows", *("any" if e is None else e for e in port.row_shape)]
        raise _wrong(f"{name!r} has shape {list(values.shape)}; the model takes {want}".replace("'any'", "any"))
    if any(e is not None and e != s for e, s in zip(port.row_shape, shape, strict=True)):
        wanted = ", ".join("any" if e is None else str(e) for e in port.row_shape)
        raise _wrong(f"{name!r} has rows of shape {list(shape)}; the model takes [{wanted}]")
    if any(extent == 0 for extent in shape):
        raise _wrong(f"{name!r} has rows of shape {list(shape)}: nothing is in them")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise _wrong(f"{name!r} holds NaN or infinity; take these rows out")
    return _converted(values, port)


def _texts(values: Array, name: str) -> Array:
    if values.dtype.kind not in "US":
        raise _wrong(f"{name} holds {values.dtype}; give texts, an array of NumPy's strings")
    try:
        return values if values.dtype.kind == "U" else np.char.decode(values, "utf-8")
    except UnicodeDecodeError as error:
        raise _wrong(f"{name} holds texts that are no UTF-8 ({error.reason}); write them again") from error


def _converted(values: Array, port: Port) -> Array:
    if port.datatype == BYTES:
        return np.ascontiguousarray(values)
    wanted = np.dtype(_NUMPY[port.datatype])
    if values.dtype == wanted:
        return np.ascontiguousarray(values)
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.ascontiguousarray(values.astype(wanted))
    meant = np.isfinite(found).all() if wanted.kind == "f" else bool((found.astype(values.dtype) == values).all())
    if not meant:
        raise _wrong(f"{port.name[:80]!r} holds {values.dtype} values that are no {port.datatype}; scale or round them")
    return found


def row_bytes(ports: Sequence[Port], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Bytes of one row of all inputs."""
    return sum(int(np.prod(shapes[p.name])) * DATATYPE_BYTES[p.datatype] for p in ports)


def _names(arrays: Mapping[str, Array]) -> str:
    return ", ".join(name[:40] for name in list(arrays)[:8]) or "no arrays"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


def _wrong(problem: str) -> InvalidInputError:
    return InvalidInputError(FIELD, problem)

"""Reads profiles in the format ``proteus-csv``: those that the artifact of Proteus (ASPLOS 2024) was measured with.

A folder holds ``aggregate_profiled.csv.gz`` (latency of a whole batch in milliseconds, by variant, accelerator and
batch size), ``variants/<list>/<family>`` (lines "variant,normalised accuracy in percent") and ``slo_by_multiple.csv``.
Rules. An application is a family, and an accuracy is the normalised one / 100. 50th_pct is the median; the nearest
there is to a p95 is 90th_pct, and where that is missing the median stands in. Where a row is measured twice the later
one counts. Memory and load times are not in the data.
"""

import csv
import gzip
import io
import math
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.formats.field_types import LoadTime, Name, Seconds

BATCH_SIZES = (1, 2, 4, 8, 16)
"""Those measured; the artifact's own simulator and program use 1 to 8."""
DEVICE_TYPES: Mapping[str, str] = {
    "onnxruntime_cpu": "cpu",
    "onnxruntime_gpu_pascal": "pascal",
    "onnxruntime_gpu_ampere": "ampere",
}
"""Accelerator in the file -> device type here ("ampere" is the name upstream gives its V100)."""
MAX_BYTES = 64 << 20
"""Largest table read, unpacked."""

_Table = dict[tuple[str, str], dict[int, BatchLatency]]


def load_proteus(
    folder: Path,
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    slo: Seconds | str | Mapping[str, Seconds] = 0.3,
    variants: Name = "model_variants",
    families: Sequence[str] | None = None,
    load: LoadTime = 1.0,
) -> Catalogue:
    """The catalogue in ``folder``.

    ``slo``: seconds for all families, seconds by family, or a column of slo_by_multiple.csv ("1x", "2x", "300").
    ``variants``: which list under ``variants/``; ``families``: only these; ``load``: seconds assumed for loading.
    Raises ConfigurationError for a missing file, InvalidInputError for a malformed one.
    """
    wanted = _variant_lists(folder / "variants" / variants, families)
    if isinstance(slo, str):
        slo = _slos(folder / "slo_by_multiple.csv", slo)
    table = _table(folder / "aggregate_profiled.csv.gz", frozenset(batch_sizes))
    apps: list[App] = []
    parts: list[Variant] = []
    profiles: list[Profile] = []
    for family, accuracies in wanted.items():
        apps.append(App(name=family, slo=slo if isinstance(slo, float | int) else _slo_of(slo, family), max_rows=1))
        for name, accuracy in accuracies.items():
            parts.append(Variant(name=name, app=family, accuracy=accuracy, family=family))
            profiles += _profiles_of(name, table, load)
    return Catalogue.of(apps, parts, profiles)


def _profiles_of(variant: str, table: _Table, load: float) -> list[Profile]:
    """One a device type that has measurements."""
    found = [
        Profile(variant=variant, device_type=device_type, points=tuple(rows[b] for b in sorted(rows)), load=load)
        for device_type in DEVICE_TYPES.values()
        if (rows := table.get((variant, device_type)))
    ]
    if not found:
        raise InvalidInputError(variant, "has no row in aggregate_profiled.csv.gz for the batch sizes asked for")
    return found


def _slo_of(slos: Mapping[str, float], family: str) -> float:
    if family not in slos:
        raise InvalidInputError(f"slo.{family}", "no SLO is given for this family; add it or pass one for all")
    return slos[family]


def _variant_lists(folder: Path, families: Collection[str] | None) -> dict[str, dict[str, float]]:
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is not a folder; point to a copy of the Proteus data")
    files = {path.name: path for path in sorted(folder.iterdir()) if path.is_file()}
    if families is not None and (unknown := sorted(set(families) - set(files))):
        raise InvalidInputError("families", f"{unknown[0]!r} is not one of {', '.join(files)}")
    chosen = files if families is None else {name: files[name] for name in sorted(families)}
    return {family: dict(_accuracy_lines(path)) for family, path in chosen.items()}


def _accuracy_lines(path: Path) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for number, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip():
            continue
        name, _, percent = line.rpartition(",")
        accuracy = _number(f"{path.name}:{number} accuracy", percent)
        if not name or not 0.0 <= accuracy <= 100.0:
            raise InvalidInputError(f"{path.name}:{number}", f"{line!r}; expected 'variant,percent of 0..100'")
        found.append((name.strip(), accuracy / 100.0))
    return found


def _slos(path: Path, multiple: str) -> dict[str, float]:
    rows = [row for _, row in _rows(path, {"family", "multiple", "slo_ms"}) if row["multiple"] == multiple]
    if not rows:
        raise InvalidInputError("slo", f"{path.name} has no multiple {multiple!r}; use 1x, 1.5x, ... or seconds")
    return {r["family"]: _number(f"{path.name} slo_ms", r["slo_ms"]) / 1e3 for r in rows}


def _table(path: Path, batch_sizes: frozenset[int]) -> _Table:
    table: _Table = {}
    for where, row in _rows(path, {"Model", "Accel", "batchsize", "50th_pct", "90th_pct"}):
        device_type = DEVICE_TYPES.get(row["Accel"])
        batch = _number(f"{where} batchsize", row["batchsize"])
        if device_type is None or batch not in batch_sizes:
            continue
        median = _latency(f"{where} 50th_pct", row["50th_pct"])
        p95 = _latency(f"{where} 90th_pct", row["90th_pct"]) if row["90th_pct"] else median
        point = BatchLatency(int(batch), median, max(median, p95))
        table.setdefault((row["Model"], device_type), {})[point.batch] = point
    return table


def _rows(path: Path, columns: set[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Where each row stands, and its fields, ``columns`` among them."""
    reader = csv.DictReader(io.StringIO(_read(path)))
    try:
        if missing := columns - set(reader.fieldnames or ()):
            name = path.name.removesuffix(".gz")
            raise InvalidInputError(path.name, f"has no column {sorted(missing)[0]!r}; is it {name}?")
        for row in reader:
            yield f"{path.name}:{reader.line_num}", row
    except csv.Error as error:
        raise InvalidInputError(path.name, f"is no table of commas ({error})") from error


def _latency(field: str, text: str | None) -> float:
    """Seconds."""
    value = _number(field, text) / 1e3
    if value <= 0.0:
        raise InvalidInputError(field, f"{text} is not a positive latency in milliseconds")
    return value


def _number(field: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidInputError(field, f"{text!r} is not a finite number")
    return value


def _read(path: Path) -> str:
    """Text of a plain or gzipped file, at most MAX_BYTES of it."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data: bytes = file.read(MAX_BYTES + 1)
        text = data.decode()
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(f"cannot read {path}: {error}; point to a copy of the Proteus data") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(path.name, "is not UTF-8 text") from error
    if len(data) > MAX_BYTES:
        raise InvalidInputError(path.name, f"holds more than {MAX_BYTES} bytes")
    return text

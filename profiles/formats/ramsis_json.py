"""Reads profiles in the format ``ramsis-profiles/1``: those measured for RAMSIS (EuroSys 2024).

``tasks.<task>.<model>`` holds the accuracy in percent and, for each batch size, percentiles of the latency in
milliseconds on 4 CPU cores; ``artifact_p95_us_batches_1_to_33`` the p95 table that the paper's artifact decides by, in
microseconds (batch sizes not measured filled by regression, made non-decreasing); ``pareto_used`` the models its
scripts choose among. Rules. An application is a task. One device type, "cpu4".
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.formats.field_types import LoadTime, Seconds

DEVICE_TYPE = "cpu4"
SLOS: Mapping[str, float] = {"image": 0.15, "text": 0.1}
"""Seconds: the tightest that the paper evaluates for each task."""
MAX_BYTES = 64 << 20

_Latency = Annotated[float, Field(gt=0.0, le=1e9, allow_inf_nan=False)]


class _Part(BaseModel):
    # The file holds further statistics (mean, std, other percentiles): they are not ours to refuse.
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Batch(_Part):
    p50: _Latency
    p95: _Latency


class _Model(_Part):
    accuracy: Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)]
    batches: Annotated[dict[Annotated[int, Field(ge=1, le=4096)], _Batch], Field(min_length=1, max_length=4096)]


class _File(_Part):
    format: Literal["ramsis-profiles/1"]
    tasks: Annotated[dict[str, dict[str, _Model]], Field(min_length=1)]
    pareto_used: dict[str, list[str]] = {}
    artifact_p95_us_batches_1_to_33: dict[str, dict[str, Annotated[list[_Latency], Field(max_length=4096)]]] = {}


def load_ramsis(
    path: Path,
    *,
    tasks: Sequence[str] = ("image", "text"),
    models: Literal["pareto", "all"] = "pareto",
    table: Literal["measured", "artifact"] = "measured",
    max_batch: int = 32,
    slo: Mapping[str, Seconds] = SLOS,
    load: LoadTime = 1.0,
) -> Catalogue:
    """The catalogue in ``path`` (profiles.json or its folder).

    ``models``: those the paper's scripts use, or all; ``table``: percentiles as measured, or the artifact's p95 for
    every batch size (with the measured median where there is one, else the p95). ``slo``: seconds by task.
    Raises ConfigurationError for a missing file, InvalidInputError for a malformed one or an unknown task.
    """
    file = _read(path / "profiles.json" if path.is_dir() else path)
    apps: list[App] = []
    variants: list[Variant] = []
    profiles: list[Profile] = []
    for task in tasks:
        if task not in file.tasks:
            raise InvalidInputError("tasks", f"{task!r} is not one of {', '.join(sorted(file.tasks))}")
        if task not in slo:
            raise InvalidInputError(f"slo.{task}", "no SLO is given for this task; add it")
        apps.append(App(name=task, slo=slo[task], max_rows=1))
        for name in _names(file, task, models):
            points = _points(file, task, name, table, max_batch)
            accuracy = file.tasks[task][name].accuracy / 100.0
            variants.append(Variant(name=name, app=task, accuracy=accuracy, family=name.split("_")[0]))
            profiles.append(Profile(variant=name, device_type=DEVICE_TYPE, points=points, load=load))
    return Catalogue.of(apps, variants, profiles)


def _names(file: _File, task: str, models: str) -> list[str]:
    if models == "all":
        return sorted(file.tasks[task])
    names = file.pareto_used.get(task, [])
    for name in names:
        if name not in file.tasks[task]:
            raise InvalidInputError(f"pareto_used.{task}", f"{name!r} has no profile among tasks.{task}")
    return names


def _points(file: _File, task: str, name: str, table: str, max_batch: int) -> tuple[BatchLatency, ...]:
    measured = file.tasks[task][name].batches
    if table == "measured":
        points = [BatchLatency(b, m.p50 / 1e3, m.p95 / 1e3) for b, m in sorted(measured.items()) if b <= max_batch]
    else:
        p95s = file.artifact_p95_us_batches_1_to_33.get(task, {}).get(name, [])
        points = [
            BatchLatency(b, min(measured[b].p50 / 1e3, us / 1e6) if b in measured else us / 1e6, us / 1e6)
            for b, us in enumerate(p95s[:max_batch], 1)
        ]
    if not points:
        raise InvalidInputError(f"tasks.{task}.{name}", f"has no batch size up to {max_batch} in the {table} table")
    return tuple(points)


def _read(path: Path) -> _File:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}; point to a copy of the RAMSIS data") from error
    if len(data) > MAX_BYTES:
        raise InvalidInputError(path.name, f"holds more than {MAX_BYTES} bytes")
    try:
        return _File.model_validate(orjson.loads(data))
    except orjson.JSONDecodeError as error:
        raise InvalidInputError(path.name, f"is not JSON ({error})") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInputError(".".join(map(str, first["loc"])) or path.name, first["msg"]) from error

"""Problem files: an allocation problem as YAML or JSON, with overrides, checked before anything is planned.

Rules: ``${NAME}`` is replaced from the environment first, an unset one is an error. ``--set`` changes a field by its
dotted path (lists are searched by name or type: ``apps.bert.demand_qps=20``). ``--what-if demand.<app>=x2`` (or
``=20``, ``=+5``) and ``--what-if pools.<type>=+1`` ask a second question beside the first. Of several entries of a name
one is named by its place in the file, as answers call pools: ``pools.gpu#1``; ``demand.<app>=x2`` is of all of them.
"""

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.fleet.device import WHOLE, Device
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.plan import Placement
from sluicegate.planner.problems.plan_limits import PlanLimitFields, limits_of
from sluicegate.planner.problems.problem import AppDemand, Problem
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import load_catalogue
from sluicegate.profiles.formats.bounded_yaml import expanded, parsed, read_bytes
from sluicegate.profiles.formats.field_errors import field_error
from sluicegate.profiles.formats.field_types import NotNegative, Positive, Share, Text, Weight
from sluicegate.profiles.formats.proteus_csv import DEVICE_TYPES, load_proteus
from sluicegate.sluice.offline.problem_file_pools import FREE, PoolEntry, pool_devices, pool_label, pool_recuts


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AppEntry(_Part):
    """One app (and class): what it asks. ``headroom``: instead of the file's."""

    name: Text
    slo_ms: Positive
    demand_qps: NotNegative
    headroom: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    min_accuracy: Share = 0.0
    weight: Weight = 1.0
    query_class: QueryClass = Field(default=QueryClass.STRICT, alias="class")


class ProfilesEntry(_Part):
    """Where profiles are. ``proteus-csv``: that data set's folder; ``catalogue``: one of ours.

    ``path``: from the problem file's folder, else from the working one.
    """

    format: Literal["proteus-csv", "catalogue"]
    path: Path
    variants: Text = "model_variants"
    load_s: NotNegative = 1.0


class HeldEntry(_Part):
    """What a pool's devices hold now. ``count`` devices of a pool, or slices of one ``slice`` profile of it, that hold
    ``variant`` now."""

    pool: Text
    variant: Text
    count: int = Field(ge=0)
    slice: Text = WHOLE


class ProblemFile(PlanLimitFields, _Part):
    """The whole file."""

    apps: list[AppEntry] = Field(min_length=1)
    pools: list[PoolEntry] = Field(min_length=1)
    profiles: ProfilesEntry
    planner: Text = "allocation"
    headroom: float = Field(default=1.05, ge=1, allow_inf_nan=False)
    capacity: Literal["best-batch", "largest-batch"] = "best-batch"
    quantile: Literal["median", "p95"] = "median"
    variants_per_device: int = Field(default=1, ge=1, le=4)
    previous: list[HeldEntry] = []


@dataclass(frozen=True, slots=True)
class Question:
    """A problem, the planner asked for, and the pool of each device as the file names it.

    ``uncut``: pools whose GPUs have no geometry yet.
    """

    problem: Problem
    planner: str
    pool_of: Mapping[str, str]
    uncut: frozenset[str] = frozenset()


def read_question(path: Path, sets: Iterable[str] = (), what_ifs: Iterable[str] = ()) -> Question:
    """Read, override, check. Raises ConfigurationError or InvalidInputError, each one line."""
    document = _document(path)
    for text in sets:
        _apply(document, text)
    for text in what_ifs:
        _suppose(document, text)
    try:
        return _question(ProblemFile.model_validate(document), path.parent)
    except ValidationError as error:
        # A field that is unknown says more than one that is missing for its sake.
        first = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
        where = ".".join(str(x) for x in first["loc"]) or "problem"
        value = first.get("input")
        plain = isinstance(value, str | int | float) and first["type"] != "extra_forbidden"
        shown = f" (it is {value!r})" if plain else ""
        why = field_error(first, ProblemFile)
        raise InvalidInputError(f"{path.name}: {where}", why[:1].lower() + why[1:] + shown) from error


def _document(path: Path) -> dict[str, Any]:
    what = path.name
    try:
        text = read_bytes(path, what).decode()
    except UnicodeDecodeError:
        raise ConfigurationError(f"{what}: is not UTF-8; give a YAML or JSON file") from None
    document = parsed(expanded(text, os.environ, what), what)
    if not isinstance(document, dict):
        raise ConfigurationError(f"{what}: is not a mapping with apps, pools and profiles")
    if {"catalogue", "traces"} <= document.keys():
        raise ConfigurationError(f"{what}: is a scenario; sluice simulate {shlex.quote(str(path))} runs it")
    return document


def _apply(document: dict[str, Any], text: str) -> None:
    """One ``key=value``."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise InvalidInputError(f"--set {text}", "is not of the form key=value")
    _holder(document, key)[key.rpartition(".")[2]] = parsed(value, f"--set {key}")


def _suppose(document: dict[str, Any], text: str) -> None:
    """One ``demand.<app>=x2`` or ``pools.<type>=+1``."""
    key, sign, value = text.partition("=")
    kind, _, name = key.partition(".")
    if not sign or kind not in ("demand", "pools") or not name:
        raise InvalidInputError(f"--what-if {text}", "is not of the form demand.<app>=x2 or pools.<type>=+1")
    path, field = (f"apps.{name}", "demand_qps") if kind == "demand" else (f"pools.{name}", "count")
    apps = document.get("apps")
    scaled = apps if kind == "demand" and value.startswith("x") and isinstance(apps, list) else []
    every = [entry for entry in scaled if isinstance(entry, dict) and entry.get("name") == name]
    for holder in every or [_holder(document, f"{path}.{field}")]:
        holder[field] = _supposed(text, holder.get(field), value, whole=kind == "pools")


def _supposed(text: str, held: Any, value: str, *, whole: bool) -> float:
    """``held``, changed as ``value`` says."""
    try:
        now = float(held)
        number = float(value.removeprefix("x"))
        if value.startswith("x"):
            number = now * number
        elif value[:1] in "+-":
            number = now + number
        if not isfinite(number):
            raise ValueError
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"--what-if {text}", "needs a finite number: x2, +5, -5 or 20") from error
    return round(number) if whole else number


def _holder(document: dict[str, Any], key: str) -> dict[str, Any]:
    """The mapping that holds the last part of a dotted ``key``."""
    here: Any = document
    parts = key.split(".")
    for i, part in enumerate(parts[:-1]):
        if isinstance(here, list):
            here = _entry(here, part, ".".join(parts[: i + 1]))
        elif isinstance(here, dict):
            here = here.setdefault(part, {})
    if not isinstance(here, dict):
        raise InvalidInputError(key, "names no field; use apps.<name>.<field>, pools.<type>.<field> or a top-level one")
    return here


def _entry(entries: list[Any], name: str, where: str) -> Any:
    """The one that ``name`` names."""
    names = [str(x.get("name", x.get("type"))) if isinstance(x, dict) else "" for x in entries]
    listed = Counter(names)
    labels = [f"{called}#{i}" if listed[called] > 1 else called for i, called in enumerate(names)]
    if name in labels:
        return entries[labels.index(name)]
    if name in listed:
        ones = " or ".join(label for label, called in zip(labels, names, strict=True) if called == name)
        raise InvalidInputError(where, f"there are {listed[name]} of this name; say which: {ones}")
    raise InvalidInputError(where, f"there is no such entry; there are {', '.join(filter(None, labels))}")


def _question(file: ProblemFile, folder: Path) -> Question:
    catalogue = _catalogue(file, folder)
    aliases = DEVICE_TYPES if file.profiles.format == "proteus-csv" else {}
    for entry in file.apps:
        if entry.name not in catalogue.apps:
            known = ", ".join(catalogue.apps)
            raise InvalidInputError("apps.name", f"{entry.name!r} is not in the profiles; there are {known}")
    devices, pool_of = pool_devices(file.pools, catalogue, aliases)
    demands = tuple(
        AppDemand(
            app=a.name,
            qps=a.demand_qps,
            slo=a.slo_ms / 1e3,
            headroom=a.headroom or file.headroom,
            min_accuracy=a.min_accuracy,
            weight=a.weight,
            query_class=a.query_class,
        )
        for a in file.apps
    )
    problem = Problem(
        demands=demands,
        devices=tuple(devices),
        catalogue=catalogue,
        previous=tuple(_previous(file, devices, pool_of, catalogue)),
        capacity=file.capacity,
        quantile=file.quantile,
        variants_per_device=file.variants_per_device,
        **limits_of(file),
        recuts=pool_recuts(file.pools, pool_of),
    )
    uncut = frozenset(pool_label(file.pools, p) for p, pool in enumerate(file.pools) if pool.geometry == FREE)
    return Question(problem, file.planner, pool_of, uncut)


def _catalogue(file: ProblemFile, folder: Path) -> Catalogue:
    entry = file.profiles
    beside = folder / entry.path
    try:
        path = beside if beside.exists() else entry.path
        path.stat()
    except FileNotFoundError:
        pass  # whoever reads it says what is missing
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"profiles.path: {str(entry.path)!r:.80} is no place to read from: {why}") from error
    if entry.format == "proteus-csv":
        return load_proteus(path, variants=entry.variants, load=entry.load_s)
    return load_catalogue(path, verify=False)


def _previous(
    file: ProblemFile, devices: list[Device], pool_of: Mapping[str, str], catalogue: Catalogue
) -> Iterable[Placement]:
    free: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for device in devices:
        for part in device.slices:
            free.setdefault((pool_of[device.name], part.profile), []).append((device.name, part.name))
    for held in file.previous:
        if held.variant not in catalogue.variants:
            raise InvalidInputError("previous.variant", f"{held.variant!r} is not in the profiles")
        units = free.get((held.pool, held.slice), [])
        if held.count > len(units):
            what = f"pool {held.pool!r}" if held.slice == WHOLE else f"slices {held.slice} of pool {held.pool!r}"
            raise InvalidInputError("previous.count", f"{held.count} of {what}, which has {len(units)} left")
        for device_name, part_name in units[: held.count]:
            app = catalogue.variants[held.variant].app
            yield Placement(device_name, app, (held.variant,), 0.0, 1, part_name)
        free[held.pool, held.slice] = units[held.count :]

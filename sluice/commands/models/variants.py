"""``sluice variants``: what can answer an app's queries, how well, how fast and where."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.profile import Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.registered_apps import CandidateDocument, Record, Registered
from sluicegate.profiles.formats.catalogue_json import VariantDocument
from sluicegate.sluice.catalogue.open_catalogue import open_catalogue
from sluicegate.sluice.console import JsonOption, one_line_errors, out, print_aside, print_json
from sluicegate.sluice.settings.settings import load

_CONFIDENT = 1.96
"""Standard errors of a difference below which two accuracies are not told apart."""

LARGEST = "largest:\nms"
"""The heading of the largest batch and what it takes: in two lines, for names of variants to have the room."""

Measured = Variant | VariantDocument
"""A variant, as it is served or as it stands in a record."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("variants")(variants)


def variants(
    app: Annotated[str | None, typer.Option("--app", help="Only of this app.")] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """List variants with accuracy and profiles. The demo's are built and profiled first where there are none."""
    with one_line_errors():
        chosen = load(settings)
        catalogue, folder = open_catalogue(chosen, [app] if app else [])
        registered = Registered(chosen.home)
        records = {name: registered.readable_record(name) for name in registered.apps()}
        apps = [app] if app else list(catalogue.apps)
        for name in apps:
            if name not in catalogue.apps:
                raise InvalidInputError("--app", f"{name!r} is not one of {', '.join(catalogue.apps) or 'none'}")
    if as_json:
        described = {name: describe_app(catalogue, name) + _not_served(records.get(name)) for name in apps}
        print_json({"folder": str(folder), "apps": described})
        return
    for name in apps:
        out.print(_table(catalogue, name))
        for row in _not_served(records.get(name)):
            told = f"not served: {row['name']}, {100 * row['accuracy']:.1f} %: {row['reason']}"
            print_aside(told.replace(f" {name}.v", " v"))  # as they are called in the table
        for line in _noise(catalogue.of_app(name)):
            print_aside(line)
        if told := nothing_to_scale_with(name, catalogue.of_app(name)):
            out.print(f"[yellow]{told}[/]", highlight=False, soft_wrap=True)


def nothing_to_scale_with(app: str, served: Sequence[Measured]) -> str:
    """What to do where an app is served by one variant, or by equally accurate ones; empty where there is a choice."""
    if len(served) == 1:
        said = "nothing to scale with: only one variant, accuracy cannot follow load"
    elif served and _equally_accurate(served):
        said = f"its {len(served)} variants are equally accurate as far as the rows tell, accuracy cannot follow load"
    else:
        return ""
    return (
        f"{app}: {said}. Have smaller ones made: sluice register --app {app} MODEL --validation … --make-family; "
        "or give your own: … small.onnx large.onnx, or --add"
    )


def _equally_accurate(variants: Sequence[Measured]) -> bool:
    """Whether no two can be told apart."""
    return all(
        one.accuracy == other.accuracy or other.name in within_noise(one, [other])
        for i, one in enumerate(variants)
        for other in variants[i + 1 :]
    )


def describe_app(catalogue: Catalogue, app: str) -> list[dict[str, Any]]:
    """Variants of ``app``, most accurate first, as plain values. Seconds and bytes, where a name does not say."""
    return [
        {
            "name": v.name,
            "variant": v.name,
            **_first_profile(_profiles(catalogue, v.name)),
            "served": True,
            "reason": "",
            "family": v.family,
            "accuracy": v.accuracy,
            "accuracy_se": v.accuracy_se,
            "nominal": v.nominal,
            "within_noise_of": within_noise(v, catalogue.of_app(app)),
            "size_bytes": v.size_bytes,
            "digest": v.digest,
            "profiles": {p.device_type: _describe_profile(p) for p in _profiles(catalogue, v.name)},
        }
        for v in catalogue.of_app(app)
    ]


def candidate_rows(record: Record) -> list[dict[str, Any]]:
    """Candidates of a registered version, served or not, as plain values."""
    return [
        {
            "name": c.variant.name,
            "recipe": c.recipe,
            "accuracy": c.variant.accuracy,
            "accuracy_se": c.variant.accuracy_se,
            **_first_measured(c),
            "size_bytes": c.variant.size_bytes,
            "digest": c.variant.digest,
            "accuracy_lost": c.gap,
            "accuracy_lost_se": c.gap_se,
            "served": c.served,
            "reason": c.reason,
        }
        for c in record.candidates
    ]


def _first_measured(candidate: CandidateDocument) -> dict[str, Any]:
    """What a row says of the first device type that a candidate was profiled on; one may be loaded on none."""
    if not candidate.profiles:
        return {
            "device_type": None,
            **{key: {} for key in ("latency_ms", "latency_ms_by_length", "latency_ms_95", "p95_ms", "cpu_ms")},
            "load_ms": None,
            "memory_bytes": None,
        }
    first = candidate.profiles[0]
    return {
        "device_type": first.device_type,
        "latency_ms": {str(p.batch): 1e3 * p.median_s for p in first.points},
        "latency_ms_by_length": {
            str(each.length): {str(p.batch): 1e3 * p.median_s for p in each.points} for each in first.shorter
        },
        "latency_ms_95": {
            str(s.batch): [1e3 * s.low_s, 1e3 * s.high_s] for s in candidate.spreads.get(first.device_type, ())
        },
        "p95_ms": {str(p.batch): 1e3 * p.p95_s for p in first.points},
        "cpu_ms": {str(p.batch): 1e3 * p.cpu_s for p in first.points},
        "load_ms": 1e3 * first.load_s,
        "memory_bytes": first.memory_bytes,
    }


def _not_served(record: Record | None) -> list[dict[str, Any]]:
    return [row for row in candidate_rows(record) if not row["served"]] if record else []


def _first_profile(profiles: Sequence[Profile]) -> dict[str, Any]:
    """What a row says of the first device type that it was profiled on."""
    if not profiles:
        return {"latency_ms": {}, "latency_ms_by_length": {}, "load_ms": None, "memory_bytes": None}
    first = profiles[0]
    return {
        "device_type": first.device_type,
        "latency_ms": {str(p.batch): 1e3 * p.median for p in first.points},
        "latency_ms_by_length": {
            str(each.length): {str(p.batch): 1e3 * p.median for p in each.points} for each in first.shorter
        },
        "load_ms": 1e3 * first.load,
        "memory_bytes": first.memory_bytes,
    }


def within_noise(variant: Measured, others: Sequence[Measured]) -> list[str]:
    """Names of ``others`` whose measured accuracy does not differ from ``variant``'s by 1.96 standard errors."""
    return [
        other.name
        for other in others
        if other.name != variant.name
        and not (variant.nominal or other.nominal)
        and variant.accuracy_se > 0.0
        and abs(other.accuracy - variant.accuracy) < _CONFIDENT * math.hypot(variant.accuracy_se, other.accuracy_se)
    ]


def _profiles(catalogue: Catalogue, variant: str) -> list[Profile]:
    return [p for (name, _), p in catalogue.profiles.items() if name == variant]


def _describe_profile(profile: Profile) -> dict[str, Any]:
    return {
        "memory_bytes": profile.memory_bytes,
        "load_s": profile.load,
        "points": [{"batch": p.batch, "median_s": p.median, "p95_s": p.p95, "cpu_s": p.cpu} for p in profile.points],
    }


def _noise(variants: Sequence[Variant]) -> list[str]:
    return [
        f"{v.name} and {name} are not told apart: their accuracies differ by less than {_CONFIDENT} standard errors"
        for i, v in enumerate(variants)
        for name in within_noise(v, variants[i + 1 :])
    ]


def _table(catalogue: Catalogue, app: str) -> Table:
    table = Table(title=app, box=SIMPLE_HEAD, padding=0)  # what is left is the names'
    table.add_column("variant", overflow="fold")
    table.add_column("accuracy\n%", justify="right", no_wrap=True)
    add_profile_columns(table)
    for variant in catalogue.of_app(app):
        spread = " nominal" if variant.nominal else f" ±{100 * variant.accuracy_se:.1f}" if variant.accuracy_se else ""
        rows = [profile_cells(p) for p in _profiles(catalogue, variant.name)] or [["-"] * 6]
        for i, cells in enumerate(rows):
            first = (
                (variant.name.removeprefix(f"{app}."), f"{100 * variant.accuracy:.1f}{spread}") if i == 0 else ("", "")
            )
            table.add_row(*first, *cells)
    return table


def add_profile_columns(table: Table) -> None:
    """Columns for ``profile_cells``."""
    table.add_column("device", no_wrap=True)
    for name in ("ms", "p95", LARGEST, "q/s", "MB"):
        table.add_column(name, justify="right", no_wrap=True)


def profile_cells(profile: Profile) -> list[str]:
    """Device type; median and p95 of the smallest batch, ms; the largest and its median; best rate; memory."""
    first, last = profile.points[0], profile.points[-1]
    rate = max(p.batch / p.median for p in profile.points)
    return [
        profile.device_type,
        f"{1e3 * first.median:.2f}",
        f"{1e3 * first.p95:.2f}",
        f"{last.batch}: {1e3 * last.median:.2f}",
        f"{rate:.0f}",
        f"{profile.memory_bytes / 1e6:.1f}",
    ]

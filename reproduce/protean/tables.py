"""What several figures share: the steady trace by strict model, tables, and percentages."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isnan
from typing import Any

from reproduce.figure import Options
from reproduce.protean.runs import SHOWN, compared, scenario, seconds_of
from reproduce.protean.slices.slices_fields import SliceScenario
from sluicegate.simulator.report.page import Table

FOUR = ("vgg19", "resnet50", "dpn92", "shufflenetv2")

Compared = dict[str, Mapping[str, Any]]


@lru_cache(maxsize=64)
def vision(strict: str, options: Options) -> Compared:
    """The systems shown with a strict vision model; run once for all figures that show it."""
    return compared(wiki(strict, options), SHOWN, options)


def wiki(strict: str, options: Options, **changes: Any) -> SliceScenario:
    """The shipped steady scenario, varied."""
    workload = {"strict": strict, **changes.pop("workload", {})}
    return scenario("protean-wiki", seconds_of(options), workload=workload, **changes)


def slo_ms(one: SliceScenario) -> float:
    """The SLO of its strict model."""
    return one.workload.slo_multiplier * one.models[one.workload.strict].solo_ms


def percent(results: Mapping[str, Compared], measure: str = "slo_compliance_strict") -> dict[str, dict[str, float]]:
    """By group and system, times 100."""
    return {name: {s: 100 * r[measure] for s, r in found.items()} for name, found in results.items()}


def points(found: Compared, one: str, other: str) -> float:
    """By how many points of compliance ``one`` is ahead of ``other``."""
    return float(100 * (found[one]["slo_compliance_strict"] - found[other]["slo_compliance_strict"]))


def tables_of(results: Mapping[str, Compared]) -> list[Table]:
    """A table a group."""
    return [by_system(name, found) for name, found in results.items()]


def beside(title: str, rows: Sequence[tuple[str, str, str]]) -> Table:
    """What the paper has and what we have."""
    return Table(title, ("", "paper", "here"), rows)


def interval(result: Mapping[str, Any], measure: str, scale: float = 1.0, digits: int = 0, unit: str = "") -> str:
    """A mean over seeds with its 95 % interval, where it is of several."""
    half = scale * result["ci95"][measure]
    spread = "" if isnan(half) else f" \u00b1 {half:.{digits}f}"
    return f"{scale * result[measure]:.{digits}f}{spread}{unit}"


def by_system(title: str, results: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row a system: the figures that every page has."""
    header = ("system", "strict on time", "strict P99", "best-effort P50", "best-effort P99", "strict/s a GPU")
    rows = [
        (
            name,
            interval(r, "slo_compliance_strict", 100.0, 2, " %"),
            interval(r, "p99_strict_ms", unit=" ms"),
            interval(r, "p50_best_effort_ms", unit=" ms"),
            interval(r, "p99_best_effort_ms", unit=" ms"),
            interval(r, "strict_qps_per_gpu"),
        )
        for name, r in results.items()
    ]
    return Table(title, header, rows)

"""What several figures share: the steady trace by strict model, and percentages."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from bench.protean.pages import by_system
from bench.protean.runs import SHOWN, Options, compared, scenario
from simulator.report.page import Table
from simulator.slices.spec import SliceScenario

FOUR = ("vgg19", "resnet50", "dpn92", "shufflenetv2")

Compared = dict[str, Mapping[str, Any]]


@lru_cache(maxsize=64)
def vision(strict: str, options: Options) -> Compared:
    """The systems shown with a strict vision model; run once for all figures that show it."""
    return compared(wiki(strict, options), SHOWN, options)


def wiki(strict: str, options: Options, **changes: Any) -> SliceScenario:
    """The shipped steady scenario, varied."""
    workload = {"strict": strict, **changes.pop("workload", {})}
    return scenario("protean-wiki", options.seconds, workload=workload, **changes)


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

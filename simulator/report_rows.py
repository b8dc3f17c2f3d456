"""Figures as text: the rows of a comparison, on the terminal and on the page alike."""

import math
from collections.abc import Mapping

HEADER = (
    *("system", "queries", "violations", "at least", "right in time", "at most", "distance closed"),
    *("accuracy", "of best", "worst 10 s"),
    *("goodput", "p50", "p99", "solves", "solve p95", "cost"),
)
"""Columns of a comparison."""


def row_of(name: str, figures: Mapping[str, object]) -> tuple[str, ...]:
    """A row under HEADER from the figures of a system, or from some of them (others are dashes)."""
    half = figures.get("ci95")
    halves = half if isinstance(half, dict) else {}
    planner = figures.get("planner")
    solves = planner if isinstance(planner, dict) else {}

    bound = figures.get("bound")
    bounds = bound if isinstance(bound, dict) else {}

    def shown(key: str, scale: float, digits: int, unit: str, of: Mapping[str, object] = figures) -> str:
        value = of.get(key)
        if not isinstance(value, int | float) or math.isnan(value):
            return "-"
        width = halves.get(key, math.nan) if of is figures else math.nan
        spread = "" if math.isnan(width) else f" ±{scale * width:.{digits}f}"
        return f"{scale * value:.{digits}f}{spread}{unit}"

    return (
        name,
        shown("queries", 1, 0, ""),
        shown("violation_ratio", 100, 2, " %"),
        shown("violation_ratio", 100, 2, " %", bounds),
        shown("right_in_time", 100, 2, " %"),
        shown("right_in_time", 100, 2, " %", bounds),
        shown("distance_closed", 100, 1, " %"),
        shown("effective_accuracy", 100, 2, " %"),
        shown("relative_accuracy", 100, 2, " %"),
        shown("max_accuracy_drop", 100, 2, " %"),
        shown("goodput_qps", 1, 1, "/s"),
        shown("p50_ms", 1, 0, " ms"),
        shown("p99_ms", 1, 0, " ms"),
        f"{solves['solves']}" if "solves" in solves else "-",
        f"{solves['p95_ms']:.0f} ms" if solves.get("solves") else "-",
        shown("cost", 1, 4, ""),
    )


def percent(ratio: float, digits: int = 2) -> str:
    """A ratio as text; a dash where it is undefined."""
    return "-" if math.isnan(ratio) else f"{100 * ratio:.{digits}f} %"

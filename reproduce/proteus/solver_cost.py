"""Figure 10: what a plan costs to make, against devices, variants and query types; ours beside the per-device"
" program."""

from collections.abc import Callable
from typing import Any

from bench.planning.planner import cpu, literal, more_apps, more_variants, published
from reproduce.figure import Options, Result, papers_data
from reproduce.proteus.plots import solver
from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.problems.problem import Problem
from sluicegate.simulator.report.page import Table

WINDOW = [90, 100]
SCALE = 3.0
DEVICES = (20, 40, 80, 160, 320)
VARIANTS = (51, 100, 225, 450)
APPS = (9, 11, 13, 15, 17)
LITERAL_S = 20.0
"""Wall seconds after which a solve of the per-device program is stopped."""


def figure_10(options: Options) -> Result:
    """CPU seconds; each dimension alone, the others as in the published cluster."""
    folder = papers_data("proteus/milp_oracle.json").parents[1]
    base = published(folder, 40, WINDOW, SCALE)
    dimensions: dict[str, tuple[tuple[int, ...], Callable[[int], Problem]]] = {
        "devices": (DEVICES, lambda n: published(folder, n, WINDOW, SCALE)),
        "variants": (VARIANTS, lambda n: more_variants(base, n) if n > len(base.catalogue.variants) else base),
        "query types": (APPS, lambda n: more_apps(base, n) if n > len(base.demands) else base),
    }
    rows: list[dict[str, Any]] = []
    panels = []
    for name, (sizes, problem) in dimensions.items():
        stopped = False
        found: list[dict[str, Any]] = []
        for size in (sizes[0], sizes[len(sizes) // 2], sizes[-1]) if options.quick else sizes:
            row = {"dimension": name, "size": size, **_ours(problem(size))}
            if not stopped:
                row.update(_literal(problem(size), LITERAL_S))
                # The program only grows along a dimension: after two stops in a row it is not asked again.
                stopped = bool(row["literal_stopped"] and found and found[-1].get("literal_stopped"))
            print(f"  {row}", flush=True)
            found.append(row)
        rows += found
        panels.append((name, _curves(found)))
    notes = [
        "The paper (Gurobi): 4.2 s on average for its cluster; a minute is reached at 160 devices, or 450 variants,"
        " or 17 query types (dashed line).",
        "Per-device program: the same OR-tools solver and one thread, stopped after"
        f" {LITERAL_S:g} s of wall time each (dotted line; CPU seconds are plotted, fewer on a busy machine):"
        " what the table says was stopped did not end. It may take several solves where demand has to be lowered.",
    ]
    intro = (
        f"Demand of seconds {WINDOW[0]}-{WINDOW[1]} of zipf_exponential times {SCALE:g}, which needs accuracy scaling."
    )
    return Result("solver cost", intro, [("CPU seconds", solver(panels, LITERAL_S))], [_table(rows)], notes, rows)


def _ours(problem: Problem) -> dict[str, Any]:
    _, first_s = cpu(lambda: AllocationPlanner(polish=False).allocate(problem))
    answer, plan_s = cpu(lambda: AllocationPlanner().allocate(problem))
    return {
        "first_plan_s": first_s,
        "plan_s": plan_s,
        "accuracy": answer.objective,
        "gap_points": 100.0 * answer.gap,
        "served": min(answer.served.values()),
    }


def _literal(problem: Problem, seconds: float) -> dict[str, Any]:
    found = literal(problem, seconds)
    return {
        "literal_s": found["plan_s"],
        "literal_accuracy": found["accuracy"],
        "literal_served": found["served"],
        "literal_stopped": bool(found["stopped"]),
    }


def _curves(rows: list[dict[str, Any]]) -> dict[str, tuple[list[float], list[float]]]:
    sizes = [float(r["size"]) for r in rows]
    asked = [r for r in rows if "literal_s" in r]
    return {
        "ours, whole plan": (sizes, [r["plan_s"] for r in rows]),
        "ours, first plan": (sizes, [r["first_plan_s"] for r in rows]),
        "per-device program": ([float(r["size"]) for r in asked], [r["literal_s"] for r in asked]),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    header = (
        "case",
        "first plan",
        "whole plan",
        "accuracy",
        "gap, points",
        "per-device program",
        "its accuracy, least served",
    )
    shown = []
    for r in rows:
        literal_s = (
            "not asked"
            if "literal_s" not in r
            else f"{r['literal_s']:.1f} s" + (", stopped" if r["literal_stopped"] else "")
        )
        accuracy = "-"
        if "literal_s" in r:
            accuracy = f"{100 * r['literal_accuracy']:.2f} %, {100 * r['literal_served']:.1f} %"
        shown.append(
            (f"{r['size']} {r['dimension']}", f"{1e3 * r['first_plan_s']:.0f} ms", f"{1e3 * r['plan_s']:.0f} ms",
             f"{100 * r['accuracy']:.2f} %", f"{r['gap_points']:.3f}", literal_s, accuracy)
        )  # fmt: skip
    return Table("CPU seconds of one plan", header, shown)

"""Figure 7: the program with one of its parts taken away.

The ablations do not choose headroom, so they are held against all parts with the headroom that they have, by the
variance of demand; what headroom at its price is worth is a row of its own.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from reproduce.figure import Options, Result
from reproduce.proteus.plots import bars
from reproduce.proteus.runs import rows_of, run_all, table
from reproduce.proteus.systems import BY_SHARE, OURS, WORD, System
from reproduce.proteus.workloads import trace
from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.baselines.clipper_sommelier import SommelierPlanner
from sluicegate.simulator.scenario.experiment import Run

PAPER = {
    "paper: without placement": {"max_accuracy_drop": 0.16},
    "paper: without selection": {"violation_ratio": 0.18},
    "paper: without assignment": {"violation_ratio": 0.10},
}
PARTS = ("placement", "selection", "assignment", "batching")
ALL_PARTS = "all parts"
HEAVY = 2.5


def mended() -> list[System]:
    """Ours, and routed by share all parts and the four ablations."""
    whole = System(ALL_PARTS, BY_SHARE, lambda _: AllocationPlanner())
    return [OURS, System("headroom at its price", BY_SHARE), whole, *(_without(p, BY_SHARE) for p in PARTS)]


def figure_7(options: Options) -> Result:
    """Ours and the four ablations, all routed by share, at two loads; and at the paper's word."""
    word = [System("word: all parts", WORD), *(_without(p, WORD, "word: ") for p in PARTS)]
    loads = [trace("zipf_exponential", scale=HEAVY, seconds=options.lasting(110.0), seed=options.seed)]
    if not options.quick:
        loads.append(trace("medium-normal_load", seconds=options.seconds, seed=options.seed))
    drawings, tables, rows, notes = [], [], [], []
    for work in loads:
        runs = run_all([*mended(), *word], work, options)
        tables.append(table(work.name, runs, PAPER))
        rows += rows_of(runs, workload=work.name)
        drawings.append((work.name, bars(_values(runs), _TITLES, columns=3)))
        notes.append(f"{work.name}: {_said(runs)}")
    notes.append(
        "The paper: without placement accuracy drops by 16 %; without selection 18 %, without assignment 10 % late."
    )
    intro = "Each part of the program taken away in turn, everything else as it is; beside that at the paper's word."
    return Result("ablation", intro, drawings, tables, notes, rows)


def _without(part: str, overrides: Mapping[str, Any], prefix: str = "") -> System:
    name = f"allocation-without-{part}"
    system = System(f"{prefix}without {part}", {**overrides, "planner.name": name})
    if part == "placement":
        return replace(system, planner=lambda w: SommelierPlanner(name=name, expected=w.mean))
    return system


_TITLES = {"v": "violations, %", "a": "effective accuracy, %", "d": "accuracy drop, worst 10 s, %"}


def _values(runs: dict[str, Run]) -> dict[str, dict[str, float]]:
    return {
        n: {
            "v": 100.0 * r.summary.violation_ratio,
            "a": 100.0 * r.summary.effective_accuracy,
            "d": 100.0 * r.summary.max_accuracy_drop,
        }
        for n, r in runs.items()
    }


def _said(runs: dict[str, Run]) -> str:
    base = runs[ALL_PARTS].summary
    parts = []
    for p in PARTS:
        s = runs[f"without {p}"].summary
        parts.append(
            f"without {p} {100 * (s.violation_ratio - base.violation_ratio):+.2f} points of violations,"
            f" {100 * (s.effective_accuracy - base.effective_accuracy):+.2f} of accuracy"
        )
    return "; ".join(parts) + " (against all parts)"

"""Figure 7: the program with one of its parts taken away."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.proteus.pages import Options, Result, rows_of, run_all, table
from bench.proteus.plots import bars
from bench.proteus.systems import MENDED, OURS, WORD, System
from bench.proteus.workloads import trace
from planner.baselines.published import SommelierPlanner
from simulator.experiment import Run

PAPER = {
    "paper: without placement": {"max_accuracy_drop": 0.16},
    "paper: without selection": {"violation_ratio": 0.18},
    "paper: without assignment": {"violation_ratio": 0.10},
}
PARTS = ("placement", "selection", "assignment", "batching")
HEAVY = 2.5


def figure_7(options: Options) -> Result:
    """Ours and the four ablations, all routed by share, at two loads; and at the paper's word."""
    mended = [OURS, System("all parts", MENDED), *(_without(p, MENDED) for p in PARTS)]
    word = [System("word: all parts", WORD), *(_without(p, WORD, "word: ") for p in PARTS)]
    loads = [trace("zipf_exponential", scale=HEAVY, seconds=options.lasting(110.0), seed=options.seed)]
    if not options.quick:
        loads.append(trace("medium-normal_load", seconds=options.seconds, seed=options.seed))
    drawings, tables, rows, notes = [], [], [], []
    for work in loads:
        runs = run_all([*mended, *word], work, options)
        tables.append(table(work.name, runs, PAPER))
        rows += rows_of(runs, workload=work.name)
        drawings.append((work.name, bars(_values(runs), _TITLES, columns=3)))
        notes.append(f"{work.name}: {_said(runs)}")
    notes += [
        "The paper: without placement accuracy drops by 16 %; without selection 18 % and without assignment 10 % are"
        " violated.",
        "Without placement (Sommelier) devices keep the app of the first plan, which is made for the mean of each"
        " app: at the peak apps fall to their fastest variants where another app's devices have room. The drop is the"
        " worst 10 s.",
        "Without selection only the most accurate variants that fit the SLO are hosted. The published load can nearly"
        " be carried that way, so little is lost; at 2.5 times the load capacity is short by more than accuracy could"
        " have given, and those queries are lost.",
        "Without assignment an accurate, slow host gets as many queries as a fast one. The planner of this ablation"
        " still chooses hosts as if shares followed capacity, so slow hosts overflow while fast ones idle: the loss"
        " grows with the spread of speeds among an app's hosts, that is, with scaling.",
        "Without batching every device serves one query at a time: capacity falls to half at the median accelerator"
        " profile and to an eighth at the best, so less accurate variants are hosted and headroom ends sooner.",
        "All parts against Sluicegate: the same program, but uniform risk for headroom and routing by share.",
    ]
    intro = "Each part of the program taken away in turn, everything else as it is; beside that at the paper's word."
    return Result(7, "ablation", intro, drawings, tables, notes, rows)


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
    base = runs["all parts"].summary
    parts = []
    for p in PARTS:
        s = runs[f"without {p}"].summary
        parts.append(
            f"without {p} {100 * (s.violation_ratio - base.violation_ratio):+.2f} points of violations,"
            f" {100 * (s.effective_accuracy - base.effective_accuracy):+.2f} of accuracy"
        )
    return "; ".join(parts) + " (against all parts)"

"""Figure 6: the same mean load as an even stream, a Poisson process and a very bursty one, under each batching rule."""

from collections.abc import Mapping, Sequence
from functools import partial

from reproduce.figure import Options, Result
from reproduce.proteus.plots import bars
from reproduce.proteus.runs import by_seed, mean, mean_table, rows_of, run_seeds
from reproduce.proteus.systems import BY_SHARE, PROTEUS_EXACT, WORD, System
from reproduce.proteus.workloads import Workload, drawn
from sluicegate.simulator.scenario.experiment import Run

LOAD = 1000.0
RAMP_S = 15
"""The load rises from nothing in this time: what is violated while devices are empty says nothing of batching."""
SHAPE = 0.05
PUBLISHED = "headroom 1.05"
PROCESSES = (("uniform", 1.0), ("poisson", 1.0), ("gamma", SHAPE))
RULES = ("deadline", "early-drop", "aimd", "eager", "adaptive")
NAMES = {
    "deadline": "deadline (Proteus)",
    "early-drop": "early drop (Nexus)",
    "aimd": "AIMD (Clipper)",
    "eager": "eager",
    "adaptive": "adaptive (ours)",
}


def figure_6(options: Options) -> Result:
    """Violations by batching rule and arrival process, under two ways to plan."""
    seconds = options.seconds or (40.0 if options.quick else 120.0)
    planned = {
        PUBLISHED: {**WORD, "planner.capacity": "best-batch"},
        "headroom at its price": BY_SHARE,
    }
    drawings, tables, rows, notes = [], [], [], []
    for plan, overrides in planned.items():
        chosen = PROTEUS_EXACT.planner if plan == PUBLISHED else None
        systems = [System(NAMES[r], {**overrides, "policies.batching": r}, chosen) for r in RULES]
        by_process: dict[str, dict[str, list[Run]]] = {}
        for process, shape in PROCESSES:
            load = partial(_load, process, shape, seconds)
            runs = by_process[process] = run_seeds(systems, load, options)
            tables.append(mean_table(f"{plan}, {load(options.seed).name}", runs))
            rows += [row for each in by_seed(runs) for row in rows_of(each, plan=plan, process=process)]
        values = {
            NAMES[r]: {p: 100.0 * mean(by_process[p][NAMES[r]], "violation_ratio") for p, _ in PROCESSES} for r in RULES
        }
        titles = {p: f"{plan}, {p}: violations, %" for p, _ in PROCESSES}
        drawings.append((plan, bars(values, titles, columns=len(PROCESSES))))
        notes.append(f"{plan}: " + "; ".join(_said(p, by_process[p]) for p, _ in PROCESSES) + ".")
    notes.append("The paper: early drop has 2-3x and AIMD 3.8-4x the violations of Proteus's waiting, on each process.")
    intro = (
        f"{LOAD:g} queries/s after a rise of {RAMP_S} s, {seconds:g} s in all, families' shares as in the traces; same"
        " planner for all rules."
    )
    return Result("batching by arrival process", intro, drawings, tables, notes, rows)


def _load(process: str, shape: float, seconds: float, seed: int) -> Workload:
    name = process if shape == 1.0 else f"{process}, shape {shape:g}"
    rates = [LOAD * (second + 1) / RAMP_S for second in range(RAMP_S)] + [LOAD] * (int(seconds) - RAMP_S)
    return drawn(name, rates, process=process, shape=shape, seed=seed)


def _said(process: str, runs: Mapping[str, Sequence[Run]]) -> str:
    late = {r: mean(runs[NAMES[r]], "violation_ratio") for r in RULES}
    base, ours = late["deadline"], late["adaptive"]
    others = [f"{NAMES[r]} {late[r] / base:.2f}x" for r in RULES if r != "deadline" and base > 0.0]
    waits = f"{100 * base:.2f} % with deadline, {100 * ours:.2f} % with adaptive"
    return f"{process}: {waits}" + (f" (of deadline's: {', '.join(others)})" if others else "")

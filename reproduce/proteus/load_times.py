"""Load times: Fig. 4's trace where loading takes from 0.2 s to a minute, beside serving or instead of it."""

from reproduce.figure import Options, Result
from reproduce.proteus import systems
from reproduce.proteus.plots import lines
from reproduce.proteus.runs import rows_of, run_all, table
from reproduce.proteus.workloads import trace
from sluicegate.simulator.scenario.experiment import Run

LOADS = (0.2, 1.0, 5.0, 15.0, 60.0)
"""Seconds."""
MODES = ("beside", "exclusive")
"""What a device does while it loads: it serves, or stands still."""
MEASURES = (("violations", "violation_ratio"), ("effective accuracy", "effective_accuracy"))
COMPARED = (
    systems.OURS,
    systems.OURS.but("Sluicegate, loads free", planner__loads="free"),
    systems.PROTEUS_MENDED,
    systems.INFAAS_MENDED,
)


def figure_loads(options: Options) -> Result:
    """Violations and accuracy by load time."""
    work = trace("medium-normal_load", seconds=options.lasting(110.0), seed=options.seed)
    drawings, tables, rows = [], [], []
    for mode in MODES:
        by_load: dict[float, dict[str, Run]] = {}
        for seconds in LOADS:
            changes = {"catalogue__options__load": seconds, "simulation__loads": mode}
            runs = by_load[seconds] = run_all([s.but(s.name, **changes) for s in COMPARED], work, options)
            tables.append(table(f"{work.name}, loads of {seconds:g} s, {mode}", runs))
            rows += rows_of(runs, load_s=seconds, loads=mode)
        panels = [(f"{name}, %", _curves(by_load, measure)) for name, measure in MEASURES]
        drawings.append((f"By load time, {mode}", lines(panels, "load, s", log=(True, False))))
    intro = f"Fig. 4's trace with other load times, beside serving and instead of it. Mended: {systems.CARRIED}."
    return Result("load times", intro, drawings, tables, [], rows)


def _curves(by_load: dict[float, dict[str, Run]], measure: str) -> dict[str, tuple[list[float], list[float]]]:
    return {
        s.name: (list(LOADS), [100.0 * getattr(by_load[x][s.name].summary, measure) for x in LOADS]) for s in COMPARED
    }

"""Load times: Fig. 4's trace where loading takes longer than the second that the other figures count on."""

from reproduce.figure import Options, Result
from reproduce.proteus import systems
from reproduce.proteus.plots import lines
from reproduce.proteus.runs import rows_of, run_all, table
from reproduce.proteus.workloads import trace
from sluicegate.simulator.scenario.experiment import Run

LOADS = (1.0, 5.0, 15.0)
"""Seconds."""
COMPARED = (
    systems.OURS,
    systems.OURS.but("Sluicegate, loads free", planner__loads="free"),
    systems.PROTEUS_MENDED,
    systems.INFAAS_MENDED,
)


def figure_loads(options: Options) -> Result:
    """Violations and accuracy by load time."""
    work = trace("medium-normal_load", seconds=options.lasting(110.0), seed=options.seed)
    by_load: dict[float, dict[str, Run]] = {}
    tables, rows = [], []
    for seconds in LOADS:
        slowed = [s.but(s.name, catalogue__options__load=seconds) for s in COMPARED]
        runs = by_load[seconds] = run_all(slowed, work, options)
        tables.append(table(f"{work.name}, loads of {seconds:g} s", runs))
        rows += rows_of(runs, load_s=seconds)

    def curves(measure: str) -> dict[str, tuple[list[float], list[float]]]:
        return {
            s.name: (list(LOADS), [100.0 * getattr(by_load[x][s.name].summary, measure) for x in LOADS])
            for s in COMPARED
        }

    panels = [("violations, %", curves("violation_ratio")), ("effective accuracy, %", curves("effective_accuracy"))]
    intro = f"Fig. 4's trace with slower loads, beside serving. Mended: {systems.CARRIED}."
    return Result("load times", intro, [("By load time", lines(panels, "load, s"))], tables, [], rows)

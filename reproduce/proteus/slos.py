"""Figure 8: the same trace under tighter and looser SLOs."""

from reproduce.figure import Options, Result
from reproduce.proteus import systems
from reproduce.proteus.plots import lines
from reproduce.proteus.runs import rows_of, run_all, table
from reproduce.proteus.workloads import trace
from sluicegate.simulator.scenario.experiment import Run

MULTIPLES = ("1x", "1.5x", "2.1x", "2.5x", "3x", "3.5x")
COMPARED = (
    systems.OURS,
    systems.PROTEUS_EXACT,
    systems.PROTEUS_MENDED,
    systems.SOMMELIER,
    systems.SOMMELIER_MENDED,
    systems.INFAAS,
    systems.INFAAS_MENDED,
    systems.CLIPPER_HT,
    systems.CLIPPER_HA,
    systems.CLIPPER_HA_MENDED,
)


def figure_8(options: Options) -> Result:
    """Violations and accuracy by multiple of the SLO."""
    multiples = ("1x", "1.5x", "2.1x", "3.5x") if options.quick else MULTIPLES
    chosen = (
        (systems.OURS, systems.PROTEUS_EXACT, systems.SOMMELIER_MENDED, systems.INFAAS, systems.CLIPPER_HA)
        if options.quick
        else COMPARED
    )
    by_multiple: dict[str, dict[str, Run]] = {}
    tables, rows = [], []
    for multiple in multiples:
        work = trace("medium-normal_load", slo=multiple, seconds=options.lasting(80.0), seed=options.seed)
        runs = by_multiple[multiple] = run_all(chosen, work, options)
        tables.append(table(work.name, runs))
        rows += rows_of(runs, slo=multiple)
    xs = [float(m.rstrip("x")) for m in multiples]

    def curves(measure: str) -> dict[str, tuple[list[float], list[float]]]:
        return {
            s.name: (xs, [100.0 * getattr(by_multiple[m][s.name].summary, measure) for m in multiples]) for s in chosen
        }

    panels = [("violations, %", curves("violation_ratio")), ("effective accuracy, %", curves("effective_accuracy"))]
    panels.append(("accuracy drop, worst 10 s, %", curves("max_accuracy_drop")))
    said = [
        f"{m}: {100 * r.summary.violation_ratio:.2f} % violations at {100 * r.summary.effective_accuracy:.2f} %"
        " accuracy"
        for m in multiples
        for r in [by_multiple[m][systems.OURS.name]]
    ]
    notes = [
        "Sluicegate: " + "; ".join(said) + ".",
        "The SLOs are the artifact's hand-set ones (the paper's rule, twice the fastest CPU variant, does not give"
        " them); its 2x is 2.1x.",
    ]
    intro = "Fig. 4's trace with the SLO of each family times 1 to 3.5."
    drawing = lines(panels, "multiple of the SLO")
    return Result("SLOs", intro, [("By multiple", drawing)], tables, notes, rows)

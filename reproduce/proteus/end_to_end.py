"""Figures 4, 5 and 9: the end-to-end comparison over time, under bursts, and family by family."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure as Drawing

from reproduce.figure import Options, Result
from reproduce.proteus import systems
from reproduce.proteus.plots import bars, over_time
from reproduce.proteus.runs import by_seed, mean, mean_table, rows_of, run_all, run_seeds, table, times
from reproduce.proteus.workloads import APPS, Workload, drawn, flats, trace
from sluicegate.simulator.report.page import Table
from sluicegate.simulator.report_rows import percent
from sluicegate.simulator.scenario.experiment import Run

PAPER = {
    "paper: Proteus": {"max_accuracy_drop": 0.0485},
    "paper: INFaaS-Accuracy": {"max_accuracy_drop": 0.137},
    "paper: Sommelier": {"max_accuracy_drop": 0.16},
    "paper: Clipper-HT": {"max_accuracy_drop": 0.20},
}
ARTIFACT = {
    "artifact: Proteus": {"violation_ratio": 0.333, "effective_accuracy": 0.9948, "max_accuracy_drop": 0.0074},
    "artifact: Proteus, gap 0.5": {"violation_ratio": 0.323, "effective_accuracy": 0.983, "max_accuracy_drop": 0.0424},
    "artifact: Proteus, mended": {"violation_ratio": 0.116, "effective_accuracy": 0.9959},
    "artifact: Sommelier": {"violation_ratio": 0.208, "effective_accuracy": 0.936, "max_accuracy_drop": 0.175},
    "artifact: INFaaS-Accuracy": {"violation_ratio": 0.63, "effective_accuracy": 0.9277, "max_accuracy_drop": 0.137},
    "artifact: Clipper-HA": {"violation_ratio": 0.594, "effective_accuracy": 0.999, "max_accuracy_drop": 0.002},
    "artifact: Clipper-HT": {"violation_ratio": 0.353, "effective_accuracy": 0.8053, "max_accuracy_drop": 0.201},
}
DRAWN = tuple(s.name for s in systems.ALL if s != systems.PROTEUS)
HEAVY = 2.5
_LEFT_OUT = (systems.PROTEUS, systems.PROTEUS_MENDED, systems.CLIPPER_HT, systems.CLIPPER_HT_MENDED)
BURSTS = (200.0, 1500.0, 30, 8)
"""Queries/s of the low and the high periods, seconds of each, how many."""


def figure_4(options: Options) -> Result:
    """End to end on the Twitter trace."""
    usual = trace("medium-normal_load", seconds=options.lasting(110.0), seed=options.seed)
    runs = run_all(systems.ALL, usual, options)
    tables = [table(usual.name, runs, {**ARTIFACT, **PAPER})]
    drawings = [("At the published load", _drawing(runs, usual)), ("Means", _means(_once(runs)))]
    rows = rows_of(runs, workload=usual.name)
    notes = [_multiples(_once(runs), usual.name)]
    chosen = tuple(s for s in systems.ALL if s != systems.PROTEUS) if options.quick else systems.ALL

    def load(seed: int) -> Workload:
        return trace("zipf_exponential", scale=HEAVY, seconds=options.lasting(110.0), seed=seed)

    of_systems = run_seeds(chosen, load, options)
    heavy, each = load(options.seed), by_seed(of_systems)
    tables.append(mean_table(heavy.name, of_systems))
    drawings = [("Where accuracy must scale", _drawing(each[0], heavy)), ("Means", _means(of_systems)), *drawings]
    rows += [row for more in each for row in rows_of(more, workload=heavy.name)]
    notes.insert(1, _multiples(of_systems, heavy.name))
    intro = f"Nine families on 40 devices, SLO 300 ms. Each baseline at its paper's word and mended: {systems.CARRIED}."
    return Result("end to end", intro, drawings, tables, notes, rows)


def figure_5(options: Options) -> Result:
    """Flat low and high periods, Poisson within."""
    low, high, each, periods = BURSTS
    rates = flats(low, high, each, 4 if options.quick else periods)
    name = f"{low:g} and {high:g} queries/s, {each} s each"
    chosen = tuple(s for s in systems.ALL if s not in _LEFT_OUT) if options.quick else systems.ALL

    def load(seed: int) -> Workload:
        return drawn(name, rates, seed=seed)

    of_systems = run_seeds(chosen, load, options)
    work, runs = load(options.seed), by_seed(of_systems)
    notes = [_multiples(of_systems, name)]
    intro = "Flat periods that alternate, Poisson arrivals within, the families' shares as in the traces."
    drawings = [("Over time", _drawing(runs[0], work)), ("Means", _means(of_systems))]
    rows = [row for of_seed in runs for row in rows_of(of_seed, workload=name)]
    return Result("bursts", intro, drawings, [mean_table(name, of_systems)], notes, rows)


def figure_9(options: Options) -> Result:
    """Family by family."""
    compared = (systems.OURS, systems.PROTEUS_EXACT, systems.SOMMELIER_MENDED, systems.INFAAS_MENDED)
    loads = [trace("zipf_exponential", scale=HEAVY, seconds=options.lasting(110.0), seed=options.seed)]
    if not options.quick:
        loads.append(trace("medium-normal_load", seconds=options.seconds, seed=options.seed))
    drawings, tables, rows = [], [], []
    notes = []
    for work in loads:
        runs = run_all(compared, work, options)
        for title, key in (("accuracy, % of the best variant", "effective_accuracy"), ("violations, %", "miss")):
            values = {a: {n: _of_app(r, a, key) for n, r in runs.items()} for a in APPS}
            drawings.append(
                (f"{work.name}: {title}", bars(values, {n: f"{n}\n{title}" for n in runs}, columns=len(runs)))
            )
        tables.append(_by_family(work, runs))
        rows += [
            {"workload": work.name, "system": n, "app": a, "accuracy": _of_app(r, a, "effective_accuracy") / 100.0,
             "violation_ratio": _of_app(r, a, "miss") / 100.0} for n, r in runs.items() for a in APPS
        ]  # fmt: skip
        notes.append(f"{work.name}: " + _spread(runs))
    intro = "Accuracy and violations of each family in the runs of Fig. 4."
    return Result("by family", intro, drawings, tables, notes, rows)


def _once(runs: Mapping[str, Run]) -> dict[str, list[Run]]:
    return {name: [run] for name, run in runs.items()}


def _drawing(runs: Mapping[str, Run], work: Workload) -> Drawing:
    return over_time({n: r.series for n, r in runs.items() if r.series is not None and n in DRAWN}, work.name)


def _means(runs: Mapping[str, Sequence[Run]]) -> Drawing:
    values = {
        n: {"v": 100.0 * mean(r, "violation_ratio"), "a": 100.0 * mean(r, "effective_accuracy")}
        for n, r in runs.items()
    }
    return bars(values, {"v": "violations, %", "a": "effective accuracy, %"})


def _multiples(runs: Mapping[str, Sequence[Run]], work: str) -> str:
    late = {n: mean(r, "violation_ratio") for n, r in runs.items()}
    ours = late.pop(systems.OURS.name)
    said = ", ".join(f"{n} {times(ours, theirs)}" for n, theirs in late.items())
    return (
        f"{work}: violations as multiples of Sluicegate's {percent(ours)}: {said}. The"
        " paper says of Proteus: Sommelier 2.8x, INFaaS-Accuracy 4.3x, Clipper-HA over 10x."
    )


def _of_app(run: Run, app: str, key: str) -> float:
    """Percent."""
    of_app = run.summary.per_app[app]
    return 100.0 * (1.0 - of_app["slo_attainment"] if key == "miss" else of_app[key])


def _by_family(work: Workload, runs: Mapping[str, Run]) -> Table:
    header = ("family", "queries/s", *(f"{n}: accuracy, violations" for n in runs))

    def cells(app: str) -> list[str]:
        return [
            f"{_of_app(r, app, 'effective_accuracy'):.2f} %, {_of_app(r, app, 'miss'):.2f} %" for r in runs.values()
        ]

    rows = [(a, f"{work.mean[a]:.1f}", *cells(a)) for a in APPS]
    return Table(work.name, header, rows)


def _spread(runs: Mapping[str, Run]) -> str:
    parts = []
    for n, r in runs.items():
        worst = max(APPS, key=lambda a: _of_app(r, a, "miss"))
        least = min(APPS, key=lambda a: _of_app(r, a, "effective_accuracy"))
        parts.append(
            f"{n}: most violations {worst} ({_of_app(r, worst, 'miss'):.2f} %), least accuracy {least}"
            f" ({_of_app(r, least, 'effective_accuracy'):.2f} %)"
        )
    return "; ".join(parts)

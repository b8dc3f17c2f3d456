"""Figures 4, 5 and 9: the end-to-end comparison over time, under bursts, and family by family."""

from collections.abc import Mapping

from matplotlib.figure import Figure as Drawing

from bench.proteus import systems
from bench.proteus.pages import Options, Result, rows_of, run_all, table, times
from bench.proteus.plots import bars, over_time
from bench.proteus.workloads import APPS, Workload, drawn, flats, trace
from simulator.experiment import Run
from simulator.report.page import Table
from simulator.rows import percent

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
DRAWN = tuple(s.name for s in systems.ALL if s not in (systems.PROTEUS, systems.PROTEUS_MENDED))
HEAVY = 2.5
_LEFT_OUT = (systems.PROTEUS, systems.PROTEUS_MENDED, systems.CLIPPER_HT, systems.CLIPPER_HT_MENDED)
BURSTS = (200.0, 1500.0, 30, 8)
"""Queries/s of the low and the high periods, seconds of each, how many."""
WHY_ACCURACY = (
    "Why accuracy falls less than in the paper at the published load: the true optimum hardly scales accuracy there;"
    " the paper's drop comes from its solver, stopped at a relative gap of 0.5. With that gap our per-device program"
    " loses less, since its solver's first answers are better; solved exactly, Proteus loses next to nothing. At 2.5"
    " times the load accuracy must scale, and does."
)
WHY_VIOLATIONS = (
    "Why our violations of the same systems are below the artifact's: it counts only answers later than 1 s as late"
    " and runs hopeless queries, so that queues stay behind the SLO for good; here a query that cannot be in time is"
    " dropped before a batch is formed, full batches run at once, routing follows the plan's shares and demand"
    " reaches the plan at once, as the paper's text has it."
)
WHY_STATIC = (
    "Clipper-HT placed for the mean overflows at 2.5 times the load: AIMD finds large batches too late and runs"
    " hopeless heads; placed for the peak it violates nothing, at the lowest accuracy there is. Clipper-HA placed for"
    " the mean cannot follow the peak; placed for the peak it holds the published load, which shows how little"
    " scaling it needs."
)
WHY_SWAPS = (
    "Sommelier cannot move a device from one app to another: it takes accuracy from apps whose demand has outgrown"
    " their devices while others idle; mended, it buys headroom from variance with more accuracy still. INFaaS adds"
    " and swaps app by app without taking from others: what it holds after the first peak it keeps. Proteus's 5 %"
    " headroom and its waiting cost violations in each second above the mean."
)
WHY_OURS = (
    "Sluicegate differs from Proteus, exact, by headroom at its price, idle devices put to use, a plan every 2 s,"
    " routing that prefers accurate devices while deadlines allow, and batches that do not wait."
)


def figure_4(options: Options) -> Result:
    """End to end on the Twitter trace."""
    usual = trace("medium-normal_load", seconds=options.lasting(110.0), seed=options.seed)
    runs = run_all(systems.ALL, usual, options)
    tables = [table(usual.name, runs, {**ARTIFACT, **PAPER})]
    drawings = [("At the published load", _drawing(runs, usual)), ("Means", _means(runs))]
    rows = rows_of(runs, workload=usual.name)
    notes = [_multiples(runs, usual), WHY_ACCURACY, WHY_VIOLATIONS, WHY_STATIC, WHY_SWAPS, WHY_OURS]
    heavy = trace("zipf_exponential", scale=HEAVY, seconds=options.lasting(110.0), seed=options.seed)
    chosen = tuple(s for s in systems.ALL if s != systems.PROTEUS) if options.quick else systems.ALL
    more = run_all(chosen, heavy, options)
    tables.append(table(heavy.name, more))
    drawings = [("Where accuracy must scale", _drawing(more, heavy)), ("Means", _means(more)), *drawings]
    rows += rows_of(more, workload=heavy.name)
    notes.insert(1, _multiples(more, heavy))
    intro = (
        "Nine families on 40 devices, SLO 300 ms. Each baseline at its paper's word and mended: best batch, plans"
        " every 2 s, headroom from variance, adaptive batching, static placements made for the peak."
    )
    return Result(4, "end to end", intro, drawings, tables, notes, rows)


def figure_5(options: Options) -> Result:
    """Flat low and high periods, Poisson within."""
    low, high, each, periods = BURSTS
    rates = flats(low, high, each, 4 if options.quick else periods)
    name = f"{low:g} and {high:g} queries/s, {each} s each"
    work = drawn(name, rates, options.out / "rates", seed=options.seed)
    chosen = tuple(s for s in systems.ALL if s not in _LEFT_OUT) if options.quick else systems.ALL
    runs = run_all(chosen, work, options)
    notes = [
        _multiples(runs, work),
        "The paper: Proteus follows the bursts with the fewest violations at little accuracy; Sommelier and INFaaS"
        " lose more accuracy, Clipper-HA violates through each high period.",
        "Violations of every planner come in the first two seconds of a high period: a burst is seen after one second"
        " (two half-second counts), and loading takes one more. Until then only spare capacity helps, and 5 % is"
        " little of it.",
        "Systems that never give capacity back (Clipper, and INFaaS once it has grown) do well in later periods: the"
        " load they hold devices for comes back. On the falling edge a plan every 2 s regains accuracy sooner than"
        " one every 10 s.",
        WHY_SWAPS,
    ]
    intro = "Flat periods that alternate, Poisson arrivals within, the families' shares as in the traces."
    drawings = [("Over time", _drawing(runs, work)), ("Means", _means(runs))]
    return Result(5, "bursts", intro, drawings, [table(name, runs)], notes, rows_of(runs, workload=name))


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
    notes += [
        "The paper: Proteus scales the accuracy of families in turn, those first whose variants give most throughput"
        " for an accuracy point, and spreads violations evenly.",
        "Which families give accuracy is the program's choice: it averages over queries, so it takes from where a"
        " point buys most capacity (families with flat accuracy against latency), whatever their share. Families"
        " whose most accurate variant cannot finish within half the SLO on any device (the batch budget) stay below"
        " 100 % at any load.",
        "Violations of Proteus, exact, concentrate where 5 % of the app's demand is less than what it varies by, and"
        " where the only hosts are slow: middle-sized families suffer most. Headroom by spread evens that out. INFaaS"
        " leaves those short that come last when devices run out: nobody gives any back.",
    ]
    intro = "Accuracy and violations of each family in the runs of Fig. 4."
    return Result(9, "by family", intro, drawings, tables, notes, rows)


def _drawing(runs: Mapping[str, Run], work: Workload) -> Drawing:
    return over_time({n: r.series for n, r in runs.items() if r.series is not None and n in DRAWN}, work.name)


def _means(runs: Mapping[str, Run]) -> Drawing:
    values = {
        n: {"v": 100.0 * r.summary.violation_ratio, "a": 100.0 * r.summary.effective_accuracy} for n, r in runs.items()
    }
    return bars(values, {"v": "violations, %", "a": "effective accuracy, %"})


def _multiples(runs: Mapping[str, Run], work: Workload) -> str:
    ours = runs[systems.OURS.name]
    said = ", ".join(f"{n} {times(ours, r)}" for n, r in runs.items() if n != systems.OURS.name)
    return (
        f"{work.name}: violations as multiples of Sluicegate's {percent(ours.summary.violation_ratio)}: {said}. The"
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

"""Pages of a simulation and of a comparison, from runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from sluicegate.simulator.report.charts import accuracy_chart, bars_chart, demand_chart, latency_chart, variants_chart
from sluicegate.simulator.report.page import Figure, Table, Tile, page
from sluicegate.simulator.report_rows import HEADER, percent, row_of
from sluicegate.simulator.scenario.experiment import Run, notes_on

DEFINITIONS = (
    "Violations: queries not answered within their own SLO, whatever became of them, over all queries.",
    "Accuracy: mean profiled accuracy over queries answered on time, each app in its own metric. Of best: the same,"
    " each app's over that of its best variant, as planners maximise it. Worst 10 s: 1 - the worst 10 s of that.",
    "Right in time: queries answered on time and, by profiled accuracy, expected right, over all queries. At least, at"
    " most: the clairvoyant bound, which no policy exceeds on these arrivals even if it knows them all beforehand."
    " Distance closed: of what lies between the system with the fewest right in time and the bound.",
    "Goodput: queries answered on time per second of the trace. Percentiles are over all answers, late ones included.",
)


def simulation_page(title: str, intro: str, run: Run, slos: Sequence[float]) -> str:
    """One run. ``slos``: seconds."""
    summary = run.summary
    figures: list[Figure] = []
    if run.series is not None:
        one = {"simulated": run.series}
        figures = [
            Figure("Demand and goodput", demand_chart(one)),
            Figure("Effective accuracy", accuracy_chart(one), "of each app's best variant"),
            Figure("Variants that answered", variants_chart(run.series)),
            Figure("Latency", latency_chart({"answers": run.series.latencies}, slos)),
        ]
    used = [
        (f"{app}/{variant}", f"{count}", f"{count / max(1, summary.answered_on_time):.1%}")
        for app, variants in summary.variants_used.items()
        for variant, count in variants.items()
    ]
    apps = [
        (
            app,
            f"{figures_['queries']:.0f}",
            percent(figures_["slo_attainment"]),
            percent(figures_["effective_accuracy"]),
            percent(figures_["relative_accuracy"]),
        )
        for app, figures_ in summary.per_app.items()
    ]
    return page(
        title,
        intro=intro,
        tiles=[
            Tile(f"{summary.queries}", "queries"),
            Tile(percent(summary.violation_ratio, 3), "violations"),
            Tile(percent(summary.right_in_time), "right in time"),
            *_bound_tiles(run),
            Tile(percent(summary.effective_accuracy), "effective accuracy"),
            Tile(percent(summary.relative_accuracy), "accuracy, of each app's best"),
            Tile(percent(summary.max_accuracy_drop), "largest accuracy drop, 10 s"),
            Tile(f"{summary.goodput_qps:.1f}/s", "goodput"),
            Tile(f"{summary.p99_ms:.0f} ms", "p99 latency"),
            Tile(f"{run.epochs}", "plan epochs"),
        ],
        figures=figures,
        tables=[
            Table("Apps", ("app", "queries", "on time", "accuracy", "of best"), apps),
            Table("Variants", ("variant", "on time", "share"), used),
        ],
        notes=[*DEFINITIONS, *notes_on({"run": [run]}), f"seed {run.seed}"],
    )


def _bound_tiles(run: Run) -> list[Tile]:
    if run.bound is None:
        return []
    least, most = percent(run.bound.violation_ratio, 3), percent(run.bound.right_in_time)
    return [Tile(least, "violations at least"), Tile(most, "right in time at most")]


def comparison_page(
    title: str,
    intro: str,
    runs: Mapping[str, Sequence[Run]],
    means: Mapping[str, Mapping[str, Any]],
    reference: Mapping[str, Mapping[str, float]],
    slos: Sequence[float],
) -> str:
    """Several systems on the same arrivals; ``means`` over seeds, plots over time of the first seed."""
    series = {name: s for name, of_system in runs.items() if (s := of_system[0].series) is not None}
    figures = [
        Figure(
            "Violations",
            bars_chart(
                {n: (100 * m["violation_ratio"], 100 * m["ci95"]["violation_ratio"]) for n, m in means.items()}, "%"
            ),
            "with 95 % confidence intervals",
        ),
        Figure(
            "Effective accuracy",
            bars_chart(
                {n: (100 * m["effective_accuracy"], 100 * m["ci95"]["effective_accuracy"]) for n, m in means.items()},
                "%",
            ),
            "with 95 % confidence intervals",
        ),
    ]
    if series:
        figures += [
            Figure("Demand and goodput", demand_chart(series)),
            Figure("Effective accuracy over time", accuracy_chart(series), "of each app's best variant"),
            Figure("Latency", latency_chart({n: s.latencies for n, s in series.items()}, slos)),
            *(Figure(f"Variants, {name}", variants_chart(s, [*series.values()])) for name, s in series.items()),
        ]
    seeds = next(iter(means.values()))["seeds"]
    rows = [*(row_of(name, mean) for name, mean in means.items()), *(row_of(n, r) for n, r in reference.items())]
    return page(
        title,
        intro=intro,
        figures=figures,
        tables=[Table(f"Means over {len(seeds)} seeds, ± 95 % confidence", HEADER, rows)],
        notes=[*DEFINITIONS, *notes_on(runs)],
    )

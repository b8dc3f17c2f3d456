"""The page of a comparison of sliced GPUs: compliance, tails with their parts, distribution of strict latencies."""

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Plot

from reproduce.protean.slices.figures import PARTS
from reproduce.protean.slices.slices_experiment import GRID
from reproduce.protean.slices.slices_fields import SliceScenario
from sluicegate.simulator.report.charts import COLOURS, STYLE, svg_of
from sluicegate.simulator.report.page import Figure, Table, page

Results = Mapping[str, Mapping[str, Any]]


def comparison(scenario: SliceScenario, results: Results) -> str:
    """HTML of ``results`` (by system, as ``together`` gives them)."""
    slo_ms = scenario.workload.slo_multiplier * scenario.models[scenario.workload.strict].solo_ms
    header = ("system", "strict on time", "strict p99", "best-effort p99", "cost", "reconfigurations")
    rows = [
        (
            name,
            f"{100 * r['slo_compliance_strict']:.2f} %",
            f"{r['p99_strict_ms']:.0f} ms",
            f"{r['p99_best_effort_ms']:.0f} ms",
            f"{r['cost_usd']:.2f}",
            f"{r['reconfigurations']:.1f}",
        )
        for name, r in results.items()
    ]
    figures = (
        Figure("Strict queries on time", compliance_chart(results), "whiskers: 95 % confidence over seeds"),
        Figure("Strict P99 and what it is made of", tail_chart(results, slo_ms), "dashed: the SLO"),
        Figure("Strict latency", distribution_chart(results, slo_ms), "share of queries within a latency"),
    )
    return page(
        scenario.name,
        intro=scenario.description,
        figures=figures,
        tables=(Table("Systems", header, rows),),
        notes=("Models are synthetic; see the scenario file.",),
    )


def compliance_chart(results: Results) -> str:
    """Bars of slo_compliance_strict by system."""
    with mpl.rc_context(STYLE):
        figure = Plot(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.add_subplot()
        names = list(results)
        values = [100 * results[n]["slo_compliance_strict"] for n in names]
        half = [100 * np.nan_to_num(results[n]["ci95"]["slo_compliance_strict"]) for n in names]
        axes.bar(names, values, yerr=half, color=COLOURS[0], width=0.6)
        axes.set(ylabel="% of strict queries", ylim=(0, 102))
        axes.tick_params(axis="x", rotation=20)
        return svg_of(figure)


def tail_chart(results: Results, slo_ms: float) -> str:
    """Stacked parts of the strict P99 by system."""
    with mpl.rc_context(STYLE):
        figure = Plot(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.add_subplot()
        names = list(results)
        low = np.zeros(len(names))
        for i, part in enumerate(PARTS):
            values = np.array([results[n]["p99_strict_parts_ms"][part] for n in names])
            axes.bar(names, values, bottom=low, color=COLOURS[i], width=0.6, label=part.replace("_", " "))
            low += values
        axes.axhline(slo_ms, color="black", ls="--", lw=0.8)
        axes.set(ylabel="ms")
        axes.tick_params(axis="x", rotation=20)
        axes.legend(fontsize=7.5, ncols=2)
        return svg_of(figure)


def distribution_chart(results: Results, slo_ms: float) -> str:
    """Cumulative share of strict queries by latency (log scale)."""
    with mpl.rc_context(STYLE):
        figure = Plot(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for i, (name, result) in enumerate(results.items()):
            if not result["strict_quantiles_ms"]:
                continue
            axes.plot(result["strict_quantiles_ms"], GRID, color=COLOURS[i % len(COLOURS)], lw=1.2, label=name)
        axes.axvline(slo_ms, color="black", ls="--", lw=0.8)
        axes.set(xscale="log", xlabel="ms", ylabel="share of strict queries", ylim=(0, 1))
        axes.legend(fontsize=7.5)
        return svg_of(figure)

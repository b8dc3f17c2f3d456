"""Drawings of the figures: grouped bars, stacked parts of a tail, distributions, geometry over time."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from reproduce.drawing import panels as panels_of
from reproduce.protean.slices.figures import PARTS
from reproduce.protean.slices.slices_experiment import GRID
from sluicegate.simulator.report.charts import STYLE

COLOURS = ("#999999", "#dfc27d", "#7fbf7b", "#d6604d", "#2166ac", "#762a83", "#1b7837", "#b8860b")
PART_COLOURS = ("#d9d9d9", "#fdae61", "#762a83", "#4d9221", "#2166ac", "#b2182b")
Groups = Mapping[str, Mapping[str, float]]


def grouped(panels: Mapping[str, Groups], *, limit: float | None = None, width: float = 8.6) -> Figure:
    """A panel a measure: bars by system within each group. ``panels``: label of y -> group -> system -> value."""
    with mpl.rc_context(STYLE):
        figure, axes = panels_of(len(panels), 1, width, 2.6 * len(panels) + 0.6)
        systems = list(dict.fromkeys(s for groups in panels.values() for g in groups.values() for s in g))
        step = 0.82 / len(systems)
        for panel, (label, groups) in zip(axes, panels.items(), strict=True):
            for i, system in enumerate(systems):
                at = np.arange(len(groups)) - 0.41 + (i + 0.5) * step
                values = [g.get(system, np.nan) for g in groups.values()]
                panel.bar(at, values, width=step, color=COLOURS[i % len(COLOURS)], label=system)
            turned: dict[str, Any] = (
                {"rotation": 20, "ha": "right", "rotation_mode": "anchor"} if len(groups) > 5 else {}
            )
            panel.set_xticks(np.arange(len(groups)), list(groups), fontsize=7, **turned)
            panel.set(ylabel=label)
            if limit is not None:
                panel.set_ylim(0.0, limit)
        figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7.5, ncols=6, loc="outside lower center")
        return figure


def tails(panels: Mapping[str, tuple[Mapping[str, Mapping[str, float]], float]]) -> Figure:
    """Stacked parts of the strict P99. ``panels``: title -> (system -> part -> ms, SLO in ms)."""
    with mpl.rc_context(STYLE):
        figure, axes = panels_of(1, len(panels), 2.7 * len(panels) + 0.6, 3.6)
        for panel, (title, (systems, slo_ms)) in zip(axes, panels.items(), strict=True):
            names = list(systems)
            low = np.zeros(len(names))
            for part, colour in zip(PARTS, PART_COLOURS, strict=True):
                values = np.nan_to_num(np.array([systems[n][part] for n in names]))
                panel.bar(names, values, bottom=low, color=colour, width=0.66, label=part.replace("_", " "))
                low += values
            panel.axhline(slo_ms, color="black", ls="--", lw=0.8)
            panel.set(title=title, ylim=(0.0, 1.06 * max(slo_ms, float(low.max()))))
            panel.tick_params(axis="x", rotation=40, labelsize=7)
        axes[0].set(ylabel="strict P99, ms (dashed: SLO)")
        figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7.5, ncols=6, loc="outside lower center")
        return figure


def distributions(panels: Mapping[str, tuple[Mapping[str, Sequence[float]], float]]) -> Figure:
    """Share of strict queries by latency. ``panels``: title -> (system -> latencies at GRID in ms, SLO in ms)."""
    with mpl.rc_context(STYLE):
        figure, axes = panels_of(1, len(panels), 4.3 * len(panels), 3.4)
        for panel, (title, (systems, slo_ms)) in zip(axes, panels.items(), strict=True):
            for i, (name, values) in enumerate(systems.items()):
                panel.plot(values, GRID, color=COLOURS[i % len(COLOURS)], lw=1.3, label=name)
            panel.axvline(slo_ms, color="black", ls="--", lw=0.8)
            panel.set(xscale="log", xlabel="ms (dashed: SLO)", title=title, ylim=(0.0, 1.01))
            panel.xaxis.set_minor_formatter(NullFormatter())
        axes[0].set(ylabel="share of strict queries")
        figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7.5, ncols=6, loc="outside lower center")
        return figure


def over_time(systems: Mapping[str, Sequence[tuple[float, Mapping[str, int]]]], marks: Sequence[tuple[float, str]],
              seconds: float) -> Figure:  # fmt: skip
    """GPUs by geometry over time, a panel a system. ``marks``: when which best-effort model came."""
    with mpl.rc_context(STYLE):
        figure, axes = panels_of(len(systems), 1, 8.6, 2.0 * len(systems) + 0.8)
        names = sorted({g for steps in systems.values() for _, counts in steps for g in counts})
        for panel, (title, steps) in zip(axes, systems.items(), strict=True):
            times = [at for at, _ in steps] + [seconds]
            low = np.zeros(len(times))
            for i, name in enumerate(names):
                high = low + np.array([c.get(name, 0) for _, c in steps] + [steps[-1][1].get(name, 0)])
                panel.fill_between(times, low, high, step="post", lw=0, color=COLOURS[i % len(COLOURS)], label=name)
                low = high
            for at, model in marks:
                panel.axvline(at, color="white", lw=0.8)
                panel.annotate(model, (at + 0.5, 0.25), fontsize=6, rotation=90, color="black")
            panel.set(ylabel="GPUs", title=title, xlim=(0.0, seconds))
        axes[-1].set(xlabel="seconds; the best-effort model of each stretch is named")
        figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7.5, ncols=6, loc="outside lower center")
        return figure

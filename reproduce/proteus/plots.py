"""The plots: one drawing a figure, as SVG for the page and as PNG for the documentation."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from reproduce.drawing import panels as panels_of
from sluicegate.simulator.report.charts import STYLE
from sluicegate.simulator.time_series import Series

COLOURS = (
    "#2166ac", "#d6604d", "#f4a582", "#b2182b", "#1b7837", "#7fbf7b",
    "#762a83", "#c2a5cf", "#b8860b", "#dfc27d", "#4d4d4d", "#999999",
)  # fmt: skip
SMOOTH_S = 5.0
Lines = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def over_time(runs: Mapping[str, Series], title: str) -> Figure:
    """Demand and goodput, accuracy, violations: three rows over time, means over SMOOTH_S."""
    with mpl.rc_context(STYLE):
        figure, axes = panels_of(3, 1, 7.4, 7.6)
        first = next(iter(runs.values()))
        times, demand = _binned(first.times, first.demand, first.step)
        axes[0].fill_between(times, demand, step="mid", color="#bbbbbb", alpha=0.6, lw=0, label="demand")
        for i, (name, one) in enumerate(runs.items()):
            style: dict[str, Any] = {"color": COLOURS[i % len(COLOURS)], "lw": 1.9 if i == 0 else 1.0, "label": name}
            style["ls"] = "--" if "mended" in name else "-"
            times, goodput = _binned(one.times, one.goodput, one.step)
            axes[0].plot(times, goodput, **style)
            accuracy = np.nan_to_num(np.asarray(one.accuracy))
            axes[1].plot(times, 100.0 * _binned(one.times, accuracy * one.goodput, one.step)[1] / goodput, **style)
            demand = _binned(one.times, one.demand, one.step)[1]
            axes[2].plot(times, np.maximum(0.0, demand - goodput), **style)
        axes[0].set(ylabel="queries/s", ylim=(0.0, None), title=title)
        axes[1].set(ylabel="effective accuracy, %")
        axes[2].set(ylabel="violations/s", xlabel="seconds", ylim=(0.0, None))
        figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7, ncols=4, loc="outside lower center")
        return figure


def bars(values: Mapping[str, Mapping[str, float]], titles: Mapping[str, str], columns: int = 2) -> Figure:
    """A panel a measure (key of ``titles``): one horizontal bar a name. ``values``: name -> measure -> value."""
    with mpl.rc_context(STYLE):
        rows = -(-len(titles) // columns)
        figure, axes = panels_of(rows, columns, 4.2 * columns, rows * (0.9 + 0.26 * len(values)))
        names = list(values)[::-1]
        for panel, (measure, title) in zip(axes, titles.items(), strict=False):
            heights = [values[n].get(measure, float("nan")) for n in names]
            colours = [COLOURS[(len(names) - 1 - i) % len(COLOURS)] for i in range(len(names))]
            panel.barh(names, heights, color=colours, height=0.65)
            for i, h in enumerate(heights):
                if np.isfinite(h):
                    panel.annotate(f" {h:.3g}", (h, i), va="center", fontsize=6.5)
            panel.set(title=title)
            panel.tick_params(labelsize=7)
            panel.grid(axis="y", visible=False)
            known = [h for h in heights if np.isfinite(h)]
            if known and min(known) > 60.0:
                panel.set_xlim(min(known) - 3.0, 101.0)
            else:
                panel.margins(x=0.14)
        return figure


def lines(panels: Sequence[tuple[str, Lines]], x_label: str, *, log: tuple[bool, bool] = (False, False)) -> Figure:
    """A panel each (label of y, lines through points)."""
    with mpl.rc_context(STYLE):
        figure, axes = panels_of(1, len(panels), 4.6 * len(panels), 3.6)
        for panel, (label, named) in zip(axes, panels, strict=True):
            for i, (name, (xs, ys)) in enumerate(named.items()):
                panel.plot(
                    xs, ys, marker="o", ms=3.0, lw=1.8 if i == 0 else 1.1, label=name,
                    ls="--" if "mended" in name else "-", color=COLOURS[i % len(COLOURS)],
                )  # fmt: skip
            panel.set(xlabel=x_label, ylabel=label)
            if log[0]:
                panel.set_xscale("log")
            if log[1]:
                panel.set_yscale("log")
        figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7, ncols=5, loc="outside lower center")
        return figure


def solver(panels: Sequence[tuple[str, Lines]], limit_s: float) -> Figure:
    """Seconds against size, a panel each; the dashed line is the paper's minute, the dotted one our limit."""
    figure = lines([("CPU s", named) for _, named in panels], "", log=(False, True))
    with mpl.rc_context(STYLE):
        for panel, (label, _) in zip(figure.axes, panels, strict=True):
            panel.axhline(60.0, color="#666666", ls="--", lw=0.9)
            panel.axhline(limit_s, color="#666666", ls=":", lw=0.9)
            panel.set(xlabel=label)
    return figure


def _binned(times: Sequence[float], values: Any, step: float) -> tuple[Any, Any]:
    """Means over SMOOTH_S; a part that does not fill a bin is left out."""
    size = max(1, round(SMOOTH_S / step))
    count = max(1, len(times) // size)
    used = count * size
    xs, ys = np.asarray(times[:used], dtype=float), np.asarray(values[:used], dtype=float)
    return xs.reshape(count, -1).mean(axis=1), ys.reshape(count, -1).mean(axis=1)

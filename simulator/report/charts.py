"""Plots as SVG text, drawn without a display and without global state; equal data gives equal text."""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from sluicegate.simulator.time_series import Series

COLOURS = ("#2166ac", "#d6604d", "#1b7837", "#762a83", "#b8860b", "#4d4d4d", "#35978f", "#c51b7d")
STYLE: Any = {
    "svg.hashsalt": "sluice",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}
"""Settings of every plot, for ``matplotlib.rc_context``."""
_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (4, 1.5, 1, 1.5)))
_TOP_VARIANTS = 10
_OTHERS = "#bbbbbb"


def demand_chart(series: Mapping[str, Series]) -> str:
    """Demand (grey, of the first) and goodput of each over time."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure()
        first = next(iter(series.values()))
        axes.fill_between(first.times, first.demand, step="mid", color="#bbbbbb", alpha=0.6, lw=0, label="demand")
        for line, (name, one) in zip(_lines(len(series)), series.items(), strict=True):
            label = "goodput" if len(series) == 1 else f"goodput, {name}"
            axes.plot(one.times, one.goodput, drawstyle="steps-mid", lw=1.2, label=label, **line)
        _marks(axes, first)
        axes.set(xlabel="seconds", ylabel="queries/s", ylim=(0.0, None))
        _legend_above(axes)
        return svg_of(figure)


def accuracy_chart(series: Mapping[str, Series]) -> str:
    """Effective accuracy over time, each app normalised by its best variant."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure()
        for line, (name, one) in zip(_lines(len(series)), series.items(), strict=True):
            accuracy = 100.0 * np.asarray(one.accuracy, dtype=float)
            axes.plot(one.times, accuracy, drawstyle="steps-mid", lw=1.2, label=name, **line)
        _marks(axes, next(iter(series.values())))
        axes.set(xlabel="seconds", ylabel="effective accuracy, % of the best")
        if len(series) > 1:
            _legend_above(axes)
        return svg_of(figure)


def variants_chart(series: Series, beside: Iterable[Series] = ()) -> str:
    """Which variants answered, stacked over time: the most used ones by name, the rest together, in grey.

    A variant has the same colour in the charts of all series that stand ``beside`` each other.
    """
    with mpl.rc_context(STYLE):
        figure, axes = _figure()
        labels = sorted(_most_used(series))
        known = sorted({*labels, *(v for one in beside for v in _most_used(one))})
        layers = [np.asarray(series.variants[v], dtype=float) for v in labels]
        colours: list[Any] = [_shade(known.index(v), len(known)) for v in labels]
        if rest := [series.variants[v] for v in series.variants if v not in labels]:
            layers.append(np.sum(rest, axis=0))
            labels.append(f"{len(rest)} others")
            colours.append(_OTHERS)
        if layers:
            axes.stackplot(series.times, *layers, labels=labels, colors=colours, step="mid", lw=0)
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7.5)
        axes.set(xlabel="seconds", ylabel="answers/s", ylim=(0.0, None))
        return svg_of(figure)


def latency_chart(latencies: Mapping[str, Sequence[tuple[float, int]]], slos: Sequence[float]) -> str:
    """Share of answers within a latency (log scale); dashed lines at the SLOs (seconds)."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure()
        for line, (name, buckets) in zip(_lines(len(latencies)), latencies.items(), strict=True):
            if not buckets:
                continue
            seconds, counts = np.asarray(buckets, dtype=float).T
            share = 100.0 * np.cumsum(counts) / counts.sum()
            axes.plot(1e3 * seconds, share, lw=1.4, label=name, **line)
        for slo in sorted(set(slos)):
            axes.axvline(1e3 * slo, color="#666666", ls="--", lw=0.9)
        axes.set(xlabel="latency, ms (dashed: SLO)", ylabel="% of answers within", xscale="log", ylim=(0.0, 101.0))
        if len(latencies) > 1:
            axes.legend(loc="lower right")
        return svg_of(figure)


def bars_chart(values: Mapping[str, tuple[float, float]], label: str) -> str:
    """One bar a name: (value, half width of its confidence interval)."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(height=0.6 + 0.32 * len(values))
        names = list(values)[::-1]
        heights = [values[n][0] for n in names]
        errors = [values[n][1] for n in names]
        colours = list(_cycle(len(names)))[::-1]
        axes.barh(names, heights, xerr=np.nan_to_num(errors), color=colours, height=0.6, capsize=2.5)
        axes.set(xlabel=label)
        axes.grid(axis="y", visible=False)
        return svg_of(figure)


def _most_used(series: Series) -> list[str]:
    return sorted(series.variants, key=lambda v: (-sum(series.variants[v]), v))[:_TOP_VARIANTS]


def _figure(height: float = 2.6) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.2, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def _legend_above(axes: Axes) -> None:
    """Where it hides nothing of what is drawn."""
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, fontsize=7.5)


def _marks(axes: Axes, series: Series) -> None:
    for at, text in series.marks:
        axes.axvline(at, color="#999999", lw=0.6, ls=":")
        if text:
            axes.annotate(text, (at, 1.0), xycoords=("data", "axes fraction"), fontsize=6.5, rotation=90, va="top")


def _cycle(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def _lines(count: int) -> list[dict[str, Any]]:
    """Each other than the rest: where colours come again, dashed."""
    return [{"color": c, "ls": _DASHES[i // len(COLOURS) % len(_DASHES)]} for i, c in enumerate(_cycle(count))]


def _shade(index: int, count: int) -> tuple[float, float, float, float]:
    red, green, blue, alpha = mpl.colormaps["viridis"](0.08 + 0.88 * index / max(1, count - 1))
    return (float(red), float(green), float(blue), float(alpha))


def svg_of(figure: Figure) -> str:
    """The figure as SVG text, without what differs between equal drawings."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]

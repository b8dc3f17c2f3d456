"""Pictures of measured systems beside what was promised for them: accuracy above violations, a column a panel."""

from dataclasses import dataclass, field
from math import isnan

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reproduce.drawing import panels as panels_of

_ABREAST = 3
_LEAST = 1e-5
"""Percent; smaller violations are drawn as none."""


@dataclass
class Line:
    """One system in one panel.

    ``measured``, ``promised``: (accuracy, violation), ratios, at each x; NaN where nothing was promised.
    """

    panel: str
    system: str
    x: list[float] = field(default_factory=list)
    measured: list[tuple[float, float]] = field(default_factory=list)
    promised: list[tuple[float, float]] = field(default_factory=list)

    def add(self, x: float, measured: tuple[float, float], promised: tuple[float | None, float | None]) -> None:
        """A point."""
        self.x.append(x)
        self.measured.append(measured)
        accuracy, violation = promised
        self.promised.append((float("nan"), float("nan")) if accuracy is None else (accuracy, violation or 0.0))


def picture(title: str, x_label: str, lines: list[Line]) -> Figure:
    """``lines``, three panels abreast; what was promised is dashed."""
    panels = list(dict.fromkeys(line.panel for line in lines))
    systems = list(dict.fromkeys(line.system for line in lines))
    columns = min(len(panels), _ABREAST)
    tiers = -(-len(panels) // columns)
    drawing, axes = panels_of(2 * tiers, columns, 1.0 + 4.2 * columns, 5.6 * tiers + 0.4)
    for at, panel in enumerate(panels):
        tier, column = divmod(at, columns)
        pair = (axes[2 * tier * columns + column], axes[(2 * tier + 1) * columns + column])
        for line in (one for one in lines if one.panel == panel):
            for what in range(2):
                _plot(pair[what], line, what, f"C{systems.index(line.system)}")
        pair[0].set(title=panel, ylabel="accuracy, %")
        pair[1].set(xlabel=x_label, ylabel="violations, %")
        pair[1].set_yscale("symlog", linthresh=_LEAST)
        pair[1].set_ylim(bottom=0.0)
        pair[0].legend(fontsize=7)
    drawing.suptitle(f"{title} (dashed: promised)" if any(_promises(line) for line in lines) else title)
    return drawing


def _plot(axes: Axes, line: Line, what: int, colour: str) -> None:
    measured = [100.0 * m[what] for m in line.measured]
    axes.plot(line.x, measured, marker="o", ms=3.0, lw=1.2, color=colour, label=line.system)
    if _promises(line):
        axes.plot(line.x, [100.0 * p[what] for p in line.promised], lw=1.0, ls="--", color=colour)


def _promises(line: Line) -> bool:
    return not all(isnan(accuracy) for accuracy, _ in line.promised)

"""Pictures of measured systems beside what was promised for them: accuracy above violations, a column a panel."""

from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_WHAT = ("accuracy", "violations")
_LEAST = 1e-5
"""Percent; smaller violations are drawn as none."""


@dataclass
class Line:
    """``measured``, ``promised``: (accuracy, violation), ratios, at each x; NaN where nothing was promised."""

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


def picture(title: str, x_label: str, lines: list[Line], file: Path) -> None:
    """Draw ``lines`` into ``file`` (PNG); what was promised is dashed."""
    panels = list(dict.fromkeys(line.panel for line in lines))
    drawing = Figure(figsize=(1.0 + 4.0 * len(panels), 6.2), dpi=90, layout="constrained")
    FigureCanvasAgg(drawing)
    axes = drawing.subplots(2, len(panels), squeeze=False, sharex="col", sharey="row")
    for line in lines:
        column = panels.index(line.panel)
        for row in range(2):
            solid = axes[row, column].plot(
                line.x, [100.0 * m[row] for m in line.measured], marker="o", ms=3.0, lw=1.2, label=line.system
            )
            promised = [100.0 * p[row] for p in line.promised]
            axes[row, column].plot(line.x, promised, lw=1.0, ls="--", color=solid[0].get_color())
    for column, panel in enumerate(panels):
        axes[0, column].set(title=panel, ylabel=f"{_WHAT[0]}, %")
        axes[1, column].set(xlabel=x_label, ylabel=f"{_WHAT[1]}, % (dashed: promised)")
        axes[1, column].set_yscale("symlog", linthresh=_LEAST)
        axes[1, column].set_ylim(bottom=0.0)
        axes[0, column].legend(fontsize=7)
    drawing.suptitle(title)
    file.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(file)

"""What all drawings share: a canvas of panels in the reports' style, as SVG for a page and as PNG for the documents."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sluicegate.simulator.report.charts import STYLE, svg_of


def panels(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of ``width`` x ``height`` inches and its panels, row by row."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    grid: Any = figure.subplots(rows, columns, squeeze=False)
    return figure, list(grid.ravel())


def svg(figure: Figure) -> str:
    """For a page."""
    with mpl.rc_context(STYLE):
        return svg_of(figure)


def png(figure: Figure, path: Path) -> None:
    """For the documents, small."""
    with mpl.rc_context(STYLE):
        FigureCanvasAgg(figure)
        figure.savefig(path, dpi=90, metadata={"Software": None})

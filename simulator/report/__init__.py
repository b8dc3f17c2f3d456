"""Report pages: one self-contained HTML file with its plots inside, for simulations, comparisons and live runs.

``Series`` is what a plot takes; ``charts`` draws SVG; ``page`` puts it together.
"""

from sluicegate.simulator.report.charts import accuracy_chart, bars_chart, demand_chart, latency_chart, variants_chart
from sluicegate.simulator.report.page import Figure, Table, Tile, page
from sluicegate.simulator.time_series import Series, SeriesFold

__all__ = [
    "Figure",
    "Series",
    "SeriesFold",
    "Table",
    "Tile",
    "accuracy_chart",
    "bars_chart",
    "demand_chart",
    "latency_chart",
    "page",
    "variants_chart",
]

"""``sluice describe metrics``: the metric catalogue, for reading or as the reference page."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from sluicegate.sluice.console import JsonOption, out, print_json
from sluicegate.stages.telemetry.metric_catalogue import CATALOGUE, as_markdown


def metrics(
    name: Annotated[str, typer.Argument(help="Only those whose name contains this.")] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List every metric: its unit, its labels, what it means and what to do."""
    chosen = [metric for metric in CATALOGUE if name in metric.exported]
    if markdown:
        typer.echo(as_markdown(), nl=False)
        return
    if as_json:
        print_json({"metrics": [{"exported": metric.exported, **asdict(metric)} for metric in chosen]})
        return
    shown = Table("metric", "labels", "means", "what to do", title="sluice describe metrics", show_lines=True)
    for metric in chosen:
        name = f"{metric.exported}\n[dim]{metric.unit}[/]"
        shown.add_row(name, ", ".join(metric.labels), metric.meaning, metric.remedy)
    out.print(shown)

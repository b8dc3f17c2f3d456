"""``sluice describe metrics``: the metric catalogue, for reading or as the reference page."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from sluicegate.profiles.formats.field_errors import meant
from sluicegate.sluice.console import JsonOption, out, print_json
from sluicegate.stages.telemetry.metric_catalogue import CATALOGUE, as_markdown


def metrics(
    name: Annotated[str, typer.Argument(help="Only those whose name contains this.")] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List every metric: its unit, its labels, what it means and what to do."""
    chosen = [metric for metric in CATALOGUE if name.lower() in metric.exported]
    if markdown:
        typer.echo(as_markdown(), nl=False)
        return
    if as_json:
        print_json({"metrics": [{"exported": metric.exported, **asdict(metric)} for metric in chosen]})
        return
    for metric in chosen:
        labels = f", by {', '.join(metric.labels)}" if metric.labels else ""
        out.print(f"[bold]{metric.exported}[/]  [dim]{metric.unit}{labels}[/]", highlight=False)
        for said in (metric.meaning, metric.remedy):
            out.print(Padding(Text(said, overflow="fold"), (0, 0, 0, 4)))
    if not chosen:
        near = meant(name, [metric.exported for metric in CATALOGUE])
        out.print(f"no metric has {name!r} in its name{near}", markup=False, highlight=False)

"""A figure's page: drawings, tables with the paper's numbers beside ours, why they differ. PNG and JSON beside it."""

import json
import math
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Drawing

from bench.protean.runs import Options
from bench.proteus.plots import png, svg
from simulator.report.page import Figure, Table, page

MODELS = (
    "The models are synthetic: the paper gives no table of times, memory, bandwidth or slowdowns. "
    "What it says of them holds."
)


@dataclass(frozen=True)
class Result:
    """A figure. ``drawings``: (caption, plot); the first one is the PNG. ``data``: everything measured."""

    name: str
    title: str
    intro: str
    drawings: Sequence[tuple[str, Drawing]]
    tables: Sequence[Table]
    notes: Sequence[str]
    data: Mapping[str, Any]


def beside(title: str, rows: Sequence[tuple[str, str, str]]) -> Table:
    """What the paper has and what we have."""
    return Table(title, ("", "paper", "here"), rows)


def by_system(title: str, results: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row a system: the figures that every page has."""
    header = ("system", "strict on time", "strict P99", "best-effort P50", "best-effort P99", "strict/s a GPU")
    rows = [
        (
            name,
            f"{100 * r['slo_compliance_strict']:.2f} %",
            f"{r['p99_strict_ms']:.0f} ms",
            f"{r['p50_best_effort_ms']:.0f} ms",
            f"{r['p99_best_effort_ms']:.0f} ms",
            f"{r['strict_qps_per_gpu']:.0f}",
        )
        for name, r in results.items()
    ]
    return Table(title, header, rows)


def write(result: Result, options: Options, took_s: float) -> Path:
    """The page, its PNG and its JSON in ``options.out``; the page's path."""
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / f"protean-{result.name}"
    seeds = f"{options.seeds} seeds from {options.first}, {options.seconds:g} s each"
    ran = (
        f"python bench/slices.py --figure {result.name} --seeds {options.seeds} --seconds {options.seconds:g}:"
        f" {took_s:.0f} CPU s, {platform.machine()}, {time.strftime('%Y-%m-%d', time.gmtime())}, {seeds}"
    )
    kind = f"Table {result.name[1:]}" if result.name.startswith("t") else f"Fig. {result.name}"
    kind = "more" if result.name == "gpus" else kind
    text = page(
        f"PROTEAN, {kind}: {result.title}",
        intro=result.intro,
        figures=[Figure(caption, svg(drawing)) for caption, drawing in result.drawings],
        tables=result.tables,
        notes=[*result.notes, MODELS, ran],
    )
    path = stem.with_suffix(".html")
    path.write_text(text)
    png(result.drawings[0][1], stem.with_suffix(".png"))
    stem.with_suffix(".json").write_text(json.dumps(_plain(result.data), indent=1))
    return path


def _plain(value: Any) -> Any:
    """Without NaN, which JSON does not know."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value

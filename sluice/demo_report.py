"""The demo's report: ``index.html`` with plots of what the run produced, and ``summary.json``."""

import base64
import io
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import orjson
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from domain.errors import ConfigurationError
from profiles.catalogue import Catalogue
from sluice.demo import DemoResult

mpl.use("Agg")

_ENDED = ("answered_on_time", "late", "expired", "dropped", "rejected", "failed", "lost", "duplicates")


def write_report(result: DemoResult, catalogue: Catalogue, folder: Path) -> Path:
    """Write the page and ``summary.json``; returns the page."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
        (folder / "summary.json").write_bytes(orjson.dumps(result.summary, option=options))
        page = folder / "index.html"
        page.write_text(_page(result, catalogue), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"report {folder}: {error.strerror}; give a writable folder with --report") from error
    return page


def _page(result: DemoResult, catalogue: Catalogue) -> str:
    summary = result.summary
    facts = "".join(f"<div><b>{_number(summary[k])}</b><span>{k.replace('_', ' ')}</span></div>" for k in _ENDED)
    plots = "".join(
        f"<figure><img alt='{escape(title)}' src='data:image/svg+xml;base64,{_svg(figure)}'><figcaption>{escape(title)}"
        "</figcaption></figure>"
        for title, figure in _plots(result, catalogue)
    )
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Sluicegate demo</title><style>
body{{font:16px/1.5 system-ui,sans-serif;max-width:1080px;margin:2rem auto;padding:0 1rem;color:#1c2733}}
h1{{margin-bottom:.2rem}} .facts{{display:flex;flex-wrap:wrap;gap:.6rem;margin:1rem 0}}
.facts div{{background:#eef3f7;border-radius:8px;padding:.5rem .9rem;text-align:center}}
.facts b{{display:block;font-size:1.3rem}} .facts span{{font-size:.8rem;color:#51606e}}
figure{{margin:1.4rem 0}} img{{width:100%}} figcaption{{color:#51606e;font-size:.9rem}}
table{{border-collapse:collapse;margin:1rem 0}}
td,th{{border-bottom:1px solid #d6dee6;padding:.3rem .8rem;text-align:right}}
td:first-child,th:first-child{{text-align:left}}</style>
<h1>Sluicegate demo</h1><p>{summary["queries"]} queries through topics, answered by real ONNX variants:
{summary["slo_attainment"]:.2%} on time at {summary["effective_accuracy"]:.2%} effective accuracy, over
{summary["plan_epochs"]} plan epochs. Latency p50 {summary["p50_ms"]:.1f} ms, p99 {summary["p99_ms"]:.1f} ms.</p>
<div class="facts">{facts}</div>{plots}{_checks(summary)}{_plans(result)}</html>"""


def _checks(summary: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{c['answers']}</td><td>{c['accuracy_observed']:.2%}</td>"
        f"<td>{c['accuracy_profiled']:.2%}</td><td>{c['standard_errors_apart']:.1f}</td></tr>"
        for name, c in summary["accuracy_check"].items()
    )
    head = "<tr><th>variant<th>answers<th>right, observed<th>profiled<th>standard errors apart</tr>"
    return f"<h2>Are the answers right?</h2><p>Labels returned, against the true ones.</p><table>{head}{rows}</table>"


def _plans(result: DemoResult) -> str:
    rows = "".join(
        f"<tr><td>{p.epoch.term}.{p.epoch.number}</td><td>{p.created - result.started:.1f} s</td>"
        f"<td>{escape(p.reason)}</td><td>{'; '.join(f'{a} {q:.0f}/s' for a, q in sorted(p.demand.items()))}</td>"
        f"<td>{'; '.join(f'{x.device}: {escape(chr(43).join(x.variants))} {x.share:.0%}' for x in p.placements)}</td>"
        f"<td>{1e3 * p.solve_s:.0f} ms</td></tr>"
        for p in result.observer.plans
    )
    head = "<tr><th>epoch<th>at<th>because<th>demand<th>placements<th>solved in</tr>"
    return f"<h2>Plans</h2><table>{head}{rows}</table>"


def _plots(result: DemoResult, catalogue: Catalogue) -> list[tuple[str, Figure]]:
    seconds = result.observer.seconds
    first = int(result.started)
    span = np.arange(0, max(seconds, default=first) - first + 1)
    rows = [seconds.get(first + int(s)) for s in span]
    epochs = [p.created - result.started for p in result.observer.plans]
    flow, axes = _axes("queries/s")
    axes.plot(span, [r.asked if r else 0 for r in rows], label="demand", color="#51606e", lw=1.5)
    axes.plot(span, [r.on_time if r else 0 for r in rows], label="goodput", color="#1f8a5b", lw=2)
    axes.fill_between(span, [r.missed if r else 0 for r in rows], label="missed", color="#d1495b", alpha=0.6)
    _finish(axes, epochs)
    accuracy, axes = _axes("of the best variant's accuracy")
    known = [(s, r.accuracy / r.on_time) for s, r in zip(span, rows, strict=True) if r and r.on_time]
    axes.plot([s for s, _ in known], [100 * a for _, a in known], color="#2266aa", lw=2, label="effective accuracy, %")
    _finish(axes, epochs)
    mix, axes = _axes("queries/s")
    names = sorted({n for r in rows if r for n in r.variants}, key=lambda n: _rank(n, catalogue))
    stacked = [[r.variants.get(n, 0) if r else 0 for r in rows] for n in names]
    if names:
        colours = [mpl.colormaps["viridis"](x) for x in np.linspace(0.05, 0.95, len(names))]
        axes.stackplot(span, stacked, labels=names, colors=colours)
    _finish(axes, epochs)
    latency, axes = _axes("answers", "latency, ms")
    buckets = result.observer.fold.latency.buckets()
    if buckets:
        edges = np.geomspace(max(1e-4, buckets[0][0]), buckets[-1][0] * 1.01, 60)
        values, weights = zip(*buckets, strict=True)
        axes.hist(1e3 * np.array(values), bins=list(1e3 * edges), weights=weights, color="#2266aa")
    axes.set_xscale("log")
    for app in result.summary["variants_used"]:
        axes.axvline(1e3 * catalogue.apps[app].slo, color="#d1495b", ls="--", label=f"SLO of {app}")
    axes.legend(frameon=False)
    return [
        ("Demand and goodput; dotted: plan epochs", flow),
        ("Effective accuracy, normalised by each app's best variant", accuracy),
        ("Which variants answered (least accurate at the bottom)", mix),
        ("Latency of all answers", latency),
    ]


def _rank(name: str, catalogue: Catalogue) -> tuple[str, float]:
    app, _, variant = name.partition("/")
    known = catalogue.variants.get(variant)
    return app, known.accuracy if known else 0.0


def _axes(y: str, x: str = "seconds") -> tuple[Figure, Axes]:
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _finish(axes: Axes, epochs: list[float]) -> None:
    for at in epochs:
        if at >= 0:
            axes.axvline(at, color="#9aa7b4", ls=":", lw=1)
    axes.margins(x=0)
    axes.legend(frameon=False, loc="upper left", fontsize=8, ncols=3)


def _svg(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    return base64.b64encode(buffer.getvalue()).decode()


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
